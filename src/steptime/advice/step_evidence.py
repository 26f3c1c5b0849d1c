"""The step as rules see it: duration, phases, categories, what lies between steps; and optimizers of a bare trace."""

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
from steptime.analysis.timeline import UNSPLIT_PHASES, Phase, Steps, Timeline, records_of, training_thread
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
"""Operators of one name in an update: fewer tensors, or a few batched operators, look alike."""
NAME = "Optimizer.step#"


def optimizer_uses(trace: Trace, links: Links, windows: Int64, *, gapless: bool = False) -> tuple[OptimizerUse, ...]:
    """One for each kind of optimizer that stepped in the windows, (n, 2) ns; empty without annotations. In a wrapper
    around several, their work is theirs alone. gapless: kernels count without the time between them, which the
    profiler's slow host may have made."""
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
    """(tensors, numbers in them, whether they are updated one by one); zeros where nothing is repeated or no shapes are
    recorded. Each tensor has its own call of most of the in-place operators, some are called twice for each (the step
    counts, casts): the number of calls that most of them share is the number of tensors."""
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
    """How many kernels the updates launched, and when these ran: from the first one of each update to the end of its
    last, or by themselves."""
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
"""Fraction of the usable CPUs, used by the job and others together: below it they do not meet."""
OTHERS, LEAST_CPU = 0.1, 0.2
"""Fraction of the usable CPUs, and CPUs at least: what other processes may take before they are worth a word. Daemons
and the shell together stay below."""
PRESSURE_BY_OTHERS = 10.0
"""Percent of time that some task waited for a CPU. Only asked when others run: the job's own threads cause pressure
too."""
LEAST_FOR_DRIFT = 15
"""Steps: a third of fewer has no median to speak of."""
CALIBRATION = 24
"""Updates in which a gradient scaler looks for its scale: GradScaler starts at 2**16 and halves it at each overflow."""
UNSPLIT = {Phase.INPUT: Category.INPUT, Phase.TRANSFER: Category.COPY, Phase.REST: Category.PYTHON}
"""Categories of the phases in which the model does nothing, where there is no breakdown: how much of the other phases
could be saved, no phase tells."""


def others_took_cpus(contention: Contention) -> bool:
    """True if other programs took CPUs that the job would have used."""
    usable, pressure = max(1, contention.usable_cpus), contention.pressure
    few = contention.other_cpu < max(LEAST_CPU, OTHERS * usable)
    free = contention.job_cpu + contention.other_cpu < FULL * usable
    return not (few or free or (pressure is not None and pressure < PRESSURE_BY_OTHERS))


def step_summary(process: Process, timeline: Timeline, usual: Int64, behind: int = 0) -> StepSummary:
    """The step; `usual` has at least one index. behind: as of `StepSummary`."""
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
    )


def scaled_updates(table: IntervalTable) -> tuple[int, int]:
    """Steps of a gradient scaler behind the first ones, and those without an optimizer's step in them: skipped."""
    records = records_of(table, table.thread == training_thread(table))
    scaler = records.where(records.kind == int(Kind.SCALER_STEP))
    updates = np.sort(records.start[records.kind == int(Kind.OPTIMIZER_STEP)])
    inside = np.searchsorted(updates, scaler.end) - np.searchsorted(updates, scaler.start)
    later = inside[CALIBRATION:]
    return len(later), int((later == 0).sum())


def phase_uses(steps: Steps, usual: Int64) -> tuple[CategoryUse, ...]:
    """The phases; they sum to the step."""
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
    """The categories; they sum to the step. Where no step was profiled, phases stand for their categories. left: see
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
    """The categories by their entries, ns of each step. part: share of computing above the roofline; of unexplained and
    unrecorded time nothing could be saved, of the other categories all. seen: what the device did was recorded; else
    nobody knows what waits for the host."""
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
    """Share of the operators' time above the roofline: beyond their arithmetic at what a good kernel reaches of the
    rate of a matrix product, or their bytes at that of a copy, whichever is longer. Operators without a model count as
    needed. left: share of the CPUs that others left to the job, with which the peaks shrink."""
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
    """The machine while the steady steps ran; None where nobody looked."""
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
"""Percent of utilisation: an idle GPU lowers its clock, and some their link, by themselves."""
IDLE, POWER_CAP = 0x1, 0x4
SLOWED = 0x8 | 0x20 | 0x40 | 0x80
"""Bits of NVML's reasons for a lower clock (nvml.h, nvmlClocksEventReason): nothing runs; the limit of power; hardware
slowdown, heat (by software, by hardware), and the board's supply (power brake)."""


