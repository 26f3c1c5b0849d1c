"""The replayed part of a trace: activities, calls and threads of consecutive steps, and the delays of the device.

No event of a trace holds these delays: from a launch to its activity, between activities, and from the end of an
awaited activity to the return of the wait. They belong to the machine, not to an activity. Each kind has one value,
from cases in which nothing else can have delayed: the median, or the mean for gaps between activities, which add up
along a stream. So they are a model, and the replay's error shows how good it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from steptime.analysis.device_activity import communication_kernels
from steptime.analysis.operators import operator_events, short_gaps
from steptime.analysis.threads import autograd_tracks, input_time
from steptime.analysis.what_if.graph import NONE
from steptime.arrays import Bool, Int64, distinct, unique
from steptime.intervals import Intervals, join, subtract, union
from steptime.trace.links import DEVICE
from steptime.trace.table import EventKind, Trace
from steptime.trace.vendors import ALLOCATION, FREEING, SYNCHRONISATION, matching

PAGEABLE = re.compile(r"Pageable")
WAITED = 20_000
"""Least duration of a copy or a cudaFree that waited, ns, if an activity ended meanwhile: by themselves they take 2 to
15 µs. Calls that exist to wait count with any duration."""
FULL = 512
"""Activities in the driver's queue from which on a long launch was held back. CUDA holds launches back at about 1024
(1022 in the traces at hand); below half of that a long launch has other reasons (a module is loaded)."""
HELD_BACK = 100_000
"""Least duration of a launch that was held back, ns. A launch takes 3 to 10 µs."""
ROUNDING = 1_000
"""Resolution of files before 2023, ns: whole microseconds."""


@dataclass(frozen=True, slots=True, eq=False)
class ReplayedActivities:
    """Device activities by start. row, call: rows of the activity and of its launch in the event table; call is NONE if
    the trace holds no launch. stream: number of the (device, stream) pair. communicates: True for collectives. step:
    index of the step that launched it, NONE outside of all steps."""

    row: Int64
    call: Int64
    start: Int64
    end: Int64
    stream: Int64
    communicates: Bool
    step: Int64

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True, slots=True, eq=False)
class Scope:
    """Consecutive steps and all that belongs to them. training: track of the training thread; tracks: this track and
    all that launch; engines: tracks on which autograd runs. boundaries: (n, 2), ns. started: start of the first step as
    in the breakdown, ns: when the CPU starts it, or when the device has ended the step before."""

    trace: Trace
    boundaries: Int64
    training: int
    tracks: tuple[int, ...]
    engines: tuple[int, ...]
    activities: ReplayedActivities
    input_ranges: Intervals
    started: int

    @property
    def start(self) -> int:
        """Start of the first step on the CPU, ns."""
        return int(self.boundaries[0, 0])

    @property
    def end(self) -> int:
        """End of the last step on the CPU, ns."""
        return int(self.boundaries[-1, 1])


def scope_of(
    trace: Trace, boundaries: Int64, launch: Int64, training: int, input_ranges: Intervals, wall: int | None = None
) -> Scope:
    """Scope of the steps, with all device work that they launched or that still ran at their start. launch:
    `Links.launch`. wall: the first step's duration in the breakdown, ns; None to start it where the CPU does."""
    activities = _activities(trace, boundaries, launch)
    calls = activities.call[activities.call != NONE]
    inside = calls[trace.events.start[calls] >= boundaries[0, 0]]
    engines = autograd_tracks(trace, training)
    launching = unique(trace.events.track[inside]).tolist()
    tracks = (training, *(track for track in launching if track != training))
    own = activities.end[activities.step == 0]
    ended = max(int(boundaries[0, 1]), int(own.max())) if len(own) else int(boundaries[0, 1])
    started = int(boundaries[0, 0]) if wall is None else ended - wall
    known = tuple(set(engines) & set(tracks))
    return Scope(trace, boundaries, training, tracks, known, activities, input_ranges, started)


