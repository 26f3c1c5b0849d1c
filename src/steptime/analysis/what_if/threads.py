"""The host's part of the graph: each thread as a chain of points, and what ties threads, device and streams together.

A point is where a thread meets something outside itself: a launch, a wait, a boundary of a step, autograd's engine.
Between two points lies the thread's own work, whatever it is. While autograd's engine works, the training thread has
no event: such a stretch is the engine's, entered by a fork and left by a join.

A trace names the calls that wait and rarely what they wait for. What is certain is the order of the calls on the host
and that a wait did not return before its activity had ended: the last activity that was launched before a wait, and
had ended when the wait was over, is what it is taken to have waited for.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from steptime.analysis.operators import operator_events
from steptime.analysis.what_if.graph import NONE
from steptime.analysis.what_if.scope import ROUNDING, Scope, Streams, Waits
from steptime.arrays import Bool, Int64, distinct, unique
from steptime.intervals import union
from steptime.trace.table import EventKind
from steptime.trace.vendors import STREAM_WAIT, WAITED_FOR, matching


class ThreadPoint(IntEnum):
    """What a thread meets at a point; at one time on one thread they come in this order."""

    CALL_END = 0
    """A waiting call returns."""
    BURST_END = 1
    JOIN = 2
    STEP_END = 3
    STEP_BEGIN = 4
    BURST_BEGIN = 5
    FORK = 6
    CALL_BEGIN = 7
    """A call that launches or waits begins."""


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """Columns, by lane and, on a lane, in program order. row: the runtime call of a call's points, else NONE. mark: the
    step of a boundary, the number of a burst or of a fork and its join, else NONE."""

    lane: Int64
    time: Int64
    kind: Int64
    row: Int64
    mark: Int64

    def __len__(self) -> int:
        return len(self.lane)


@dataclass(frozen=True, slots=True, eq=False)
class Bursts:
    """Stretches of work of autograd's engine inside one stretch of the training thread that holds no event of its own.

    fork, join: ns, the ends of that stretch; stretch: its number.
    """

    lane: Int64
    begin: Int64
    end: Int64
    stretch: Int64
    fork: Int64
    join: Int64

    def __len__(self) -> int:
        return len(self.lane)


def bursts_of(scope: Scope) -> Bursts:
    """The bursts of all engine lanes, by begin."""
    events = scope.trace.events
    # Python functions of the training thread stay open while the engine works.
    listed = np.isin(events.event_kind, (EventKind.OPERATOR, EventKind.ANNOTATION, EventKind.RUNTIME))
    own = listed & (events.lane == scope.training)
    times = unique(np.concatenate((events.begin[own], events.ends(own), scope.boundaries.reshape(-1))))
    found = [_bursts_on(scope, lane, times) for lane in scope.engines]
    table = np.concatenate([np.empty((0, 4), np.int64), *found])
    table = table[np.argsort(table[:, 1], kind="stable")]
    lane, begin, end, stretch = table.T
    fork = np.where(stretch > 0, times[stretch - 1], scope.begin)
    join = times[np.minimum(stretch, len(times) - 1)]
    kept = (stretch < len(times)) & (fork >= scope.begin) & (join <= scope.end)
    return Bursts(lane[kept], begin[kept], end[kept], stretch[kept], fork[kept], join[kept])


def points_of(scope: Scope, waits: Waits, bursts: Bursts) -> Points:
    """The points of all lanes."""
    calls = scope.activities.call
    calls = unique(calls[(calls != NONE) & (scope.trace.events.begin[calls] >= scope.begin)])
    events = scope.trace.events
    begun = unique(np.concatenate((calls, waits.row)))
    steps = np.arange(len(scope.boundaries))
    first, _ = distinct(bursts.stretch)
    stretches = bursts.stretch[first]
    numbers = np.arange(len(bursts))
    parts = [
        _part(events.lane[begun], events.begin[begun], ThreadPoint.CALL_BEGIN, begun),
        _part(events.lane[waits.row], events.ends(waits.row), ThreadPoint.CALL_END, waits.row),
        _part(scope.training, scope.boundaries[:, 0], ThreadPoint.STEP_BEGIN, mark=steps),
        _part(scope.training, scope.boundaries[:, 1], ThreadPoint.STEP_END, mark=steps),
        _part(scope.training, bursts.fork[first], ThreadPoint.FORK, mark=stretches),
        _part(scope.training, bursts.join[first], ThreadPoint.JOIN, mark=stretches),
        _part(bursts.lane, bursts.begin, ThreadPoint.BURST_BEGIN, mark=numbers),
        _part(bursts.lane, bursts.end, ThreadPoint.BURST_END, mark=numbers),
    ]
    lane, time, kind, row, mark = np.concatenate(parts, axis=1)
    instant = (kind == ThreadPoint.CALL_END) & (events.duration[row] == 0)
    order = np.lexsort((np.where(instant, len(ThreadPoint), kind), time, lane))
    return Points(lane[order], time[order], kind[order], row[order], mark[order])


def _part(
    lane: npt.NDArray[np.signedinteger] | int,
    time: Int64,
    kind: ThreadPoint,
    row: Int64 | int = NONE,
    mark: Int64 | int = NONE,
) -> Int64:
    columns = np.broadcast_arrays(lane, time, kind, row, mark)
    return np.stack(columns).astype(np.int64)


def _bursts_on(scope: Scope, lane: int, times: Int64) -> Int64:
    """(n, 4): lane, begin, end, stretch. What overlaps an event of the training thread is no burst: it runs beside."""
    events = scope.trace.events
    chosen = (operator_events(scope.trace) | (events.event_kind == EventKind.RUNTIME)) & (events.lane == lane)
    chosen &= (events.begin >= scope.begin) & (events.end <= scope.end)
    busy = union(events.begin[chosen], events.ends(chosen))
    stretch = np.searchsorted(times, busy.begin, side="right")
    inside: Bool = stretch == np.searchsorted(times, busy.end, side="left")
    if not inside.any():
        return np.empty((0, 4), np.int64)
    begin, end, stretch = busy.begin[inside], busy.end[inside], stretch[inside]
    first = np.flatnonzero(np.concatenate(([True], stretch[1:] != stretch[:-1])))
    last = np.append(first[1:], len(begin)) - 1
    return np.stack((np.full(len(first), lane), begin[first], end[last], stretch[first]), axis=1)


AT_ONCE = 50_000
"""ns. An activity that starts this soon after another, on a stream that had to wait for something, waited for it;
events between streams take 2 µs (NVIDIA) to 25 µs (AMD)."""


class Tie(NamedTuple):
    """Pairs. source: index of the activity waited for. target: index of the wait, or of the activity that waits."""

    source: Int64
    target: Int64


def wait_ties(scope: Scope, waits: Waits) -> Tie:
    """The activities that the host's waits waited for."""
    events = scope.trace.events
    begin, end = events.begin[waits.row], events.ends(waits.row)
    of_stream = matching(scope.trace, WAITED_FOR["stream"].search)[waits.row]
    of_event = matching(scope.trace, WAITED_FOR["event"].search)[waits.row] | waits.full
    own = waits.copies != NONE
    target = np.flatnonzero(own)
    pairs = [(waits.copies[target], target), _within(scope, begin, end, np.flatnonzero(of_event & ~own))]
    stream = np.where(of_stream, _last_stream(scope, waits.row), NONE)
    rest = ~own & ~of_event
    for number in unique(scope.activities.stream).tolist():
        asked = np.flatnonzero(rest & ((stream == number) | (stream == NONE)))
        members, launched = _launched(scope, number)
        at = np.searchsorted(launched, begin[asked], side="left") - 1
        found = members[np.maximum(at, 0)]
        kept = (at >= 0) & (scope.activities.end[found] <= end[asked] + ROUNDING)
        pairs.append((found[kept], asked[kept]))
    return Tie(*(np.concatenate(each) for each in zip(*pairs, strict=True)))


