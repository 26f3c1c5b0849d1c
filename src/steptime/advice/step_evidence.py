"""Step for the rules: duration, phases, categories, load of the machine and GPUs; and optimizers of a bare trace."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from steptime.advice.device_uses import GpuUse
from steptime.advice.evidence import OptimizerUse
from steptime.advice.kernels import REACHABLE, elements, shapes_of
from steptime.advice.models import norm_use
from steptime.advice.run_uses import CategoryUse, Contention, StepSummary
from steptime.advice.savings import NOTHING, ratio, scaled
from steptime.analysis.categories import Breakdown, Category
from steptime.analysis.operators import OperatorUse
from steptime.analysis.threads import during
from steptime.analysis.timeline import UNSPLIT_PHASES, Phase, Steps, Timeline, counted, records_of, training_thread
from steptime.arrays import Int64, quartiles, unique
from steptime.intervals import Intervals, contains, measure, subtract, union
from steptime.journal import Kind
from steptime.machine.machine import Machine
from steptime.quantities import difference_of, mean_of_series, median_of
from steptime.recording.recording import DeviceFacts, DeviceSample, IntervalTable, Process, TelemetrySample
from steptime.trace.links import UNKNOWN, Links, host_forest
from steptime.trace.table import ABSENT, EventKind, Trace
from steptime.trace.vendors import OPTIMIZER_STEP, matching

ONE_BY_ONE = 20
"""Least number of operators of one name in an update for it to work tensor by tensor: fewer tensors look like a few
batched operators."""
NAME = "Optimizer.step#"


def optimizer_uses(trace: Trace, links: Links, windows: Int64, *, gapless: bool = False) -> tuple[OptimizerUse, ...]:
    """Optimizers that stepped in the windows, (n, 2) ns, one per kind; () if the trace has no annotations of them. Work
    of nested optimizers is not the wrapper's. gapless: True to leave out the time between kernels, which the profiler
    may cause."""
    events = trace.events
    chosen = matching(trace, OPTIMIZER_STEP.match) & np.isin(
        events.event_kind, (EventKind.ANNOTATION, EventKind.OPERATOR)
    )
    chosen &= contains(union(windows[:, 0], windows[:, 1]), events.start)
    rows = np.flatnonzero(chosen)
    around = host_forest(trace).around(rows, chosen, itself=False)
    kind, outer = events.name[rows], np.where(around == UNKNOWN, ABSENT, events.name[around])
    return tuple(
        _use(trace, links, rows[kind == name], rows[(outer == name) & (kind != name)], windows, gapless)
        for name in unique(kind).tolist()
    )


def _use(trace: Trace, links: Links, updates: Int64, nested: Int64, windows: Int64, gapless: bool) -> OptimizerUse:
    events = trace.events
    inside = subtract(during(trace, updates), during(trace, nested))
    operators = (events.event_kind == EventKind.OPERATOR) & contains(inside, events.start)
    names = [trace.symbols[number] for number in unique(events.name[operators]).tolist()]
    fused, foreach = any("_fused_" in name for name in names), any("_foreach_" in name for name in names)
    tensors, numbers, alone = _tensors(trace, np.flatnonzero(operators), max(1, len(updates)))
    kernels, busy = _kernels(trace, links, inside, gapless)
    held = busy if kernels else inside
    return OptimizerUse(
        type=trace.symbols[int(events.name[updates[0]])].removeprefix(NAME).removesuffix(".step"),
        duration=mean_of_series(measure(held, windows[:, 0], windows[:, 1])),
        parameters=tensors,
        elements=numbers,
        foreach=True if foreach or fused else False if alone else None,
        fused=fused,
        operators=float(operators.sum()) / len(windows),
        kernels=kernels / len(windows) if kernels else None,
    )


def _tensors(trace: Trace, rows: Int64, updates: int) -> tuple[int, int, bool]:
    """(tensors, elements in them, True if they are updated one by one); zeros if nothing is repeated. Each tensor has
    its own call of most in-place operators, some have two (step counts, casts): the most common number of calls is the
    number of tensors."""
    events = trace.events
    calls: dict[int, list[int]] = defaultdict(list)
    for row, name in zip(rows.tolist(), events.name[rows].tolist(), strict=True):
        if trace.symbols[name].endswith("_") and "_foreach_" not in trace.symbols[name]:
            calls[name].append(row)
    shared = Counter(map(len, calls.values()))
    usual = min(shared, key=lambda count: (-shared[count], count), default=0)
    if usual < ONE_BY_ONE * updates:
        return 0, 0, False
    most = next(rows for rows in calls.values() if len(rows) == usual)
    shapes = [int(events.shapes[row]) for row in most]
    known = {shape: next(iter(shapes_of(trace.shapes[shape])), ()) for shape in set(shapes) if shape != ABSENT}
    return len(most) // updates, sum(elements(known[each]) for each in shapes if each in known) // updates, True


def _kernels(trace: Trace, links: Links, inside: Intervals, gapless: bool) -> tuple[int, Intervals]:
    """Number of kernels that the updates launched, and their intervals: from each update's first kernel to the end of
    its last, or kernel by kernel."""
    events = trace.events
    launched = events.start[links.launch.values]
    kept = (events.event_kind[links.launch.rows] == EventKind.KERNEL) & contains(inside, launched)
    rows, launched = links.launch.rows[kept], launched[kept]
    if gapless:
        return len(rows), union(events.start[rows], events.ends(rows))
    number = np.searchsorted(inside.start, launched, side="right") - 1
    start = np.full(len(inside), np.iinfo(np.int64).max)
    end = np.zeros(len(inside), np.int64)
    np.minimum.at(start, number, events.start[rows])
    np.maximum.at(end, number, events.ends(rows))
    some = np.bincount(number, minlength=len(inside)) > 0
    return len(rows), union(start[some], end[some])


FULL = 0.85
"""Fraction of the usable CPUs that job and others must use together for them to compete."""
OTHERS, LEAST_CPU = 0.1, 0.2
"""Least CPU use of other processes worth reporting, as a fraction of the usable CPUs and in CPUs. Daemons and the shell
together stay below."""
PRESSURE_BY_OTHERS = 10.0
"""Percent of time in which some task waited for a CPU. It only counts if others run, because the job's own threads
cause pressure too."""
LEAST_FOR_DRIFT = 15
"""Least number of steps for a drift: a third of fewer has no useful median."""
CALIBRATION = 24
"""First updates, in which a gradient scaler searches its scale: GradScaler starts at 2**16 and halves it at each
overflow."""
UNSPLIT = {Phase.INPUT: Category.INPUT, Phase.TRANSFER: Category.COPY, Phase.REST: Category.PYTHON}
"""Categories of the phases without model work, if there is no breakdown. The savings in other phases are unknown."""


def others_took_cpus(contention: Contention) -> bool:
    """True if other programs took CPUs that the job would have used."""
    usable, pressure = max(1, contention.usable_cpus), contention.pressure
    few = contention.other_cpu < max(LEAST_CPU, OTHERS * usable)
    free = contention.job_cpu + contention.other_cpu < FULL * usable
    return not (few or free or (pressure is not None and pressure < PRESSURE_BY_OTHERS))


def step_summary(process: Process, timeline: Timeline, usual: Int64, behind: int = 0) -> StepSummary:
    """Summary of a process's steps; `usual` has at least one index. behind: as in `StepSummary`."""
    steps = timeline.steps
    by_scaler, left_out = scaled_updates(process.intervals)
    return StepSummary(
        duration=mean_of_series(steps.duration[usual]),
        total=len(steps.start),
        steady=len(usual),
        warm_up=int(steps.warm_up.sum()),
        mode=timeline.mode.name.lower(),
        device=process.facts.device,
        micro_batches=float(steps.micro_batches[usual].mean()),
        scaled=by_scaler,
        skipped=left_out,
        norm=norm_use(process.intervals, steps),
        shortest=int(steps.duration[usual].min()),
        longest=int(steps.duration[usual].max()),
        behind=behind,
        loss_divided=process.loss.divided if process.loss is not None else None,
    )


