"""What of a trace is replayed: the activities, calls and threads of some consecutive steps."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from steptime.arrays import Bool, Int64
from steptime.intervals import Intervals, join, subtract, union
from steptime.kineto.table import Category, Trace
from steptime.ledger.operations import operator_events, short_gaps
from steptime.ledger.threads import autograd_lanes, input_time
from steptime.links.names import COMMUNICATION_KERNEL, SYNCHRONISATION, matching
from steptime.replay.graph import NONE

DEVICE = (Category.KERNEL, Category.MEMCPY, Category.MEMSET)
ALLOCATION = re.compile(r"^(cuda|hip|cu)(Malloc|Free|HostAlloc|HostMalloc|HostFree|MemAlloc|MemFree|MemCreate|MemMap)")
"""Calls that make or give back memory in the driver; freeing waits for the device."""
PAGEABLE = re.compile(r"Pageable")
WAITED = 20_000
"""ns. A copy or a cudaFree that lasts longer, and until an activity has ended, waited for it: they take 2 to 15 µs by
themselves. Of calls that exist to wait, any duration counts."""
FULL = 512
"""Activities launched and not done. CUDA holds a launch back when about 1024 are in its queue (1022 in the traces at
hand); below half of that a long launch has other reasons (a module that is loaded)."""
HELD_BACK = 100_000
"""ns. A launch takes 3 to 10 µs."""
ROUNDING = 1_000
"""ns: files before 2023 hold whole microseconds."""


@dataclass(frozen=True, slots=True, eq=False)
class Activities:
    """Device activities by begin. row, call: of the event table, call NONE where the trace holds no launch. stream:
    numbers of (device, stream) pairs. communicates: collectives. step: that launched it, NONE outside."""

    row: Int64
    call: Int64
    begin: Int64
    end: Int64
    stream: Int64
    communicates: Bool
    step: Int64

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True, slots=True, eq=False)
class Scope:
    """The steps and all that belongs to them. training: lane; lanes: the training lane and those that launch; engines:
    those of them on which autograd runs. borders: (n, 2) ns. started: when the first step begins as the ledger has
    it, ns: when the host begins it, or when the device has ended the step before."""

    trace: Trace
    borders: Int64
    training: int
    lanes: tuple[int, ...]
    engines: tuple[int, ...]
    activities: Activities
    input_ranges: Intervals
    started: int

    @property
    def begin(self) -> int:
        """Where the first step begins, ns."""
        return int(self.borders[0, 0])

    @property
    def end(self) -> int:
        """Where the host ends the last step, ns."""
        return int(self.borders[-1, 1])


def scope_of(
    trace: Trace, borders: Int64, launch: Int64, training: int, input_ranges: Intervals, wall: int | None = None
) -> Scope:
    """All that the steps launched or that still ran when they began. launch: `Links.launch`. wall: ns that the first
    step takes in the ledger; None: from where the host begins it."""
    activities = _activities(trace, borders, launch)
    calls = activities.call[activities.call != NONE]
    inside = calls[trace.events.begin[calls] >= borders[0, 0]]
    engines = autograd_lanes(trace, training)
    launching = np.unique(trace.events.lane[inside]).tolist()
    lanes = (training, *(lane for lane in launching if lane != training))
    own = activities.end[activities.step == 0]
    ended = max(int(borders[0, 1]), int(own.max())) if len(own) else int(borders[0, 1])
    started = int(borders[0, 0]) if wall is None else ended - wall
    known = tuple(set(engines) & set(lanes))
    return Scope(trace, borders, training, lanes, known, activities, input_ranges, started)


def _activities(trace: Trace, borders: Int64, launch: Int64) -> Activities:
    events = trace.events
    rows = np.flatnonzero(np.isin(events.category, DEVICE))
    rows = rows[np.argsort(events.begin[rows], kind="stable")]
    begin, end, call = events.begin[rows], events.end[rows], launch[rows].astype(np.int64)
    called = np.where(call != NONE, events.begin[call], begin)
    kept = (end > borders[0, 0]) & (called < borders[-1, 1])
    rows, begin, end, call = rows[kept], begin[kept], end[kept], call[kept]
    streams = np.stack((events.device[rows].astype(np.int64), events.stream[rows], events.lane[rows]), axis=1)
    _, stream = np.unique(streams, axis=0, return_inverse=True)
    communicates = matching(trace, COMMUNICATION_KERNEL.search)[rows] & (events.category[rows] == Category.KERNEL)
    return Activities(rows, call, begin, end, stream.reshape(-1), communicates, _steps(trace, borders, call))


def _steps(trace: Trace, borders: Int64, call: Int64) -> Int64:
    """The step whose host range holds the whole call, as `ledger.trace_steps.reach` has it."""
    begin, end = trace.events.begin[call], trace.events.end[call]
    step = np.searchsorted(borders[:, 0], begin, side="right") - 1
    inside = (call != NONE) & (step >= 0) & (end <= borders[np.maximum(step, 0), 1])
    return np.where(inside, step, NONE)


@dataclass(frozen=True, slots=True, eq=False)
class Waits:
    """Calls that may hold the host until the device has done something, by begin. row: the runtime call. copies: the
    activity (index) that the call itself made, NONE for a call that only waits. frees: it gives memory back. full: it
    launches, and the driver's queue has no room."""

    row: Int64
    copies: Int64
    frees: Bool
    full: Bool


