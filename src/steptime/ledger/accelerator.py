"""Accounts of training on an accelerator: what the device did and, while it idled, why.

An idle stretch ends with a device activity, which a thread of the host launched; what that thread was doing explains
the stretch: *input* (in the loader's next(), or batch preparation that the caller knows of), *sync* (the device ran
dry inside a call that waits for it: all of the idle time up to the launch, because without the wait the queue would
not have been empty; or a copy from pageable memory holds the host while it is staged), *compile*, *launch* (inside
operators and runtime calls, in gaps at the cadence of dispatching, and from the launch to the start of the activity),
*host* (everything else of that thread). What nothing in the trace launched, and the idle time at the very end, is
explained by the training thread. Streams and devices of one process count as one: idle means that all of them are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from steptime.intervals import EMPTY, Intervals, contains, intersect, join, subtract, union
from steptime.kineto.table import ABSENT, Category, Trace
from steptime.ledger.ledger import Account
from steptime.ledger.names import COMMUNICATION_KERNEL, COPY_CALL, SYNCHRONISATION, matching
from steptime.ledger.operations import DISPATCH_GAP, operator_events, short_gaps
from steptime.ledger.processor import Claims
from steptime.ledger.threads import compile_time, input_time, recorded_time

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]
DEVICE_CATEGORIES = (Category.KERNEL, Category.MEMCPY, Category.MEMSET)
UNKNOWN = -1


@dataclass(frozen=True, slots=True, eq=False)
class Activities:
    """What ran on the device. rows: positions in the event table, by begin. launch: position of the runtime call with
    the same correlation, UNKNOWN where the trace holds none."""

    rows: Int64
    launch: Int64


def device_activities(trace: Trace) -> Activities:
    """Kernels, copies and memsets with the calls that launched them."""
    events = trace.events
    rows = np.flatnonzero(np.isin(events.category, DEVICE_CATEGORIES))
    rows = rows[np.argsort(events.begin[rows], kind="stable")]
    calls = np.flatnonzero((events.category == Category.RUNTIME) & (events.correlation != ABSENT))
    calls = calls[np.argsort(events.correlation[calls], kind="stable")]
    keys = events.correlation[calls]
    at = np.minimum(np.searchsorted(keys, events.correlation[rows]), max(len(keys) - 1, 0))
    if not len(keys):
        return Activities(rows, np.full(len(rows), UNKNOWN))
    return Activities(rows, np.where(keys[at] == events.correlation[rows], calls[at], UNKNOWN))


def claims_on_accelerator(trace: Trace, lane: int | None, input_ranges: Intervals, compile_ranges: Intervals) -> Claims:
    """Who claims which time. lane: the training thread, for idle time that no launch ends."""
    events = trace.events
    communicates = matching(trace, COMMUNICATION_KERNEL.search)
    kernel = events.category == Category.KERNEL

    def during(chosen: Bool) -> Intervals:
        return union(events.begin[chosen], events.end[chosen])

    copies = np.isin(events.category, (Category.MEMCPY, Category.MEMSET))
    return (
        (Account.COMPUTE, during(kernel & ~communicates)),
        (Account.COMMUNICATION, during(kernel & communicates)),
        (Account.COPY, during(copies)),
        *_idle_claims(trace, lane, during(kernel | copies), input_ranges, compile_ranges),
    )


def _idle_claims(
    trace: Trace, lane: int | None, busy: Intervals, input_ranges: Intervals, compile_ranges: Intervals
) -> Claims:
    gaps = _gaps(trace, busy, lane)
    explained = [
        _explain(trace, gaps, each, input_ranges, compile_ranges) for each in np.unique(gaps.lane) if each >= 0
    ]
    accounts = (Account.INPUT, Account.SYNC, Account.COMPILE, Account.LAUNCH, Account.HOST)
    return tuple((account, join(*(each[account] for each in explained))) for account in accounts)


@dataclass(frozen=True, slots=True, eq=False)
class _Gaps:
    """Idle stretches in time order. lane: of the thread that ends it. launched: when the call that ends it began.
    staged: that call is a copy which held the host for longer than launching takes."""

    begin: Int64
    end: Int64
    lane: Int64
    launched: Int64
    staged: Bool


def _gaps(trace: Trace, busy: Intervals, lane: int | None) -> _Gaps:
    """All idle time of the recording."""
    activities = device_activities(trace)
    idle = subtract(recorded_time(trace), busy)
    begins = trace.events.begin[activities.rows]
    after = np.searchsorted(begins, idle.end)
    known = after < len(begins)
    launch = np.where(known, activities.launch[np.minimum(after, len(begins) - 1)], UNKNOWN)
    called = launch != UNKNOWN
    usual = _usual_launcher(trace, activities, lane)
    lanes = np.where(called, trace.events.lane[launch], usual)
    launched = np.where(called, trace.events.begin[launch], idle.end)
    staged = called & matching(trace, COPY_CALL.search)[launch] & (trace.events.duration[launch] > DISPATCH_GAP)
    return _Gaps(idle.begin, idle.end, lanes, np.clip(launched, idle.begin, idle.end), staged)


def _usual_launcher(trace: Trace, activities: Activities, lane: int | None) -> int:
    if lane is not None:
        return lane
    launched = activities.launch[activities.launch != UNKNOWN]
    return int(np.bincount(trace.events.lane[launched]).argmax()) if len(launched) else UNKNOWN


def _explain(
    trace: Trace, gaps: _Gaps, lane: int, input_ranges: Intervals, compile_ranges: Intervals
) -> dict[Account, Intervals]:
    """What the thread on `lane` was doing in the gaps that it ended. The accounts may overlap: their order decides."""
    mine = gaps.lane == lane
    begin, end, launched = gaps.begin[mine], gaps.end[mine], gaps.launched[mine]
    idle = union(begin, end)
    drained = contains(_waiting(trace, lane), begin)
    calls = _calls(trace, lane)
    dispatching = join(calls, short_gaps(calls), union(launched, end))
    staged = gaps.staged[mine]
    waiting = join(union(begin[drained], launched[drained]), union(launched[staged], end[staged]))
    return {
        Account.INPUT: intersect(idle, join(input_time(trace, lane), input_ranges)),
        Account.SYNC: waiting,
        Account.COMPILE: intersect(idle, join(compile_time(trace, lane), compile_ranges)),
        Account.LAUNCH: intersect(idle, dispatching),
        Account.HOST: idle,
    }


def _waiting(trace: Trace, lane: int) -> Intervals:
    """In runtime calls that return when the device is done."""
    events = trace.events
    chosen = (events.category == Category.RUNTIME) & (events.lane == lane) & matching(trace, SYNCHRONISATION.search)
    return union(events.begin[chosen], events.end[chosen]) if chosen.any() else EMPTY


def _calls(trace: Trace, lane: int) -> Intervals:
    """In operators and runtime calls."""
    events = trace.events
    chosen = (operator_events(trace) | (events.category == Category.RUNTIME)) & (events.lane == lane)
    return union(events.begin[chosen], events.end[chosen])
