"""The time breakdown of a recorded process: its profiled steps explain what its steady steps spent their time on.

The profiler slows what it records, dispatching above all (about half a microsecond per event), so its steps are not the
steps that the user waits for. The always-on timers measure the phases of every steady step at next to no cost, but do
not see inside them. So each has what the other lacks:

- what a phase *is* is measured, not estimated: the input phase is INPUT, the transfer phase is COPY;
- the other phases keep their duration, split as the profiled steps were split inside the same phase, after the
  profiler's own time (profiled phase minus steady phase, where that is positive, and no more than its events can cost)
  was taken off OVERHEAD first, and off the rest in proportion where that is not enough.

This is an estimate: it holds as far as profiled and steady steps do the same work, and errs towards compute, because
the events of long operators cost the profiler time too. On an accelerator the phases of the host say little about the
device, which runs behind it; there the whole step is split as the profiled steps were, but for one thing: the profiler
slows the host alone. The device's work in a step stays as it was; the time that the profiler took comes out of the idle
time.

Journal and trace have different clocks; a pair read together when the profiler stopped lays one next to the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from steptime.analysis.breakdown import breakdown_of, count_events, device_of, phase_breakdown
from steptime.analysis.categories import Breakdown, Category
from steptime.analysis.device_activity import held_whole
from steptime.analysis.layout import Layout
from steptime.analysis.operators import OperatorUse, Sources, operator_events, operator_totals, sources_of
from steptime.analysis.recompute import backward_again, recomputed
from steptime.analysis.step_context import StepContext, step_context
from steptime.analysis.threads import during
from steptime.analysis.timeline import Phase, SegmentKind, Timeline
from steptime.analysis.tracer import without_tracer
from steptime.analysis.user_code import FunctionUse, function_uses
from steptime.arrays import Int64
from steptime.errors import TraceError
from steptime.intervals import EMPTY, Intervals, join, measure, subtract, union
from steptime.journal import Kind
from steptime.machine.machine import Machine
from steptime.quantities import SourceLine
from steptime.recording.recording import Process, TraceFacts
from steptime.trace.reader import read
from steptime.trace.table import Trace

MEASURED = {Phase.INPUT: Category.INPUT, Phase.TRANSFER: Category.COPY}
"""Phases that are a category."""
UNSEEN = {Phase.REST: Category.PYTHON}
"""Where a phase goes that the profiled steps did not have: outside the model it is the user's Python; inside,
unexplained."""
ON_DEVICE = (Category.COMPUTE, Category.COMMUNICATION, Category.COPY, Category.UNRECORDED)
"""Categories of an accelerator that does not idle, or of which the trace does not show that it does."""
IN_PREPARING = np.array([Category.OVERHEAD, Category.PYTHON])
"""Categories in which a device seems to idle while the host prepares a batch: its operators, and the Python around
them."""
CUDA = "cuda"
"""Where torch says that a model is, whose profiler sees its devices: NVIDIA's and AMD's."""
PROFILER_COST = 1_000
"""ns per recorded event, at most, where the machine was not measured. A profiled phase that is longer by more than that
was slowed by something else, such as a busy machine, which slows computing as much as dispatching."""
DEARER = 1.5
"""An event of a job has more arguments than the one of two numbers that was measured on its machine."""
PART = 0.05
"""Fraction of a step: what may miss at the window's edges."""
SPOILT, USUAL = 2, 90
"""A profiled step is left out that takes so many times as long as the shortest of its window and as that percentage of
the steady steps do not exceed: the profiler spoilt it, and shares of it are no shares of a steady one. Shapes are kept
in small pieces of memory between the job's tensors, which on a CPU do not fit their old places any more then and are
new memory from the system: on two virtual CPUs steps of 80 ms took 92, 96, 118, 314 and 641 ms (torch 2.13)."""


@dataclass(frozen=True, slots=True, eq=False)
class RecordedBreakdown:
    """breakdown: of the steady steps. operators: of the profiled ones, per step. recompute, backward_again: (n,) ns of
    the profiled steps, forward inside backward and what backward does twice. windows: the whole profiled steps of each
    trace that could be read."""

    breakdown: Breakdown
    operators: tuple[OperatorUse, ...]
    recompute: Int64
    backward_again: Int64
    windows: tuple[StepContext, ...]
    problems: tuple[str, ...]

    @property
    def profiled(self) -> StepContext | None:
        """The window that says what the steps did: with most steps of those on a device, where there are some; None
        where nothing was profiled without stacks."""
        return _usual(self.windows)

    @property
    def sources(self) -> Mapping[str, SourceLine]:
        """Lines by operator name, from the windows with stacks; of calls that backward goes through where there are."""
        found = _sources(self.windows)
        return {name: found.get((name, True), line) for (name, _), line in found.items()}

    @property
    def functions(self) -> tuple[FunctionUse, ...]:
        """Functions of the user's, from the windows with stacks."""
        return function_uses(self.windows)


