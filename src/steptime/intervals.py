"""Algebra of half-open time intervals, exact to the nanosecond.

A set of intervals is sorted, disjoint, without touching neighbours and without empty members. So two sets are equal as
sets of instants exactly if their columns are equal, and every length is a plain sum. All times are int64 ns; [start,
end) contains its start and not its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from steptime.arrays import PIECE, Bool, Int64, unique


@dataclass(frozen=True, slots=True, eq=False)
class Intervals:
    """Set of instants as sorted, disjoint, non-touching, non-empty [start, end). Make one with `union` or `EMPTY`.

    Raises ValueError for columns that violate this."""

    start: Int64
    end: Int64

    def __post_init__(self) -> None:
        if self.start.shape != self.end.shape or np.any(self.end <= self.start):
            raise ValueError("every interval of a set has a start below its end")
        if np.any(self.start[1:] <= self.end[:-1]):
            raise ValueError("the intervals of a set are sorted, disjoint and do not touch")
        self.start.flags.writeable = False
        self.end.flags.writeable = False

    def __len__(self) -> int:
        return len(self.start)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Intervals):
            return NotImplemented
        return np.array_equal(self.start, other.start) and np.array_equal(self.end, other.end)

    __hash__ = None  # type: ignore[assignment]


EMPTY = Intervals(np.empty(0, np.int64), np.empty(0, np.int64))


def union(start: npt.ArrayLike, end: npt.ArrayLike) -> Intervals:
    """Instants in any of the given intervals, which may overlap, touch and come in any order.

    Empty and reversed intervals contain no instant."""
    starts, stops = np.asarray(start, np.int64), np.asarray(end, np.int64)
    del start, end  # whoever made them for this call alone holds them no longer
    kept = stops > starts
    if not kept.all():
        starts, stops = starts[kept], stops[kept]
    if not len(starts):
        return EMPTY
    if np.any(starts[1:] < starts[:-1]):
        order = np.argsort(starts, kind="stable")
        starts = starts[order]
        stops = stops[order]
        del order
    reach = np.maximum.accumulate(stops)
    del stops
    apart = np.ones(len(starts) + 1, np.bool_)
    np.greater(starts[1:], reach[:-1], out=apart[1:-1])
    return Intervals(starts[apart[:-1]], reach[apart[1:]])


def join(*sets: Intervals) -> Intervals:
    """Instants in any of the sets."""
    if not sets:
        return EMPTY
    return union(np.concatenate([each.start for each in sets]), np.concatenate([each.end for each in sets]))


def intersect(first: Intervals, second: Intervals) -> Intervals:
    """Instants in both sets."""
    return _combine(first, second, keep_second=True)


def subtract(first: Intervals, second: Intervals) -> Intervals:
    """Instants in the first set but not in the second."""
    return _combine(first, second, keep_second=False)


def instants(*columns: npt.ArrayLike) -> Int64:
    """Distinct times of the columns, ascending."""
    return unique(np.concatenate([np.asarray(column, np.int64) for column in columns]))


def clip(intervals: Intervals, start: int, end: int) -> Intervals:
    """Instants of the set in [start, end)."""
    return union(np.maximum(intervals.start, start), np.minimum(intervals.end, end))


def contains(intervals: Intervals, times: npt.ArrayLike) -> Bool:
    """Mask of the times that are in the set."""
    instants = np.asarray(times, np.int64)
    inside, ends = np.empty(instants.shape, np.bool_), np.append(np.iinfo(np.int64).min, intervals.end)
    for first in range(0, len(instants), PIECE):
        part = instants[first : first + PIECE]
        inside[first : first + PIECE] = part < ends[np.searchsorted(intervals.start, part, side="right")]
    return inside


def touching(intervals: Intervals, start: Int64, end: Int64) -> Bool:
    """Mask: which of the intervals from `start` to `end` overlap an interval of the set."""
    found = np.empty(len(start), np.bool_)
    for first in range(0, len(start), PIECE):
        part = slice(first, first + PIECE)
        begun = np.searchsorted(intervals.start, end[part])
        found[part] = np.searchsorted(intervals.end, start[part], side="right") < begun
    return found


def total(intervals: Intervals) -> int:
    """Length of the set in ns."""
    return int((intervals.end - intervals.start).sum())


def measure(intervals: Intervals, start: npt.ArrayLike, end: npt.ArrayLike) -> Int64:
    """Length of the set within each window [start, end), ns; 0 for an empty or reversed window."""
    starts, stops = np.asarray(start, np.int64), np.asarray(end, np.int64)
    return _length_before(intervals, np.maximum(starts, stops)) - _length_before(intervals, starts)


def claim(start: npt.ArrayLike, end: npt.ArrayLike, sets: Sequence[Intervals]) -> Int64:
    """Assigns each instant of each window to the first set that contains it.

    start, end: (n,) ns, end >= start. Returns (n, len(sets) + 1) ns: a column per set, in order, and last the unclaimed
    rest. Rows sum to end - start exactly."""
    starts, stops = np.asarray(start, np.int64), np.asarray(end, np.int64)
    claimed, columns = EMPTY, [np.zeros(len(starts), np.int64)]
    for each in sets:
        claimed = join(claimed, each) if len(claimed) else each
        columns.append(measure(claimed, starts, stops))
    columns.append(stops - starts)
    reached = np.stack(columns, axis=1)
    return reached[:, 1:] - reached[:, :-1]


def _combine(first: Intervals, second: Intervals, *, keep_second: bool) -> Intervals:
    """Elementary intervals between all boundaries that are in the first set and (not) in the second."""
    if not len(first):
        return EMPTY
    boundaries = np.concatenate((first.start, first.end, second.start, second.end))
    boundaries.sort(kind="stable")  # a merge sort, quick with four sorted runs
    kept = np.zeros(len(boundaries) + 1, np.bool_)
    kept[1:-1] = contains(first, boundaries[:-1]) & (contains(second, boundaries[:-1]) == keep_second)
    # Of equal boundaries all intervals are kept or none, so the empty ones between them change no run's ends.
    return Intervals(boundaries[kept[1:] & ~kept[:-1]], boundaries[kept[:-1] & ~kept[1:]])


def _length_before(intervals: Intervals, times: Int64) -> Int64:
    """Length of the set before each time, ns."""
    lengths = np.append(0, np.cumsum(intervals.end - intervals.start))
    index = np.searchsorted(intervals.start, times, side="right")
    ends = np.append(np.iinfo(np.int64).min, intervals.end)[index]
    before: Int64 = lengths[index] - np.where(ends > times, ends - times, 0)
    return before
