"""Builds the dependency graph of some steps: chains of the threads, streams, and dependencies between them.

Each CPU thread is a chain of points. A point is where a thread meets something outside itself: a launch, a wait, a
boundary of a step, autograd's engine. Between two points is the thread's own work, whatever it is. While autograd's
engine works, the training thread has no event: such an interval belongs to the engine, entered by a fork and left by a
join.

A trace names the calls that wait and rarely what they wait for. Certain are the order of the calls on the CPU, and that
a wait does not return before its activity has ended. So a wait is assigned the last activity that was launched before
it and had ended when it was over.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from steptime.analysis.operators import operator_events
from steptime.analysis.what_if.graph import (
    NONE,
    EdgeKind,
    Edges,
    Graph,
    NodeKind,
    Nodes,
    edges_of,
    in_order,
    joined,
    with_unexplained,
)
from steptime.analysis.what_if.scope import (
    PAGEABLE,
    ROUNDING,
    SURE,
    Delays,
    Scope,
    Streams,
    Waits,
    cpu_time,
    delays_of,
    streams_of,
    waits_of,
)
from steptime.arrays import Bool, Int64, distinct, unique
from steptime.intervals import measure, union
from steptime.trace.table import EventKind
from steptime.trace.vendors import STREAM_WAIT, WAITED_FOR, matching


class ThreadPoint(IntEnum):
    """Kind of a point on a thread, in the order of points at one time on one thread."""

    CALL_END = 0
    """A waiting call returns."""
    BURST_END = 1
    JOIN = 2
    STEP_END = 3
    STEP_START = 4
    BURST_START = 5
    FORK = 6
    CALL_START = 7
    """A launching or waiting call starts."""


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """Points of the threads' program, by track and, on a track, in program order. row: row of the runtime call, NONE
    for points that are no call. mark: number of the step at a boundary, of the burst, or of a fork and its join; else
    NONE."""

    track: Int64
    time: Int64
    kind: Int64
    row: Int64
    mark: Int64

    def __len__(self) -> int:
        return len(self.track)


@dataclass(frozen=True, slots=True, eq=False)
class Bursts:
    """Work of autograd's engine, each burst in an interval in which the training thread has no events. fork, join:
    start and end of that interval, ns; interval: its number."""

    track: Int64
    start: Int64
    end: Int64
    interval: Int64
    fork: Int64
    join: Int64

    def __len__(self) -> int:
        return len(self.track)


def bursts_of(scope: Scope) -> Bursts:
    """Bursts of work on all tracks of autograd's engine, by start."""
    events = scope.trace.events
    # Python functions of the training thread stay open while the engine works.
    listed = np.isin(events.event_kind, (EventKind.OPERATOR, EventKind.ANNOTATION, EventKind.RUNTIME))
    own = listed & (events.track == scope.training)
    times = unique(np.concatenate((events.start[own], events.ends(own), scope.boundaries.reshape(-1))))
    found = [_bursts_on(scope, track, times) for track in scope.engines]
    table = np.concatenate([np.empty((0, 4), np.int64), *found])
    table = table[np.argsort(table[:, 1], kind="stable")]
    track, start, end, interval = table.T
    fork = np.where(interval > 0, times[interval - 1], scope.start)
    join = times[np.minimum(interval, len(times) - 1)]
    kept = (interval < len(times)) & (fork >= scope.start) & (join <= scope.end)
    return Bursts(track[kept], start[kept], end[kept], interval[kept], fork[kept], join[kept])


