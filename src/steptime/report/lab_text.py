"""The lab in a terminal: one table and its reading, at most 25 lines.

One law: what trains something else (no input, other batches) is a ceiling or a throughput, never a win.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from statistics import fmean, median, quantiles

from steptime.quantities import format_bytes, format_duration
from steptime.report.printable import one_line, printable, shorten
from steptime.report.trial_text import speed_text
from steptime.trials.curve import Point, plateau, points_of
from steptime.trials.judge import usual_step
from steptime.trials.lab import NO_INPUT, batch_of
from steptime.trials.results import Results
from steptime.trials.trial import BASELINE, CONTROL, Judgement, Run, Verdict

LINES, COLUMNS = 25, 80
_LABEL, _BAR = 31, 38
_WORTH = 1.1
"""A ceiling below this is not worth looking for."""


def render(results: Results, batch_size: int | None, next_command: str) -> str:
    """The whole text, with a line feed at its end. batch_size: the job's own, None where it is not known."""
    judgements = [each for stage, each in results.judgements if stage == 0 and batch_of(each.arm) is None]
    timed = [run for run in results.runs if not run.rehearsal and run.step_ns]
    head = f"{'':<{_LABEL}} {'median':>8} {'IQR':>8}  {'speed-up':<19} peak"
    rows = [_baseline(timed), *(_row(each, timed) for each in judgements)]
    reasons = [f"  {each.arm.label}: {_short(each)}" for each in judgements if each.verdict in _TOLD]
    points = _points(results, timed, batch_size)
    lines = [shorten(f"Lab of {' '.join(results.plan.command)}", COLUMNS), "", head, *rows, ""]
    lines += [*(shorten(each, COLUMNS) for each in reasons), *_compilation(judgements, timed), *_curve(points)]
    end = [*textwrap.wrap(reading(judgements, points), COLUMNS), f"Next:  {one_line(next_command)}"]
    if len(lines) + len(end) > LINES:
        lines = [line for line in lines if line]
    return "".join(f"{printable(line)}\n" for line in (*lines[: LINES - len(end)], *end))


_TOLD = frozenset({Verdict.BROKE_PROMISE, Verdict.NOT_EXERCISED, Verdict.FAILED})


def _short(judgement: Judgement) -> str:
    return f"{judgement.verdict.value}: {one_line(judgement.sentence)}"


def _baseline(timed: Sequence[Run]) -> str:
    own = [run for run in timed if run.arm in (BASELINE, CONTROL)]
    return _line("as it is", own, "1")


def _row(judgement: Judgement, timed: Sequence[Run]) -> str:
    own = [run for run in timed if run.arm == judgement.arm.name]
    speed = speed_text(judgement.speed) if judgement.speed is not None else judgement.verdict.value
    return _line(judgement.arm.label, own, speed)


def _line(label: str, runs: Sequence[Run], speed: str) -> str:
    if not runs:
        return f"{shorten(label, _LABEL):<{_LABEL}} {'–':>8} {'–':>8}  {speed}"
    step = fmean(median(run.step_ns) for run in runs)
    spread = fmean(_spread(run.step_ns) for run in runs)
    peak = max(run.peak_bytes or 0 for run in runs)
    memory = format_bytes(peak) if peak else ""
    times = f"{format_duration(step):>8} {format_duration(spread):>8}"
    text = f"{shorten(label, _LABEL):<{_LABEL}} {times}  {speed:<19} {memory}"
    return shorten(text.rstrip(), COLUMNS)


def _spread(values: Sequence[int]) -> float:
    """Interquartile range."""
    if len(values) < 2:
        return 0.0
    low, _, high = quantiles(values, n=4)
    return high - low


def _compilation(judgements: Sequence[Judgement], timed: Sequence[Run]) -> list[str]:
    """What compiling costs once, and after how many steps that is paid back."""
    base = usual_step(timed)
    lines = []
    for judgement in judgements:
        seconds = [run.compile_seconds for run in timed if run.arm == judgement.arm.name and run.compile_seconds > 0]
        if not seconds or base is None or judgement.speed is None:
            continue
        saved = base.value * (1 - 1 / judgement.speed.value)
        spent = fmean(seconds)
        sure = judgement.speed.low > 1
        paid = f"paid back after {spent * 1e9 / saved:,.0f} steps" if sure else "not known ever to be paid back"
        lines.append(shorten(f"  {judgement.arm.label}: compiles {spent:.1f} s, {paid}", COLUMNS))
    return lines


def _points(results: Results, timed: Sequence[Run], batch_size: int | None) -> tuple[Point, ...]:
    sizes = [each for _, each in results.judgements if batch_of(each.arm) is not None]
    base = usual_step(timed)
    return points_of(sizes, base.value, batch_size) if sizes and base is not None else ()


def _curve(points: Sequence[Point]) -> list[str]:
    """Items per second by batch size, as bars; out of memory is one of the results."""
    most = max((point.rate.value for point in points if point.rate is not None), default=0.0)
    lines = ["Items a second by batch size"] if points else []
    for point in points:
        if point.rate is None:
            why = "out of memory" if point.out_of_memory else one_line(point.failure) or "no time was left for it"
            lines.append(shorten(f"  {point.size:>7,}  {why}", COLUMNS))
        else:
            bar = "█" * max(1, round(_BAR * point.rate.value / most))
            interval = f"({_rate(point.rate.low)}–{_rate(point.rate.high)})" if point.rate.samples > 1 else "(as it is)"
            lines.append(f"  {point.size:>7,}  {_rate(point.rate.value):>8} {interval:<19} {bar}")
    return lines


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def reading(judgements: Sequence[Judgement], points: Sequence[Point] = ()) -> str:
    """The table in a sentence."""
    parts = [*_ceilings(judgements), *_paying(judgements), *_sizes(points)]
    text = "; ".join(parts) or "nothing could be timed"
    return f"Reading: {text[:1].upper()}{text[1:]}."


def _ceilings(judgements: Sequence[Judgement]) -> list[str]:
    """What no input, and on CUDA no launch, would bring."""
    ceiling = next((each.speed for each in judgements if each.arm.name == NO_INPUT), None)
    if ceiling is None:
        return []
    if ceiling.low > _WORTH:
        return [f"a perfect input would make steps {ceiling.value:.2f}× as fast"]
    return ["the input costs next to nothing"] if ceiling.high < _WORTH else []


def _paying(judgements: Sequence[Judgement]) -> list[str]:
    adopted = [each for each in judgements if each.verdict is Verdict.ADOPT and each.speed is not None]
    best = max(adopted, key=lambda each: each.speed.value if each.speed is not None else 0.0, default=None)
    if best is not None and best.speed is not None:
        return [f"{best.arm.label} pays ({best.speed.value:.2f}×)"]
    return ["no precision or compilation tried here is faster beyond doubt"] if judgements else []


def _sizes(points: Sequence[Point]) -> list[str]:
    known = [point for point in points if point.rate is not None]
    if len(known) < 2:
        return []
    size, out = plateau(points), next((point.size for point in points if point.out_of_memory), None)
    if size is not None:
        return [f"beyond batches of {size} throughput hardly grows"]
    end = f" to {known[-1].size}, and {out} runs out of memory" if out is not None else f" up to {known[-1].size}"
    return [f"throughput still grows{end}"]
