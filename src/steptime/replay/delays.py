"""The delays of a device that no event of the trace holds: from a launch to its activity, between activities, and from
the end of what was waited for to the return of the wait.

They are the machine's, not an activity's own: one figure for each kind, from the cases in which nothing else can have
delayed: the median, or the mean of the gaps between activities, which add up along a stream. So they are a model, and
the replay's error says how good it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steptime.arrays import Bool, Int64
from steptime.kineto.table import Category
from steptime.links.names import matching
from steptime.replay.graph import NONE
from steptime.replay.scope import PAGEABLE, Scope, Waits

USUAL_LAUNCH = 3_000
"""ns from the end of a launching call to its kernel where no kernel of the trace found its stream empty."""
USUAL_GAP = 1_000
"""ns between kernels of one stream where none followed another from a full queue."""
USUAL_RETURN = 10_000
"""ns from the end of an activity to the return of the call that waited for it, where none waited."""
LONGEST_GAP = 50_000
"""ns between activities that follow each other from a full queue; they take 0 to 10 µs."""
LONGEST_DELAY = 100_000
"""ns from a launch to its activity, or from the end of an activity to the return of a wait; they take 2 to 20 µs."""
SURE = 5_000
"""ns by which a queue must have been full, or a stream empty, to take a case for a clear one."""


@dataclass(frozen=True, slots=True)
class Delays:
    """ns. launch: from the end of the launching call to the start, by `Category` (negative where kernels start before
    their call returns). copy: from the begin of a copying call that waits to the start of its copy. gap: between
    activities of one stream, by `Category` of the later. wait: the return of a wait. call: a wait that waits for
    nothing."""

    launch: dict[int, int]
    copy: int
    gap: dict[int, int]
    wait: int
    call: int


@dataclass(frozen=True, slots=True, eq=False)
class Streams:
    """What precedes each activity on its stream: index of the activity before (NONE for the first), when it had ended
    (ns, far past for the first), and whether the activity is the first that its call launched."""

    before: Int64
    ended: Int64
    first: Bool


def streams_of(scope: Scope) -> Streams:
    """Stream order, by begin."""
    activities = scope.activities
    order = np.lexsort((np.arange(len(activities)), activities.begin, activities.stream))
    before = np.full(len(activities), NONE)
    same = activities.stream[order[1:]] == activities.stream[order[:-1]]
    before[order[1:][same]] = order[:-1][same]
    ended = np.where(before == NONE, np.iinfo(np.int64).min // 2, activities.end[before])
    first = np.ones(len(activities), np.bool_)
    _, heads = np.unique(activities.call, return_index=True)
    called = activities.call != NONE
    first[called] = False
    first[heads] = True
    return Streams(before, ended, first)


def delays_of(scope: Scope, streams: Streams, waits: Waits, behind: Bool) -> Delays:
    """From the clear cases in the scope. behind: activities that may have waited for another stream."""
    activities, events = scope.activities, scope.trace.events
    category = events.category[activities.row]
    called = activities.call != NONE
    begin, end = events.begin[activities.call], events.end[activities.call]
    holding = np.isin(activities.call, waits.row[waits.copies != NONE]) & called
    holding |= matching(scope.trace, PAGEABLE.search)[activities.row]
    empty = called & streams.first & (streams.ended + SURE < begin) & ~holding & ~behind
    full = called & ~behind & (end + SURE < streams.ended) & (streams.ended <= activities.begin)
    launch, gap = {}, {}
    for kind in (Category.KERNEL, Category.MEMCPY, Category.MEMSET):
        of_kind = category == kind
        launch[int(kind)] = _median((activities.begin - end)[empty & of_kind], USUAL_LAUNCH)
        gap[int(kind)] = _mean((activities.begin - streams.ended)[full & of_kind], USUAL_GAP)
    copied = empty & (category != Category.KERNEL)
    copy = _median((activities.begin - begin)[copied], 2 * USUAL_LAUNCH)
    return Delays(launch, copy, gap, *_waiting(scope, waits))


def _waiting(scope: Scope, waits: Waits) -> tuple[int, int]:
    """The return of waits, and the cost of calls that waited for nothing."""
    events, ends = scope.trace.events, np.sort(scope.activities.end)
    begin, end = events.begin[waits.row], events.end[waits.row]
    index = np.searchsorted(ends, end, side="right") - 1
    last = np.where(index >= 0, ends[np.maximum(index, 0)], begin) if len(ends) else begin
    waited = last > begin + SURE
    pure = ~waits.frees & ~waits.full
    call = _median((end - begin)[~waited & pure & (waits.copies == NONE)], USUAL_RETURN)
    return _median((end - last)[waited & pure], USUAL_RETURN), call


def _mean(values: Int64, usual: int) -> int:
    """Without what is too long for a queue at work: a wait for another stream."""
    short = values[values <= LONGEST_GAP]
    return round(float(short.mean())) if len(short) else usual


def _median(values: Int64, usual: int) -> int:
    """Without what no machine takes: a wait for something else."""
    possible = values[values <= LONGEST_DELAY]
    return int(np.median(possible)) if len(possible) else usual
