"""The time breakdown of a recorded process: its profiled steps explain what its steady steps spent their time on.

The profiler slows what it records, dispatching above all (about half a microsecond per event), so its steps are not the
steps that the user waits for. The always-on timers measure the phases of every steady step at next to no cost, but do
not see inside them. So each has what the other lacks:

- what a phase *is* is measured, not estimated: the input phase is INPUT, the transfer phase is COPY;
- the other phases keep their duration, split as the profiled steps were split inside the same phase, after the
  profiler's own time (profiled phase minus steady phase, where that is positive, and no more than its events can cost)
  was taken off OVERHEAD first, and off the rest in proportion where that is not enough.

This is an estimate. It holds as far as profiled and steady steps do the same work. It errs towards compute, because the
events of long operators cost the profiler time, too. On an accelerator the phases of the CPU say little about the
device, which runs later. There the whole step is split as the profiled steps were, with one exception: the profiler
slows the CPU alone. The device's work in a step stays as it was; the time that the profiler took comes out of the idle
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
from steptime.analysis.recompute import backward_again, is_second_order, recomputed
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
from steptime.trace.links import with_full_paths
from steptime.trace.reader import read
from steptime.trace.table import Trace

MEASURED = {Phase.INPUT: Category.INPUT, Phase.TRANSFER: Category.COPY}
"""Phases that are measured as a category."""
UNSEEN = {Phase.REST: Category.PYTHON}
"""Category of a phase that no profiled step had: REST is outside of the model and the user's Python; others are
unexplained."""
ON_DEVICE = (Category.COMPUTE, Category.COMMUNICATION, Category.COPY, Category.UNRECORDED)
"""Categories in which an accelerator works, or may work on something that the trace does not hold."""
IN_PREPARING = np.array([Category.OVERHEAD, Category.PYTHON])
"""Categories of a device's idle time while the CPU prepares a batch: by operators, and by the Python around them."""
CUDA = "cuda"
"""torch's device type of NVIDIA and AMD devices, which its profiler can trace."""
PROFILER_COST = 1_000
"""Upper bound of the profiler's cost per event, ns, if the machine was not measured. A profiled phase that is even
longer was slowed by something else, such as a busy machine, which slows computing as much as dispatching."""
DEARER = 1.5
"""Factor on the measured cost of an event: a job's events have more arguments than the measured addition."""
PART = 0.05
"""Fraction of a step that may be cut off at a window's edges."""
SPOILT, USUAL = 2, 90
"""SPOILT: factor on the window's shortest step and on the USUAL percentile of the steady steps. A profiled step longer
than both is excluded, because its shares are not those of a steady step. Reason: the profiler keeps shapes in small
blocks between the job's tensors, which on a CPU then need new memory from the system. On two virtual CPUs, steps of 80
ms took 92, 96, 118, 314 and 641 ms (torch 2.13)."""


@dataclass(frozen=True, slots=True, eq=False)
class RecordedBreakdown:
    """Breakdown of a recording, with what its profiled steps show. breakdown: breakdown of the steady steps. operators:
    operators of the profiled steps. recompute, backward_again: time of forward inside backward and of repeated
    backward, ns of each profiled step, (n,). windows: whole profiled steps of each trace that could be read. problems:
    sentences on unreadable traces. second_order: True if backward is differentiated itself."""

    breakdown: Breakdown
    operators: tuple[OperatorUse, ...]
    recompute: Int64
    backward_again: Int64
    windows: tuple[StepContext, ...]
    problems: tuple[str, ...]
    second_order: bool = False

    @property
    def profiled(self) -> StepContext | None:
        """Profiled window without stacks that represents the job's steps: a window on a device before others, then the
        one with most steps. None if there is none."""
        return _usual(self.windows)

    @property
    def sources(self) -> Mapping[str, SourceLine]:
        """Source lines by operator name, from windows with stacks; calls that backward goes through come first."""
        found = _sources(self.windows)
        return {name: found.get((name, True), line) for (name, _), line in found.items()}

    @property
    def functions(self) -> tuple[FunctionUse, ...]:
        """Time of the user's functions, from the windows with stacks."""
        return function_uses(self.windows)


def _timed(windows: tuple[StepContext, ...]) -> list[StepContext]:
    """Windows without stacks, which would have slowed their steps."""
    return [window for window in windows if not window.stacks and len(window)]


def _usual(windows: tuple[StepContext, ...]) -> StepContext | None:
    return max(_timed(windows), key=lambda window: (window.on_device, len(window)), default=None)


def _sources(windows: tuple[StepContext, ...]) -> Sources:
    found: dict[tuple[str, bool], SourceLine] = {}
    for window in windows:
        found |= sources_of(window) if window.stacks else {}
    return found


def breakdown_of_process(process: Process, layout: Layout, machine: Machine | None = None) -> RecordedBreakdown:
    """Breakdown and operators of a process. An unreadable trace becomes a sentence in `problems`, not an error."""
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
        second_order=any(map(is_second_order, timed)),
    )


NOTHING_SEEN = (
    "the device's time, because no profile of the job contains device activity. Stop other tracers of the "
    "device (Nsight, DCGM's profiling, another profiler), check that the driver permits tracing "
    "(NVreg_RestrictProfilingToAdminUsers=0), and record again"
)