def event_ties(scope: Scope, streams: Streams) -> Tie:
    """The activities of other streams that an activity waited for: behind a call that makes a stream wait, inside a
    graph that was launched as one, and of what was queued before the first step.

    The call does not say which stream waits: mostly that of the thread's next launch; any other stream on which the
    thread launches next is believed only if the activity started at once after one that it can have waited for.
    """
    activities = scope.activities
    next_, later = behind_a_wait(scope, streams)
    queued = (activities.call == NONE) | (scope.trace.events.begin[activities.call] < scope.begin)
    number = distinct(activities.call)[1]
    in_a_graph = (np.bincount(number)[number] > 1) & (activities.call != NONE)
    asking = np.flatnonzero(next_ | later | in_a_graph | queued)
    behind = (next_ | later)[asking]
    before = np.where(behind, scope.trace.events.begin[activities.call[asking]], activities.begin[asking])
    begin, ended = activities.begin[asking], streams.ended[asking]
    sources, targets = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for number in unique(activities.stream).tolist():
        members, launched = _launched(scope, number)
        ends = np.maximum.accumulate(activities.end[members])
        over = np.searchsorted(ends, begin + ROUNDING, side="right") - 1
        last = np.searchsorted(launched, before, side="left") - 1
        at = np.minimum(over, last)
        found = members[np.maximum(at, 0)]
        binding = (activities.end[found] > ended) & (begin - activities.end[found] <= AT_ONCE)
        complete = next_[asking] & (over >= last)
        kept = (at >= 0) & (activities.stream[asking] != number) & (binding | complete) & (found < asking)
        sources.append(found[kept])
        targets.append(asking[kept])
    return Tie(np.concatenate(sources), np.concatenate(targets))