def gpu_uses(
    steps: Steps, usual: Int64, telemetry: Sequence[TelemetrySample], own: Sequence[DeviceFacts]
) -> tuple[GpuUse, ...]:
    """The process's own GPUs while the steady steps ran and they were at work, as far as somebody looked then."""
    seen: dict[str, list[DeviceSample]] = {}
    for sample in _during(telemetry, int(steps.start[usual[0]]), int(steps.end[usual[-1]])):
        for device in sample.devices:
            if device.of(own) and _is_at_work(device):
                seen.setdefault(device.name if device.uuid else "The GPU", []).append(device)
    return tuple(_gpu_use(name, samples) for name, samples in seen.items())


def _is_at_work(device: DeviceSample) -> bool:
    """By its utilisation, or, where that is not told (MIG), by the reasons for its clock."""
    if device.utilization is not None:
        return device.utilization >= BUSY
    return device.throttle_reasons is not None and not device.throttle_reasons & IDLE


def _gpu_use(name: str, busy: Sequence[DeviceSample]) -> GpuUse:
    """busy: samples of one device."""
    clocks = [(each.clock_mhz, each.throttle_reasons or 0) for each in busy if each.clock_mhz and each.max_clock_mhz]
    best = max(busy, key=lambda each: (each.link_width or 0) * 2.0 ** (each.link_generation or 0))

    def held(bits: int) -> tuple[float, float]:
        """Share of the samples that tell one of the reasons, and the mean clock then."""
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
"""Samples of the driver."""


def gpu_busy(
    steps: Steps, usual: Int64, telemetry: Sequence[TelemetrySample], own: Sequence[DeviceFacts]
) -> float | None:
    """Share of the steady steps in which a kernel ran on the process's own GPUs, by the driver (NVML's utilization.gpu,
    of up to a second before each sample); None where fewer than three samples tell of these steps alone. The effect of
    a job's start on the mean of a run is not in it."""
    start, end = int(steps.start[usual[0]]), int(steps.end[usual[-1]])
    inside = [each for each in telemetry if start < each.monotonic_ns <= end][1:]  # the first tells of what was before
    shares = [
        _mean([u / 100 for d in each.devices if d.of(own) and (u := d.utilization) is not None]) for each in inside
    ]
    known = [share for share in shares if share is not None]
    return float(np.mean(known)) if len(known) >= FEWEST_SAMPLES else None


SMALLEST_PART = 0.1
"""Fraction of the CPUs: what a job has had at least, whatever the samples say."""


def left_to(contention: Contention | None) -> float:
    """Share of the CPUs that other programs left to a job that would have used more; 1 where CPUs were free."""
    if contention is None or contention.job_cpu + contention.other_cpu < FULL * contention.usable_cpus:
        return 1.0
    return max(SMALLEST_PART, 1 - contention.other_cpu / max(1, contention.usable_cpus))


def _during(telemetry: Sequence[TelemetrySample], start: int, end: int) -> list[TelemetrySample]:
    """A sample tells of the time since the one before it: those that tell mostly of the given time, else the first one
    that tells of any of it."""
    inside = [sample for sample in telemetry if start < sample.monotonic_ns <= end]
    after = [sample for sample in telemetry if sample.monotonic_ns > end]
    return inside[1:] or inside or after[:1]


def _drift(duration: Int64) -> float:
    """Growth from the first third of the steps to the last, of the median; 0 where the interval holds no growth."""
    third = len(duration) // 3
    if len(duration) < LEAST_FOR_DRIFT:
        return 0.0
    growth = difference_of(median_of(duration[-third:]), median_of(duration[:third]))
    return ratio(growth.value, float(np.median(duration[:third]))) if growth.low > 0 else 0.0
