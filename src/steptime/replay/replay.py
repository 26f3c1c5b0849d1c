"""A replay: steps run again from their dependency graph, as they were and with changes. The room's central type."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steptime.arrays import Int64
from steptime.quantities import Estimate
from steptime.replay.critical_path import PathKind
from steptime.replay.graph import NONE
from steptime.replay.path_names import NamedPath


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a change would save. change: "input free", "syncs free", "one launch", "communication overlapped",
    "allocation free" or "roofline: <kernel>". saved: ns per step, never above cap: what the ledger has in the account
    that the change relieves, ns per step."""

    change: str
    saved: Estimate
    cap: float


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """Some consecutive steps. steps: their indices among the borders that were given. measured, replayed, modelled:
    (n,) ns, the steps as the ledger has them, as the graph gives them again, and as it gives them when nothing is
    replayed that it cannot explain (see `unexplained`). path: the critical path of each, on the replay's
    clock; origin: ns on the trace's clock where that begins. symbols: the trace's.
    """

    steps: Int64
    measured: Int64
    replayed: Int64
    modelled: Int64
    path: NamedPath
    origin: int
    symbols: tuple[str, ...]
    predictions: tuple[Prediction, ...] = ()

    @property
    def error(self) -> float:
        """Median of |modelled / measured - 1|: of the replay by durations and laws alone."""
        return float(np.median(np.abs(self.modelled / np.maximum(self.measured, 1) - 1)))

    @property
    def entries(self) -> Int64:
        """(n, len(PathKind)) ns: the critical path by kind; rows sum to `replayed`."""
        table = np.zeros((len(self.replayed), len(PathKind)), np.int64)
        np.add.at(table, (self.path.step, self.path.kind), self.path.end - self.path.begin)
        return table

    @property
    def critical_path(self) -> tuple[tuple[str, float], ...]:
        """ns per step by kind, longest first; sums to the mean of the replayed steps."""
        means = self.entries.mean(axis=0)
        pairs = [(kind.title, float(means[kind])) for kind in PathKind if means[kind]]
        return tuple(sorted(pairs, key=lambda pair: -pair[1]))

    @property
    def unexplained(self) -> float:
        """Share of the critical path on which the device waited, for longer than any delay of its own, for something
        that the trace does not hold; there is no law for it, so it is replayed as it was."""
        return float(self.entries[:, PathKind.UNEXPLAINED].sum() / max(1, int(self.replayed.sum())))

    def longest(self, count: int = 10) -> tuple[tuple[str, str, float], ...]:
        """(kind, name, ns per step) of what takes most of the critical path; name: of a kernel, an operator or a
        function, "" where there is none."""
        pairs = np.stack((self.path.kind, self.path.name), axis=1)
        keys, inverse = np.unique(pairs, axis=0, return_inverse=True)
        spent = np.zeros(len(keys), np.int64)
        np.add.at(spent, inverse.reshape(-1), self.path.end - self.path.begin)
        order = np.argsort(-spent, kind="stable")[:count].tolist()
        steps = len(self.replayed)
        return tuple((PathKind(int(keys[at, 0])).title, self._name(int(keys[at, 1])), float(spent[at]) / steps)
                     for at in order)  # fmt: skip

    def _name(self, symbol: int) -> str:
        return self.symbols[symbol] if symbol != NONE else ""
