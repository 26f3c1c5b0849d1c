"""Answer of `steptime lab`: the gains of precision, compilation, a perfect input and other batch sizes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median, quantiles

from steptime.answer.answer import Answer
from steptime.answer.page.axes import curve_figures
from steptime.answer.tables import Cell, Column, Table, duration, integer, number, size, table_of, word
from steptime.quantities import format_bytes, format_count, format_share
from steptime.recording.parity import StepWork
from steptime.report.judge_answer import as_document
from steptime.report.sweep import throughput_chart
from steptime.report.trial_answer import format_rate_of
from steptime.report.verdict_words import as_recorded, assumed_text, certainty, counted, speed_text
from steptime.trials.judge import MIN_GAIN, usual_step
from steptime.trials.plan import BF16, BF16_COMPILED, NO_INPUT, BatchSizePoint, plateau, points_of
from steptime.trials.results import Results
from steptime.trials.trial import BASELINE, CONTROL, Judgement, Run, TrialVerdict, batch_of

NO_TIME = "the budget ended before it"
WORTH = 1.1
"""An upper bound below this is not worth looking for."""
BY_PRECISION = 1.2
"""Tensor Cores double the rate of matmuls at least: a step that they bound gains more by bfloat16."""
EXPLAINED = frozenset({TrialVerdict.BROKE_PROMISE, TrialVerdict.NOT_EXERCISED, TrialVerdict.FAILED})


def answer_of(
    results: Results,
    batch_size: int | None,
    next_command: str,
    capacity: int | None = None,
    samples: float | None = None,
    *,
    fast_bfloat16: bool = False,
) -> Answer:
    """Answer of a lab. batch_size: the job's own, None if unknown; capacity: memory that it may use, bytes, None if
    unknown; samples: number that one of its steps reads, None if unknown. fast_bfloat16: True if its matmuls are at
    least BY_PRECISION times as fast in bfloat16."""
    judgements = [each for stage, each in results.judgements if stage == 0 and batch_of(each.variant) is None]
    timed = _timed(results.runs)
    points = size_points(results, batch_size)
    return Answer(
        title=f"Lab of {shlex.join(results.plan.command)}",
        headline=reading(judgements, points, capacity, timed, fast_bfloat16=fast_bfloat16) if timed else NOTHING,
        badge=certainty(results, [each for each in judgements if each.variant.name != NO_INPUT]) if timed else "",
        head=(f"Lab of {shlex.join(results.plan.command)}", *(() if timed else (as_recorded(results),))),
        parts=(_variants(judgements, results.runs, samples), _by_size(points)),
        notes=(
            *assumed_text(results),
            *(f"{each.variant.label}: {each.verdict.value}: {each.sentence}" for each in judgements
              if each.verdict in EXPLAINED and (timed or "not timed" not in each.sentence)),
            *_drifted(judgements, timed),
            *_compilation(judgements, timed),
        ),
        next_command=next_command,
        figures=curve_figures(throughput_chart([(each.size, each.rate) for each in points if each.rate is not None])),
        data=as_document(results),
    )  # fmt: skip


NOTHING = "No result: the budget was too short for one round. Give a larger --budget."


@dataclass(frozen=True, slots=True)
class LabRow:
    """Row of the lab's table: the runs of one variant together. step, median, spread: means over the runs, ns; rate:
    samples per second at the mean step, None for an unknown batch size; peak: largest memory peak of the runs, bytes;
    counted: work of the last step of its rehearsal."""

    label: str
    speed: str
    step: float | None = None
    median: float | None = None
    spread: float | None = None
    rate: float | None = None
    peak: int | None = None
    counted: StepWork | None = None

    @property
    def calls(self) -> int | None:
        """Number of kernels per step, or of operators without a device."""
        return (self.counted.kernels or self.counted.operators) if self.counted is not None else None


def _variants(judgements: Sequence[Judgement], runs: Sequence[Run], samples: float | None) -> Table:
    timed = _timed(runs)
    rows = [_row("as it is", runs, (BASELINE, CONTROL), "1", samples)]
    for each in judgements:
        untimed = each.verdict is TrialVerdict.UNDECIDED and not any(run.variant == each.variant.name for run in timed)
        speed = speed_text(each.speed, each.of_run) or (NO_TIME if untimed else each.verdict.value)
        rows.append(_row(each.variant.label, runs, (each.variant.name,), speed, samples))
    on_device = any(row.counted is not None and row.counted.kernels for row in rows)
    return table_of(
        "lab", "", "", rows,
        word("variant", "variant", lambda row: row.label),
        duration("mean", "step_ns", lambda row: row.step),
        duration("median", "median_ns", lambda row: row.median),
        duration("IQR", "iqr_ns", lambda row: row.spread),
        number("samples/s", "samples_per_s", lambda row: row.rate, format_rate_of),
        word("speed-up", "speed", lambda row: row.speed),
        size("peak", "peak_bytes", lambda row: row.peak),
        number("kernels" if on_device else "operators", "calls", lambda row: row.calls, "{:,.0f}".format),
    )  # fmt: skip


def _timed(runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if not run.rehearsal and run.step_ns]


def _row(label: str, every: Sequence[Run], variants: Sequence[str], speed: str, samples: float | None) -> LabRow:
    runs = [run for run in _timed(every) if run.variant in variants]
    calls = counted(every, variants[0])
    if not runs:
        return LabRow(label, speed, counted=calls)
    peak = max(run.peak_bytes or 0 for run in runs) or None
    step, spread = _mean_step(runs), fmean(_spread(run.step_ns) for run in runs)
    middle = fmean(median(run.step_ns) for run in runs)
    return LabRow(label, speed, step, middle, spread, samples / step * 1e9 if samples else None, peak, calls)


def _by_size(points: Sequence[BatchSizePoint]) -> Table:
    """Table of samples per second by batch size; out of memory is one of the results."""

    def rate(point: BatchSizePoint) -> Cell:
        if point.rate is None:
            return Cell("out of memory" if point.out_of_memory else point.failure or NO_TIME, "")
        return Cell(format_rate_of(point.rate.value), point.rate.value)

    def interval(point: BatchSizePoint) -> str:
        if point.rate is None:
            return ""
        between = f"({format_rate_of(point.rate.low)}–{format_rate_of(point.rate.high)})"
        return between if point.rate.samples > 1 else "(as it is)"

    return table_of(
        "sizes", "Items per second by batch size", "", points,
        integer("batch", "batch", lambda point: point.size),
        Column("items/s", "items_per_s", rate, barred=True),
        word("", "interval", interval),
        size("peak", "peak_bytes", lambda point: point.peak),
    )  # fmt: skip


def _mean_step(runs: Sequence[Run]) -> float:
    return fmean(fmean(run.step_ns) for run in runs)


def _drifted(judgements: Sequence[Judgement], timed: Sequence[Run]) -> list[str]:
    """Sentence on rows whose speed-up contradicts their mean steps. The speed-up compares each run with those of the
    unchanged job right before and after it, and the machine's speed changed in between."""
    base = [run for run in timed if run.variant in (BASELINE, CONTROL)]
    rows = []
    for each in judgements:
        runs = [run for run in timed if run.variant == each.variant.name]
        if each.speed is None or not runs or not base:
            continue
        of_means = _mean_step(base) / _mean_step(runs)
        if (of_means - 1) * (each.speed.value - 1) < 0 and max(abs(of_means - 1), abs(each.speed.value - 1)) >= 0.005:
            rows.append(each.variant.label)
    if not rows:
        return []
    them = "it is" if len(rows) == 1 else "they are"
    return [
        f"{', '.join(rows)}: {them} compared with the runs right before and after, because the machine's speed changed"
    ]