def _activities(trace: Trace, boundaries: Int64, launch: Int64) -> ReplayedActivities:
    events = trace.events
    rows = np.flatnonzero(np.isin(events.event_kind, DEVICE))
    rows = rows[np.argsort(events.start[rows], kind="stable")]
    start, end, call = events.start[rows], events.ends(rows), launch[rows].astype(np.int64)
    called = np.where(call != NONE, events.start[call], start)
    kept = (end > boundaries[0, 0]) & (called < boundaries[-1, 1])
    rows, start, end, call = rows[kept], start[kept], end[kept], call[kept]
    _, stream = distinct(events.device[rows], events.stream[rows], events.track[rows])
    communicates = communication_kernels(trace)[rows]
    return ReplayedActivities(rows, call, start, end, stream, communicates, _steps(trace, boundaries, call))


def _steps(trace: Trace, boundaries: Int64, call: Int64) -> Int64:
    """Step whose CPU range holds the whole call, as in `trace_steps.device_step_bounds`; NONE for none."""
    start, end = trace.events.start[call], trace.events.ends(call)
    step = np.searchsorted(boundaries[:, 0], start, side="right") - 1
    inside = (call != NONE) & (step >= 0) & (end <= boundaries[np.maximum(step, 0), 1])
    return np.where(inside, step, NONE)


@dataclass(frozen=True, slots=True, eq=False)
class Waits:
    """Calls that may block the CPU until the device has done something, by start. row: row of the runtime call. copies:
    index of the copy that the call itself launched, NONE for a call that only waits. frees: True if it frees memory.
    full: True if it is a launch and the driver's queue has no room."""

    row: Int64
    copies: Int64
    frees: Bool
    full: Bool


def waits_of(scope: Scope) -> Waits:
    """Synchronizing calls, frees, copies that blocked the CPU and launches held back, on the scope's tracks."""
    events, activities = scope.trace.events, scope.activities
    inside = (events.start >= scope.start) & (events.end <= scope.end) & np.isin(events.track, scope.tracks)
    chosen = (events.event_kind == EventKind.RUNTIME) & inside
    waits = chosen & matching(scope.trace, SYNCHRONISATION.match)
    frees = chosen & matching(scope.trace, FREEING.match)
    frees &= events.duration > WAITED
    copies = np.full(len(events), NONE)
    called = events.duration[activities.call]
    lasted = matching(scope.trace, PAGEABLE.search)[activities.row] | (called > WAITED)
    copying = (events.event_kind[activities.row] == EventKind.MEMCPY) & (activities.call != NONE) & lasted
    of_copies = np.flatnonzero(copying & (events.ends(activities.call) + ROUNDING >= activities.end))
    copies[activities.call[of_copies]] = of_copies
    full = np.zeros(len(events), np.bool_)
    full[_held_back(scope, activities)] = True
    rows = np.flatnonzero((waits | frees | full | (copies != NONE)) & inside)
    rows = rows[np.argsort(events.start[rows], kind="stable")]
    return Waits(rows, copies[rows], frees[rows], full[rows])


def _held_back(scope: Scope, activities: ReplayedActivities) -> Int64:
    """Rows of the calls that launched one kernel, took long, and found a long queue."""
    events = scope.trace.events
    calls = activities.call[activities.call != NONE]
    first, number = distinct(calls)
    calls, count = calls[first], np.bincount(number)
    long = calls[(count == 1) & (events.duration[calls] > HELD_BACK)]
    starts = np.sort(events.start[activities.call[activities.call != NONE]])
    ends = np.sort(activities.end[activities.call != NONE])
    queued = np.searchsorted(starts, events.start[long]) - np.searchsorted(ends, events.start[long])
    full: Int64 = long[queued >= FULL]
    return full


def cpu_time(scope: Scope, track: int) -> tuple[Intervals, Intervals, Intervals]:
    """(input, dispatch, allocation): disjoint instants in which a track waits for input, dispatches, and allocates or
    frees in the driver."""
    events = scope.trace.events
    on_track = events.track == track
    runtime = on_track & (events.event_kind == EventKind.RUNTIME)
    calls = runtime | (on_track & operator_events(scope.trace))
    during = union(events.start[calls], events.ends(calls))
    allocating = runtime & matching(scope.trace, ALLOCATION.match)
    allocation = union(events.start[allocating], events.ends(allocating))
    input_ = input_time(scope.trace, track)
    if track == scope.training:
        input_ = join(input_, scope.input_ranges)
    dispatch = subtract(join(during, short_gaps(during)), join(input_, allocation))
    return input_, dispatch, subtract(allocation, input_)


