"""Many ranks next to one another: rows by rank, rows by collective, and the late one. The room's central type.

One law: durations decide, never times of day, because clocks of different hosts differ. A collective ends on all ranks
together, so the rank that is in it the shortest arrived last, and the others waited the difference.
All times are nanoseconds per training step unless a name says otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from steptime.analysis.categories import CategoryName
from steptime.quantities import Estimate, SourceLine


@dataclass(frozen=True, slots=True)
class RankRow:
    """One rank among those compared. steps: number of its steps; step: their mean, ns. categories: ns per step, in the
    order of `RankComparison.categories`. waiting: time in collectives before the last rank arrived, ns per step; last:
    fraction of all ranks' waiting that was for this rank. host: "" if unknown."""

    rank: int
    name: str
    host: str
    steps: int
    step: float
    categories: tuple[float, ...]
    waiting: float
    last: float


@dataclass(frozen=True, slots=True)
class CollectiveRow:
    """Collectives of one kind in one process group over all compared ranks. ranks: number of compared ranks; size:
    number of ranks in the group, 0 if unknown. calls: number per step of a rank. bytes: median of a call, None if
    unknown. transfer: time after the last rank arrived; waiting: time before that; exposed: part of both in which
    nothing else ran; all ns per step and rank. algorithm_bandwidth, bus_bandwidth: rates of the median call after the
    last arrival, B/s, the second as NCCL-tests defines it; link_share: fraction of the measured link, None if unknown.
    late: rank that was waited for most; straggler_share: its fraction of the waiting."""

    name: str
    group: str
    size: int
    ranks: int
    calls: float
    bytes: float | None
    transfer: float
    waiting: float
    exposed: float
    algorithm_bandwidth: float | None
    bus_bandwidth: float | None
    late: int | None
    straggler_share: float
    link_share: float | None = None


@dataclass(frozen=True, slots=True)
class HostClock:
    """Clock of a host relative to the first host's. offset: ns to add; uncertainty: half of its 95 % interval, ns;
    samples: number of collective ends that it is from."""

    host: str
    offset: int
    uncertainty: int
    samples: int


@dataclass(frozen=True, slots=True)
class Straggler:
    """Rank or node that the others wait for. ranks: one rank, or all ranks of a slow node; host: "" if unknown.

    waiting: mean time that the others wait, ns per step; share: fraction of all waiting that is for the straggler.
    category: category in which its excess over the others' median is largest, "" if none explains the waiting; excess:
    that excess, ns per step; excesses: excess of each category that has one. arithmetic: its FLOPs divided by the
    others' median, None if unknown. gain: reduction of the job's step if it were at the others' median, by replay.
    since: number of the first step from which on it is late (0: from the start), None without a series; steadiness:
    fraction of the steps since then in which it is late. source: line behind the excess. Raises ValueError without a
    rank."""

    ranks: tuple[int, ...]
    host: str
    waiting: float
    share: float
    category: CategoryName | Literal[""]
    excess: float
    excesses: tuple[tuple[CategoryName, float], ...]
    gain: Estimate
    arithmetic: float | None = None
    since: int | None = None
    steadiness: float | None = None
    source: SourceLine | None = None

    def __post_init__(self) -> None:
        if not self.ranks:
            raise ValueError("somebody is late, or there is no straggler")

    @property
    def node(self) -> bool:
        """True if the straggler is a whole node."""
        return len(self.ranks) > 1


@dataclass(frozen=True, slots=True)
class StragglerSeries:
    """Delay of each rank over time. steps: number of the first step in each column; width: steps per column. ranks:
    rank of each row, the most delayed first, at most a few dozen. late: ns per step behind the first rank, by row and
    column."""

    width: int
    steps: tuple[int, ...]
    ranks: tuple[int, ...]
    late: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class RankComparison:
    """Comparison of the ranks of a job. categories: names of the heat map's columns; rows: one row per rank;
    collectives: the longest first. late: the straggler, None if no rank is late. clocks: clocks of further hosts.
    notes: sentences on what could not be compared. world: number of ranks in the job, None if unknown."""

    categories: tuple[str, ...]
    rows: tuple[RankRow, ...]
    collectives: tuple[CollectiveRow, ...] = ()
    late: Straggler | None = None
    series: StragglerSeries | None = None
    clocks: tuple[HostClock, ...] = ()
    notes: tuple[str, ...] = ()
    world: int | None = None

    def __post_init__(self) -> None:
        """Raises ValueError if a row has other columns than the heat map: a report's file may come from anyone."""
        if any(len(row.categories) != len(self.categories) for row in self.rows):
            raise ValueError("a rank has other categories than the comparison of ranks")


def missing_ranks(worlds: Sequence[int | None]) -> tuple[str, ...]:
    """Caveat if only some ranks of a larger job are known. worlds: size of the job by each rank, None if unknown."""
    world = max((each or 0 for each in worlds), default=0)
    if len(worlds) < 2 or world <= len(worlds):
        return ()
    missing = world - len(worlds)
    who, one = ("1 rank is", "it") if missing == 1 else (f"{missing} ranks are", "one of them")
    return (f"{who} missing, of the job's {world}: {one} may be slower than these.",)