def points_of(scope: Scope, waits: Waits, bursts: Bursts) -> Points:
    calls = scope.activities.call
    calls = unique(calls[(calls != NONE) & (scope.trace.events.start[calls] >= scope.start)])
    events = scope.trace.events
    begun = unique(np.concatenate((calls, waits.row)))
    steps = np.arange(len(scope.boundaries))
    first, _ = distinct(bursts.interval)
    intervals = bursts.interval[first]
    numbers = np.arange(len(bursts))
    parts = [
        _part(events.track[begun], events.start[begun], ThreadPoint.CALL_START, begun),
        _part(events.track[waits.row], events.ends(waits.row), ThreadPoint.CALL_END, waits.row),
        _part(scope.training, scope.boundaries[:, 0], ThreadPoint.STEP_START, mark=steps),
        _part(scope.training, scope.boundaries[:, 1], ThreadPoint.STEP_END, mark=steps),
        _part(scope.training, bursts.fork[first], ThreadPoint.FORK, mark=intervals),
        _part(scope.training, bursts.join[first], ThreadPoint.JOIN, mark=intervals),
        _part(bursts.track, bursts.start, ThreadPoint.BURST_START, mark=numbers),
        _part(bursts.track, bursts.end, ThreadPoint.BURST_END, mark=numbers),
    ]
    track, time, kind, row, mark = np.concatenate(parts, axis=1)
    instant = (kind == ThreadPoint.CALL_END) & (events.duration[row] == 0)
    order = np.lexsort((np.where(instant, len(ThreadPoint), kind), time, track))
    return Points(track[order], time[order], kind[order], row[order], mark[order])


def _part(
    track: npt.NDArray[np.signedinteger] | int,
    time: Int64,
    kind: ThreadPoint,
    row: Int64 | int = NONE,
    mark: Int64 | int = NONE,
) -> Int64:
    columns = np.broadcast_arrays(track, time, kind, row, mark)
    return np.stack(columns).astype(np.int64)


def _bursts_on(scope: Scope, track: int, times: Int64) -> Int64:
    """(track, start, end, interval) of the bursts on a track, (n, 4). Work that overlaps an event of the training
    thread is no burst, since it runs in parallel."""
    events = scope.trace.events
    chosen = (operator_events(scope.trace) | (events.event_kind == EventKind.RUNTIME)) & (events.track == track)
    chosen &= (events.start >= scope.start) & (events.end <= scope.end)
    busy = union(events.start[chosen], events.ends(chosen))
    interval = np.searchsorted(times, busy.start, side="right")
    inside: Bool = interval == np.searchsorted(times, busy.end, side="left")
    if not inside.any():
        return np.empty((0, 4), np.int64)
    start, end, interval = busy.start[inside], busy.end[inside], interval[inside]
    first = np.flatnonzero(np.concatenate(([True], interval[1:] != interval[:-1])))
    last = np.append(first[1:], len(start)) - 1
    return np.stack((np.full(len(first), track), start[first], end[last], interval[first]), axis=1)


AT_ONCE = 50_000
"""Longest delay from an activity to one that waited for it on another stream, ns; events between streams take 2 µs
(NVIDIA) to 25 µs (AMD)."""


class Tie(NamedTuple):
    """Pairs of an awaited activity and what waits for it. source: index of the awaited activity. target: index of the
    CPU's wait, or of the waiting activity."""

    source: Int64
    target: Int64


def wait_ties(scope: Scope, waits: Waits) -> Tie:
    """Pairs of each CPU wait and the activity that it waits for."""
    events = scope.trace.events
    start, end = events.start[waits.row], events.ends(waits.row)
    of_stream = matching(scope.trace, WAITED_FOR["stream"].search)[waits.row]
    of_event = matching(scope.trace, WAITED_FOR["event"].search)[waits.row] | waits.full
    own = waits.copies != NONE
    target = np.flatnonzero(own)
    pairs = [(waits.copies[target], target), _within(scope, start, end, np.flatnonzero(of_event & ~own))]
    stream = np.where(of_stream, _last_stream(scope, waits.row), NONE)
    rest = ~own & ~of_event
    for number in unique(scope.activities.stream).tolist():
        asked = np.flatnonzero(rest & ((stream == number) | (stream == NONE)))
        members, launched = _launched(scope, number)
        at = np.searchsorted(launched, start[asked], side="left") - 1
        found = members[np.maximum(at, 0)]
        kept = (at >= 0) & (scope.activities.end[found] <= end[asked] + ROUNDING)
        pairs.append((found[kept], asked[kept]))
    return Tie(*(np.concatenate(each) for each in zip(*pairs, strict=True)))


