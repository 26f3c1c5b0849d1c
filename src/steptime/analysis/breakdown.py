"""The time breakdown of a trace: every nanosecond of its steps in one category.

Categories of training on an accelerator: what the device did and, while it idled, why.

What a thread was doing that ends an idle stretch explains it: *input* (in the loader's next(), or batch preparation
that the caller knows of), *sync* (the device ran dry inside a call that waits for it, a blocking copy among them: all
of the idle time up to the launch, because without the wait the queue would not have been empty; or the host is in such
a call, or in a copy that is staged, for longer than launching takes while the device is idle), *compile*, *launch*
(inside operators and runtime calls, in gaps at the cadence of dispatching, and from the launch to the start of the
activity), *host* (everything else of that thread). Streams and devices of one process count as one: idle means that all
of them are.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from steptime.analysis.categories import Breakdown, Category
from steptime.analysis.device_activity import device_time
from steptime.analysis.idle import idle_claims, idle_of
from steptime.analysis.processor import Claims, claims_on_processor
from steptime.analysis.threads import training_lane
from steptime.analysis.timeline import Phase
from steptime.analysis.trace_steps import reach
from steptime.arrays import Int64
from steptime.intervals import EMPTY, Intervals, claim, contains, intersect, subtract, union
from steptime.machine.machine import Machine
from steptime.trace.links import host_events
from steptime.trace.table import EventKind, Trace


def claims_on_accelerator(trace: Trace, lane: int | None, input_ranges: Intervals, compile_ranges: Intervals) -> Claims:
    """Who claims which time. lane: the training thread, for idle time that no launch ends."""
    spent = device_time(trace)
    return (
        (Category.COMPUTE, spent.compute),
        (Category.COMMUNICATION, spent.communication),
        (Category.COPY, spent.copies),
        *idle_claims(trace, idle_of(trace, spent.busy, lane), input_ranges, compile_ranges),
    )


USUAL_DISPATCH = 2_000
"""ns of a tiny operator, where the machine was not measured: 1 to 3 microseconds on the processors of the last
decade."""


def breakdown_of(
    trace: Trace,
    boundaries: Int64,
    *,
    input_ranges: Intervals = EMPTY,
    compile_ranges: Intervals = EMPTY,
    phase_ranges: Mapping[Phase, Intervals] | None = None,
    training_thread: int | None = None,
    machine: Machine | None = None,
) -> Breakdown:
    """The breakdown of the steps of a trace, by the accelerator's definition when it has kernels, else by the
    processor's.

    boundaries: (n, 2) ns on the trace's clock (`Trace.events`), in time order without overlap, as the host sees the
    steps; on an accelerator each is moved to where the device ends it (`reach`). input_ranges, compile_ranges,
    phase_ranges: what the caller knows beside the trace, same clock. training_thread: the system's id. Raises
    ImbalanceError (a bug).
    """
    claims = claims_of(
        trace,
        input_ranges=input_ranges,
        compile_ranges=compile_ranges,
        phase_ranges=phase_ranges,
        training_thread=training_thread,
        machine=machine,
    )
    windows = reach(trace, boundaries) if has_kernels(trace) else boundaries
    return Breakdown(device_of(trace), windows[:, 1] - windows[:, 0], entries_of(windows, claims))


def phase_breakdown(claims: Claims, boundaries: Int64, phase_ranges: Mapping[Phase, Intervals]) -> Int64:
    """(len(Phase), len(Account)) ns: the categories of all steps together, phase by phase; REST is what no phase holds.

    The whole table sums to the steps. Where phases overlap, the earlier one of `Phase` has the time.
    """
    left = union(boundaries[:, 0], boundaries[:, 1])
    table = np.zeros((len(Phase), len(Category)), np.int64)
    for phase in (*(phase for phase in Phase if phase is not Phase.REST), Phase.REST):
        inside = left if phase is Phase.REST else intersect(left, phase_ranges.get(phase, EMPTY))
        windows = np.stack((inside.begin, inside.end), axis=1)
        table[phase] = entries_of(windows, claims).sum(axis=0)
        left = subtract(left, inside)
    return table


def count_events(trace: Trace, boundaries: Int64, phase_ranges: Mapping[Phase, Intervals]) -> Int64:
    """(len(Phase),) events of the host that began in each phase of the steps: what the profiler spent time on."""
    host = host_events(trace)
    begin = trace.events.begin[host]
    left = contains(union(boundaries[:, 0], boundaries[:, 1]), begin)
    counts = np.zeros(len(Phase), np.int64)
    for phase in Phase:
        inside = left & contains(phase_ranges.get(phase, EMPTY), begin)
        counts[phase] = inside.sum()
        left &= ~inside
    counts[Phase.REST] += left.sum()
    return counts


def claims_of(
    trace: Trace,
    *,
    input_ranges: Intervals = EMPTY,
    compile_ranges: Intervals = EMPTY,
    phase_ranges: Mapping[Phase, Intervals] | None = None,
    training_thread: int | None = None,
    machine: Machine | None = None,
) -> Claims:
    """Who claims which time of a trace, in the order of the claims; see `account_for`."""
    lane = training_lane(trace, training_thread)
    if has_kernels(trace):
        return claims_on_accelerator(trace, lane, input_ranges, compile_ranges)
    if lane is None:
        return ()
    dispatch = USUAL_DISPATCH if machine is None or machine.dispatch is None else round(machine.dispatch.value)
    return claims_on_processor(trace, lane, dispatch, input_ranges, compile_ranges, phase_ranges or {})


def entries_of(windows: Int64, claims: Claims) -> Int64:
    """(n, len(Account)) ns: what each account gets of each window; UNEXPLAINED is what none claims."""
    shares = claim(windows[:, 0], windows[:, 1], [held for _, held in claims])
    entries = np.zeros((len(windows), len(Category)), np.int64)
    for column, category in enumerate((*(category for category, _ in claims), Category.UNEXPLAINED)):
        entries[:, category] += shares[:, column]
    return entries


def has_kernels(trace: Trace) -> bool:
    """True when a device did something: the accelerator's definition of the categories applies."""
    return bool(np.any(trace.events.event_kind == EventKind.KERNEL))


def device_of(trace: Trace) -> str:
    """ "cpu", or the name of the device that ran the kernels ("accelerator" where the trace does not name it)."""
    if not has_kernels(trace):
        return "cpu"
    number = trace.events.device[trace.events.event_kind == EventKind.KERNEL][0]
    names = {device.number: device.name for device in trace.devices}
    alike = set(names.values())  # a process that sees some of a host's devices numbers them anew
    return names.get(int(number)) or (alike.pop() if len(alike) == 1 else "") or "accelerator"