def _timed(windows: tuple[StepContext, ...]) -> list[StepContext]:
    """Those that nobody slowed with stacks."""
    return [window for window in windows if not window.stacks and len(window)]


def _usual(windows: tuple[StepContext, ...]) -> StepContext | None:
    return max(_timed(windows), key=lambda window: (window.on_device, len(window)), default=None)


def _sources(windows: tuple[StepContext, ...]) -> Sources:
    found: dict[tuple[str, bool], SourceLine] = {}
    for window in windows:
        found |= sources_of(window) if window.stacks else {}
    return found


def breakdown_of_process(process: Process, layout: Layout, machine: Machine | None = None) -> RecordedBreakdown:
    """The breakdown and the operators of a process. A trace that cannot be read is a problem in words, not an error."""
    steps = layout.timeline.steps
    problems: list[str] = []
    read_traces = ((facts, _read(process, facts, problems)) for facts in process.traces if not facts.caught)
    found = [
        (facts.path, _window(trace, facts, process, layout, machine))
        for facts, trace in read_traces
        if trace is not None
    ]
    windows = _with_device(found, process.facts.device, problems)
    timed, usual = _timed(windows), _usual(windows)
    events = sum((count_events(window) for window in timed), np.zeros(len(Phase), np.int64))
    phases, device = steps.phases[steps.steady], device_of(timed[0].trace) if timed else process.facts.device
    if device != "cpu" and timed:
        entries = sum((breakdown_of(window).entries.sum(axis=0) for window in timed), np.zeros(len(Category), np.int64))
        spent = _with_own_input(entries, timed, layout)
        breakdown = calibrate_device(
            spent, sum(map(len, timed)), steps.duration[_usual_steps(layout)], phases, device, events, machine
        )
    else:
        spent = sum((phase_breakdown(window) for window in timed), np.zeros((len(Phase), len(Category)), np.int64))
        breakdown = calibrate(spent, sum(map(len, timed)), phases, device, events, machine)
    return RecordedBreakdown(
        breakdown=breakdown,
        operators=operator_totals(usual, _sources(windows), usual=True) if usual is not None else (),
        recompute=np.concatenate([np.zeros(0, np.int64), *map(recomputed, timed)]),
        backward_again=np.concatenate([np.zeros(0, np.int64), *map(backward_again, timed)]),
        windows=windows,
        problems=tuple(problems),
    )


NOTHING_SEEN = (
    "the device's time, as no profile of the job holds what its device did. End what else traces the "
    "device (Nsight, DCGM's profiling, another profiler), see that the driver permits tracing "
    "(NVreg_RestrictProfilingToAdminUsers=0), and record again"
)


def _with_device(windows: list[tuple[str, StepContext]], device: str, problems: list[str]) -> tuple[StepContext, ...]:
    """Windows, by the names of their files, whose device events are the job's own. device: where the job's model is. A
    window that the device's tracer missed would be an idle device: it is left out, but for its stacks, and so are steps
    of which the profiler lost kernels."""
    if device != CUDA and not any(window.on_device for _, window in windows):
        return tuple(window for _, window in windows)
    kept, message = [], []
    for name, window in windows:
        whole = held_whole(window.trace, window.boundaries)
        if not window.on_device:
            message.append(f"{name}, which holds nothing that the device did" + ", but for its stacks" * window.stacks)
        elif not whole.all():
            steps = f"{int((~whole).sum())} of {len(whole)} steps in {name}"
            message.append(f"{steps}, of which the profiler lost what the device did")
        if window.on_device or window.stacks:
            kept.append(window if window.stacks else window.only(np.flatnonzero(whole)))
    if _timed(tuple(window for _, window in windows)) and not _timed(tuple(kept)):
        message.insert(0, NOTHING_SEEN)
    problems += [f"{each}." for each in message]
    return tuple(kept)


