"""The time breakdown of a recorded process: its profiled steps explain what its steady steps spent their time on.

The categories of steps that were watched but not profiled.

The profiler slows what it records, dispatching above all (about half a microsecond per event), so its steps are not the
steps that the user waits for. The watch measures the phases of every steady step at next to no cost, but does not see
inside them. So each has what the other lacks:

- what a phase *is* is measured, not estimated: the input phase is the account input, the transfer phase is copy;
- the other phases keep their watched duration, split as the profiled steps were split inside the same phase, after the
  profiler's own time (profiled phase minus watched phase, where that is positive, and no more than its events can
  cost) was taken off launch first, and off the rest in proportion where launch is not enough.

This is an estimate: it holds as far as profiled and steady steps do the same work, and errs towards compute, because
the events of long operators cost the profiler time too. On an accelerator the phases of the host say little about the
device, which runs behind it; there the whole step is split as the profiled steps were.

The account of a recorded process: its profiled steps explain what its steady steps spent their time on.

One law: what was watched is what the user waits for, so the steady steps are accounted for, never the profiled ones.
Journal and trace have different clocks; a pair read together when the profiler stopped lays one beside the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steptime.analysis.breakdown import claims_of, count_events, device_of, phase_breakdown
from steptime.analysis.categories import Breakdown, Category
from steptime.analysis.layout import Layout
from steptime.analysis.operators import OperatorTotal, operator_events, sources_of, total
from steptime.analysis.recompute import recomputed
from steptime.analysis.threads import training_lane
from steptime.analysis.timeline import Phase, Steps
from steptime.arrays import Int64
from steptime.errors import TraceError
from steptime.intervals import EMPTY, Intervals, join, subtract, union
from steptime.journal import Kind
from steptime.machine.machine import Machine
from steptime.quantities import SourceLine
from steptime.recording.recording import Process, TraceFacts
from steptime.trace.reader import read
from steptime.trace.table import Trace

MEASURED = {Phase.INPUT: Category.INPUT, Phase.TRANSFER: Category.COPY}
"""Phases that are an account."""
UNSEEN = {Phase.REST: Category.PYTHON}
"""Where a phase goes that the profiled steps did not have: outside the model it is the user's Python; inside,
unexplained."""


PROFILER_COST = 1_000
"""ns per recorded event, at most: 0.45 measured without shapes, 0.7 with. A profiled phase that is longer by more than
that was slowed by something else, such as a busy machine, which slows computing as much as dispatching."""


def calibrate(
    profiled: Int64, steps: int, phases: Int64, device: str = "cpu", *, events: Int64 | None = None
) -> Breakdown:
    """The breakdown of the steady steps.

    profiled: (len(Phase), len(Account)) ns of all profiled steps together (`account_phases`), zeros when there are
    none. steps: how many they are. phases: (n, len(Phase)) ns, the watched phases of the steady steps
    (`Steps.phases`). device: "cpu" keeps the phases apart, anything else splits whole steps. events: (len(Phase),)
    recorded in the profiled steps, which bounds what the profiler cost; without it all that is longer is laid to it.
    Rows sum to the steps exactly.
    """
    entries = np.zeros((len(phases), len(Category)), np.int64)
    if device != "cpu" and profiled.any():
        cost = None if events is None else int(events.sum()) * PROFILER_COST
        shares = _without_overhead(profiled.sum(axis=0), steps, phases.sum(axis=1), cost)
        return Breakdown(device, phases.sum(axis=1), split(phases.sum(axis=1), shares))
    for phase in Phase:
        watched = phases[:, phase]
        if phase in MEASURED:
            entries[:, MEASURED[phase]] += watched
            continue
        cost = None if events is None else int(events[phase]) * PROFILER_COST
        shares = _without_overhead(profiled[phase], steps, watched, cost)
        if not shares.any():
            entries[:, UNSEEN.get(phase, Category.UNEXPLAINED)] += watched
            continue
        entries += split(watched, shares)
    return Breakdown(device, phases.sum(axis=1), entries)


def split(totals: Int64, shares: Int64) -> Int64:
    """(n, k) integers: each total divided in the proportion of the k shares, rows summing to the totals exactly.

    shares: non-negative, not all zero. Rounding goes by the running sum, so no part is off by a whole unit.
    """
    reached = np.concatenate(([0.0], np.cumsum(shares) / shares.sum()))
    boundaries = np.rint(totals[:, None] * reached[None, :]).astype(np.int64)
    boundaries[:, -1] = totals
    parts: Int64 = np.diff(boundaries, axis=1)
    return parts


def _without_overhead(profiled: Int64, steps: int, watched: Int64, most: int | None) -> Int64:
    """What would have been profiled at no cost: launch gives first, then all in proportion (which changes no share).

    most: ns that the profiler can have cost, None when that is not known.
    """
    if not steps or not len(watched):
        return profiled
    overhead = max(0, int(profiled.sum()) - round(float(watched.mean()) * steps))
    overhead = overhead if most is None else min(overhead, most)
    shares = profiled.copy()
    shares[Category.OVERHEAD] -= min(overhead, int(shares[Category.OVERHEAD]))
    return shares


PART = 0.05
"""Of a step: what may miss at the window's edges."""
SPOILT, USUAL = 2, 90
"""A profiled step is left out that takes so many times as long as the shortest of its window and as that percentage of
the steady steps do not exceed: the profiler spoilt it, and shares of it are no shares of a steady one. Shapes are kept
in small pieces of memory between the job's tensors, which on a CPU do not fit their old places any more then and are
new memory from the system: on two virtual CPUs steps of 80 ms took 92, 96, 118, 314 and 641 ms (torch 2.13)."""


