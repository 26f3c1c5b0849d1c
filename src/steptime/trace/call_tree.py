"""Nesting: who encloses whom on one thread, and who is innermost at each instant.

Vector arithmetic throughout: a trace of millions of operators nests in a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from steptime.arrays import Bool, Int64

Position = TypeVar("Position", np.int32, np.int64)
ROOT = -1
"""The parent of an interval that nothing encloses."""
NO_HEADS = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class CallTree:
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
class ExclusiveSpans:
    """Elementary stretches of time in which one interval of a nest is innermost; in time order, without overlap."""

    owner: Int64
    begin: Int64
    end: Int64


def call_tree(begin: Int64, end: Int64) -> CallTree:
    """Nests intervals of one thread; begin and end in ns, in any order."""
    order = _order(begin, end)
    starts, stops = begin[order], end[order]
    parent = enclosing(starts, stops, NO_HEADS, np.int64)
    return CallTree(order, parent, starts, _within_parents(parent, stops))


def _order(begin: Int64, end: Int64) -> Int64:
    """By begin, and the longest first: only runs of equal begins are sorted by their ends."""
    order = np.argsort(begin, kind="stable")
    tied = np.diff(begin[order]) == 0
    positions = np.flatnonzero(np.append(tied, False) | np.append(False, tied))
    among = order[positions]
    order[positions] = among[np.lexsort((-end[among], begin[among]))]
    return order


def stretches(made: CallTree) -> ExclusiveSpans:
    """The time of each interval outside its children, piece by piece."""
    lasting = np.flatnonzero(made.end > made.begin)
    closing = lasting[::-1]
    # At one time, what ends comes before what begins, and inner before outer: a stable sort keeps that.
    times = np.concatenate((made.end[closing], made.begin[lasting]))
    owners = np.concatenate((made.parent[closing], lasting))
    order = np.argsort(times, kind="stable")
    times, owners = times[order], owners[order]
    begin, end, owner = times[:-1], times[1:], owners[:-1]
    kept = (end > begin) & (owner != ROOT)
    return ExclusiveSpans(owner[kept], begin[kept], end[kept])


def self_time(made: CallTree) -> Int64:
    """The ns of each interval outside its children."""
    found = stretches(made)
    return np.bincount(found.owner, found.end - found.begin, len(made)).astype(np.int64)


def has_descendant(made: CallTree, marked: Bool) -> Bool:
    """Which intervals enclose, at any depth, one that is marked."""
    return ancestors(made.parent, marked)


def ancestors(parent: Int64, marked: Bool) -> Bool:
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


def nearest_ancestor(made: CallTree, marked: Bool) -> Int64:
    """The innermost marked interval that encloses each one or is it; ROOT where there is none."""
    nearest = np.where(marked, np.arange(len(made)), made.parent)
    while True:
        open_ends = (nearest != ROOT) & ~marked[nearest]
        if not open_ends.any():
            return nearest
        nearest[open_ends] = nearest[nearest[open_ends]]


def innermost_at(found: ExclusiveSpans, times: Int64) -> Int64:
    """The innermost interval at each time; ROOT where none is open."""
    if not len(found.begin):
        return np.full(len(times), ROOT)
    index = np.searchsorted(found.begin, times, side="right") - 1
    inside = (index >= 0) & (times < found.end[np.maximum(index, 0)])
    return np.where(inside, found.owner[np.maximum(index, 0)], ROOT)


def enclosing(begin: Int64, end: Int64, heads: Int64, kind: type[Position]) -> npt.NDArray[Position]:
    """By position, that of the nearest earlier interval which is still open at each begin, ROOT for none, by pointer
    jumping. begin, end: ns, parents before their children. heads: where another thread begins. kind: of the result.

    Everything between an interval and its candidate has ended before it begins; so has everything between the candidate
    and the candidate's own candidate, once the candidate itself has.
    """
    candidate = np.arange(-1, len(begin) - 1, dtype=kind)
    candidate[heads] = ROOT
    walking = np.flatnonzero(candidate != ROOT)
    walking = walking[end[candidate[walking]] <= begin[walking]]
    reached, begins = candidate[walking], begin[walking]
    while len(walking):
        reached = candidate[reached]
        candidate[walking] = reached
        closed = (reached != ROOT) & (end[reached] <= begins)
        walking, reached, begins = walking[closed], reached[closed], begins[closed]
    return candidate


def _within_parents(parent: Int64, stops: Int64) -> Int64:
    """The ends, none behind that of an ancestor: each round looks twice as many ancestors up as the one before."""
    ends, above = stops.copy(), parent.copy()
    while len(inner := np.flatnonzero(above != ROOT)):
        around = above[inner]
        ends[inner] = np.minimum(ends[inner], ends[around])
        above[inner] = above[around]
    return ends
