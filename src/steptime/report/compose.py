"""Composition of a report from the processes' results: which process is shown first, and the next command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from signal import SIGINT, SIGTERM

import numpy as np

from steptime.advice.evidence import Case
from steptime.advice.loader_model import samples_per_step
from steptime.advice.rule import Weight
from steptime.advice.run_uses import Contention
from steptime.advice.step_evidence import POWER_CAP, SLOWED, others_took_cpus
from steptime.advice.verdict import LEAK, MADE_OF, worsening
from steptime.analysis.layout import PART
from steptime.analysis.step_patterns import find_period
from steptime.analysis.stragglers.comparison import RankComparison
from steptime.analysis.timeline import Steps
from steptime.arrays import Bool, Float64, Int64
from steptime.errors import RecordingError
from steptime.intervals import measure, union
from steptime.journal import RECORD, Kind
from steptime.machine.machine import Machine
from steptime.quantities import Estimate, mean_of
from steptime.recording.recording import (
    DeviceFacts,
    DeviceSample,
    Manifest,
    Process,
    Recording,
    SettingsFacts,
    TelemetrySample,
)
from steptime.report.report import (
    ENDED,
    SCHEMA_VERSION,
    Cost,
    JobEnvironment,
    MachineOverTime,
    ProcessReport,
    Report,
    Throughput,
)
from steptime.report.trace_files import carried
from steptime.report.trials import trial_report
from steptime.trace.table import Trace
from steptime.trials.results import read_results

Facts = tuple[tuple[str, str], ...]

WORKERS = "loader workers"
IN_PROCESS = "0 (read in the training process)"
IN_WORKERS = "worker processes"
_ITERATOR = re.compile(r"^enumerate\(DataLoader\)#_(SingleProcess|MultiProcessing)DataLoaderIter\b")
"""Name of the loader's next() in torch's profiler: the class of the iterator shows whether there are workers."""


def facts_of_process(process: Process) -> Facts:
    """Facts of a recorded process: its switches, its modules and the changes of a trial that were in force."""
    top_modules = ", ".join(
        f"{model.type} of {model.parameters} parameter tensors{', compiled' if model.compiled else ''}"
        for model in process.top_modules
        if model.parameters
    )
    found = [
        *_switches(process.settings),
        ("model", top_modules),
        ("changes of a trial", ", ".join(process.facts.changes)),
    ]
    return tuple((name, value) for name, value in found if value)


def _switches(settings: SettingsFacts | None) -> list[tuple[str, str]]:
    if settings is None:
        return []
    values: dict[str, object] = {
        "threads in an operator": settings.intra_op_threads,
        "threads between operators": settings.inter_op_threads,
        "usable CPUs": settings.usable_cpus,
        "OMP_NUM_THREADS": settings.omp_num_threads,
        "cudnn.benchmark": settings.cudnn_benchmark,
        "cudnn.deterministic": settings.cudnn_deterministic,
        "float32 matmul precision": settings.float32_matmul_precision,
        "denormals flushed": settings.denormals_flushed or None,
        "autocast": settings.autocast,
        "distributed backend": settings.distributed_backend,
        "debug switches": " ".join(f"{name}={value}" for name, value in settings.debug_switches) or None,
    }
    return [(name, ("on" if value else "off") if isinstance(value, bool) else str(value))
            for name, value in values.items() if value is not None]  # fmt: skip


def facts_of_trace(trace: Trace) -> Facts:
    """Facts of a bare trace: the kind of its loader, as far as names in it show that, and its devices."""
    found = []
    kinds = {match[1] for match in map(_ITERATOR.match, trace.symbols) if match}
    if kinds:
        reported = {"SingleProcess": IN_PROCESS, "MultiProcessing": IN_WORKERS}
        found.append((WORKERS, " and ".join(sorted(reported[kind] for kind in kinds))))
    if trace.devices:
        found.append(("devices in the machine", str(len(trace.devices))))
    if trace.backend:
        found.append(("distributed backend", trace.backend))
    if trace.world_size:
        found.append(("world size", str(trace.world_size)))
    return tuple(found)


def environment_of(recording: Recording) -> JobEnvironment:
    facts, manifest = recording.processes[0].facts, recording.manifest
    return JobEnvironment(
        command=shlex.join(manifest.command),
        host=manifest.host,
        device=facts.device_name or facts.device,
        python=facts.python,
        torch=facts.torch,
        steptime=manifest.steptime,
        ranks=len(recording.processes),
        commit=manifest.commit,
        dirty=manifest.dirty,
        facts=(*facts_of_process(recording.processes[0]), *end_of(manifest)),
    )


def end_of(manifest: Manifest) -> Facts:
    """End of a failed job, as a fact. An interrupted or terminated one counts as ended by the user."""
    status, signal = manifest.exit_status, manifest.ended_by_signal
    if signal is not None and signal not in (SIGINT, SIGTERM):
        return ((ENDED, f"signal {signal}"),)
    return ((ENDED, f"status {status}"),) if status and signal is None else ()


RECORD_OPERATORS = 3.3
"""Cost of one record for the job, including patches and clock readings, in tiny operators of the machine: both depend
on the interpreter's speed. Measured: 10.1 µs for the three of a small model's step, 15.1 µs for the four with a loader
(benchmarks/results/overhead-epyc-2cpu.md), where an operator takes 1.05 µs."""
RECORD_COST = 3500.0
"""Cost of one record on an unmeasured machine, ns."""
LEAST_SAMPLES = 3
"""Least number of samples over time for a plot."""
LEAST_TURNS = 2
"""Least number of turns for a difference with an interval."""


def cost_of(
    process: Process,
    steps: Steps,
    machine: Machine | None = None,
    contention: Contention | None = None,
    tracer: Estimate | None = None,
    manifest: Manifest | None = None,
) -> Cost:
    """Cost of steptime in one process: always-on timers, profiler, and the measurement of the machine's peaks
    afterwards. contention: CPU time that other programs took; with it, turns with and without timers are not compared.
    tracer: as in `Cost`. manifest: of the job's recording, None without one."""
    dispatch = machine.dispatch if machine is not None else None
    each = RECORD_COST if dispatch is None else RECORD_OPERATORS * dispatch.value
    steady = np.flatnonzero(steps.steady)
    if tracer is not None:
        steady = steady[steady < steps.profiled.argmax()]
    untimed = ~(steps.timed | steps.warm_up | steps.excluded | steps.profiled | steps.lined)
    alike = find_period(steps) is None and (contention is None or not others_took_cpus(contention))
    turns = _turns(steps, untimed) if alike else np.zeros(0)
    starts = np.sort(process.intervals.start)
    inside = np.searchsorted(starts, steps.end[steady]) - np.searchsorted(starts, steps.start[steady])
    records = float(inside.mean()) if len(steady) else None
    span = int(steps.end[-1] - steps.start[0]) if len(steps.end) else 0
    return Cost(
        instrumentation=mean_of(turns) if len(turns) >= LEAST_TURNS else None,
        computed=records * each if records is not None else None,
        profiled_steps=int(steps.profiled.sum()),
        profile_ns=_time_of(process, Kind.PROFILED),
        pause_ns=_time_of(process, Kind.PAUSE),
        bytes_per_step=records * RECORD.size if records is not None else None,
        lined_steps=int(steps.lined.sum()),
        slowed_ns=_slowed(process, steps, steady),
        run_ns=max(manifest.job_ns if manifest is not None else 0, span),
        before_ns=manifest.before_ns if manifest is not None else 0,
        after_ns=manifest.after_ns if manifest is not None else 0,
        peaks_ns=machine.spent_ns if machine is not None else 0,
        tracer=tracer,
        span_ns=float((steps.end - steps.start)[steady].mean()) if len(steady) else 0.0,
    )