@dataclass(frozen=True, slots=True, eq=False)
class TraceWindow:
    """One trace beside the journal. boundaries: (n, 2) of whole profiled steps, phases and compiling: on the trace's
    clock, ns. thread: the system's id of the training thread, 0 if unknown. shift: from the journal's clock to the
    trace's, ns."""

    trace: Trace
    stacks: bool
    thread: int
    boundaries: Int64
    phases: dict[Phase, Intervals]
    compiling: Intervals
    shift: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class RecordedBreakdown:
    """breakdown: of the steady steps. operators: of the profiled ones, per step. recompute: (n,) ns of the profiled
    steps, forward again inside backward. profiled_steps: those that the split comes from; 0 leaves what no phase
    explains unexplained. windows: all traces that could be read."""

    breakdown: Breakdown
    operators: tuple[OperatorTotal, ...]
    recompute: Int64
    profiled_steps: int
    windows: tuple[TraceWindow, ...]
    problems: tuple[str, ...]


def breakdown_of_process(process: Process, layout: Layout, machine: Machine | None = None) -> RecordedBreakdown:
    """The breakdown and the operators of a process. A trace that cannot be read is a problem in words, not an error."""
    steps = layout.timeline.steps
    windows, problems = _windows(process, layout)
    timed = [window for window in windows if not window.stacks and len(window.boundaries)]
    spent = np.zeros((len(Phase), len(Category)), np.int64)
    events = np.zeros(len(Phase), np.int64)
    for window in timed:
        claims = claims_of(
            window.trace,
            input_ranges=window.phases[Phase.INPUT],
            compile_ranges=window.compiling,
            phase_ranges=window.phases,
            training_thread=window.thread,
            machine=machine,
        )
        spent += phase_breakdown(claims, window.boundaries, window.phases)
        events += count_events(window.trace, window.boundaries, window.phases)
    device = device_of(timed[0].trace) if timed else process.facts.device
    count = sum(len(window.boundaries) for window in timed)
    breakdown = calibrate(spent, count, steps.phases[steps.steady], device, events=events)
    again = [recomputed(window.trace, window.boundaries, training_thread=window.thread) for window in timed]
    recompute = np.concatenate(again) if again else np.zeros(0, np.int64)
    return RecordedBreakdown(breakdown, _operators(windows, timed, machine), recompute, count, windows, problems)


