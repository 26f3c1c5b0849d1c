"""Several ranks beside one another: which of them the others wait for.

One law: durations only are compared, never times of day, because clocks of different hosts differ. A collective ends on
all ranks together, so the rank whose kernel is the shortest arrived last, and the others waited the difference.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from steptime.findings.case import RankUse
from steptime.intervals import contains, union
from steptime.kineto.table import Category, Trace
from steptime.ledger.ledger import Account, Ledger
from steptime.links.names import COMMUNICATION_KERNEL, matching

Int64 = npt.NDArray[np.int64]
KIND = re.compile(r"AllReduce|AllGather|ReduceScatter|Broadcast|Reduce|SendRecv|AllToAll|Generic|\w+")
"""What a collective does, in the names of the kernels of NCCL and RCCL; else the name itself."""
NOTICEABLE = 10_000
"""ns: ranks that arrive within ten microseconds of one another arrive together (a network's round trip)."""


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """What is kept of a rank's trace to compare it with others'. collectives: durations by kind, ns, in time order."""

    rank: int
    steps: int
    step: float
    communication: float
    compute: float
    collectives: dict[str, Int64]


def arrivals_of(trace: Trace, windows: Int64, ledger: Ledger, rank: int) -> Arrivals:
    """The collectives of a trace that begin in its steady steps. windows: (n, 2) ns, those of the ledger, n >= 1."""
    events = trace.events
    chosen = (events.category == Category.KERNEL) & matching(trace, COMMUNICATION_KERNEL.search)
    chosen &= contains(union(windows[:, 0], windows[:, 1]), events.begin)
    rows = np.flatnonzero(chosen)
    rows = rows[np.argsort(events.begin[rows], kind="stable")]
    kinds: dict[str, list[int]] = {}
    for duration, name in zip(events.duration[rows].tolist(), events.name[rows].tolist(), strict=True):
        kinds.setdefault(_kind(trace.symbols[name]), []).append(duration)
    spent = ledger.entries.mean(axis=0)
    return Arrivals(
        rank=rank,
        steps=len(windows),
        step=float(ledger.wall.mean()),
        communication=float(spent[Account.COMMUNICATION]),
        compute=float(spent[Account.COMPUTE]),
        collectives={kind: np.array(members, np.int64) for kind, members in kinds.items()},
    )


def rank_uses(arrivals: Sequence[Arrivals]) -> tuple[RankUse, ...]:
    """The ranks in the order given; empty where there is only one, or where they have no collectives in common.

    The k-th collective of a kind is the same one on all ranks; a kind that some rank has more of is left out.
    """
    if len(arrivals) < 2:
        return ()
    found = [each.collectives for each in arrivals]
    common = [kind for kind in found[0] if all(len(each.get(kind, ())) == len(found[0][kind]) for each in found)]
    if not common:
        return ()
    durations = np.concatenate([np.stack([each[kind] for each in found]) for kind in common], axis=1)
    waits = durations - durations.min(axis=0)
    longest = np.where(waits.max(axis=0) >= NOTICEABLE, waits.max(axis=0), 0)
    last = np.bincount(durations.argmin(axis=0), longest, len(arrivals)) / max(1, int(longest.sum()))
    waiting = waits.sum(axis=1)
    return tuple(
        RankUse(
            each.rank, each.step, each.communication, float(waiting[at]) / each.steps, float(last[at]), each.compute
        )
        for at, each in enumerate(arrivals)
    )


def _kind(name: str) -> str:
    found = KIND.search(re.sub(r"^.*?n?ccl(Dev)?Kernel_?", "", name))
    return found.group() if found else name
