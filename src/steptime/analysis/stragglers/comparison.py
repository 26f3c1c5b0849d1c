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
    """One rank. categories: ns per step, in the order of `RankComparison.accounts`. waiting: in collectives, before the
    last rank arrived; last: share of all waiting that was for this rank. host: "" where nothing says it."""

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
    """Collectives of one kind in one process group over all ranks that were compared. ranks: how many those are; size:
    of the group, 0 where the trace does not say.

    calls: per step of a rank. bytes: of one call, median, None where not known. transfer: ns per step and rank in which
    all were there; waiting: ns per step and rank before the last one was; exposed: the part of both in which nothing
    else ran. algorithm_bandwidth, bus_bandwidth: B/s of the median call behind the last arrival, the second as
    NCCL-tests defines it; link_share: of the measured link, None where that is not known. late: the rank that was
    waited for most; straggler_share: of the waiting.
    """

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
    """A host's clock against the first host's: offset to add, and its uncertainty (half of a 95 % interval), ns; from
    the ends of `samples` collectives."""

    host: str
    offset: int
    uncertainty: int
    samples: int


@dataclass(frozen=True, slots=True)
class Straggler:
    """Who the others wait for. ranks: one, or all of a slow node; host: where, "" where nothing says it.

    waiting: what the others wait on average; share: of all waiting that is for it. account: where its excess over the
    median of the others is largest, "" where none explains the waiting; excess: how much that is; excesses: of all
    categories that have one. arithmetic: its FLOPs over the median of the others, None where not known. gain: what a
    step of the job would be shorter with it at the others' median, by replay. since: number of the first step from
    which on it is late (0: from the start), None where there is no series; steadiness: share of the steps since then in
    which it is. source: the line behind the excess. Raises ValueError without a rank.
    """

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
        """True if it is a whole node."""
        return len(self.ranks) > 1


@dataclass(frozen=True, slots=True)
class StragglerSeries:
    """How late each rank came, step by step. steps: number of the first step of each column; width: steps in one.

    ranks: the rows' ranks, those that vary most first, at most a few dozen. late: ns per step behind the first rank to
    arrive, a row for each rank.
    """

    width: int
    steps: tuple[int, ...]
    ranks: tuple[int, ...]
    late: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class RankComparison:
    """categories: names of the heat map's columns; rows: by rank; collectives: those with most time first. clocks: of
    further hosts. notes: sentences on what could not be compared. world: ranks of the whole job, where known."""

    categories: tuple[str, ...]
    rows: tuple[RankRow, ...]
    collectives: tuple[CollectiveRow, ...] = ()
    late: Straggler | None = None
    series: StragglerSeries | None = None
    clocks: tuple[HostClock, ...] = ()
    notes: tuple[str, ...] = ()
    world: int | None = None

    def __post_init__(self) -> None:
        """Raises ValueError where a row has not the heat map's columns: a report's file may be anybody's."""
        if any(len(row.categories) != len(self.categories) for row in self.rows):
            raise ValueError("a rank has other categories than the comparison of ranks")


def missing_ranks(worlds: Sequence[int | None]) -> tuple[str, ...]:
    """Caveat where only some ranks of a larger job are known. worlds: what each of them says of the job's size."""
    world = max((each or 0 for each in worlds), default=0)
    if len(worlds) < 2 or world <= len(worlds):
        return ()
    missing = world - len(worlds)
    who, one = ("1 rank is", "it") if missing == 1 else (f"{missing} ranks are", "one of them")
    return (f"{who} missing, of the job's {world}: {one} may be slower than these.",)
