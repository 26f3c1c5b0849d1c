"""Call trees: which interval encloses which on a thread, and which is innermost at each instant.

All walks up a tree double their stride each round or skip what has arrived, so millions of events nest in a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from steptime.arrays import PIECE, Bool, Int32, Int64, Numbers, unique

Position = TypeVar("Position", np.int32, np.int64)
Width = TypeVar("Width", bound=np.signedinteger[Any])
ROOT = -1
"""The parent of an interval that nothing encloses."""


@dataclass(frozen=True, slots=True, eq=False)
class CallTree:
    """Intervals of one thread, parents before children. rows: row of each interval in the source table. parent:
    position in these columns of the interval around each, or ROOT. start, end: ns."""

    rows: Int32
    parent: Int32
    start: Int64
    end: Int64

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True, eq=False)
class ExclusiveSpans:
    """Disjoint spans, ns, in time order, during each of which one interval of a call tree is the innermost one. owner:
    position of that interval in the tree."""

    owner: Int64
    start: Int64
    end: Int64


def call_tree(start: Int64, end: Int64) -> CallTree:
    """Call tree of the intervals of one thread, given in any order, ns. An interval that outlasts its parent (old
    traces round their times) is cut."""
    rows = nesting_order(start, end)
    start, end = start[rows], end[rows]
    parent = enclosing(start, end)
    return CallTree(rows, parent, start, _within_parents(parent, end))


def nested(start: Int64, duration: npt.NDArray[Width]) -> tuple[Int32, npt.NDArray[Width]]:
    """(parents, durations cut as in `call_tree`) of intervals that are sorted with parents before children."""
    end = start + duration
    parent = enclosing(start, end)
    end = _within_parents(parent, end)
    end -= start
    return parent, end.astype(duration.dtype)


def nesting_order(start: Int64, end: Numbers) -> Int32:
    """Positions sorted by start, the longest first, so that parents come before children; ties keep their order. end:
    ends or durations, since only intervals with equal starts are compared. A stable sort by time (cheap, since files
    are almost sorted); only runs of equal starts are then sorted by end."""
    order = np.argsort(start, kind="stable").astype(np.int32)
    tied = np.empty(max(len(order) - 1, 0), np.bool_)
    for first in range(0, len(tied), PIECE):
        part = start[order[first : first + PIECE + 1]]
        np.equal(part[1:], part[:-1], out=tied[first : first + PIECE])
    positions = np.flatnonzero(np.append(tied, False) | np.append(False, tied))
    among = order[positions]
    order[positions] = among[np.lexsort((-end[among].astype(np.int64), start[among]))]
    return order


def exclusive_spans(tree: CallTree) -> ExclusiveSpans:
    """Spans of each interval of a tree outside its children. No interval may outlast its parent."""
    lasting = np.flatnonzero(tree.end > tree.start)
    closing = lasting[::-1]
    # At one time, what ends comes before what starts, and inner before outer: a stable sort keeps that.
    times = np.concatenate((tree.end[closing], tree.start[lasting]))
    owners = np.concatenate((tree.parent[closing], lasting))
    order = np.argsort(times, kind="stable")
    times, owners = times[order], owners[order]
    start, end, owner = times[:-1], times[1:], owners[:-1]
    kept = (end > start) & (owner != ROOT)
    return ExclusiveSpans(owner[kept], start[kept], end[kept])


def has_descendant(parent: npt.NDArray[Position], marked: Bool) -> Bool:
    """Mask of the members of a tree, given by their parents or ROOT, that have a marked descendant at any depth."""
    found = np.zeros(len(parent), np.bool_)
    current = unique(parent[marked])
    while len(current):
        current = current[(current != ROOT) & ~found[current]]
        found[current] = True
        current = unique(parent[current])
    return found


def nearest_ancestor(parent: npt.NDArray[Position], marked: Bool) -> npt.NDArray[Position]:
    """Innermost marked interval that encloses each position or is it; ROOT if there is none."""
    pointer = parent.copy()
    pointer[marked] = np.flatnonzero(marked)
    walking = np.flatnonzero(~marked & (pointer != ROOT)).astype(parent.dtype)
    walking = walking[~marked[pointer[walking]]]
    reached = pointer[walking]
    while len(walking):
        reached = pointer[reached]
        pointer[walking] = reached
        passing = (reached != ROOT) & ~marked[reached]
        walking, reached = walking[passing], reached[passing]
    return pointer


def depths(parent: npt.NDArray[Position]) -> Int32:
    """Number of intervals that enclose each position."""
    depth: Int32 = (parent != ROOT).astype(np.int32)
    above = parent.copy()
    while len(inner := np.flatnonzero(above != ROOT)):
        around = above[inner]
        depth[inner] += depth[around]
        above[inner] = above[around]
    return depth


def innermost_at(tree: CallTree, times: Int64) -> Int64:
    """Position of the innermost interval at each time; ROOT if none is open."""
    at = np.searchsorted(tree.start, times, side="right") - 1
    walking = np.flatnonzero(at != ROOT)
    while len(walking):
        walking = walking[tree.end[at[walking]] <= times[walking]]
        at[walking] = tree.parent[at[walking]]
        walking = walking[at[walking] != ROOT]
    return at


def enclosing(start: Int64, end: Int64) -> Int32:
    """Position of the nearest earlier interval that is still open at each start, ROOT for none, by pointer jumping.
    start, end: ns, parents before children.

    Everything between an interval and its candidate has ended before it starts. If the candidate itself has ended too,
    so has everything between the candidate and the candidate's own candidate."""
    candidate = np.arange(-1, len(start) - 1, dtype=np.int32)
    for first in range(1, len(start), PIECE):  # in order, so that what one piece needs of those before it is final
        part = slice(first, first + PIECE)
        walking = np.flatnonzero(end[candidate[part]] <= start[part]).astype(np.int32) + np.int32(first)
        reached, starts = candidate[walking], start[walking]
        while len(walking):
            reached = candidate[reached]
            candidate[walking] = reached
            closed = (reached != ROOT) & (end[reached] <= starts)
            walking, reached, starts = walking[closed], reached[closed], starts[closed]
    return candidate


def _within_parents(parent: Int32, ends: Int64) -> Int64:
    """The ends cut at those of all ancestors, in place. Rows before a piece are final; inside the piece, each round
    looks at twice as many ancestors as the one before."""
    for first in range(0, len(parent), PIECE):
        mine, above = ends[first : first + PIECE], parent[first : first + PIECE].copy()
        while len(inner := np.flatnonzero(above != ROOT)):
            around = above[inner]
            mine[inner] = np.minimum(mine[inner], ends[around])
            above[inner] = np.where(around < first, np.int32(ROOT), above[np.maximum(around - first, 0)])
    return ends
