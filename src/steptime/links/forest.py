"""The host's events of all lanes as one forest: who encloses whom.

Vector arithmetic throughout: walks up the forest double their stride each round, and each round only looks at those
that have not arrived.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steptime.arrays import Bool, Int32, Int64
from steptime.kineto.once import once
from steptime.kineto.table import HOST_CATEGORIES, Trace
from steptime.links.links import UNKNOWN
from steptime.links.names import PROFILER, matching
from steptime.nesting import enclosing


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """rows: of the table, by lane, begin and descending end, so that parents stand before children. parent: position
    in `rows` of the innermost event around each, UNKNOWN for none. size: of the table."""

    rows: Int32
    parent: Int32
    size: int

    def nearest(self, marked: Bool) -> Int32:
        """By row of the table: the row of the innermost marked event that encloses it or is it. marked: by row."""
        return self._by_row(self.nearest_positions(marked[self.rows]))

    def enclosing(self, marked: Bool) -> Int32:
        """The same without itself."""
        nearest = self.nearest_positions(marked[self.rows])
        return self._by_row(np.where(self.parent == UNKNOWN, UNKNOWN, nearest[self.parent]).astype(np.int32))

    def nearest_positions(self, marked: Bool) -> Int32:
        """By position: the position of the innermost marked event that encloses it or is it. marked: by position."""
        pointer = np.where(marked, np.arange(len(self.rows), dtype=np.int32), self.parent)
        walking = np.flatnonzero(~marked & (pointer != UNKNOWN))
        walking = walking[~marked[pointer[walking]]]
        reached = pointer[walking]
        while len(walking):
            reached = pointer[reached]
            pointer[walking] = reached
            passing = (reached != UNKNOWN) & ~marked[reached]
            walking, reached = walking[passing], reached[passing]
        return pointer

    def _by_row(self, positions: Int32) -> Int32:
        found = np.full(self.size, UNKNOWN, np.int32)
        known = positions != UNKNOWN
        found[self.rows[known]] = self.rows[positions[known]]
        return found


@once
def host_events(trace: Trace) -> Bool:
    """Which events happened on a thread of the host."""
    return np.isin(trace.events.category, HOST_CATEGORIES)


@once
def host_forest(trace: Trace) -> Forest:
    """All of them, nested."""
    hosts = np.flatnonzero(host_events(trace)).astype(np.int32)
    return forest_of(trace.events.lane, trace.events.begin, trace.events.end, hosts)


@once
def running_before(trace: Trace) -> Bool:
    """Which Python functions had called the profiler's start when it began to record. Kineto enters them then, one
    within the other, and names each by the line at which it stood (profiler_python.cpp of torch): one that has nothing
    to do with what the function calls later."""
    found = np.zeros(len(trace.events), np.bool_)
    made, starting = host_forest(trace), matching(trace, PROFILER.match)
    lanes = trace.events.lane[made.rows]
    for head in np.flatnonzero(np.append(True, np.diff(lanes) != 0))[: len(lanes)].tolist():
        last = head
        while last + 1 < len(lanes) and made.parent[last + 1] == last and not starting[made.rows[last]]:
            last += 1
        if starting[made.rows[last]]:
            found[made.rows[head:last]] = True
    return found


def forest_of(lane: Int32, begin: Int64, end: Int64, rows: Int32) -> Forest:
    """Nests the events `rows` of a table, each lane for itself. lane, begin, end: whole columns, ns."""
    ordered = rows[_order(lane[rows], begin[rows], end[rows])]
    heads = np.flatnonzero(np.diff(lane[ordered])) + 1
    return Forest(ordered, enclosing(begin[ordered], end[ordered], heads, np.int32), len(begin))


def _order(lane: Int32, begin: Int64, end: Int64) -> Int64:
    """By lane, begin, and the longest first; what equals in all stays in its order.

    Two stable sorts, by time (the file is almost in its order, which makes it cheap) and by lane (16 bits, which numpy
    sorts in linear time); only runs of equal begins are then sorted by their ends.
    """
    order = np.argsort(begin, kind="stable")
    lanes = lane[order]
    narrow = lanes.astype(np.uint16) if len(lanes) and lanes.max() < 1 << 16 else lanes
    order = order[np.argsort(narrow, kind="stable")]
    tied = (np.diff(begin[order]) == 0) & (np.diff(lane[order]) == 0)
    positions = np.flatnonzero(np.append(tied, False) | np.append(False, tied))
    among = order[positions]
    order[positions] = among[np.lexsort((-end[among], begin[among], lane[among]))]
    return order