def event_ties(scope: Scope, streams: Streams) -> Tie:
    """Pairs of a device activity and the activity on another stream that it waited for: after a call that makes a
    stream wait, inside a CUDA graph, and among the activities queued before the first step. The call does not say which
    stream waits; mostly it is that of the thread's next launch. Another stream on which the thread launches next counts
    only if its activity started right after one that it could have waited for."""
    activities = scope.activities
    next_, later = behind_a_wait(scope, streams)
    queued = (activities.call == NONE) | (scope.trace.events.start[activities.call] < scope.start)
    number = distinct(activities.call)[1]
    in_a_graph = (np.bincount(number)[number] > 1) & (activities.call != NONE)
    asking = np.flatnonzero(next_ | later | in_a_graph | queued)
    behind = (next_ | later)[asking]
    before = np.where(behind, scope.trace.events.start[activities.call[asking]], activities.start[asking])
    start, ended = activities.start[asking], streams.ended[asking]
    sources, targets = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for number in unique(activities.stream).tolist():
        members, launched = _launched(scope, number)
        ends = np.maximum.accumulate(activities.end[members])
        over = np.searchsorted(ends, start + ROUNDING, side="right") - 1
        last = np.searchsorted(launched, before, side="left") - 1
        at = np.minimum(over, last)
        found = members[np.maximum(at, 0)]
        binding = (activities.end[found] > ended) & (start - activities.end[found] <= AT_ONCE)
        complete = next_[asking] & (over >= last)
        kept = (at >= 0) & (activities.stream[asking] != number) & (binding | complete) & (found < asking)
        sources.append(found[kept])
        targets.append(asking[kept])
    return Tie(np.concatenate(sources), np.concatenate(targets))


def _launched(scope: Scope, stream: int) -> tuple[Int64, Int64]:
    """(activities of a stream in order, earliest launch of each, ns). One without a launch in the trace came after the
    one before it."""
    activities = scope.activities
    members = np.flatnonzero(activities.stream == stream)
    call = activities.call[members]
    called = np.where(call != NONE, scope.trace.events.start[call], np.iinfo(np.int64).min)
    return members, np.maximum.accumulate(called)


def _last_stream(scope: Scope, rows: Int64) -> Int64:
    """Stream of the last activity that the thread had launched before each call."""
    activities, events = scope.activities, scope.trace.events
    called = np.flatnonzero(activities.call != NONE)
    call = activities.call[called]
    order = np.lexsort((events.start[call], events.track[call]))
    track, start, stream = events.track[call][order], events.start[call][order], activities.stream[called][order]
    found = np.full(len(rows), NONE)
    for number in scope.tracks:
        mine, asked = np.flatnonzero(track == number), np.flatnonzero(events.track[rows] == number)
        at = np.searchsorted(start[mine], events.start[rows[asked]], side="left") - 1
        known = at >= 0
        found[asked[known]] = stream[mine[at[known]]]
    return found


def _within(scope: Scope, start: Int64, end: Int64, asked: Int64) -> tuple[Int64, Int64]:
    """Activity that ended last inside each call; calls without one are left out."""
    order = np.argsort(scope.activities.end, kind="stable")
    ends = scope.activities.end[order]
    at = np.searchsorted(ends, end[asked], side="right") - 1
    known = (at >= 0) & (ends[np.maximum(at, 0)] > start[asked]) if len(ends) else np.zeros(len(asked), np.bool_)
    return order[at[known]], asked[known]


