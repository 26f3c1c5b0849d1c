"""What a thread was doing in a piece of time, as one event: the one that held it for most of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from steptime.arrays import Bool, Int32, Int64
from steptime.intervals import contains, instants, union
from steptime.kineto.once import once
from steptime.kineto.table import Category, Trace
from steptime.links.forest import host_forest
from steptime.links.links import UNKNOWN, Links
from steptime.links.names import ALLOCATION, LOADER, STEP, is_engine, of_symbols


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
    first, last = np.searchsorted(events.lane[forest.rows], (lane, lane + 1))  # a forest goes by lanes
    rows = forest.rows[first:last]
    parent = np.where(forest.parent[first:last] == UNKNOWN, UNKNOWN, forest.parent[first:last] - first).astype(np.int32)
    begin, end = events.begin[rows], events.end[rows]
    kept = ~of_symbols(trace, STEP.match)[events.name[rows]] if len(rows) else np.empty(0, np.bool_)
    while True:  # around a range of a step that was left out, or that had ended before, lies what was around it
        wrong = np.flatnonzero(parent != UNKNOWN)
        wrong = wrong[~kept[parent[wrong]] | (end[parent[wrong]] <= begin[wrong])]
        if not len(wrong):
            break
        parent[wrong] = parent[parent[wrong]]
    if kept.all():
        return Thread(rows, parent, begin, end)
    position = np.cumsum(kept, dtype=np.int32) - 1
    moved = np.where(parent == UNKNOWN, UNKNOWN, position[parent]).astype(np.int32)
    return Thread(rows[kept], moved[kept], begin[kept], end[kept])


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
    pieces = union(begin, end)
    sides = (column for each in threads for column in (each.begin, each.end))
    times = instants(begin, *(column[contains(pieces, column)] for column in sides))
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


def causes_while_launching(trace: Trace, links: Links, rows: Int64) -> Int64:
    """What a thread that launches is said to be at while an event holds it: a call that allocates, else the innermost
    operator, else the runtime call, annotation or Python function itself. rows: the events."""
    events = trace.events
    calls = events.category[rows] == Category.RUNTIME
    operator, annotation = links.operator[rows], links.annotation[rows]
    alone = (calls & _named(trace, rows, ALLOCATION.search)) | (operator == UNKNOWN)
    outside = np.where(annotation != UNKNOWN, annotation, links.function[rows])
    return np.where(alone, np.where(calls | (outside == UNKNOWN), rows, outside), operator)


def causes_while_compiling(trace: Trace, links: Links, rows: Int64) -> Int64:
    """What is said to compile: the annotation, else the event itself."""
    return np.where(links.annotation[rows] == UNKNOWN, rows, links.annotation[rows])


def causes_of_input(trace: Trace, links: Links, rows: Int64) -> Int64:
    """What holds up the input: the loader, else the user's function, else the event itself."""
    annotation, function = links.annotation[rows], links.function[rows]
    loading = (annotation != UNKNOWN) & _named(trace, annotation, LOADER.match)
    return np.where(loading, annotation, np.where(function != UNKNOWN, function, rows))


def _named(trace: Trace, rows: Int32 | Int64, test: Callable[[str], object]) -> Bool:
    """Which of the events have a name that passes the test."""
    return of_symbols(trace, test)[trace.events.name[rows]]


def outermost_operator(trace: Trace, links: Links, rows: Int64) -> Int64:
    """The outermost operator around each row (aten::to, not the aten::copy_ inside it) below autograd's frames and the
    user's ranges; the row itself without one."""
    found = np.where(links.operator[rows] == UNKNOWN, rows, links.operator[rows])
    while True:
        above = links.parent[found]
        climbing = (above != UNKNOWN) & _named(trace, above, _is_rooted)
        if not climbing.any():
            return found.astype(np.int64)
        found = np.where(climbing, above, found)


def _is_rooted(name: str) -> bool:
    return name.startswith("aten::") and not is_engine(name)


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
