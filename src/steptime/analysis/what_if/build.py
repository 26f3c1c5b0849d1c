"""Building the dependency graph of some steps: the threads' chains, the streams, and what ties them together."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

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
    SURE,
    Delays,
    Scope,
    Streams,
    Waits,
    delays_of,
    host_time,
    streams_of,
    waits_of,
)
from steptime.analysis.what_if.threads import (
    AT_ONCE,
    Bursts,
    Points,
    ThreadPoint,
    Tie,
    behind_a_wait,
    bursts_of,
    event_ties,
    points_of,
    wait_ties,
)
from steptime.arrays import Bool, Int64
from steptime.intervals import measure
from steptime.trace.table import EventKind
from steptime.trace.vendors import matching

UNLAUNCHED = 50_000
"""ns. An activity without a launch in the trace that starts this long after the one before it was not waiting in the
queue: the training thread launched it about then."""


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """What a graph is put together from. Nodes: first the points, then the activities."""

    scope: Scope
    waits: Waits
    bursts: Bursts
    points: Points
    streams: Streams
    delays: Delays


def build(scope: Scope) -> Graph:
    """The graph of a scope."""
    waits, bursts, streams = waits_of(scope), bursts_of(scope), streams_of(scope)
    points = points_of(scope, waits, bursts)
    behind = np.logical_or(*behind_a_wait(scope, streams))
    parts = Parts(scope, waits, bursts, points, streams, delays_of(scope, streams, waits, behind))
    ties = wait_ties(scope, waits), event_ties(scope, streams)
    edges = joined([_programs(parts, ties[0]), _hand_overs(parts), _launches(parts), _streams(parts),
                     *_ties(parts, *ties)])  # fmt: skip
    begin, end = (np.flatnonzero(points.kind == kind) for kind in (ThreadPoint.STEP_BEGIN, ThreadPoint.STEP_END))
    late = scope.started > scope.begin
    ending = np.flatnonzero(scope.activities.end == scope.started)  # the step before the first one
    before = len(points) + int(ending[0]) if late and len(ending) else NONE
    return with_unexplained(in_order(_nodes(parts), edges, begin, end, before))


def _nodes(parts: Parts) -> Nodes:
    points, activities, events = parts.points, parts.scope.activities, parts.scope.trace.events
    event_kind = events.event_kind[activities.row]
    kind = np.where(event_kind == EventKind.KERNEL, NodeKind.KERNEL, NodeKind.COPY)
    kind[activities.communicates] = NodeKind.COMMUNICATION
    none = np.full(len(points), NONE)
    remaining = activities.end - np.maximum(activities.begin, parts.scope.begin)
    called = np.where(activities.call != NONE, events.begin[activities.call], activities.begin)
    return Nodes(
        kind=np.concatenate((np.full(len(points), NodeKind.HOST), kind)),
        time=np.concatenate((points.time, np.maximum(activities.begin, called))),
        observed=np.concatenate((points.time, activities.end)),
        duration=np.concatenate((np.zeros(len(points), np.int64), remaining)),
        row=np.concatenate((points.row, activities.row)),
        lane=np.concatenate((points.lane, np.full(len(activities), NONE))),
        step=np.concatenate((none, activities.step)),
    )


def _programs(parts: Parts, waited: Tie) -> Edges:
    """The chains: each point after the one before it on its thread."""
    points = parts.points
    target = np.flatnonzero(np.concatenate(([False], points.lane[1:] == points.lane[:-1])))
    source = target - 1
    begin, end = points.time[source], points.time[target]
    weight, columns = end - begin, _made_of(parts, source, target)
    kind = points.kind[target]
    handed = (kind == ThreadPoint.JOIN) | (kind == ThreadPoint.BURST_BEGIN)
    own_cost, held = _own_cost(parts, waited, points.row[target])
    held &= kind == ThreadPoint.CALL_END
    weight = np.where(handed, 0, np.where(held, own_cost, weight))
    columns = {name: np.where(handed | held, 0, each) for name, each in columns.items()}
    frees = held & np.isin(points.row[target], parts.waits.row[parts.waits.frees])
    columns["allocation"] = np.where(frees, weight, columns["allocation"])
    return edges_of(EdgeKind.PROGRAM, source, target, weight, blocking=held.astype(np.int64), **columns)


def _own_cost(parts: Parts, waited: Tie, row: Int64) -> tuple[Int64, Bool]:
    """By runtime call: what it costs when there is nothing to wait for, and whether it waited for an activity.

    Freeing memory is the driver's work once the device is done; other calls only wait.
    """
    events, waits = parts.scope.trace.events, parts.waits
    last, own = events.begin[waits.row].copy(), np.full(len(events), NONE)
    source, target = waited
    np.maximum.at(last, target, parts.scope.activities.end[source])
    rest = np.maximum(events.ends(waits.row) - last, 0)
    held = last > events.begin[waits.row]
    own[waits.row] = np.where(
        waits.frees, rest, np.minimum(events.duration[waits.row].astype(np.int64), parts.delays.call)
    )
    own[waits.row[~held]] = NONE
    return own[row], own[row] != NONE


def _made_of(parts: Parts, source: Int64, target: Int64) -> dict[str, Int64]:
    """ns of input, dispatch and allocation between points."""
    columns = {name: np.zeros(len(source), np.int64) for name in ("input", "dispatch", "allocation")}
    points = parts.points
    for lane in parts.scope.lanes:
        mine = points.lane[target] == lane
        begin, end = points.time[source[mine]], points.time[target[mine]]
        for name, during in zip(columns, host_time(parts.scope, lane), strict=True):
            columns[name][mine] = measure(during, begin, end)
    return columns


def _hand_overs(parts: Parts) -> Edges:
    """Fork to the first burst of a stretch, burst to burst on other threads, last burst to join."""
    points, bursts = parts.points, parts.bursts
    at = {(kind, mark): index for index, (kind, mark) in enumerate(zip(points.kind.tolist(), points.mark.tolist(),
                                                                       strict=True))}  # fmt: skip
    source, target, weight = [], [], []
    ended: dict[int, tuple[int, int]] = {}
    rows = zip(*(column.tolist() for column in (bursts.begin, bursts.end, bursts.stretch, bursts.fork, bursts.join)),
               strict=True)  # fmt: skip
    for number, (begin, end, stretch, fork, join) in enumerate(rows):
        after, node = ended.get(stretch, (fork, at[ThreadPoint.FORK, stretch]))
        after, node = (after, node) if after <= begin else (fork, at[ThreadPoint.FORK, stretch])
        source += [node, at[ThreadPoint.BURST_END, number]]
        target += [at[ThreadPoint.BURST_BEGIN, number], at[ThreadPoint.JOIN, stretch]]
        weight += [begin - after, join - end]
        if end >= ended.get(stretch, (fork, 0))[0]:
            ended[stretch] = end, at[ThreadPoint.BURST_END, number]
    return edges_of(EdgeKind.HAND_OVER, *(np.array(each, np.int64) for each in (source, target, weight)))


def _launches(parts: Parts) -> Edges:
    """From the begin of the launching call; what nothing launched and was not queued hangs on the training thread."""
    activities, events, streams = parts.scope.activities, parts.scope.trace.events, parts.streams
    begun = _points_by_row(parts, ThreadPoint.CALL_BEGIN)
    called = np.flatnonzero((activities.call != NONE) & streams.first)
    called = called[begun[activities.call[called]] != NONE]
    call, event_kind = activities.call[called], events.event_kind[activities.row[called]]
    delay = np.array([parts.delays.launch[kind] for kind in event_kind.tolist()], np.int64)
    weight = np.maximum(events.duration[call] + delay, 0)
    holding = np.isin(call, parts.waits.row[parts.waits.copies != NONE])
    holding |= matching(parts.scope.trace, PAGEABLE.search)[activities.row[called]]
    staged = np.maximum(activities.begin[called] - events.begin[call], 0)
    held_back = np.isin(call, parts.waits.row[parts.waits.full])
    weight = np.where(held_back, np.maximum(parts.delays.call + delay, 0), weight)
    queued = streams.ended[called] > events.begin[call]
    weight = np.where(holding, np.where(queued, np.minimum(staged, parts.delays.copy), staged), weight)
    points = parts.points
    lonely = (activities.call == NONE) & (activities.begin - UNLAUNCHED > streams.ended)
    index = np.flatnonzero(lonely & (activities.begin > parts.scope.begin))
    mine = np.flatnonzero(points.lane == parts.scope.training)
    after = np.searchsorted(points.time[mine], activities.begin[index], side="right") - 1
    near = mine[np.maximum(after, 0)]
    waited = np.maximum(activities.begin[index] - points.time[near], 0)
    launched = edges_of(EdgeKind.LAUNCH, begun[call], len(points) + called, weight)
    return joined([launched, edges_of(EdgeKind.LAUNCH, near, len(points) + index, waited, unexplained=waited)])


def _streams(parts: Parts) -> Edges:
    """Each activity after the one before it on its stream; where two overlap, as far in as they did."""
    activities, streams = parts.scope.activities, parts.streams
    target = np.flatnonzero(streams.before != NONE)
    source = streams.before[target]
    event_kind = parts.scope.trace.events.event_kind[activities.row[target]]
    gap = np.array([parts.delays.gap[kind] for kind in event_kind.tolist()], np.int64)
    apart = activities.begin[target] - activities.end[source]
    length = activities.end[target] - np.maximum(activities.begin[target], parts.scope.begin)
    weight = np.where(apart >= 0, np.minimum(gap, apart), np.maximum(apart, -length))
    points = len(parts.points)
    return edges_of(EdgeKind.STREAM, points + source, points + target, weight)


def _ties(parts: Parts, waited: Tie, events: Tie) -> tuple[Edges, Edges]:
    """Waits of the host for activities, and of streams for each other."""
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
    """From the end of an activity to the start of one that waited for it on another stream: the median where that one
    had long been launched, and its own stream was free."""
    activities, trace = parts.scope.activities, parts.scope.trace
    source, target = events
    call, ended = activities.call[target], activities.end[source]
    apart = activities.begin[target] - ended
    clear = (call != NONE) & (trace.events.ends(call) + SURE < ended) & (parts.streams.ended[target] < ended)
    clear &= (apart >= 0) & (apart <= AT_ONCE)
    return int(np.median(apart[clear])) if clear.any() else parts.delays.gap[int(EventKind.KERNEL)]


def _points_by_row(parts: Parts, kind: ThreadPoint) -> Int64:
    """By event row, the point of that kind of the call."""
    found = np.full(len(parts.scope.trace.events) + 1, NONE)
    mine = np.flatnonzero(parts.points.kind == kind)
    found[parts.points.row[mine]] = mine
    return found[:-1]
