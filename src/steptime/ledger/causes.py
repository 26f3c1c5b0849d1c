"""What a thread was doing in a piece of time, as one event: the one that held it for most of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from steptime.intervals import instants
from steptime.kineto.once import once
from steptime.kineto.table import Category, Trace
from steptime.links.forest import host_forest
from steptime.links.links import UNKNOWN, Int32, Links
from steptime.links.names import ALLOCATION, LOADER, STEP, is_engine, matching

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Thread:
    """The events of one thread, parents before children. rows: of the table. parent: position in these columns, UNKNOWN
    for none. begin, end: ns."""

    rows: Int32
    parent: Int32
    begin: Int64
    end: Int64

    def innermost_at(self, times: Int64) -> Int64:
        """The row of the innermost event at each time, UNKNOWN where none is open."""
        at = np.searchsorted(self.begin, times, side="right") - 1
        walking = np.flatnonzero(at != UNKNOWN)
        while len(walking):
            walking = walking[self.end[at[walking]] <= times[walking]]
            at[walking] = self.parent[at[walking]]
            walking = walking[at[walking] != UNKNOWN]
        return np.where(at == UNKNOWN, UNKNOWN, self.rows[at]) if len(self.rows) else at


@once
def thread_on(trace: Trace, lane: int) -> Thread:
    """What happened on a lane of the host, the profiler's own ranges of steps left out."""
    events, forest = trace.events, host_forest(trace)
    kept = (events.lane[forest.rows] == lane) & ~matching(trace, STEP.match)[forest.rows]
    rows, parent = forest.rows[kept], forest.parent[kept]
    begin, end = events.begin[rows], events.end[rows]
    while True:  # around a range of a step that was left out, or that had ended before, lies what was around it
        wrong = np.flatnonzero(parent != UNKNOWN)
        wrong = wrong[~kept[parent[wrong]] | (events.end[forest.rows[parent[wrong]]] <= begin[wrong])]
        if not len(wrong):
            break
        parent[wrong] = forest.parent[parent[wrong]]
    position = np.cumsum(kept, dtype=np.int32) - 1
    return Thread(rows, np.where(parent == UNKNOWN, UNKNOWN, position[parent]).astype(np.int32), begin, end)


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """Stretches of time in which one event held a thread. piece: number of the piece of time that each is of; owner:
    row of the event; duration: ns."""

    piece: Int64
    owner: Int64
    duration: Int64


def held_by(begin: Int64, end: Int64, threads: tuple[Thread, ...]) -> Held:
    """What held the threads in pieces of time, stretch by stretch; stretches in which nothing did are left out.

    begin, end: ns, disjoint and in time order. threads: that explain the pieces; a later one counts where the earlier
    ones did nothing.
    """
    if not len(begin):
        nothing = np.empty(0, np.int64)
        return Held(nothing, nothing, nothing)
    times = instants(begin, *(column for each in threads for column in (each.begin, each.end)))
    first = np.searchsorted(times, begin)
    count = np.searchsorted(times, end) - first
    piece = np.repeat(np.arange(len(begin)), count)
    heads = times[np.arange(len(piece)) + np.repeat(first - (np.cumsum(count) - count), count)]
    tails = np.minimum(np.append(heads[1:], end[-1]), end[piece])
    owner = np.full(len(heads), UNKNOWN, np.int64)
    for each in threads:
        free = np.flatnonzero(owner == UNKNOWN)
        owner[free] = each.innermost_at(heads[free])
    known = owner != UNKNOWN
    return Held(piece[known], owner[known], (tails - heads)[known])


def causes_while_launching(trace: Trace, links: Links) -> Int32:
    """By row, what a thread that launches is said to be at: a call that allocates, else the innermost operator, else
    the runtime call, annotation or Python function itself."""
    events = trace.events
    itself = np.arange(len(events), dtype=np.int32)
    calls = events.category == Category.RUNTIME
    alone = (calls & matching(trace, ALLOCATION.search)) | (links.operator == UNKNOWN)
    outside = np.where(links.annotation != UNKNOWN, links.annotation, links.function)
    found = np.where(alone, np.where(calls | (outside == UNKNOWN), itself, outside), links.operator)
    return found.astype(np.int32)


def causes_of_input(trace: Trace, links: Links) -> Int32:
    """By row, what holds up the input: the loader, else the user's function, else the event itself."""
    loader = matching(trace, LOADER.match)
    found = np.where(links.function != UNKNOWN, links.function, np.arange(len(loader), dtype=np.int32))
    above = links.annotation.copy()
    above[above != UNKNOWN] = np.where(loader[above[above != UNKNOWN]], above[above != UNKNOWN], UNKNOWN)
    return np.where(above != UNKNOWN, above, found).astype(np.int32)


def outermost_operator(trace: Trace, links: Links, rows: Int64) -> Int64:
    """The outermost operator around each row (aten::to, not the aten::copy_ inside it) below autograd's frames and the
    user's ranges; the row itself without one."""
    rooted = matching(trace, lambda name: name.startswith("aten::") and not is_engine(name))
    found = np.where(links.operator[rows] == UNKNOWN, rows, links.operator[rows])
    while True:
        above = links.parent[found]
        climbing = (above != UNKNOWN) & rooted[above]
        if not climbing.any():
            return found.astype(np.int64)
        found = np.where(climbing, above, found)


def heaviest(piece: Int64, cause: Int64, weight: Int64, count: int) -> Int64:
    """For each of `count` pieces the cause with the largest sum of weights, UNKNOWN for none."""
    found = np.full(count, UNKNOWN, np.int64)
    if not len(piece):
        return found
    order = np.lexsort((cause, piece))
    piece, cause, weight = piece[order], cause[order], weight[order]
    heads = np.flatnonzero(np.append(True, (np.diff(piece) != 0) | (np.diff(cause) != 0)))
    sums = np.add.reduceat(weight, heads)
    lightest_first = np.argsort(sums, kind="stable")
    found[piece[heads][lightest_first]] = cause[heads][lightest_first]
    return found
