"""Nesting: who encloses whom on one thread, and who is innermost at each instant.

Vector arithmetic throughout: a trace of millions of operators nests in a second.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
ROOT = -1
"""The parent of an interval that nothing encloses."""


@dataclass(frozen=True, slots=True, eq=False)
class Nest:
    """Intervals of one thread, parents before their children.

    order: positions of the intervals in the columns that `nest` was given. parent: index into this nest, or ROOT.
    begin, end: ns; a child that outlasts its parent (old traces round to microseconds) ends with it.
    """

    order: Int64
    parent: Int64
    begin: Int64
    end: Int64

    def __len__(self) -> int:
        return len(self.order)


@dataclass(frozen=True, slots=True, eq=False)
class Stretches:
    """Elementary stretches of time in which one interval of a nest is innermost; in time order, without overlap."""

    owner: Int64
    begin: Int64
    end: Int64


def nest(begin: Int64, end: Int64) -> Nest:
    """Nests intervals of one thread; begin and end in ns, in any order."""
    order = np.lexsort((-end, begin))
    starts, stops = begin[order], end[order]
    parent = _enclosing(starts, stops)
    return Nest(order, parent, starts, _within_parents(parent, stops))


def stretches(made: Nest) -> Stretches:
    """The time of each interval outside its children, piece by piece."""
    lasting = np.flatnonzero(made.end > made.begin)
    times = np.concatenate((made.begin[lasting], made.end[lasting]))
    owners = np.concatenate((lasting, made.parent[lasting]))
    opens = np.repeat([1, 0], len(lasting))
    rank = np.concatenate((lasting, -lasting))
    order = np.lexsort((rank, opens, times))
    times, owners = times[order], owners[order]
    begin, end, owner = times[:-1], times[1:], owners[:-1]
    kept = (end > begin) & (owner != ROOT)
    return Stretches(owner[kept], begin[kept], end[kept])


def self_time(made: Nest) -> Int64:
    """The ns of each interval outside its children."""
    found = stretches(made)
    return np.bincount(found.owner, found.end - found.begin, len(made)).astype(np.int64)


def has_descendant(made: Nest, marked: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Which intervals enclose, at any depth, one that is marked."""
    return ancestors(made.parent, marked)


def ancestors(parent: Int64, marked: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Which members of a forest, given each one's parent or ROOT, have a marked one below them."""
    found = np.zeros(len(parent), np.bool_)
    current = _distinct(parent[marked])
    while len(current):
        current = current[(current != ROOT) & ~found[current]]
        found[current] = True
        current = _distinct(parent[current])
    return found


def _distinct(members: Int64) -> Int64:
    """Each once. Sorting what is almost sorted is many times as fast as np.unique."""
    ordered = np.sort(members, kind="stable")
    return np.concatenate((ordered[:1], ordered[1:][ordered[1:] != ordered[:-1]]))


def nearest_ancestor(made: Nest, marked: npt.NDArray[np.bool_]) -> Int64:
    """The innermost marked interval that encloses each one or is it; ROOT where there is none."""
    nearest = np.where(marked, np.arange(len(made)), made.parent)
    while True:
        open_ends = (nearest != ROOT) & ~marked[nearest]
        if not open_ends.any():
            return nearest
        nearest[open_ends] = nearest[nearest[open_ends]]


def innermost_at(found: Stretches, times: Int64) -> Int64:
    """The innermost interval at each time; ROOT where none is open."""
    if not len(found.begin):
        return np.full(len(times), ROOT)
    index = np.searchsorted(found.begin, times, side="right") - 1
    inside = (index >= 0) & (times < found.end[np.maximum(index, 0)])
    return np.where(inside, found.owner[np.maximum(index, 0)], ROOT)


def _enclosing(starts: Int64, stops: Int64) -> Int64:
    """The nearest earlier interval that is still open at each begin, by pointer jumping.

    Everything between an interval and its candidate has ended before it begins; so has everything between the candidate
    and the candidate's own candidate, once the candidate itself has.
    """
    candidate = np.arange(len(starts)) - 1
    while True:
        closed = np.flatnonzero((candidate != ROOT) & (stops[candidate] <= starts))
        if not len(closed):
            return candidate
        candidate[closed] = candidate[candidate[closed]]


def _within_parents(parent: Int64, stops: Int64) -> Int64:
    ends = stops.copy()
    while True:
        bounded = np.where(parent == ROOT, ends, np.minimum(ends, ends[parent]))
        if np.array_equal(bounded, ends):
            return ends
        ends = bounded
