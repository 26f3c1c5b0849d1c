"""Activity of the devices of a trace."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from steptime.analysis.threads import during
from steptime.analysis.timeline import counted
from steptime.arrays import Bool, Int32, Int64, unique
from steptime.intervals import EMPTY, Intervals, contains, join, union
from steptime.trace.cached_per_trace import cached_per_trace
from steptime.trace.links import DEVICE, UNKNOWN, host_forest, launches_of, none_of, roles_of
from steptime.trace.table import EventKind, Trace
from steptime.trace.vendors import (
    CAPTURE_END,
    CAPTURE_START,
    COLLECTIVE,
    COLLECTIVE_ON_DEVICE,
    LAUNCH,
    OPERATOR_ON_DEVICE,
    STEP,
    communicates,
    matching,
    of_symbols,
)


@dataclass(frozen=True, slots=True, eq=False)
class Activities:
    """Activities of the device. rows: their positions in the event table, by start. launch: position of the runtime
    call with the same correlation id, UNKNOWN if the trace holds none."""

    rows: Int32
    launch: Int32


@dataclass(frozen=True, slots=True, eq=False)
class DeviceTime:
    """Instants at which any device computed, communicated, copied or did anything at all (busy). The sets overlap. All
    streams and devices of one process count together."""

    compute: Intervals
    communication: Intervals
    copies: Intervals
    busy: Intervals


@cached_per_trace
def has_kernels(trace: Trace) -> bool:
    return bool(np.any(trace.events.event_kind == EventKind.KERNEL))


@cached_per_trace
def unseen_work(trace: Trace) -> Bool:
    """Mask of the events that ask a device for work, in a trace without kernels (else all False): launches, or else
    collectives of device libraries, or else operators that exist on devices only. A job with such events ran on a
    device, and the profiler recorded the CPU alone."""
    events = trace.events
    if has_kernels(trace):
        return none_of(len(events))
    launches = (events.event_kind == EventKind.RUNTIME) & matching(trace, LAUNCH.match)
    collectives = (events.event_kind == EventKind.ANNOTATION) & matching(trace, COLLECTIVE_ON_DEVICE.match)
    operators = (events.event_kind == EventKind.OPERATOR) & matching(trace, OPERATOR_ON_DEVICE.match)
    asking: Bool = next((each for each in (launches, collectives) if each.any()), operators)
    return asking


MOST_LOST = 0.1
"""Fraction of a step's launches that may lack their kernel. Of 40 published traces and recordings on A100, H100, H200,
B200 and MI300, 39 lack none and one lacks all."""


def held_whole(trace: Trace, boundaries: Int64) -> Bool:
    """Mask of the steps whose device work is in the trace; the device would seem idle in the others. boundaries: the
    steps on the CPU, (n, 2), ns. All are True in a trace without kernels (see `unseen_work`). In a trace joined from
    several recordings, steps in a recording without device events are False."""
    whole = np.ones(len(boundaries), np.bool_)
    if not has_kernels(trace):
        return whole
    events, activities = trace.events, device_activities(trace)
    ran = events.start[activities.rows]
    if (activities.launch != UNKNOWN).any():  # else the file does not say what launched what
        calls = np.flatnonzero((events.event_kind == EventKind.RUNTIME) & matching(trace, LAUNCH.match))
        lost = calls[~np.isin(calls, activities.launch)]
        lost = lost[~contains(captures(trace)[1], events.start[lost])]  # what is captured runs later, with its graph
        made, missing = (counted(np.sort(events.start[rows]), *boundaries.T) for rows in (calls, lost))
        unlinked = counted(ran[activities.launch == UNKNOWN], *boundaries.T)
        whole &= missing - unlinked <= MOST_LOST * made
    for window in np.array(trace.windows, np.int64).reshape(-1, 2):
        if not counted(ran, *window[None].T).any():
            whole &= (boundaries[:, 0] < window[0]) | (boundaries[:, 0] >= window[1])
    return whole


def host_alone(trace: Trace) -> Trace:
    """The trace with its device events hidden, for a trace that recorded too few of them."""
    kinds = np.where(trace.events.are(*DEVICE), np.uint8(EventKind.OTHER), trace.events.event_kind)
    kinds.flags.writeable = False
    return replace(trace, events=replace(trace.events, event_kind=kinds))


@cached_per_trace
def captures(trace: Trace) -> tuple[Int64, Intervals]:
    """(starts of graph captures in ns, instants inside captures: from each start to the next end on its thread)."""
    events, found, begun = trace.events, [EMPTY], [np.empty(0, np.int64)]
    calls = events.event_kind == EventKind.RUNTIME
    starts = np.flatnonzero(calls & matching(trace, CAPTURE_START.match))
    ends = np.flatnonzero(calls & matching(trace, CAPTURE_END.match))
    for track in unique(events.track[starts]).tolist():
        since = np.sort(events.ends(starts[events.track[starts] == track]))
        until = np.sort(events.start[ends[events.track[ends] == track]])
        place = np.searchsorted(until, since)
        known = place < len(until)
        found.append(union(since[known], until[place[known]]))
        begun.append(since[known])
    return np.concatenate(begun), join(*found)


def nothing_in(trace: Trace) -> str:
    """Description of a trace's content if it says nothing about a job; "" if it holds an operator, a Python function, a
    user's range or device work."""
    kinds = trace.events.event_kind
    informative = np.isin(kinds, (EventKind.OPERATOR, EventKind.PYTHON, *DEVICE))
    informative |= (kinds == EventKind.ANNOTATION) & ~matching(trace, STEP.match)
    if informative.any():
        return ""
    calls = int((kinds == EventKind.RUNTIME).sum())
    held = f"{calls} runtime call{'s' * (calls > 1)}" if calls else "nothing but the profiler's own marks"
    return f"has {held if len(kinds) else 'no event with a duration'}, but no operator and no kernel"


@cached_per_trace
def device_activities(trace: Trace) -> Activities:
    """Kernels, copies and memsets with the runtime calls that launched them, by start."""
    rows = np.flatnonzero(trace.events.are(*DEVICE))
    rows = rows[np.argsort(trace.events.start[rows], kind="stable")]
    return Activities(rows.astype(np.int32), launches_of(trace)[rows])


@cached_per_trace
def communication_kernels(trace: Trace) -> Bool:
    """Mask of the kernels that communicate, by their names or because a collective's operator launched them."""
    rows = np.flatnonzero(trace.events.event_kind == EventKind.KERNEL)
    launch, names = launches_of(trace)[rows], trace.events.name[rows]
    launched = np.flatnonzero(launch != UNKNOWN)
    operator = host_forest(trace).around(launch[launched], roles_of(trace).operator, itself=True)
    within = np.flatnonzero(operator != UNKNOWN)
    chosen = np.zeros(len(trace.events), np.bool_)
    asking = of_symbols(trace, COLLECTIVE.match)[trace.events.name[operator[within]]]
    chosen[rows[launched[within[asking]]]] = True
    by_name = [name for name in unique(names).tolist() if communicates(trace.symbols[name])]
    chosen[rows[np.isin(names, np.array(by_name, np.int32))]] = True
    return chosen if chosen.any() else none_of(len(chosen))


@cached_per_trace
def device_time(trace: Trace) -> DeviceTime:
    """Instants of each kind of work, of all devices and streams together."""
    events = trace.events
    kernel = events.event_kind == EventKind.KERNEL
    between = communication_kernels(trace)
    copies = events.are(EventKind.MEMCPY, EventKind.MEMSET)
    chosen = (kernel & ~between, between, copies, kernel | copies)
    return DeviceTime(*(during(trace, each) for each in chosen))