def _spread(values: Sequence[int]) -> float:
    """Interquartile range."""
    if len(values) < 2:
        return 0.0
    low, _, high = quantiles(values, n=4)
    return high - low


def _compilation(judgements: Sequence[Judgement], timed: Sequence[Run]) -> list[str]:
    """Sentences on the one-time cost of compiling, and after how many steps it pays."""
    base = usual_step(timed)
    lines = []
    for judgement in judgements:
        seconds = [
            run.compile_seconds for run in timed if run.variant == judgement.variant.name and run.compile_seconds > 0
        ]
        if not seconds or base is None or judgement.speed is None:
            continue
        saved = base.value * (1 - 1 / judgement.speed.value)
        spent = fmean(seconds)
        sure = judgement.speed.low > 1
        paid = f"paid back after {spent * 1e9 / saved:,.0f} steps" if sure else "never known to pay back"
        lines.append(f"{judgement.variant.label}: compiles {spent:.1f} s, {paid}")
    return lines


def size_points(results: Results, batch_size: int | None) -> tuple[BatchSizePoint, ...]:
    """Batch sizes of a lab with their measurements, including the job's own size; () if no other size was tried."""
    timed = _timed(results.runs)
    sizes = [each for _, each in results.judgements if batch_of(each.variant) is not None]
    base = usual_step(timed)
    peak = max((run.peak_bytes or 0 for run in timed if run.variant in (BASELINE, CONTROL)), default=0)
    return points_of(sizes, base.value, batch_size, peak or None) if sizes and base is not None else ()


