"""Execution of one process of a variant, and its recording as a `Run`."""

from __future__ import annotations

import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import hypot, inf
from pathlib import Path
from statistics import fmean

import numpy as np

from steptime.advice.step_evidence import SLOWED
from steptime.analysis.layout import lay_out
from steptime.analysis.memory_samples import growth_of
from steptime.analysis.timeline import Phase, SegmentKind, Steps, Timeline
from steptime.arrays import Bool, Int64
from steptime.changes import VariantOptions
from steptime.errors import RecordingError, SteptimeError
from steptime.intervals import measure, union
from steptime.journal import Flag, Kind
from steptime.launcher.command import resolve
from steptime.launcher.forks import ForkServer
from steptime.launcher.launch import probe_environment
from steptime.launcher.outcome import Outcome, ProbeOptions, Progress
from steptime.launcher.turns import Turn, stamps_in
from steptime.launcher.variant import DEADLINE_PASSED, ERRORS, OUTPUT, run_plain, run_variant
from steptime.launcher.watchdog import clear
from steptime.machine.fork_script import UNSOUND
from steptime.recording.documents import read_bytes
from steptime.recording.inventory import BLOCKS, CLOCKS, RESTS, VARIANTS
from steptime.recording.load import load
from steptime.recording.parity import Parity
from steptime.recording.recording import Process, Recording, TelemetrySample
from steptime.trials.blocks import read_blocks
from steptime.trials.containment import Layer, Workspace, contained, ground_of
from steptime.trials.names import own_folder
from steptime.trials.results import Metric, end_of
from steptime.trials.trial import AppliedChange, BudgetExhausted, MachineLoad, Run, Variant
from steptime.trials.until_loss import LossTarget, losses_in, seconds_to
from steptime.trials.working_copy import Tree, differences, offline_environment, tree_of

LEAST_ROOM = 1 << 30
"""Bytes that a process must leave free on its workspace's disk; half of the free space where that is less."""


def free_bytes(folder: Path) -> int:
    """Free bytes of a folder's disk."""
    return shutil.disk_usage(folder).free


OUTSIDE = "changed outside of its folder: "
"""Prefix of the probe's notes on changes outside of a process's workspace (probe/changes/outside)."""
REPLACED = "replaced: "
"""Prefix of the probe's notes on replaced clocks and torch functions (probe/changes/work)."""
DIFFERENT_CLOCKS = 0.1
"""Seconds by which the clocks of the budget and of a process may differ."""
LONG_ENOUGH, SET_ANEW = 1.0, 0.01
"""Least seconds between two times of a process that show its clock's rate; the system notes times of files to 10 ms.
And seconds by which the system's clock is set while that process runs, from which on the rate is unknown."""
LONGEST_TIME = 32
"""Bytes of a file with a time; a candidate's process may have put anything there."""
NEARLY = 0.9
"""Fraction of a process's time limit from which on the limit counts as the reason for its end."""
FORBIDDEN = ("Read-only file system", "Permission denied")
"""Errors of forbidden writes that a process of a trial may get."""
NOT_FORBIDDEN = "where a process of a trial may not write that, --uncontained lets it"
FILLED = "It was ended before what it writes filled the disk of its workspace: a trial takes the room that the job does"
NO_INPUT = "in a trial a job's input is empty: give what it asks for in its options"
LAST_LINES = 3
"""Number of last lines of a failed job's output that the failure quotes."""
LAST_BYTES = 4000
LASTING = 2
"""Number of compilations in the later half of a variant's steps that shows that the job keeps compiling; their time
then counts."""
BESIDES = (SegmentKind.EVALUATION, SegmentKind.CHECKPOINT)
"""Segments that exclude a step, besides compilations and pauses of the probe. Variants have no profiled steps."""
ON_DEVICE = "cuda"
SETTLING = 10_000_000
"""Time after a stop in which caches fill again, ns: enough for 30 MB at the rate of a slow memory, 3 GB/s."""
LONG = 10 * SETTLING
"""Length of a step that counts though it follows a stop, ns: cold caches are a small part of it."""
NEAR = 100_000_000
"""Upper bound on the time between a process's report that it rests and its stop, ns."""
SPLIT = "shard-model"
"""Change by which each rank keeps a part of each gradient."""
FEWEST_STEPS = 5
"""Least number of steady steps of a timed run; with fewer, the run is a failure."""