def _slowed(process: Process, steps: Steps, steady: Int64) -> int:
    """Extra time of all steps that contain a window of the probe, ns. A warm-up step, which is slow by itself, counts
    as at most one usual step: discovery slows by half, and nothing else comes that early."""
    chosen = np.isin(process.intervals.kind, [int(Kind.PROFILED), int(Kind.DISCOVERY), int(Kind.LINES)])
    windows = union(process.intervals.start[chosen], process.intervals.end[chosen])
    close = measure(windows, steps.start, steps.end) > PART * (steps.end - steps.start)
    alone = steady[~close[steady]]
    alone = alone if len(alone) else steady
    if not len(alone):
        return 0
    usual = np.median(steps.duration[alone])
    longer = steps.duration[close] - usual
    longer = np.where(steps.warm_up[close], np.clip(longer, 0, usual), longer)
    return round(max(0.0, float(longer.sum())))


MOST_SAMPLES = 240
"""Most samples of the machine over time: a plot is no wider."""


def machine_over_time(
    telemetry: Sequence[TelemetrySample], own: Sequence[DeviceFacts], case: Case, start: int
) -> MachineOverTime | None:
    """Machine over time from the launcher's telemetry. own: the process's devices. start: first step's start, monotonic
    ns. Series that any sample lacks, and the time before the process has reported its devices, are left out."""
    cpus = case.settings.usable_cpus if case.settings is not None else 0
    reported = next(
        (number for number, each in enumerate(telemetry) if any(device.of(own) for device in each.devices)), 0
    )
    samples = telemetry[reported :: (len(telemetry) - reported) // MOST_SAMPLES + 1]
    if len(samples) < LEAST_SAMPLES or not cpus:
        return None
    every: dict[str, list[float | None]] = {
        "CPUs of the job": [100 * each.job_cpu / cpus for each in samples],
        "CPUs of other programs": [100 * each.other_cpu / cpus for each in samples],
        "waiting for a CPU": [each.pressure for each in samples],
    }
    looks = [{each.name: each for each in sample.devices if each.of(own)} for sample in samples]
    names = dict.fromkeys(name for look in looks for name in look)
    for name in names:
        every |= _device_over_time(name if len(names) > 1 else "GPU", [look.get(name, UNSEEN) for look in looks])
    known = {name: [min(value, 100.0) for value in values if value is not None] for name, values in every.items()}
    series = tuple((name, tuple(values)) for name, values in known.items() if len(values) == len(samples))
    return MachineOverTime(tuple(each.monotonic_ns - start for each in samples), series)


UNSEEN = DeviceSample()
"""Stand-in for a device that a sample does not have."""


def _device_over_time(name: str, samples: Sequence[DeviceSample]) -> dict[str, list[float | None]]:
    return {
        f"{name} utilisation": [each.utilization for each in samples],
        f"{name} clock": [_percent(each.clock_mhz, each.max_clock_mhz) for each in samples],
        f"{name} memory": [_percent(each.memory_bytes, each.memory_total_bytes) for each in samples],
        f"{name} power": [_percent(each.power_watts, each.power_limit_watts) for each in samples],
        f"{name} held back": [_held_back(each.throttle_reasons) for each in samples],
    }


def _percent(part: float | None, whole: float | None) -> float | None:
    return 100 * part / whole if part is not None and whole else None


def _held_back(reasons: int | None) -> float | None:
    """100 while the driver lowers the clock for heat or power, else 0."""
    return None if reasons is None else 100.0 * bool(reasons & (SLOWED | POWER_CAP))


def throughput_of(case: Case, steps: Steps, left_out: int = 0) -> Throughput | None:
    """Throughput of a process, by the loader's batch size, else by the model's inputs; None if neither is known.
    left_out: number of steps of the run that `steps` lacks."""
    samples, step, inputs = samples_per_step(case), case.step.duration.value, case.inputs
    if not samples or step <= 0:
        return None
    of_loader = case.loader is not None and bool(case.loader.batch_size)
    tokens = inputs.tokens if inputs is not None and inputs.samples == samples else None
    if case.loader is not None and of_loader and case.padding is not None and case.padding.tokens:
        tokens = case.padding.tokens * case.loader.demand
    model = inputs.module if inputs is not None and not of_loader else ""
    run = int(steps.end[-1] - steps.start[0])
    return Throughput(samples, samples / step * 1e9, samples * (len(steps.end) + left_out) / run * 1e9, tokens, model)


def _time_of(process: Process, kind: Kind) -> int:
    chosen = process.intervals.kind == int(kind)
    held = union(process.intervals.start[chosen], process.intervals.end[chosen])
    return int((held.end - held.start).sum())


def _turns(steps: Steps, untimed: Bool) -> Float64:
    """Extra time of timed steps, ns, one value per turn: the median by which the timed steps after its untimed ones
    were longer. Steps of one turn are alike, so the interval counts turns, not steps; and drift of the machine must not
    count as steptime's cost."""
    off = np.flatnonzero(untimed)
    blocks = [block for block in np.split(off, np.flatnonzero(np.diff(off) > 1) + 1) if len(block)]
    differences = []
    ends = [*(block[0] for block in blocks[1:]), len(untimed)]
    for block, following in zip(blocks, ends, strict=False):
        behind = np.arange(block[-1] + 1, min(following, block[-1] + 1 + len(block)))
        on = behind[steps.steady[behind]]
        if len(on):
            differences.append(float(np.median(steps.duration[on]) - np.median(steps.duration[block])))
    return np.array(differences)


EXPLODING = "ST605"
"""Rule of exploding gradients: a lost result comes before slow steps."""


def compose(
    source: str,
    environment: JobEnvironment,
    processes: tuple[ProcessReport, ...],
    problems: tuple[str, ...] = (),
    ranks: RankComparison | None = None,
) -> Report:
    """Report of a recording or of traces. source: path as the user gave it. processes: reports of one process or more.

    The straggler comes first, else the slowest trainer; it alone keeps its step view and traces, small ones whole."""
    ordered = sorted(processes, key=lambda process: (-process.case.step.duration.value, process.rank or 0))
    if _alike(processes):
        ordered = sorted(processes, key=lambda process: (process.rank is None, process.rank or 0))
    ordered = sorted(ordered, key=lambda process: process.rank is None and not process.traces)  # programs of one, too
    first = next((each.case.straggler.ranks for each in processes if each.case.straggler is not None), ())
    ordered = sorted(ordered, key=lambda process: process.rank not in first) if first else ordered
    front = replace(ordered[0], traces=carried(ordered[0].traces))
    displayed = (front, *(replace(process, step_view=None, flame=None, traces=()) for process in ordered[1:]))
    next_ = next_command(source, environment, ordered[0])
    failed = dict.fromkeys(f"{who}: {why}" for process in processes for who, why in process.failed)
    return Report(SCHEMA_VERSION, source, environment, displayed, next_, (*failed, *problems), ranks)


def with_trials(report: Report, folder: Path | None) -> Report:
    """Report with the results of the trial in a folder; an unreadable trial becomes a problem."""
    if folder is None:
        return report
    try:
        trials = trial_report(read_results(folder), str(folder))
        after = trials.next_command or f"steptime report {shlex.quote(report.source)} -o report.html"
        return replace(report, trials=trials, next_command=after)
    except RecordingError as error:
        return replace(report, problems=(*report.problems, error.sentence))


def of_copies(report: Report, source: str) -> Report:
    """Report of temporary copies of files under the user's path, `source`; its traces keep only their file names."""
    processes = (
        replace(process, traces=tuple(replace(each, path=Path(each.path).name) for each in process.traces))
        for process in report.processes
    )
    return replace(report, source=source, processes=tuple(processes))


def next_command(source: str, environment: JobEnvironment, process: ProcessReport) -> str:
    """Command that helps most now, ready to paste. The first that applies: a search for the first lost value (gradients
    explode); a run that shows whether a leak is gone (memory will soon be full); trials of the fixes for the findings;
    the page of the largest finding or of the parts of computing; the page of a caveat; the whole report."""
    if environment.command and any(finding.code == EXPLODING for finding in process.findings):
        return f"steptime nan -- {environment.command}"
    if environment.command and worsening(process.case) == LEAK:
        return confirming(source, environment.command)
    if _can_be_tried(process):
        return f"steptime try {shlex.quote(source)}"
    # A note is reported in full: no caveat is more urgent.
    note = process.findings[:1] and process.findings[0].weight is Weight.NOTE
    caveats = (Weight.CAVEAT,) if process.case.step.mode != "trace" and not note else ()  # no trace is measured again
    for weight in (Weight.FINDING, *caveats):
        for finding in process.findings:
            if finding.weight is weight or finding.name == MADE_OF:
                return f"steptime explain {finding.code}"
    return f"steptime report {shlex.quote(source)} -o report.md"


def confirming(source: str, command: str) -> str:
    """Command that, after a line was changed, records the job again and compares: that shows whether a leak is gone."""
    recorded = shlex.quote(f"{source.rstrip('/')}-changed")
    return f"steptime run --recording {recorded} -- {command} && steptime compare {shlex.quote(source)} {recorded}"


def _can_be_tried(process: ProcessReport) -> bool:
    """True if there is a job to run again and a fix that steptime can apply to it."""
    if process.case.step.mode == "trace":
        return False
    from steptime.advice.propose import propose  # and with it all fixes, which a trace has no use for

    return any(not proposal.advice_only for proposal in propose(process.case, process.findings))


def _alike(processes: tuple[ProcessReport, ...]) -> bool:
    """True if all steps are equally long within their intervals; then rank 0, which users expect, comes first."""
    durations = [process.case.step.duration for process in processes]
    return max(each.low for each in durations) <= min(each.high for each in durations)