def scaled_updates(table: IntervalTable) -> tuple[int, int]:
    """(number of a gradient scaler's steps after the first ones, number of these that were skipped, i.e. without an
    optimizer step)."""
    records = records_of(table, table.thread == training_thread(table))
    scaler = records.where(records.kind == int(Kind.SCALER_STEP))
    updates = np.sort(records.start[records.kind == int(Kind.OPTIMIZER_STEP)])
    inside = counted(updates, scaler.start, scaler.end)
    later = inside[CALIBRATION:]
    return len(later), int((later == 0).sum())


def phase_uses(steps: Steps, usual: Int64) -> tuple[CategoryUse, ...]:
    """Time of each phase that takes any; the phases sum to the step."""
    durations = {phase: mean_of_series(steps.phases[usual, phase]) for phase in Phase}
    return tuple(
        CategoryUse(phase.title, duration, duration if phase in UNSPLIT else NOTHING)
        for phase, duration in durations.items()
        if duration.value > 0
    )


def category_uses(
    breakdown: Breakdown | None,
    steps: Steps,
    usual: Int64,
    operators: Sequence[OperatorUse],
    machine: Machine | None,
    left: float = 1.0,
) -> tuple[CategoryUse, ...]:
    """Times of the categories, which sum to the step. Without profiled steps, phases replace them. left: see
    `waste`."""
    entries = _entries(breakdown, steps, usual)
    part = waste(operators, machine, left)
    if operators or entries[:, (Category.COMPUTE, Category.OVERHEAD)].any():
        return categories_of(entries, part)
    uses = categories_of(entries, part, without=(Category.PYTHON, Category.UNEXPLAINED))
    return (*(use for use in phase_uses(steps, usual) if use.name in UNSPLIT_PHASES), *uses)