@dataclass(frozen=True, slots=True)
class ScheduledRun:
    """Process of a trial that has not run yet; see `Run` for the other fields. deadline: seconds after which it counts
    as hung. until_epoch: end of the budget, seconds since the epoch, or None. metric: number to read from the output of
    a process that runs without the probe. step_seconds: seconds per step of the unchanged job, 0 if unknown."""

    variant: Variant
    stage: int
    round: int
    position: int
    options: VariantOptions
    rehearsal: bool = False
    deadline: float = 600.0
    until_epoch: float | None = None
    metric: Metric | None = None
    step_seconds: float = 0.0


def execute(
    workspace: Workspace,
    scheduled: ScheduledRun,
    show: Callable[[Progress], None] | None = None,
    among: Turn | None = None,
    forks: ForkServer | None = None,
) -> Run:
    """Runs a scheduled process, and returns its recording as a `Run`.

    show: function called twice a second with the progress. among: the process's place among those that take turns.
    forks: server that may fork it; a fork that fails is started again as a process. Nothing that the job does raises an
    error: it is the run's `failure`. Raises BudgetExhausted if the end of the budget killed it, KeyboardInterrupt, and
    SteptimeError for what stops every run (no room on the disk, too large a copy)."""
    name = folder_of(scheduled)
    recording = own_folder(workspace.folder, VARIANTS, name)
    clear(recording)  # of a run that was cut short
    start, began_epoch, preparing = time.monotonic(), time.time(), forks.spent if forks is not None else 0.0
    before = _unguarded(workspace)
    disk = next(path for path in (ground_of(workspace).base, *workspace.folder.parents) if path.is_dir())
    least_room = min(LEAST_ROOM, free_bytes(disk) // 2)
    left = scheduled.until_epoch - time.time() if scheduled.until_epoch is not None else inf
    filled = False

    def full() -> bool:
        nonlocal filled
        filled = filled or free_bytes(disk) < least_room
        return filled

    def observe(progress: Progress) -> bool:
        if show is not None:
            show(progress)
        return full()

    options = ProbeOptions(profile=False, changes=scheduled.variant.changes, variant=scheduled.options)
    own = replace(workspace, command=scheduled.variant.command or workspace.command)
    worker = scheduled.variant.name if among is not None else ""
    with contained(own, name, recording, scheduled.variant.sources, scheduled.deadline, worker) as (command, place):
        place = replace(place, until=time.monotonic() + left)
        if place.contained == Layer.OVERLAY.value and scheduled.metric is None:
            place = replace(place, forks=forks)
        if scheduled.metric is not None:
            outcome = run_plain(command, recording, scheduled.variant.changes, place, full)
        else:
            outcome = run_variant(command, recording, options, place, observe, among)
    if forks is not None and outcome.status == UNSOUND:
        forks.switch_off()
        return execute(workspace, scheduled, show, among)
    passed = bool(outcome.problems) and outcome.problems[0].startswith(DEADLINE_PASSED)
    if passed and scheduled.until_epoch is not None and time.time() >= scheduled.until_epoch - DIFFERENT_CLOCKS:
        raise BudgetExhausted
    rests, rested = (among.rests, among.rested) if among is not None else ((), 0.0)
    preparing = forks.spent - preparing if forks is not None else 0.0
    run = read_run(scheduled, outcome, time.monotonic() - start - rested - preparing, rests)
    set_anew = abs((time.time() - began_epoch) - (time.monotonic() - start)) > SET_ANEW
    outside = dict.fromkeys((*run.outside, *map(str, differences(before, _unguarded(workspace)))))
    run = replace(run, clock=None if set_anew else run.clock)
    run = replace(run, failure=FILLED if filled else run.failure, outside=tuple(outside))
    if not workspace.keep and not run.failure:
        clear(recording)
    return run


def start_ahead(forks: ForkServer, workspace: Workspace) -> None:
    """Starts a server for the processes of a workspace while something else runs that is not timed."""
    if ground_of(workspace).layer is Layer.OVERLAY:
        options = ProbeOptions(variant=VariantOptions(1))
        environment = {**probe_environment(workspace.folder, options), **dict(offline_environment(workspace.directory))}
        forks.ahead(resolve(workspace.command, workspace.directory), workspace.directory, environment)


def folder_of(scheduled: ScheduledRun) -> str:
    """Name of a run's recording folder."""
    kind = "-exact" if scheduled.options.exact else "-rehearsal" if scheduled.rehearsal else ""
    return f"{scheduled.stage}-{scheduled.position:03d}-{scheduled.variant.name}{kind}"


def _unguarded(workspace: Workspace) -> Tree:
    """Snapshot of the user's folder for a comparison before and after a process; empty unless containment is a mere
    copy."""
    if ground_of(workspace).layer is not Layer.COPY:
        return {}
    return tree_of(workspace.directory, (workspace.folder, *workspace.without))


def read_run(scheduled: ScheduledRun, outcome: Outcome, seconds: float, rests: Sequence[tuple[int, int]] = ()) -> Run:
    """Reads the recording of a process as a `Run`. rests: as in `Turn`. Raises nothing: a recording that cannot be read
    is the run's `failure`."""
    run = Run(
        scheduled.variant.name,
        scheduled.stage,
        scheduled.round,
        scheduled.position,
        scheduled.options.seed,
        scheduled.rehearsal,
        _failure(outcome, stepping=scheduled.metric is None),
        seconds,
        folder=outcome.recording.name,
        alternated=bool(rests),
        exact=scheduled.options.exact,
    )
    if scheduled.metric is not None:
        return _with_metric(run, scheduled, scheduled.metric, outcome)
    if scheduled.options.switched:
        run = replace(run, switched=read_blocks(outcome.recording / BLOCKS))
    try:
        recording = load(outcome.recording)
        if run.failure or scheduled.options.switched:
            return replace(run, outside=_noted(recording.processes, OUTSIDE))
        stamps = stamps_in(outcome.recording / RESTS) if (outcome.recording / RESTS).exists() else None
        run = replace(run, clock=clock_rate(outcome.recording))
        return _with_numbers(run, scheduled, recording, rests, stamps)
    except SteptimeError as error:
        return replace(run, failure=run.failure or str(error))


def _with_metric(run: Run, scheduled: ScheduledRun, metric: Metric, outcome: Outcome) -> Run:
    if run.failure:
        return run
    value, why = metric.read(outcome.recording / OUTPUT)
    changes = tuple(AppliedChange(each.kind, applied=True, exercised=True) for each in scheduled.variant.changes)
    return replace(run, metric=value, failure=why, changes=changes)


def _with_numbers(
    run: Run,
    scheduled: ScheduledRun,
    recording: Recording,
    rests: Sequence[tuple[int, int]],
    stamps: Sequence[int] | None,
) -> Run:
    laid_out = [(process, lay_out(process)) for process in recording.processes]
    if not laid_out:
        return replace(run, failure="No training step was recorded")
    process, timeline = max(laid_out, key=lambda each: len(each[1].steps.start))
    until, reached = scheduled.options.until_loss, None
    if until is not None:
        took = [(seconds_to(LossTarget(until), *each), *each) for each in laid_out]
        there = [each for each in took if each[0] is not None]
        reached, process, timeline = min(there, key=lambda each: each[0] or 0.0, default=(None, process, timeline))
    warm_up = scheduled.options.warm_up
    on_device = process.facts.device == ON_DEVICE
    turns: tuple[int, ...] = ()
    if stamps is None:
        times = step_times(timeline, warm_up, on_device)
    elif on_device:
        times = sliced_times(timeline, warm_up, rests, stamps)
    else:
        times, turns = turn_times(timeline, warm_up, stamps)
    if len(times) < FEWEST_STEPS and not scheduled.rehearsal and until is None:
        return replace(run, failure=f"Only {len(times)} steady steps ran before its time limit")
    parity = process.parity
    several = [each.parity.peak_bytes for each, _ in laid_out if each.parity is not None]
    peaks = tuple(int(each.max()) for each in several if len(each))
    return replace(
        run,
        step_ns=tuple(times),
        turns=turns,
        phases=phases_of(timeline, warm_up, stamps or (), times) if not on_device else (),
        other_ns=between_steps(timeline, warm_up),
        losses=losses_in(parity),
        norms=gradients_of([each.parity for each, _ in laid_out if each.parity is not None], process),
        backwards=tuple(parity.backwards.tolist()) if parity is not None else (),
        work=parity.work if parity is not None else (),
        passes=passes_of(process),
        replaced=_noted(recording.processes, REPLACED),
        ended_early=reached is None and _ended_early(scheduled, timeline.steps),
        metric=reached,
        samples=_samples(process, timeline),
        peak_bytes=max(peaks, default=None),
        peaks=peaks,
        start_seconds=start_seconds(process, timeline.steps),
        growth=growth_per_step(parity),
        compile_seconds=sum(fact.duration_ns for fact in process.compilations) / 1e9,
        graph_breaks=len({fact.site for fact in process.graph_breaks}),
        changes=tuple(AppliedChange(fact.kind, fact.applied, fact.exercised, fact.detail) for fact in process.changes),
        load=load_of(recording.telemetry),
        outside=_noted(recording.processes, OUTSIDE),
    )


def gradients_of(ranks: Sequence[Parity], process: Process) -> tuple[tuple[tuple[str, float | None], ...], ...]:
    """Gradient norms of a process's first steps; if the trial has split its model over the ranks, of all parts."""
    if process.parity is None:
        return ()
    if not any(fact.kind == SPLIT and fact.applied for fact in process.changes):
        return process.parity.gradients
    steps = zip(*(each.gradients for each in ranks), strict=False)
    return tuple(
        tuple((parts[0][0], hypot(*(norm or 0.0 for _, norm in parts))) for parts in zip(*step, strict=False))
        for step in steps
    )


def growth_per_step(parity: Parity | None) -> float | None:
    """Growth of peak memory per step, bytes: of the process on a CPU, of each step on a device; None if unknown."""
    if parity is None:
        return None
    found = growth_of("", "peak", np.arange(len(parity.peak_bytes)), parity.peak_bytes)
    return found.per_step.value * found.leaks if found is not None else None


def clock_rate(recording: Path) -> float | None:
    """Seconds on the clock of a recording's processes for each second of the system's clock, from the times of two
    files that each process wrote. The process whose clock is furthest off counts. None if unknown."""
    rates = []
    for first in recording.glob(f"{CLOCKS[0]}*"):
        last = recording / first.name.replace(*CLOCKS)
        with suppress(OSError, ValueError, RecordingError):
            began, ended = (int(read_bytes(path, LONGEST_TIME, [])) for path in (first, last))
            seconds = (last.stat().st_mtime_ns - first.stat().st_mtime_ns) / 1e9
            if seconds >= LONG_ENOUGH:
                rates.append((ended - began) / 1e9 / seconds)
    return max(rates, key=lambda rate: abs(rate - 1), default=None)


def passes_of(process: Process) -> tuple[tuple[str, int, int], ...]:
    """Tuples (class of the dataset, its length, most samples in one whole pass over it). A pass ends when the loader is
    exhausted, or another pass over the same dataset starts."""
    loaders = {each.identity: each for each in process.loaders if each.dataset_length and each.batch_size}
    table = process.intervals
    asked = table.kind == int(Kind.LOADER_NEXT)
    taken: dict[tuple[str, int], tuple[int, int]] = {}
    most: dict[tuple[str, int], int] = {}
    for identity, flags in zip(table.identity[asked].tolist(), table.flags[asked].tolist(), strict=True):
        loader = loaders.get(identity)
        if loader is None:
            continue
        key = (loader.dataset, loader.dataset_length or 0)
        iterator, samples = taken.get(key, (identity, 0))
        ends = bool(flags & int(Flag.EXHAUSTED))
        if ends or iterator != identity:
            most[key] = max(most.get(key, 0), samples)
            samples = 0
        taken[key] = identity, samples + (0 if ends else loader.batch_size or 0)
    return tuple((*key, min(samples, key[1])) for key, samples in sorted(most.items()) if samples)


def _samples(process: Process, timeline: Timeline) -> int:
    """Length of the largest dataset whose batches are trained on; 0 if unknown."""
    lengths = [each.dataset_length for each in process.loaders if each.identity in timeline.training_loaders]
    return max((length for length in lengths if length is not None), default=0)


def _noted(processes: Sequence[Process], start: str) -> tuple[str, ...]:
    """Notes of the probe with this prefix, which is removed."""
    notes = (note for process in processes for note in process.notes)
    return tuple(note.removeprefix(start) for note in notes if note.startswith(start))


def _ended_early(scheduled: ScheduledRun, steps: Steps) -> bool:
    """True if a process ended before its steps were taken and well before its time limit."""
    options = scheduled.options
    if len(steps.end) >= options.warm_up + options.steps:
        return False
    return int(steps.end[-1] - steps.start[0]) < NEARLY * options.limit_seconds * 1e9


def step_times(timeline: Timeline, warm_up: int, on_device: bool = False) -> list[int]:
    """Durations of the steady steps after the warm-up, ns. They include the start of loader workers, which a recording
    keeps apart, because every epoch pays for it; and compilations, if the job keeps compiling. on_device: see
    `_steady`."""
    steady, duration = _steady(timeline, warm_up, on_device)
    times: list[int] = duration[steady].tolist()
    return times


def turn_times(timeline: Timeline, warm_up: int, stamps: Sequence[int]) -> tuple[list[int], tuple[int, ...]]:
    """(durations as in `step_times`, number of these steps in each turn) of a process that took turns on a CPU. A rest
    between two steps is subtracted from the second. A step after a rest counts if it is LONG; else neither it, nor
    those within SETTLING, whose caches are cold, nor one more. stamps: as of `stamps_in`."""
    (steady, duration), steps = _steady(timeline, warm_up, on_device=False), timeline.steps
    idle, on = (np.array(stamps[first : len(stamps) // 2 * 2 : 2], np.int64) for first in (0, 1))
    duration = duration - measure(union(idle, on), steps.start, steps.end)
    held = measure(union(idle, on + SETTLING), steps.start, steps.end) > 0
    held[1:] |= held[:-1].copy()
    counted = steady & ((duration >= LONG) | ~held)
    if len(on) > 2:
        counted &= steps.end >= on[1]  # before its first rest, others started
    scheduled = np.searchsorted(on, steps.end[counted], side="right") - 1
    turns = np.bincount(scheduled[scheduled >= 0], minlength=len(on))
    times: list[int] = duration[counted].tolist()
    return times, tuple(turns.tolist()) if (scheduled >= 0).all() else ()


def phases_of(timeline: Timeline, warm_up: int, stamps: Sequence[int], times: Sequence[int]) -> tuple[float, ...]:
    """Time in each `Phase` of the mean step, ns; their sum is the mean of `times`. () if unknown. Rests between steps
    are subtracted."""
    steps, (steady, _) = timeline.steps, _steady(timeline, warm_up, on_device=False)
    idle, on = (np.array(stamps[first : len(stamps) // 2 * 2 : 2], np.int64) for first in (0, 1))
    phases = steps.phases.astype(np.float64)
    phases[:, Phase.REST] -= measure(union(idle, on), steps.start, steps.end)
    whole = np.maximum(phases[steady], 0).sum(axis=0)
    if not times or not whole.sum():
        return ()
    found: list[float] = (whole * fmean(times) / whole.sum()).tolist()
    return tuple(found)


def between_steps(timeline: Timeline, warm_up: int) -> tuple[tuple[str, int], ...]:
    """(kind, ns) of all rollouts, all evaluations and all checkpoints of a step, for each step after the warm-up."""
    lengths: Counter[tuple[str, int]] = Counter()
    for each in timeline.segments:  # a pause of ours cuts one in two
        step = int(np.searchsorted(timeline.steps.end, each.start))
        if step >= warm_up and each.kind in (SegmentKind.ROLLOUT, *BESIDES):
            lengths[each.kind.name.lower(), step] += each.end - each.start
    return tuple((kind, length) for (kind, _), length in lengths.items())


def sliced_times(
    timeline: Timeline, warm_up: int, rests: Sequence[tuple[int, int]], stamps: Sequence[int]
) -> list[int]:
    """Durations of the steady steps of a process that was paused between slices, ns: each is the mean of its slice,
    from the first rest on.

    A slice starts and ends with an idle device, so its whole time belongs to its steps, except for steps that `_steady`
    excludes. Single CPU times mean little, because the CPU runs ahead of the device. Slices with an evaluation or a
    checkpoint, whose work the device may do in a later step, count only if there are no others.

    rests: as of `Turn`. stamps: as of `stamps_in`; the process's own stamp of an idle device is used if it is NEAR the
    stop."""
    steps, (steady, counted) = timeline.steps, _steady(timeline, warm_up, on_device=True)
    mixed = _spent_in(timeline, SegmentKind.EVALUATION, SegmentKind.CHECKPOINT) > 0
    idle = stamps[::2]
    starts = [end for _, end in rests] or list(stamps[1:2])
    ends = [_idle_before(start, idle) for start, _ in rests[1:]] + list(idle[-1:])
    plain: list[int] = []
    others: list[int] = []
    for start, end in zip(starts, ends, strict=False):
        inside = (steps.end > start) & (steps.end <= end)
        number, left_out = int((inside & steady).sum()), inside & ~steady
        lost = (steps.end[left_out] - np.maximum(steps.start[left_out], start)).sum()
        lost += (steps.end - steps.start - counted)[inside & steady].sum()
        times = [int(end - start - lost) // number] * number if number else []
        (others if (inside & mixed).any() else plain).extend(times)
    return plain or others


def _idle_before(stopped: int, idle: Sequence[int]) -> int:
    """Time at which a device became idle before its process was stopped: the process's own stamp if that is NEAR, else
    the stop."""
    message = max((stamp for stamp in idle if stamp <= stopped), default=0)
    return message if stopped - message <= NEAR else stopped


def _steady(timeline: Timeline, warm_up: int, on_device: bool) -> tuple[Bool, Int64]:
    """(mask of the steps that count, duration of every step in ns). on_device: steps in which only the probe paused the
    job count too, without that pause, because the CPU waits for the device there."""
    steps = timeline.steps
    late = np.arange(len(steps.start)) >= warm_up
    compiling, paused = _spent_in(timeline, SegmentKind.COMPILATION), _spent_in(timeline, SegmentKind.PAUSE)
    goes_on = (compiling[(len(compiling) + warm_up) // 2 :] > 0).sum() >= LASTING
    apart = ~steps.profiled & (_spent_in(timeline, *BESIDES) == 0)
    alone = (compiling > 0) & apart & (paused == 0)
    looked = (paused > 0) & apart & (compiling == 0) & on_device
    added = _spent_in(timeline, SegmentKind.LOADER_START) + compiling * goes_on
    return (~steps.excluded | (alone & goes_on) | looked) & steps.timed & late, steps.duration + added


def _spent_in(timeline: Timeline, *kinds: SegmentKind) -> Int64:
    """Time of segments of these kinds in each step, ns."""
    found = [segment for segment in timeline.segments if segment.kind in kinds]
    start = np.array([segment.start for segment in found], np.int64)
    end = np.array([segment.end for segment in found], np.int64)
    return measure(union(start, end), timeline.steps.start, timeline.steps.end)


def load_of(telemetry: Sequence[TelemetrySample]) -> MachineLoad:
    """Load of the machine: means over the telemetry samples; an empty MachineLoad without samples."""
    if not telemetry:
        return MachineLoad()
    pressures = [sample.pressure for sample in telemetry if sample.pressure is not None]
    steals = [sample.steal for sample in telemetry if sample.steal is not None]
    devices = [device for sample in telemetry for device in sample.devices]
    return MachineLoad(
        other_cpu=fmean(sample.other_cpu for sample in telemetry),
        pressure=fmean(pressures) if pressures else None,
        steal=fmean(steals) if steals else None,
        device_throttled=any((device.throttle_reasons or 0) & SLOWED for device in devices),
        other_device_users=any((device.other_processes or 0) > 0 for device in devices),
    )


def start_seconds(process: Process, steps: Steps) -> float:
    """Seconds from the start of a recorded process to the end of its first step; 0 if it took no step."""
    if not len(steps.end):
        return 0.0
    facts = process.facts
    end_epoch = facts.epoch_ns + int(steps.end[0]) - facts.monotonic_ns
    return max(0.0, (end_epoch - facts.process_started_epoch_ns) / 1e9)


def _failure(outcome: Outcome, *, stepping: bool) -> str:
    """Reason of a failed run with the last lines of its output; "" for success. stepping: True if the run must have
    taken steps."""
    if outcome.status == 0 and outcome.signal is None and (outcome.steps_seen or not stepping):
        return ""
    message = last_lines(outcome.recording / ERRORS) or last_lines(outcome.recording / OUTPUT)
    if outcome.problems and outcome.problems[0].startswith(DEADLINE_PASSED):
        what = outcome.problems[0]
    elif not outcome.steps_seen and outcome.status == 0:
        what = "It ended without a training step"
    else:
        what = f"Signal {outcome.signal} ended it" if outcome.signal else f"It ended with status {outcome.status}"
        what += ", the kernel's answer to exhausted memory" * (outcome.signal == signal.SIGKILL)
    if "EOFError" in message:
        message += f" ({NO_INPUT})"
    if any(words in message for words in FORBIDDEN):
        message += f" ({NOT_FORBIDDEN})"
    return f"{what}: {message}" if message else what


def last_lines(path: Path) -> str:
    """Last lines of a log, joined with " | "; "" if it cannot be read."""
    try:
        text = end_of(path, LAST_BYTES)
    except OSError:
        return ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-LAST_LINES:])