def _launched(scope: Scope, stream: int) -> tuple[Int64, Int64]:
    """The activities of a stream in order, and when each was launched at the earliest: what has no launch in the trace
    came after what it follows."""
    activities = scope.activities
    members = np.flatnonzero(activities.stream == stream)
    call = activities.call[members]
    called = np.where(call != NONE, scope.trace.events.begin[call], np.iinfo(np.int64).min)
    return members, np.maximum.accumulate(called)


def _last_stream(scope: Scope, rows: Int64) -> Int64:
    """The stream of the last activity that the thread of each call had launched before it."""
    activities, events = scope.activities, scope.trace.events
    called = np.flatnonzero(activities.call != NONE)
    call = activities.call[called]
    order = np.lexsort((events.begin[call], events.lane[call]))
    lane, begin, stream = events.lane[call][order], events.begin[call][order], activities.stream[called][order]
    found = np.full(len(rows), NONE)
    for number in scope.lanes:
        mine, asked = np.flatnonzero(lane == number), np.flatnonzero(events.lane[rows] == number)
        at = np.searchsorted(begin[mine], events.begin[rows[asked]], side="left") - 1
        known = at >= 0
        found[asked[known]] = stream[mine[at[known]]]
    return found


def _within(scope: Scope, begin: Int64, end: Int64, asked: Int64) -> tuple[Int64, Int64]:
    """The activity that ended last inside each call; calls in which none ended waited for nothing."""
    order = np.argsort(scope.activities.end, kind="stable")
    ends = scope.activities.end[order]
    at = np.searchsorted(ends, end[asked], side="right") - 1
    known = (at >= 0) & (ends[np.maximum(at, 0)] > begin[asked]) if len(ends) else np.zeros(len(asked), np.bool_)
    return order[at[known]], asked[known]


def behind_a_wait(scope: Scope, streams: Streams) -> tuple[Bool, Bool]:
    """Activities whose launching call is the first of its thread after a call that makes a stream wait; and those that
    are the first on their stream after it."""
    events, activities = scope.trace.events, scope.activities
    waiting = (events.event_kind == EventKind.RUNTIME) & matching(scope.trace, STREAM_WAIT.match)
    next_, later = np.zeros(len(activities), np.bool_), np.zeros(len(activities), np.bool_)
    first = np.flatnonzero((activities.call != NONE) & streams.first)
    for lane in scope.lanes:
        waits = np.sort(events.begin[waiting & (events.lane == lane)])
        mine = first[events.lane[activities.call[first]] == lane]
        mine = mine[np.argsort(events.begin[activities.call[mine]], kind="stable")]
        count = np.searchsorted(waits, events.begin[activities.call[mine]], side="left")
        next_[mine] = np.diff(count, prepend=0) > 0
        by_stream = np.argsort(activities.stream[mine], kind="stable")
        since = np.diff(count[by_stream], prepend=0)
        fresh = np.diff(activities.stream[mine][by_stream], prepend=NONE) != 0
        later[mine[by_stream]] = np.where(fresh, count[by_stream], since) > 0
    return next_, later
