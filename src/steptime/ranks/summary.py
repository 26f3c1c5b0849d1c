"""One rank in a few kilobytes: all that comparing it with others needs. What `summarise` makes and `compare` takes.

Traces are large and ranks are many, so each is reduced where it is read, and only this travels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steptime.arrays import Bool, Int64

MOST_CALLS = 512
"""Collectives that a summary keeps, 32 bytes each: the first ones of each kind, in proportion to how many it has."""
LEAST_CALLS = 8
"""Of each kind."""
MOST_BLOCKS = 256
"""Columns of the series over all steps of a recording: blocks of 1, 2, 4 … steps."""


@dataclass(frozen=True, slots=True, eq=False)
class Exchange:
    """Collectives of one kind in one process group, by one rank, in time order. members: the ranks of the group as the
    trace spells them, "" where it does not.

    calls: of all that the steps hold; the columns (k,) hold the first of them. step: number of the step among those
    summarised, begin: ns, duration: ns, bytes: of the call, -1 where not known. exposed: ns of all calls together in
    which nothing but communication ran.
    """

    name: str
    group: str
    size: int
    members: str
    calls: int
    exposed: int
    step: Int64
    begin: Int64
    duration: Int64
    bytes: Int64

    @property
    def key(self) -> tuple[str, str, int, str]:
        """What is the same collective on all ranks."""
        return self.name, self.group, self.size, self.members


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """What a rank did of its own in each step, by the watch alone: ns outside of the phases that wait for others.

    first: number of the first step; width: steps of one column; own: (k,) mean of the column's steady steps, -1 where
    it has none.
    """

    first: int
    width: int
    own: Int64


@dataclass(frozen=True, slots=True, eq=False)
class RankSummary:
    """rank, name, host: who. steps: that the times are of; step: mean ns. accounts: ns per step, by the numbers of
    `ledger.Account`. numbers: of the steps in the job, where the recording knows them, () otherwise. flops: per step,
    0 where not known. exchanges: what it exchanged in its profiled steps. series: of a
    recording. world: ranks of the whole job."""

    rank: int
    name: str
    host: str
    steps: int
    step: float
    accounts: tuple[float, ...]
    exchanges: tuple[Exchange, ...] = ()
    numbers: tuple[int, ...] = ()
    flops: float = 0.0
    series: Series | None = None
    world: int | None = None


def kept_calls(counts: list[int]) -> list[int]:
    """How many of each kind a summary keeps: a rule of the counts alone, so that all ranks keep the same ones."""
    whole = sum(counts)
    if whole <= MOST_CALLS:
        return counts
    return [min(count, max(LEAST_CALLS, MOST_CALLS * count // whole)) for count in counts]


def blocks(own: Int64, known: Bool, first: int) -> Series | None:
    """The series of a value per step, in columns of the least power of two that leaves no more than MOST_BLOCKS.

    own: (n,) ns; known: which of them are steady; first: number of the first step.
    """
    if not known.any():
        return None
    width = 1
    while -(-len(own) // width) > MOST_BLOCKS:
        width *= 2
    return Series(first, width, _block_means(np.where(known, own, -1), width))


def widened(series: Series, width: int) -> Series:
    """The same in wider columns. width: a power of two times the series' own."""
    factor = width // series.width
    return series if factor == 1 else Series(series.first, width, _block_means(series.own, factor))


def _block_means(values: Int64, width: int) -> Int64:
    """Means of `width` values each, without the unknown (-1)."""
    missing = -len(values) % width
    padded = np.append(values, np.full(missing, -1)).reshape(-1, width)
    known = padded >= 0
    count = known.sum(axis=1)
    total = np.where(known, padded, 0).sum(axis=1)
    return np.where(count > 0, total // np.maximum(count, 1), -1)
