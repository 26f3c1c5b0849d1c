"""What ties the host to the device and streams to each other: who waited for which activity.

A trace names the calls that wait and rarely what they wait for. What is certain is the order of the calls on the host
and that a wait did not return before its activity had ended: the last activity that was launched before a wait, and
had ended when the wait was over, is what it is taken to have waited for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from steptime.arrays import Bool, Int64
from steptime.kineto.table import Category
from steptime.links.names import matching
from steptime.replay.delays import Streams
from steptime.replay.graph import NONE
from steptime.replay.scope import ROUNDING, Scope, Waits

STREAM_WAIT = re.compile(r"^(cuda|hip|cu)StreamWaitEvent")
OF_A_STREAM = re.compile(r"StreamSynchronize")
OF_AN_EVENT = re.compile(r"EventSynchronize")
AT_ONCE = 50_000
"""ns. An activity that starts this soon after another, on a stream that had to wait for something, waited for it;
events between streams take 2 µs (NVIDIA) to 25 µs (AMD)."""


@dataclass(frozen=True, slots=True, eq=False)
class Tie:
    """Pairs. source: index of the activity waited for. target: index of the wait, or of the activity that waits."""

    source: Int64
    target: Int64


def wait_ties(scope: Scope, waits: Waits) -> Tie:
    """The activities that the host's waits waited for."""
    events = scope.trace.events
    begin, end = events.begin[waits.row], events.end[waits.row]
    of_stream = matching(scope.trace, OF_A_STREAM.search)[waits.row]
    of_event = matching(scope.trace, OF_AN_EVENT.search)[waits.row] | waits.full
    own = waits.copies != NONE
    target = np.flatnonzero(own)
    pairs = [(waits.copies[target], target), _within(scope, begin, end, np.flatnonzero(of_event & ~own))]
    stream = np.where(of_stream, _last_stream(scope, waits.row), NONE)
    rest = ~own & ~of_event
    for number in np.unique(scope.activities.stream).tolist():
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
    asking = np.flatnonzero(next_ | later | _inside_a_graph(scope) | queued)
    behind = (next_ | later)[asking]
    before = np.where(behind, scope.trace.events.begin[activities.call[asking]], activities.begin[asking])
    begin, ended = activities.begin[asking], streams.ended[asking]
    sources, targets = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for number in np.unique(activities.stream).tolist():
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
    waiting = (events.category == Category.RUNTIME) & matching(scope.trace, STREAM_WAIT.match)
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


def _inside_a_graph(scope: Scope) -> Bool:
    """Activities that share their launch with others."""
    call = scope.activities.call
    _, number, count = np.unique(call, return_inverse=True, return_counts=True)
    shared: Bool = (count[number.reshape(-1)] > 1) & (call != NONE)
    return shared