def _usual_steps(layout: Layout) -> Int64:
    """Steady steps without those of more than twice the median: what made them long was no work of the device, and in a
    mean they would outweigh the others. And without those that the device's tracer slows."""
    steps = layout.timeline.steps
    steady = np.flatnonzero(steps.steady)
    near = steps.duration[steady] <= SPOILT * np.median(steps.duration[steady]) if len(steady) else steady
    return without_tracer(layout, steady[near])


def _with_own_input(entries: Int64, windows: list[StepContext], layout: Layout) -> Int64:
    """The categories of a device's profiled steps, where idle time outside of the model's phases is input as far as the
    loop prepares batches itself: so much of that time of the host's as it does in steady steps, and no more of it."""
    steps = layout.timeline.steps
    rest, prepared = steps.phases[steps.steady, Phase.REST].sum(), steps.phases[steps.steady, Phase.INPUT].sum()
    prepared -= measure(layout.work.loader, steps.start[steps.steady], steps.end[steps.steady]).sum()
    if prepared <= 0:
        return entries
    idle = np.zeros_like(entries)
    for window in windows:
        idle[IN_PREPARING] += phase_breakdown(window)[Phase.REST, IN_PREPARING]
    most = int(prepared) * sum(map(len, windows)) // int(steps.steady.sum())
    moved = min(int(idle.sum() * (prepared / (prepared + rest))), most)
    if moved <= 0:
        return entries
    found: Int64 = entries - split(np.array([moved]), idle)[0]
    found[Category.INPUT] += moved
    return found


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


def _window(trace: Trace, facts: TraceFacts, process: Process, layout: Layout, machine: Machine | None) -> StepContext:
    shift = facts.epoch_ns - facts.monotonic_ns if trace.base_ns else 0
    alone = max(process.facts.world_size or 1, trace.world_size or 1) < 2
    compiling = process.intervals.kind == int(Kind.COMPILE)
    return step_context(
        trace,
        _boundaries(layout.timeline, facts, alone) + shift,
        phases={phase: _moved(held, shift) for phase, held in _phases(layout).items()},
        compiling=_moved(union(process.intervals.start[compiling], process.intervals.end[compiling]), shift),
        thread=facts.thread,
        machine=machine,
        stacks=facts.stacks,
        shift=shift,
    )


def _boundaries(timeline: Timeline, facts: TraceFacts, alone: bool) -> Int64:
    """Steps that lie in the window, without a segment in them, and without those that the profiler spoilt, unless other
    ranks profiled them too. The profiler starts behind a boundary, so the first one starts with the window, or with the
    end of the probe's pause that this lies in."""
    steps = timeline.steps
    pauses = [each for each in timeline.segments if each.kind is SegmentKind.PAUSE]
    first = next((each.end for each in pauses if each.start <= facts.start < each.end), facts.start)
    start, end = np.maximum(steps.start, first), np.minimum(steps.end, facts.end)
    whole = steps.profiled & (np.abs(end - start - steps.duration) <= PART * steps.duration)
    if alone and whole.any() and steps.steady.any():
        usual = np.percentile(steps.duration[steps.steady], USUAL)
        whole &= steps.duration <= SPOILT * max(usual, steps.duration[whole].min())
    return np.stack((start[whole], end[whole]), axis=1)


def _phases(layout: Layout) -> dict[Phase, Intervals]:
    """The phases as disjoint sets of instants, in the order of claims that `Steps.phases` was made by."""
    work = layout.work
    inner = subtract(work.updates_in_backward, work.loader)
    backward = subtract(work.backward, join(work.loader, inner))
    forward = subtract(work.forward, join(work.loader, inner, backward))
    updates = subtract(work.updates, join(work.loader, inner, backward, forward))
    training = join(work.loader, inner, backward, forward, updates)
    return {
        Phase.INPUT: work.loader,
        Phase.FORWARD: forward,
        Phase.BACKWARD: backward,
        Phase.OPTIMIZER: join(inner, updates),
        Phase.EVALUATION: subtract(work.evaluation, training),
    }


def _moved(held: Intervals, shift: int) -> Intervals:
    return union(held.start + shift, held.end + shift) if len(held) else EMPTY


def operator_time(recorded: RecordedBreakdown) -> Intervals:
    """When the training thread was inside operators in the steps profiled without stacks, on the journal's clock."""
    found = []
    for window in recorded.windows:
        if not window.stacks and window.track is not None:
            inside = operator_events(window.trace) & (window.trace.events.track == window.track)
            found.append(_moved(during(window.trace, inside), -window.shift))
    return join(*found)


