"""Idle stretches of the device and what the threads that end them were doing.

An idle stretch ends with a device activity, which a thread of the host launched; what that thread was doing explains
the stretch. Autograd's engine works for the training thread, which waits meanwhile: what one ends, both explain.
What nothing in the trace launched, and the idle time at the very end, is explained by the training thread.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steptime.arrays import Bool, Int64
from steptime.intervals import Intervals, contains, intersect, join, subtract, union
from steptime.kineto.once import once
from steptime.kineto.table import Category, Trace
from steptime.ledger.activities import UNKNOWN, Activities, device_activities
from steptime.ledger.ledger import Account
from steptime.ledger.operations import DISPATCH_GAP, operator_events, short_gaps
from steptime.ledger.processor import Claims
from steptime.ledger.threads import autograd_lanes, compile_time, input_time, recorded_time
from steptime.links.names import COPY_CALL, SYNCHRONISATION, matching

ACCOUNTS = (Account.INPUT, Account.SYNC, Account.COMPILE, Account.LAUNCH, Account.HOST)


@dataclass(frozen=True, slots=True, eq=False)
class Idle:
    """Idle stretches in time order, ns. launch: row of the call that ends each, UNKNOWN for none; launched: when it
    began. lane: of the thread that ends it. staged: that call is a copy which held the host for longer than launching
    takes. threads: by lane, the lanes that explain what it ends, those whose word counts first first.
    """

    begin: Int64
    end: Int64
    launch: Int64
    launched: Int64
    lane: Int64
    staged: Bool
    threads: dict[int, tuple[int, ...]]


@once
def idle_of(trace: Trace, busy: Intervals, lane: int | None) -> Idle:
    """All idle time of the recording. lane: the training thread's."""
    activities = device_activities(trace)
    idle = subtract(recorded_time(trace), busy)
    begins = trace.events.begin[activities.rows]
    after = np.searchsorted(begins, idle.end)
    known = after < len(begins)
    launch = np.where(known, activities.launch[np.minimum(after, len(begins) - 1)], UNKNOWN)
    called = launch != UNKNOWN
    lanes = np.where(called, trace.events.lane[launch], _usual_launcher(trace, activities, lane))
    before = np.where(idle.end - idle.begin <= DISPATCH_GAP, idle.begin, idle.end)  # a lost launch: queued, or not
    launched = np.clip(np.where(called, trace.events.begin[launch], before), idle.begin, idle.end)
    staged = called & matching(trace, COPY_CALL.search)[launch] & (trace.events.duration[launch] > DISPATCH_GAP)
    family = (*autograd_lanes(trace, lane), lane) if lane is not None else ()
    threads = {each: family if each in family else (each,) for each in np.unique(lanes).tolist()}
    return Idle(idle.begin, idle.end, launch, launched, lanes, staged, threads)


@once
def idle_claims(trace: Trace, idle: Idle, input_ranges: Intervals, compile_ranges: Intervals) -> Claims:
    """Who claims the idle time. The accounts may overlap: their order decides."""
    explained = [_explain(trace, idle, lane, input_ranges, compile_ranges) for lane in idle.threads if lane != UNKNOWN]
    return tuple((account, join(*(each[account] for each in explained))) for account in ACCOUNTS)


@once
def waiting_calls(trace: Trace, lane: int) -> Int64:
    """Rows of the runtime calls of a lane that return when the device is done, by begin: those that do by their name,
    and copies that held the host for longer than launching takes."""
    events = trace.events
    blocking = matching(trace, COPY_CALL.search) & (events.duration > DISPATCH_GAP)
    waiting = matching(trace, SYNCHRONISATION.search) | blocking
    rows = np.flatnonzero((events.category == Category.RUNTIME) & (events.lane == lane) & waiting)
    return rows[np.argsort(events.begin[rows], kind="stable")]


def _usual_launcher(trace: Trace, activities: Activities, lane: int | None) -> int:
    if lane is not None:
        return lane
    launched = activities.launch[activities.launch != UNKNOWN]
    return int(np.bincount(trace.events.lane[launched]).argmax()) if len(launched) else UNKNOWN


def _explain(
    trace: Trace, idle: Idle, lane: int, input_ranges: Intervals, compile_ranges: Intervals
) -> dict[Account, Intervals]:
    """What was done in the stretches that the thread on `lane` ended."""
    mine, threads = idle.lane == lane, idle.threads[lane]
    begin, end, launched = idle.begin[mine], idle.end[mine], idle.launched[mine]
    inside = union(begin, end)
    drained = contains(join(*(_waiting(trace, each) for each in threads)), begin)
    calls = join(*(_calls(trace, each) for each in threads))
    dispatching = join(calls, short_gaps(calls), union(launched, end))
    staged = idle.staged[mine]
    queued = (launched <= begin) & (end - begin <= DISPATCH_GAP) & ~staged  # the device's own pause between kernels
    waiting = join(
        union(begin[drained], launched[drained]),
        union(launched[staged], end[staged]),
        intersect(union(begin[~queued], end[~queued]), join(*(_long_waits(trace, each) for each in threads))),
    )
    return {
        Account.INPUT: intersect(inside, join(*(input_time(trace, each) for each in threads), input_ranges)),
        Account.SYNC: waiting,
        Account.COMPILE: intersect(inside, join(*(compile_time(trace, each) for each in threads), compile_ranges)),
        Account.LAUNCH: intersect(inside, dispatching),
        Account.HOST: inside,
    }


def _waiting(trace: Trace, lane: int) -> Intervals:
    rows = waiting_calls(trace, lane)
    return union(trace.events.begin[rows], trace.events.end[rows])


def _long_waits(trace: Trace, lane: int) -> Intervals:
    rows = waiting_calls(trace, lane)
    rows = rows[trace.events.duration[rows] > DISPATCH_GAP]
    return union(trace.events.begin[rows], trace.events.end[rows])


def _calls(trace: Trace, lane: int) -> Intervals:
    """In operators and runtime calls."""
    events = trace.events
    chosen = (operator_events(trace) | (events.category == Category.RUNTIME)) & (events.lane == lane)
    return union(events.begin[chosen], events.end[chosen])