def categories_of(
    entries: Int64, part: float, *, seen: bool = True, without: tuple[Category, ...] = ()
) -> tuple[CategoryUse, ...]:
    """Time of each category, from the entries of each step, ns. part: fraction of computing above the roofline.
    Unexplained and unrecorded time counts as unrecoverable, other categories as fully recoverable. seen: True if the
    device's work was recorded; else nothing counts as recoverable, because what waits for the CPU is unknown."""
    parts = {Category.COMPUTE: part, Category.UNRECORDED: 0.0, Category.UNEXPLAINED: 0.0}
    means = {each: mean_of_series(entries[:, each]) for each in Category if each not in without}
    return tuple(
        CategoryUse(each.name.lower(), mean, scaled(mean, parts.get(each, 1.0) if seen else 0.0))
        for each, mean in means.items()
        if mean.value > 0
    )


def _entries(breakdown: Breakdown | None, steps: Steps, usual: Int64) -> Int64:
    if breakdown is None:
        entries = np.zeros((len(usual), len(Category)), np.int64)
        for phase in Phase:
            entries[:, UNSPLIT.get(phase, Category.UNEXPLAINED)] += steps.phases[usual, phase]
        return entries
    steady = np.flatnonzero(steps.steady)
    return breakdown.entries[np.isin(steady, usual)] if len(steady) == len(breakdown.wall) else breakdown.entries


def waste(operators: Sequence[OperatorUse], machine: Machine | None, left: float = 1.0) -> float:
    """Fraction of the operators' time that a perfect implementation would save: the time beyond their arithmetic at a
    good kernel's matmul rate, or their bytes at a copy's rate, whichever is longer. Operators without a model count as
    needed. left: fraction of the CPUs that others left to the job, which scales the peaks."""
    spent = sum(operator.duration for operator in operators)
    if machine is None or machine.copy is None or not spent:
        return 0.0
    rate, copy = machine.matrix_rate(), machine.copy.value
    above = 0.0
    for operator in operators:
        if operator.bytes is None or (operator.flops and not rate):
            continue
        arithmetic = operator.flops / (REACHABLE * rate) * 1e9 if operator.flops and rate else 0.0
        above += max(0.0, operator.duration - max(arithmetic, operator.bytes / copy * 1e9) / left)
    return above / spent


def contention_use(
    process: Process, steps: Steps, usual: Int64, telemetry: Sequence[TelemetrySample], machine: Machine | None = None
) -> Contention | None:
    """Use of the machine's CPUs during the steady steps; None without telemetry."""
    start, end = int(steps.start[usual[0]]), int(steps.end[usual[-1]])
    samples = _during(telemetry, start, end)
    if not samples:
        return None
    pressures = [sample.pressure for sample in samples if sample.pressure is not None]
    lower, middle, upper = quartiles(steps.duration[steps.steady])
    return Contention(
        other_cpu=float(np.mean([sample.other_cpu for sample in samples])),
        job_cpu=float(np.mean([sample.job_cpu for sample in samples])),
        usable_cpus=process.settings.usable_cpus if process.settings else 1,
        pressure=float(np.mean(pressures)) if pressures else None,
        spread=ratio(float(upper - lower), float(middle)),
        drift=_drift(steps.duration[usual]),
        together=machine.capacity if machine is not None else None,
        handover=machine.handover_usual if machine is not None else None,
    )


BUSY = 50.0
"""Least utilisation of a busy GPU, percent: an idle one lowers its clock, and some their link, by themselves."""
IDLE, POWER_CAP = 0x1, 0x4
SLOWED = 0x8 | 0x20 | 0x40 | 0x80
"""Bits of NVML's reasons for a lower clock (nvml.h, nvmlClocksEventReason). IDLE: nothing runs; POWER_CAP: power limit;
SLOWED: hardware slowdown, heat (by software, by hardware), and power brake by the board's supply."""