def waits_of(scope: Scope) -> Waits:
    """Synchronising calls, frees, copies that held the host and launches that were held back, on the scope's lanes."""
    events, activities = scope.trace.events, scope.activities
    inside = (events.begin >= scope.begin) & (events.end <= scope.end) & np.isin(events.lane, scope.lanes)
    chosen = (events.category == Category.RUNTIME) & inside
    waits = chosen & matching(scope.trace, SYNCHRONISATION.search)
    frees = chosen & matching(scope.trace, re.compile(r"^(cuda|hip)(Host)?Free(Host)?$").match)
    frees &= events.duration > WAITED
    copies = np.full(len(events), NONE)
    of_copies = np.flatnonzero(_holding(scope, activities))
    copies[activities.call[of_copies]] = of_copies
    full = np.zeros(len(events), np.bool_)
    full[_held_back(scope, activities)] = True
    rows = np.flatnonzero((waits | frees | full | (copies != NONE)) & inside)
    rows = rows[np.argsort(events.begin[rows], kind="stable")]
    return Waits(rows, copies[rows], frees[rows], full[rows])


def _held_back(scope: Scope, activities: Activities) -> Int64:
    """Rows of the calls that launched one kernel, took long, and found a long queue."""
    events = scope.trace.events
    calls, count = np.unique(activities.call[activities.call != NONE], return_counts=True)
    long = calls[(count == 1) & (events.duration[calls] > HELD_BACK)]
    begins = np.sort(events.begin[activities.call[activities.call != NONE]])
    ends = np.sort(activities.end[activities.call != NONE])
    queued = np.searchsorted(begins, events.begin[long]) - np.searchsorted(ends, events.begin[long])
    full: Int64 = long[queued >= FULL]
    return full


def _holding(scope: Scope, activities: Activities) -> Bool:
    """Which activities are copies whose call returned only when they had ended."""
    events = scope.trace.events
    copy = (events.category[activities.row] == Category.MEMCPY) & (activities.call != NONE)
    returned = events.end[activities.call]
    pageable = matching(scope.trace, PAGEABLE.search)[activities.row]
    lasted = pageable | (events.duration[activities.call] > WAITED)
    holding: Bool = copy & (returned + ROUNDING >= activities.end) & lasted
    return holding


def host_time(scope: Scope, lane: int) -> tuple[Intervals, Intervals, Intervals]:
    """When a lane waits for input, dispatches, and allocates or frees in the driver; without overlap."""
    events = scope.trace.events
    on_lane = events.lane == lane
    runtime = on_lane & (events.category == Category.RUNTIME)
    calls = runtime | (on_lane & operator_events(scope.trace))
    during = union(events.begin[calls], events.end[calls])
    allocating = runtime & matching(scope.trace, ALLOCATION.match)
    allocation = union(events.begin[allocating], events.end[allocating])
    input_ = input_time(scope.trace, lane)
    if lane == scope.training:
        input_ = join(input_, scope.input_ranges)
    dispatch = subtract(join(during, short_gaps(during)), join(input_, allocation))
    return input_, dispatch, subtract(allocation, input_)