def _operators(
    windows: tuple[TraceWindow, ...], timed: list[TraceWindow], machine: Machine | None
) -> tuple[OperatorTotal, ...]:
    """Of the window with most steps, with the lines that a window with stacks knows."""
    if not timed:
        return ()
    sources: dict[str, SourceLine] = {}
    for window in windows:
        sources |= sources_of(window.trace, training_thread=window.thread) if window.stacks else {}
    window = max(timed, key=lambda window: len(window.boundaries))
    return total(
        window.trace,
        window.boundaries,
        machine,
        phase_ranges=window.phases,
        training_thread=window.thread,
        sources=sources,
    )


def _windows(process: Process, layout: Layout) -> tuple[tuple[TraceWindow, ...], tuple[str, ...]]:
    windows: list[TraceWindow] = []
    problems: list[str] = []
    for facts in process.traces:
        trace = _read(process, facts, problems)
        if trace is not None:
            windows.append(_window(trace, facts, process, layout))
    return tuple(windows), tuple(problems)


def _read(process: Process, facts: TraceFacts, problems: list[str]) -> Trace | None:
    """The trace, compressed or (of a job that was killed) not yet."""
    path = process.folder / facts.path
    packed = path.with_name(f"{path.name}.gz")
    try:
        trace = read(packed if packed.exists() else path)
    except TraceError as error:
        problems.append(error.sentence)
        return None
    problems.extend(trace.damage.sentences)
    return trace


def _window(trace: Trace, facts: TraceFacts, process: Process, layout: Layout) -> TraceWindow:
    shift = facts.epoch_ns - facts.monotonic_ns if trace.base_ns else 0
    alone = max(process.facts.world_size or 1, trace.world_size or 1) < 2
    compiling = process.intervals.kind == int(Kind.COMPILE)
    return TraceWindow(
        trace,
        facts.stacks,
        facts.thread,
        _boundaries(layout.timeline.steps, facts, alone) + shift,
        {phase: _moved(held, shift) for phase, held in _phases(layout).items()},
        _moved(union(process.intervals.begin[compiling], process.intervals.end[compiling]), shift),
        shift,
    )


def operator_time(recorded: RecordedBreakdown) -> Intervals:
    """When the training thread was inside operators in the steps profiled without stacks, on the journal's clock."""
    found = []
    for window in recorded.windows:
        lane = training_lane(window.trace, window.thread)
        if window.stacks or lane is None:
            continue
        events = window.trace.events
        inside = operator_events(window.trace) & (events.lane == lane)
        found.append(_moved(union(events.begin[inside], events.end[inside]), -window.shift))
    return join(*found)


def _boundaries(steps: Steps, facts: TraceFacts, alone: bool) -> Int64:
    """Steps that lie in the window, without a segment in them, and without those that the profiler spoilt, unless other
    ranks profiled them too. The profiler starts behind a boundary, so the first one begins with the window."""
    begin, end = np.maximum(steps.begin, facts.begin), np.minimum(steps.end, facts.end)
    whole = steps.profiled & (np.abs(end - begin - steps.duration) <= PART * steps.duration)
    if alone and whole.any() and steps.steady.any():
        usual = np.percentile(steps.duration[steps.steady], USUAL)
        whole &= steps.duration <= SPOILT * max(usual, steps.duration[whole].min())
    return np.stack((begin[whole], end[whole]), axis=1)


def _phases(layout: Layout) -> dict[Phase, Intervals]:
    """The phases as disjoint sets of instants, in the order of claims that `Steps.phases` was made by."""
    work = layout.work
    loader = work.loader
    inner = subtract(work.updates_in_backward, loader)
    backward = subtract(work.backward, join(loader, inner))
    forward = subtract(work.forward, join(loader, inner, backward))
    updates = subtract(work.updates, join(loader, inner, backward, forward))
    return {
        Phase.INPUT: loader,
        Phase.FORWARD: forward,
        Phase.BACKWARD: backward,
        Phase.OPTIMIZER: join(inner, updates),
    }


def _moved(held: Intervals, shift: int) -> Intervals:
    return union(held.begin + shift, held.end + shift) if len(held) else EMPTY