def gpu_uses(
    steps: Steps, usual: Int64, telemetry: Sequence[TelemetrySample], own: Sequence[DeviceFacts]
) -> tuple[GpuUse, ...]:
    """State of the process's own GPUs during the steady steps, from the samples in which they were busy."""
    seen: dict[str, list[DeviceSample]] = {}
    for sample in _during(telemetry, int(steps.start[usual[0]]), int(steps.end[usual[-1]])):
        for device in sample.devices:
            if device.of(own) and _is_at_work(device):
                seen.setdefault(device.name if device.uuid else "The GPU", []).append(device)
    return tuple(_gpu_use(name, samples) for name, samples in seen.items())


def _is_at_work(device: DeviceSample) -> bool:
    """True for a busy GPU by its utilisation, or, if that is unknown (MIG), by the reasons for its clock."""
    if device.utilization is not None:
        return device.utilization >= BUSY
    return device.throttle_reasons is not None and not device.throttle_reasons & IDLE


def _gpu_use(name: str, busy: Sequence[DeviceSample]) -> GpuUse:
    """Summary of one GPU. busy: its samples under load."""
    clocks = [(each.clock_mhz, each.throttle_reasons or 0) for each in busy if each.clock_mhz and each.max_clock_mhz]
    best = max(busy, key=lambda each: (each.link_width or 0) * 2.0 ** (each.link_generation or 0))

    def held(bits: int) -> tuple[float, float]:
        """(fraction of the samples with one of these reasons, mean clock in them in MHz)."""
        found = [clock for clock, reasons in clocks if reasons & bits]
        return ratio(len(found), len(clocks)), _mean(found) or 0.0

    (slowed, slowed_clock), (capped, capped_clock) = held(SLOWED), held(POWER_CAP)
    return GpuUse(
        name=name,
        samples=len(busy),
        slowed=slowed,
        capped=capped,
        slowed_clock=slowed_clock,
        capped_clock=capped_clock,
        max_clock=float(max(each.max_clock_mhz or 0 for each in busy)),
        power=_mean([each.power_watts for each in busy if each.power_watts is not None]),
        limit=_mean([each.power_limit_watts for each in busy if each.power_limit_watts is not None]),
        width=best.link_width,
        max_width=best.link_max_width,
        generation=best.link_generation,
        max_generation=best.link_max_generation,
    )


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


FEWEST_SAMPLES = 3
"""Least number of the driver's samples for a fraction of busy time."""


def gpu_busy(
    steps: Steps, usual: Int64, telemetry: Sequence[TelemetrySample], own: Sequence[DeviceFacts]
) -> float | None:
    """Fraction of the steady steps in which a kernel ran on the process's own GPUs, by the driver (NVML's
    utilization.gpu, over up to a second before each sample). None for fewer than three samples that lie in these steps.
    The start of the job does not count."""
    start, end = int(steps.start[usual[0]]), int(steps.end[usual[-1]])
    inside = [each for each in telemetry if start < each.monotonic_ns <= end][1:]  # the first covers what was before
    shares = [
        _mean([u / 100 for d in each.devices if d.of(own) and (u := d.utilization) is not None]) for each in inside
    ]
    known = [share for share in shares if share is not None]
    return float(np.mean(known)) if len(known) >= FEWEST_SAMPLES else None


SMALLEST_PART = 0.1
"""Least fraction of the CPUs that a job counts as having had, whatever the samples show."""


def left_to(contention: Contention | None) -> float:
    """Fraction of the CPUs that other programs left to a job that would have used more; 1 if CPUs were free."""
    if contention is None or contention.job_cpu + contention.other_cpu < FULL * contention.usable_cpus:
        return 1.0
    return max(SMALLEST_PART, 1 - contention.other_cpu / max(1, contention.usable_cpus))


def _during(telemetry: Sequence[TelemetrySample], start: int, end: int) -> list[TelemetrySample]:
    """Samples of mostly this time, else the first one of any of it: a sample covers the time since the one before."""
    inside = [sample for sample in telemetry if start < sample.monotonic_ns <= end]
    after = [sample for sample in telemetry if sample.monotonic_ns > end]
    return inside[1:] or inside or after[:1]


def _drift(duration: Int64) -> float:
    """Relative growth of the median from the first third of the steps to the last; 0 if it is not significant."""
    third = len(duration) // 3
    if len(duration) < LEAST_FOR_DRIFT:
        return 0.0
    growth = difference_of(median_of(duration[-third:]), median_of(duration[:third]))
    return ratio(growth.value, float(np.median(duration[:third]))) if growth.low > 0 else 0.0