def reading(
    judgements: Sequence[Judgement],
    points: Sequence[BatchSizePoint] = (),
    capacity: int | None = None,
    timed: Sequence[Run] = (),
    *,
    fast_bfloat16: bool = False,
) -> str:
    """Result of a lab as a sentence."""
    parts = [*_peaks(judgements), *_paying(judgements), *_little(judgements, timed, fast_bfloat16=fast_bfloat16)]
    parts += [*_sizes(points), *_margin(points, capacity)]
    text = "; ".join(parts) or "nothing could be timed"
    return f"{text[:1].upper()}{text[1:]}."


def _peaks(judgements: Sequence[Judgement]) -> list[str]:
    upper_bound = next((each.speed for each in judgements if each.variant.name == NO_INPUT), None)
    if upper_bound is None:
        return []
    if upper_bound.low > WORTH:
        return [f"a perfect input would make steps {upper_bound.value:.2f}× as fast"]
    return ["the input costs next to nothing"] if upper_bound.high < WORTH else []


def _little(judgements: Sequence[Judgement], timed: Sequence[Run], *, fast_bfloat16: bool) -> Iterator[str]:
    """Sentences on small gains of precision or compiling: the two rules of the three-run lab."""
    speeds = {each.variant.name: each.speed for each in judgements}
    cast, both, perfect = (speeds.get(name) for name in (BF16, BF16_COMPILED, NO_INPUT))
    if fast_bfloat16 and cast is not None and cast.high < BY_PRECISION:
        loader = perfect is not None and perfect.low > WORTH
        where = "the loader" if loader else "the CPU (Python, launches, values that are read)"
        yield f"bfloat16 gains less than {format_share(BY_PRECISION - 1)}: precision is not the limit, look at {where}"
    if cast is not None and both is not None and both.value < WORTH * cast.value:
        breaks = max((run.graph_breaks for run in timed if run.variant == BF16_COMPILED), default=0)
        why = f"{format_count(breaks, 'line')} of the model broke its graph" if breaks else "no graph break was seen"
        rest = "" if breaks else ", so its kernels are fused already or take their time in matmuls"
        yield f"compiling gains less than {format_share(WORTH - 1)} more: {why}{rest}"


def _paying(judgements: Sequence[Judgement]) -> list[str]:
    known = [(each, each.speed) for each in judgements if each.verdict is TrialVerdict.ADOPT and each.speed is not None]
    if known:
        best, speed = max(known, key=lambda each: each[1].value)
        whole = f" of a step, some {best.of_run.value:.2f}× of the run" if best.of_run is not None else ""
        return [f"{best.variant.label} pays ({speed.value:.2f}×{whole})"]
    tried = any(each.speed is not None or each.verdict is not TrialVerdict.UNDECIDED for each in judgements)
    return ["no tried precision or compilation is measurably faster"] if tried else []


FEWER_UPDATES = "larger batches make fewer updates per epoch: retune the learning rate"


def _sizes(points: Sequence[BatchSizePoint]) -> list[str]:
    known = [point for point in points if point.rate is not None]
    if len(known) < 2:
        return []
    size, out = plateau(points), next((point.size for point in points if point.out_of_memory), None)
    if size is not None:
        (rate,) = (point.rate.value for point in known if point.size == size and point.rate is not None)
        wide = any(point.rate.high > rate * (1 + MIN_GAIN) for point in known if point.size > size and point.rate)
        unsure = ", within the intervals' precision (a larger --budget narrows them)" if wide else ""
        return [f"beyond batches of {size} throughput hardly grows{unsure}", FEWER_UPDATES]
    end = f" to {known[-1].size}, and {out} runs out of memory" if out is not None else f" up to {known[-1].size}"
    return [f"throughput still grows{end}", FEWER_UPDATES]


def _margin(points: Sequence[BatchSizePoint], capacity: int | None) -> list[str]:
    largest = next((point for point in reversed(points) if point.rate is not None and point.peak), None)
    if len(points) < 2 or largest is None or largest.peak is None or not capacity:
        return []
    left = format_share(max(0.0, 1 - largest.peak / capacity))
    return [f"the largest timed batch, {largest.size}, leaves {left} of {format_bytes(capacity)} free"]