def behind_a_wait(scope: Scope, streams: Streams) -> tuple[Bool, Bool]:
    """(mask of the activities whose launch is the first of its thread after a call that makes a stream wait, mask of
    the activities that are the first on their stream after such a call)."""
    events, activities = scope.trace.events, scope.activities
    waiting = (events.event_kind == EventKind.RUNTIME) & matching(scope.trace, STREAM_WAIT.match)
    next_, later = np.zeros(len(activities), np.bool_), np.zeros(len(activities), np.bool_)
    first = np.flatnonzero((activities.call != NONE) & streams.first)
    for track in scope.tracks:
        waits = np.sort(events.start[waiting & (events.track == track)])
        mine = first[events.track[activities.call[first]] == track]
        mine = mine[np.argsort(events.start[activities.call[mine]], kind="stable")]
        count = np.searchsorted(waits, events.start[activities.call[mine]], side="left")
        next_[mine] = np.diff(count, prepend=0) > 0
        by_stream = np.argsort(activities.stream[mine], kind="stable")
        since = np.diff(count[by_stream], prepend=0)
        fresh = np.diff(activities.stream[mine][by_stream], prepend=NONE) != 0
        later[mine[by_stream]] = np.where(fresh, count[by_stream], since) > 0
    return next_, later


UNLAUNCHED = 50_000
"""Pause after which an activity without a launch in the trace was not in the queue, ns: the training thread is assumed
to have launched it at that time."""


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Parts of a graph under construction. Its nodes are the points, followed by the activities."""

    scope: Scope
    waits: Waits
    bursts: Bursts
    points: Points
    streams: Streams
    delays: Delays


def build(scope: Scope) -> Graph:
    waits, bursts, streams = waits_of(scope), bursts_of(scope), streams_of(scope)
    points = points_of(scope, waits, bursts)
    behind = np.logical_or(*behind_a_wait(scope, streams))
    parts = Parts(scope, waits, bursts, points, streams, delays_of(scope, streams, waits, behind))
    ties = wait_ties(scope, waits), event_ties(scope, streams)
    edges = joined([_programs(parts, ties[0]), _hand_overs(parts), _launches(parts), _streams(parts),
                     *_ties(parts, *ties)])  # fmt: skip
    start, end = (np.flatnonzero(points.kind == kind) for kind in (ThreadPoint.STEP_START, ThreadPoint.STEP_END))
    late = scope.started > scope.start
    ending = np.flatnonzero(scope.activities.end == scope.started)  # the step before the first one
    before = len(points) + int(ending[0]) if late and len(ending) else NONE
    return with_unexplained(in_order(_nodes(parts), edges, start, end, before))


def _nodes(parts: Parts) -> Nodes:
    points, activities, events = parts.points, parts.scope.activities, parts.scope.trace.events
    event_kind = events.event_kind[activities.row]
    kind = np.where(event_kind == EventKind.KERNEL, NodeKind.KERNEL, NodeKind.COPY)
    kind[activities.communicates] = NodeKind.COMMUNICATION
    none = np.full(len(points), NONE)
    remaining = activities.end - np.maximum(activities.start, parts.scope.start)
    called = np.where(activities.call != NONE, events.start[activities.call], activities.start)
    return Nodes(
        kind=np.concatenate((np.full(len(points), NodeKind.HOST), kind)),
        time=np.concatenate((points.time, np.maximum(activities.start, called))),
        observed=np.concatenate((points.time, activities.end)),
        duration=np.concatenate((np.zeros(len(points), np.int64), remaining)),
        row=np.concatenate((points.row, activities.row)),
        track=np.concatenate((points.track, np.full(len(activities), NONE))),
        step=np.concatenate((none, activities.step)),
    )


def _programs(parts: Parts, waited: Tie) -> Edges:
    """Edges from each point to the next on its thread."""
    points = parts.points
    target = np.flatnonzero(np.concatenate(([False], points.track[1:] == points.track[:-1])))
    source = target - 1
    start, end = points.time[source], points.time[target]
    weight, columns = end - start, _made_of(parts, source, target)
    kind = points.kind[target]
    handed = (kind == ThreadPoint.JOIN) | (kind == ThreadPoint.BURST_START)
    own_cost, held = _own_cost(parts, waited, points.row[target])
    held &= kind == ThreadPoint.CALL_END
    weight = np.where(handed, 0, np.where(held, own_cost, weight))
    columns = {name: np.where(handed | held, 0, each) for name, each in columns.items()}
    frees = held & np.isin(points.row[target], parts.waits.row[parts.waits.frees])
    columns["allocation"] = np.where(frees, weight, columns["allocation"])
    return edges_of(EdgeKind.PROGRAM, source, target, weight, blocking=held.astype(np.int64), **columns)


def _own_cost(parts: Parts, waited: Tie, row: Int64) -> tuple[Int64, Bool]:
    """(cost of each runtime call if it has nothing to wait for, ns; whether it waited for an activity).

    Freeing memory is work of the driver after the device is done; other calls only wait."""
    events, waits = parts.scope.trace.events, parts.waits
    last, own = events.start[waits.row].copy(), np.full(len(events), NONE)
    source, target = waited
    np.maximum.at(last, target, parts.scope.activities.end[source])
    rest = np.maximum(events.ends(waits.row) - last, 0)
    held = last > events.start[waits.row]
    own[waits.row] = np.where(
        waits.frees, rest, np.minimum(events.duration[waits.row].astype(np.int64), parts.delays.call)
    )
    own[waits.row[~held]] = NONE
    return own[row], own[row] != NONE


def _made_of(parts: Parts, source: Int64, target: Int64) -> dict[str, Int64]:
    """Time of input, dispatch and allocation between points, ns."""
    columns = {name: np.zeros(len(source), np.int64) for name in ("input", "dispatch", "allocation")}
    points = parts.points
    for track in parts.scope.tracks:
        mine = points.track[target] == track
        start, end = points.time[source[mine]], points.time[target[mine]]
        for name, during in zip(columns, cpu_time(parts.scope, track), strict=True):
            columns[name][mine] = measure(during, start, end)
    return columns


def _hand_overs(parts: Parts) -> Edges:
    """Edges from a fork to the first burst of its interval, between bursts on other threads, and from the last burst to
    the join."""
    points, bursts = parts.points, parts.bursts
    at = {(kind, mark): index for index, (kind, mark) in enumerate(zip(points.kind.tolist(), points.mark.tolist(),
                                                                       strict=True))}  # fmt: skip
    source, target, weight = [], [], []
    ended: dict[int, tuple[int, int]] = {}
    rows = zip(*(column.tolist() for column in (bursts.start, bursts.end, bursts.interval, bursts.fork, bursts.join)),
               strict=True)  # fmt: skip
    for number, (start, end, interval, fork, join) in enumerate(rows):
        after, node = ended.get(interval, (fork, at[ThreadPoint.FORK, interval]))
        after, node = (after, node) if after <= start else (fork, at[ThreadPoint.FORK, interval])
        source += [node, at[ThreadPoint.BURST_END, number]]
        target += [at[ThreadPoint.BURST_START, number], at[ThreadPoint.JOIN, interval]]
        weight += [start - after, join - end]
        if end >= ended.get(interval, (fork, 0))[0]:
            ended[interval] = end, at[ThreadPoint.BURST_END, number]
    return edges_of(EdgeKind.HAND_OVER, *(np.array(each, np.int64) for each in (source, target, weight)))


def _launches(parts: Parts) -> Edges:
    """Edges from the launching call's start to its activity. An activity without a launch that was not queued depends
    on the training thread."""
    activities, events, streams = parts.scope.activities, parts.scope.trace.events, parts.streams
    begun = _points_by_row(parts, ThreadPoint.CALL_START)
    called = np.flatnonzero((activities.call != NONE) & streams.first)
    called = called[begun[activities.call[called]] != NONE]
    call, event_kind = activities.call[called], events.event_kind[activities.row[called]]
    delay = np.array([parts.delays.launch[kind] for kind in event_kind.tolist()], np.int64)
    weight = np.maximum(events.duration[call] + delay, 0)
    holding = np.isin(call, parts.waits.row[parts.waits.copies != NONE])
    holding |= matching(parts.scope.trace, PAGEABLE.search)[activities.row[called]]
    staged = np.maximum(activities.start[called] - events.start[call], 0)
    held_back = np.isin(call, parts.waits.row[parts.waits.full])
    weight = np.where(held_back, np.maximum(parts.delays.call + delay, 0), weight)
    queued = streams.ended[called] > events.start[call]
    weight = np.where(holding, np.where(queued, np.minimum(staged, parts.delays.copy), staged), weight)
    points = parts.points
    lonely = (activities.call == NONE) & (activities.start - UNLAUNCHED > streams.ended)
    index = np.flatnonzero(lonely & (activities.start > parts.scope.start))
    mine = np.flatnonzero(points.track == parts.scope.training)
    after = np.searchsorted(points.time[mine], activities.start[index], side="right") - 1
    near = mine[np.maximum(after, 0)]
    waited = np.maximum(activities.start[index] - points.time[near], 0)
    launched = edges_of(EdgeKind.LAUNCH, begun[call], len(points) + called, weight)
    return joined([launched, edges_of(EdgeKind.LAUNCH, near, len(points) + index, waited, unexplained=waited)])


def _streams(parts: Parts) -> Edges:
    """Edges from each activity to the next on its stream. Where two overlap, the weight is negative by the overlap."""
    activities, streams = parts.scope.activities, parts.streams
    target = np.flatnonzero(streams.before != NONE)
    source = streams.before[target]
    event_kind = parts.scope.trace.events.event_kind[activities.row[target]]
    gap = np.array([parts.delays.gap[kind] for kind in event_kind.tolist()], np.int64)
    apart = activities.start[target] - activities.end[source]
    length = activities.end[target] - np.maximum(activities.start[target], parts.scope.start)
    weight = np.where(apart >= 0, np.minimum(gap, apart), np.maximum(apart, -length))
    points = len(parts.points)
    return edges_of(EdgeKind.STREAM, points + source, points + target, weight)


def _ties(parts: Parts, waited: Tie, events: Tie) -> tuple[Edges, Edges]:
    """(edges of the CPU's waits for activities, edges of streams' waits for each other)."""
    points, (source, target) = len(parts.points), waited
    returned = _points_by_row(parts, ThreadPoint.CALL_END)[parts.waits.row[target]]
    frees = parts.waits.frees[target]
    own, _ = _own_cost(parts, waited, parts.waits.row[target])
    weight = np.where(frees, np.maximum(own, 0), parts.delays.wait)
    waits = edges_of(EdgeKind.WAIT, points + source, returned, weight, blocking=frees.astype(np.int64))
    full = parts.waits.full[target]
    waits = replace(waits, kind=np.where(full, int(EdgeKind.QUEUE), waits.kind))
    earlier, later = events
    return waits, edges_of(EdgeKind.EVENT, points + earlier, points + later, _event_delay(parts, events))


def _event_delay(parts: Parts, events: Tie) -> int:
    """Delay from the end of an activity to the start of one that waited for it on another stream, ns: the median over
    waiting activities that had long been launched and whose own stream was free."""
    activities, trace = parts.scope.activities, parts.scope.trace
    source, target = events
    call, ended = activities.call[target], activities.end[source]
    apart = activities.start[target] - ended
    clear = (call != NONE) & (trace.events.ends(call) + SURE < ended) & (parts.streams.ended[target] < ended)
    clear &= (apart >= 0) & (apart <= AT_ONCE)
    return int(np.median(apart[clear])) if clear.any() else parts.delays.gap[int(EventKind.KERNEL)]


def _points_by_row(parts: Parts, kind: ThreadPoint) -> Int64:
    """Index of the point of that kind for each event row, NONE for none."""
    found = np.full(len(parts.scope.trace.events) + 1, NONE)
    mine = np.flatnonzero(parts.points.kind == kind)
    found[parts.points.row[mine]] = mine
    return found[:-1]