USUAL_LAUNCH = 3_000
"""Default delay from the end of a launch to its kernel, ns, if no kernel of the trace found its stream empty."""
USUAL_GAP = 1_000
"""Default gap between kernels of one stream, ns, if none followed another from a full queue."""
USUAL_RETURN = 10_000
"""Default delay from the end of an activity to the return of the call that waited for it, ns, if none waited."""
LONGEST_GAP = 50_000
"""Longest gap between activities that follow each other from a full queue, ns; they take 0 to 10 µs."""
LONGEST_DELAY = 100_000
"""Margin by which a queue must have been full, or a stream empty, for a clear case, ns."""
SURE = 5_000
"""Margin by which a queue must have been full, or a stream empty, for a case to be clear, ns."""


@dataclass(frozen=True, slots=True)
class Delays:
    """Usual delays of the machine, ns. launch: from the end of the launching call to the activity, by `EventKind`
    (negative if kernels start before their call returns). copy: from the start of a waiting copy call to its copy. gap:
    time between activities of one stream, by `EventKind` of the later. wait: from the end of the awaited work to the
    wait's return. call: duration of a wait call that has nothing to wait for."""

    launch: dict[int, int]
    copy: int
    gap: dict[int, int]
    wait: int
    call: int


@dataclass(frozen=True, slots=True, eq=False)
class Streams:
    """Order of activities on their streams. before: index of the previous activity, NONE for the first; ended: its end,
    ns (far in the past for the first); first: True if the activity is the first that its call launched."""

    before: Int64
    ended: Int64
    first: Bool


def streams_of(scope: Scope) -> Streams:
    """Order of the activities on their streams, by start."""
    activities = scope.activities
    order = np.lexsort((np.arange(len(activities)), activities.start, activities.stream))
    before = np.full(len(activities), NONE)
    same = activities.stream[order[1:]] == activities.stream[order[:-1]]
    before[order[1:][same]] = order[:-1][same]
    ended = np.where(before == NONE, np.iinfo(np.int64).min // 2, activities.end[before])
    first = np.ones(len(activities), np.bool_)
    heads, _ = distinct(activities.call)
    called = activities.call != NONE
    first[called] = False
    first[heads] = True
    return Streams(before, ended, first)


def delays_of(scope: Scope, streams: Streams, waits: Waits, behind: Bool) -> Delays:
    """Usual delays of the machine, from the clear cases in the scope. behind: mask of the activities that may have
    waited for another stream."""
    activities, events = scope.activities, scope.trace.events
    event_kind = events.event_kind[activities.row]
    called = activities.call != NONE
    start, end = events.start[activities.call], events.ends(activities.call)
    holding = np.isin(activities.call, waits.row[waits.copies != NONE]) & called
    holding |= matching(scope.trace, PAGEABLE.search)[activities.row]
    empty = called & streams.first & (streams.ended + SURE < start) & ~holding & ~behind
    full = called & ~behind & (end + SURE < streams.ended) & (streams.ended <= activities.start)
    launch, gap = {}, {}
    for kind in (EventKind.KERNEL, EventKind.MEMCPY, EventKind.MEMSET):
        of_kind = event_kind == kind
        launch[int(kind)] = _median((activities.start - end)[empty & of_kind], USUAL_LAUNCH)
        gaps = (activities.start - streams.ended)[full & of_kind]
        gaps = gaps[gaps <= LONGEST_GAP]
        gap[int(kind)] = round(float(gaps.mean())) if len(gaps) else USUAL_GAP
    copied = empty & (event_kind != EventKind.KERNEL)
    copy = _median((activities.start - start)[copied], 2 * USUAL_LAUNCH)
    ends, began, returned = np.sort(activities.end), events.start[waits.row], events.ends(waits.row)
    index = np.searchsorted(ends, returned, side="right") - 1
    last = np.where(index >= 0, ends[np.maximum(index, 0)], began) if len(ends) else began
    waited, pure = last > began + SURE, ~waits.frees & ~waits.full
    call = _median((returned - began)[~waited & pure & (waits.copies == NONE)], USUAL_RETURN)
    return Delays(launch, copy, gap, _median((returned - last)[waited & pure], USUAL_RETURN), call)


def _median(values: Int64, usual: int) -> int:
    """Median of the values up to LONGEST_DELAY (longer ones waited for something else); `usual` without any."""
    possible = values[values <= LONGEST_DELAY]
    return int(np.median(possible)) if len(possible) else usual