def _with_device(windows: list[tuple[str, StepContext]], device: str, problems: list[str]) -> tuple[StepContext, ...]:
    """Windows whose device events are complete; (file name, window) pairs are given. Without device events the device
    would seem idle, so such a window is dropped unless it has stacks, and so are steps of which the profiler lost
    kernels. device: where the job's model is."""
    if device != CUDA and not any(window.on_device for _, window in windows):
        return tuple(window for _, window in windows)
    kept, message = [], []
    for name, window in windows:
        whole = held_whole(window.trace, window.boundaries)
        if not window.on_device:
            message.append(f"{name}, which contains no device activity" + ", except its stacks" * window.stacks)
        elif not whole.all():
            steps = f"{int((~whole).sum())} of {len(whole)} steps in {name}"
            message.append(f"{steps}, whose device activity the profiler lost")
        if window.on_device or window.stacks:
            kept.append(window if window.stacks else window.only(np.flatnonzero(whole)))
    if _timed(tuple(window for _, window in windows)) and not _timed(tuple(kept)):
        message.insert(0, NOTHING_SEEN)
    problems += [f"{each}." for each in message]
    return tuple(kept)


def _usual_steps(layout: Layout) -> Int64:
    """Indices of the steady steps. Outliers over twice the median are excluded, because no device work explains them
    and they would outweigh others in a mean; so are steps that the device's tracer slows."""
    steps = layout.timeline.steps
    steady = np.flatnonzero(steps.steady)
    near = steps.duration[steady] <= SPOILT * np.median(steps.duration[steady]) if len(steady) else steady
    return without_tracer(layout, steady[near])


def _with_own_input(entries: Int64, windows: list[StepContext], layout: Layout) -> Int64:
    """Categories of a device's profiled steps, with idle time outside of the model's phases moved to INPUT. At most as
    much is moved as the loop's own batch preparation takes of that CPU time in steady steps."""
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
    """Trace from its compressed file, or from the uncompressed one of a job that was killed; None if unreadable."""
    path = process.folder / facts.path
    packed = path.with_name(f"{path.name}.gz")
    try:
        trace = read(packed if packed.exists() else path)
    except TraceError as error:
        problems.append(error.sentence)
        return None
    problems.extend(trace.damage.sentences)
    return with_full_paths(trace, facts.packages)


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
    """Steps inside the window and without a segment, (n, 2), ns. Steps that the profiler spoilt are left out unless
    other ranks profiled them too. The profiler starts after a boundary, so the first step starts with the window, or
    with the end of the probe's pause around that moment."""
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
    """Instants of each phase, disjoint, with the precedence of `Steps.phases`."""
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
    """Instants of the training thread inside operators in steps profiled without stacks, on the journal's clock."""
    found = []
    for window in recorded.windows:
        if not window.stacks and window.track is not None:
            inside = operator_events(window.trace) & (window.trace.events.track == window.track)
            found.append(_moved(during(window.trace, inside), -window.shift))
    return join(*found)


def calibrate(
    profiled: Int64, steps: int, phases: Int64, device: str, events: Int64, machine: Machine | None = None
) -> Breakdown:
    """Breakdown of the steady steps, from their phases and the categories of the profiled steps. profiled: time of all
    profiled steps together, (len(Phase), len(Category)), ns (`phase_breakdown`), zeros if there are none. steps: number
    of profiled steps. phases: phases of the steady steps, (n, len(Phase)), ns (`Steps.phases`). events: number of
    events in the profiled steps, (len(Phase),), which bounds the profiler's cost. Rows sum to the steps exactly."""
    wall, entries = phases.sum(axis=1), np.zeros((len(phases), len(Category)), np.int64)
    costs = _costs(events, machine)
    for phase in Phase:
        timed = phases[:, phase]
        shares = _without_overhead(profiled[phase], steps, timed, int(costs[phase]))
        if phase in MEASURED:
            entries[:, MEASURED[phase]] += timed
        elif shares.any():
            entries += split(timed, shares)
        else:
            entries[:, UNSEEN.get(phase, Category.UNEXPLAINED)] += timed
    return Breakdown(device, wall, entries)


def calibrate_device(
    spent: Int64, steps: int, usual: Int64, phases: Int64, device: str, events: Int64, machine: Machine | None = None
) -> Breakdown:
    """Breakdown of the steady steps on an accelerator, from the device time of the profiled steps. spent: device time
    of all profiled steps together, (len(Category),), ns (`breakdown_of`); other arguments as for `calibrate`. If the
    profiled steps took longer than the usual ones, idle time shrinks, OVERHEAD first, and device work stays. A launch
    costs 2 to 8 µs more under the profiler on an H100's host, depending on the job. If they took longer even without
    idle time, the device was slower, and all of its work shrinks in proportion. usual: durations of the steps to
    calibrate to (`_usual_steps`), ns; the excess of far longer steps is idle time."""
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
    """Upper bound of the profiler's cost by its events, ns."""
    measured = machine.profiler if machine is not None else None
    return events * (PROFILER_COST if measured is None else round(DEARER * measured.high))


def split(totals: Int64, shares: Int64) -> Int64:
    """Parts of each total in the proportion of the k shares, (n, k) integers; rows sum to the totals exactly. shares:
    non-negative, not all zero. Rounds the running sum, so no part is off by a whole unit."""
    reached = np.concatenate(([0.0], np.cumsum(shares) / shares.sum()))
    boundaries = np.rint(totals[:, None] * reached[None, :]).astype(np.int64)
    boundaries[:, -1] = totals
    parts: Int64 = np.diff(boundaries, axis=1)
    return parts


def _without_overhead(profiled: Int64, steps: int, timed: Int64, most: int) -> Int64:
    """Categories without the profiler's cost, which is subtracted from OVERHEAD. A cost beyond OVERHEAD would shrink
    all in proportion and is ignored, since no share would change. most: upper bound of the cost, ns."""
    if not steps or not len(timed):
        return profiled
    cost = min(most, max(0, int(profiled.sum()) - round(float(timed.mean()) * steps)))
    shares = profiled.copy()
    shares[Category.OVERHEAD] -= min(cost, int(shares[Category.OVERHEAD]))
    return shares
