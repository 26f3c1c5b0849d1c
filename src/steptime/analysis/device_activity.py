"""What ran on the devices of a trace."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steptime.analysis.threads import during
from steptime.arrays import Bool, Int32, unique
from steptime.intervals import Intervals
from steptime.trace.cached_per_trace import once
from steptime.trace.links import DEVICE, UNKNOWN, host_forest, launches_of, none_of, roles_of
from steptime.trace.table import EventKind, Trace
from steptime.trace.vendors import COLLECTIVE, COLLECTIVE_ON_DEVICE, LAUNCH, STEP, communicates, matching, of_symbols


@dataclass(frozen=True, slots=True, eq=False)
class Activities:
    """What ran on the device. rows: positions in the event table, by begin. launch: position of the runtime call with
    the same correlation, UNKNOWN where the trace holds none."""

    rows: Int32
    launch: Int32


@dataclass(frozen=True, slots=True, eq=False)
class DeviceTime:
    """When devices did what; the sets overlap. Streams and devices of one process count as one."""

    compute: Intervals
    communication: Intervals
    copies: Intervals
    busy: Intervals


@once
def has_kernels(trace: Trace) -> bool:
    """Whether a device did something."""
    return bool(np.any(trace.events.event_kind == EventKind.KERNEL))


@once
def unseen_work(trace: Trace) -> Bool:
    """Which events ask a device for work, in a trace that holds nothing that a device did: launches, and collectives of
    libraries that work on devices only. The job ran on a device then, and the profiler recorded the host alone."""
    events = trace.events
    if events.are(*DEVICE).any():
        return none_of(len(events))
    launches = (events.event_kind == EventKind.RUNTIME) & matching(trace, LAUNCH.match)
    collectives = (events.event_kind == EventKind.ANNOTATION) & matching(trace, COLLECTIVE_ON_DEVICE.match)
    asking: Bool = launches if launches.any() else collectives
    return asking


def nothing_in(trace: Trace) -> str:
    """What a trace holds that says nothing about a job, in words; "" for one with an operator, a function, a range of
    the user's or work of a device."""
    kinds = trace.events.event_kind
    telling = np.isin(kinds, (EventKind.OPERATOR, EventKind.PYTHON, *DEVICE))
    telling |= (kinds == EventKind.ANNOTATION) & ~matching(trace, STEP.match)
    if telling.any():
        return ""
    calls = int((kinds == EventKind.RUNTIME).sum())
    held = f"{calls} runtime call{'s' * (calls > 1)}" if calls else "nothing but the profiler's own marks"
    return f"holds {held if len(kinds) else 'no event that took time'}, no operator and no kernel"


@once
def device_activities(trace: Trace) -> Activities:
    """Kernels, copies and memsets with the calls that launched them."""
    rows = np.flatnonzero(trace.events.are(*DEVICE))
    rows = rows[np.argsort(trace.events.begin[rows], kind="stable")]
    return Activities(rows.astype(np.int32), launches_of(trace)[rows])


@once
def communication_kernels(trace: Trace) -> Bool:
    """Which events are kernels that communicate: by their names, or because a collective's own operator launched
    them."""
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


@once
def device_time(trace: Trace) -> DeviceTime:
    """Of all devices and streams together."""
    events = trace.events
    kernel = events.event_kind == EventKind.KERNEL
    between = communication_kernels(trace)
    copies = events.are(EventKind.MEMCPY, EventKind.MEMSET)
    chosen = (kernel & ~between, between, copies, kernel | copies)
    return DeviceTime(*(during(trace, each) for each in chosen))
