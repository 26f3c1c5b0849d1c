"""Where steps end.

One law: a step ends with the last update of a cycle: the end of the burst of updates before an optimiser that has
already stepped in this cycle steps again. So several optimisers, accumulation, closures and skipped updates (the
scaler's step counts) all make one step. Without optimisers a step ends with a backward, without backwards with a
forward.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steptime.arrays import Int64
from steptime.journal import Flag, Kind
from steptime.timeline.lane import Lane
from steptime.timeline.timeline import Mode

UPDATES = (Kind.OPTIMIZER_STEP, Kind.SCALER_STEP)


@dataclass(frozen=True, slots=True)
class Borders:
    """Ends of the steps in time order, ns; a step begins where the one before it ends, the first at `begin`."""

    mode: Mode
    begin: int
    ends: Int64


def find_borders(lane: Lane, unwatched: Lane, stamps: Int64) -> Borders:
    """The steps of a training thread. stamps: borders that the probe counted itself while the watch was off."""
    mode, ends = _watched_ends(lane, unwatched)
    if mode is not Mode.FORWARD:
        ends = np.concatenate((ends, stamps))
    ends = np.unique(ends)
    return Borders(mode, _first_begin(lane, ends), ends)


def full_backwards(lane: Lane) -> Lane:
    """Outermost backwards; torch.autograd.grad counts only in a job that knows nothing else."""
    backwards = lane.of(Kind.BACKWARD).outermost()
    full = backwards.where(~backwards.flagged(Flag.PARTIAL))
    return full if len(full) else backwards


def _watched_ends(lane: Lane, unwatched: Lane) -> tuple[Mode, Int64]:
    updates, backwards = lane.of(*UPDATES).outermost(), full_backwards(lane)
    if len(updates):
        return Mode.OPTIMIZER, _cycle_ends(updates, _reaches(updates, backwards), unwatched)
    if len(backwards):
        return Mode.BACKWARD, backwards.end
    return Mode.FORWARD, _forward_ends(lane)


def _reaches(updates: Lane, backwards: Lane) -> Int64:
    """Ends of the updates; an update inside a backward (fused by hooks) reaches to the end of that backward."""
    if not len(backwards):
        return updates.end
    found = np.searchsorted(backwards.begin, updates.begin, side="right") - 1
    around = backwards.end[np.maximum(found, 0)]
    return np.where((found >= 0) & (around >= updates.end), around, updates.end)


@dataclass(frozen=True, slots=True)
class _Cycle:
    """Updates of one step: the optimisers in their order, and the end of each update. whole: an update of the next
    cycle ended it, and neither the run nor a window without watch."""

    optimizers: tuple[int, ...]
    ends: tuple[int, ...]
    whole: bool

    @property
    def members(self) -> frozenset[int]:
        """The optimisers, in whatever order."""
        return frozenset(self.optimizers)


def _cycle_ends(updates: Lane, reaches: Int64, unwatched: Lane) -> Int64:
    """The cyclic-set rule, run anew after each window without watch: what stepped in there is not known.

    The last cycle of a run may be torn (the job was ended between two optimisers): it counts if it updated the same
    optimisers as some whole cycle.
    """
    cycles = _handed_over(_cycles(updates, reaches, unwatched))
    known = {cycle.members for cycle in cycles if cycle.whole}
    ends = [cycle.ends[-1] for cycle in cycles if cycle.whole or not known or cycle.members in known]
    return np.array(ends, np.int64)


def _cycles(updates: Lane, reaches: Int64, unwatched: Lane) -> list[_Cycle]:
    turns = np.searchsorted(unwatched.begin, updates.begin).tolist()
    cycles: list[_Cycle] = []
    seen: dict[int, int] = {}
    turn = -1
    for each, reach, number in zip(updates.identity.tolist(), reaches.tolist(), turns, strict=True):
        if seen and (number != turn or each in seen):
            cycles.append(_Cycle(tuple(seen), tuple(seen.values()), number == turn))
            seen = {}
        seen[each], turn = reach, number
    return [*cycles, _Cycle(tuple(seen), tuple(seen.values()), False)]


def _handed_over(cycles: list[_Cycle]) -> list[_Cycle]:
    """Cuts a cycle that holds the last step of some optimisers and the first of others: those before it stepped alone,
    these step alone after it (layers trained one after the other)."""
    found = cycles[:1]
    for before, cycle, after in zip(cycles, cycles[1:], cycles[2:], strict=False):
        cut = len(before.optimizers)
        parts = frozenset(cycle.optimizers[:cut]), frozenset(cycle.optimizers[cut:])
        if before.whole and cycle.whole and parts == (before.members, after.members):
            found.append(_Cycle(cycle.optimizers[:cut], cycle.ends[:cut], True))
            found.append(_Cycle(cycle.optimizers[cut:], cycle.ends[cut:], True))
        else:
            found.append(cycle)
    return found + cycles[1:][-1:]


def _forward_ends(lane: Lane) -> Int64:
    """Inference: per batch of a loader where there is one, else whenever a root of this cycle is called again."""
    forwards = lane.of(Kind.FORWARD).outermost()
    fetched = lane.of(Kind.LOADER_NEXT)
    if 2 <= len(fetched) <= len(forwards):
        before = np.searchsorted(forwards.begin, np.append(fetched.begin[1:], np.iinfo(np.int64).max)) - 1
        return np.asarray(forwards.end[before[before >= 0]])
    nothing = forwards.where(np.zeros(len(forwards), np.bool_))
    return _cycle_ends(forwards, forwards.end, nothing) if len(forwards) else forwards.end


def _first_begin(lane: Lane, ends: Int64) -> int:
    """The first sign of training: the first step's begin, where no border stands before it."""
    if not len(ends):
        return 0
    kinds = (Kind.LOADER_START, Kind.LOADER_NEXT, Kind.FORWARD, Kind.BACKWARD, *UPDATES)
    signs = lane.of(*kinds).begin
    return int(min(signs[0], ends[0])) if len(signs) else int(ends[0])