def calibrate(
    profiled: Int64, steps: int, phases: Int64, device: str, events: Int64, machine: Machine | None = None
) -> Breakdown:
    """The breakdown of the steady steps as the host has them.

    profiled: (len(Phase), len(Category)) ns of all profiled steps together (`phase_breakdown`), zeros when there are
    none. steps: how many they are. phases: (n, len(Phase)) ns, the phases of the steady steps (`Steps.phases`).
    events: (len(Phase),) recorded in the profiled steps, which bounds what the profiler cost: on this machine, where it
    was measured. Rows sum to the steps exactly.
    """
    wall, entries = phases.sum(axis=1), np.zeros((len(phases), len(Category)), np.int64)
    costs = _costs(events, machine)
    for phase in Phase:
        watched = phases[:, phase]
        shares = _without_overhead(profiled[phase], steps, watched, int(costs[phase]))
        if phase in MEASURED:
            entries[:, MEASURED[phase]] += watched
        elif shares.any():
            entries += split(watched, shares)
        else:
            entries[:, UNSEEN.get(phase, Category.UNEXPLAINED)] += watched
    return Breakdown(device, wall, entries)


def calibrate_device(
    spent: Int64,
    steps: int,
    usual: Int64,
    phases: Int64,
    device: str,
    events: Int64,
    machine: Machine | None = None,
) -> Breakdown:
    """The breakdown of the steady steps as an accelerator has them.

    spent: (len(Category),) ns of all profiled steps together, as the device had them (`breakdown_of`); the others as
    for `calibrate`. Where they took longer than the steady ones, the device's own time stays what it was and idle time
    gives the rest, OVERHEAD first: what a launch costs in the profiler depends on the job (2 to 8 microseconds an event
    on an H100's host). Where even without idle time they took longer, the device was slower, and all of its work gives
    in proportion. usual: ns of the steady steps that count for that (`_usual_steps`); what others are far longer is
    idle time.
    """
    wall = phases.sum(axis=1)
    shares = _without_overhead(spent, steps, usual, int(_costs(events, machine).sum()))
    busy = np.where(np.isin(np.arange(len(Category)), ON_DEVICE), spent, 0)
    idle = shares - busy
    left = max(0, round(float(usual.mean()) * steps) - int(busy.sum())) if len(usual) else 0
    if left < idle.sum():
        shares = busy + split(np.array([left]), idle)[0]
    idle = np.where(busy > 0, 0, shares)
    for each in (shares, idle):
        each[Category.UNEXPLAINED] += not each.any()
    level = round(float(usual.mean())) if len(usual) else 0
    far = (wall > SPOILT * np.median(usual)) & (wall > level) if len(usual) else np.zeros(len(wall), np.bool_)
    longer = np.where(far, wall - level, 0)  # no work of the device
    return Breakdown(device, wall, split(wall - longer, shares) + split(longer, idle))


def _costs(events: Int64, machine: Machine | None) -> Int64:
    """ns that the profiler can have cost by its events."""
    measured = machine.profiler if machine is not None else None
    return events * (PROFILER_COST if measured is None else round(DEARER * measured.high))


def split(totals: Int64, shares: Int64) -> Int64:
    """(n, k) integers: each total divided in the proportion of the k shares, rows summing to the totals exactly.

    shares: non-negative, not all zero. Rounding goes by the running sum, so no part is off by a whole unit.
    """
    reached = np.concatenate(([0.0], np.cumsum(shares) / shares.sum()))
    boundaries = np.rint(totals[:, None] * reached[None, :]).astype(np.int64)
    boundaries[:, -1] = totals
    parts: Int64 = np.diff(boundaries, axis=1)
    return parts


def _without_overhead(profiled: Int64, steps: int, watched: Int64, most: int) -> Int64:
    """What would have been profiled at no cost: OVERHEAD gives first, then all in proportion (which changes no share).
    most: ns that the profiler can have cost."""
    if not steps or not len(watched):
        return profiled
    cost = min(most, max(0, int(profiled.sum()) - round(float(watched.mean()) * steps)))
    shares = profiled.copy()
    shares[Category.OVERHEAD] -= min(cost, int(shares[Category.OVERHEAD]))
    return shares
