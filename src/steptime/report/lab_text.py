"""The lab in a terminal: one table and its reading, at most 25 lines.

One law: what trains something else (no input, other batches) is a ceiling or a throughput, never a win.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from statistics import fmean, quantiles

from steptime.quantities import format_bytes, format_duration
from steptime.report.printable import one_line, printable, shorten
from steptime.report.trial_text import speed_text
from steptime.trials.judge import usual_step
from steptime.trials.lab import NO_INPUT, batch_of
from steptime.trials.results import Results
from steptime.trials.trial import BASELINE, CONTROL, Judgement, Run, Verdict

COLUMNS = 80
_LABEL = 31


def render(results: Results, batch_size: int | None, next_command: str) -> str:
    """The whole text, with a line feed at its end. batch_size: the job's own, None where it is not known."""
    judgements = [judgement for stage, judgement in results.judgements if stage == 0]
    timed = [run for run in results.runs if run.stage == 0 and not run.rehearsal and run.step_ns]
    head = f"{'':<{_LABEL}} {'step':>8} {'IQR':>8}  {'speed-up':<19} peak"
    rows = [_baseline(timed), *(_row(each, timed) for each in judgements)]
    reasons = [f"  {each.arm.label}: {_short(each)}" for each in judgements if each.verdict in _TOLD]
    sizes = _throughput(judgements, results, batch_size)
    top = [shorten(f"Lab of {' '.join(results.plan.command)}", COLUMNS), "", head, *rows, ""]
    lines = [*top, *(shorten(each, COLUMNS) for each in reasons), *_compilation(judgements, timed), *sizes]
    lines += [*textwrap.wrap(reading(judgements), COLUMNS), f"Next:  {one_line(next_command)}"]
    return "".join(f"{printable(line)}\n" for line in lines)


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
    step = fmean(fmean(run.step_ns) for run in runs)
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


def _throughput(judgements: Sequence[Judgement], results: Results, batch_size: int | None) -> list[str]:
    """Items per second by batch size, the job's own among them; a failure (out of memory) is one of the results."""
    base = usual_step([run for run in results.runs if run.stage == 0])
    points = [(batch_size, base.value)] if batch_size and base is not None else []
    failed = []
    for judgement in judgements:
        size = batch_of(judgement.arm)
        if size is not None and judgement.step_ns is not None:
            points.append((size, judgement.step_ns))
        elif size is not None and judgement.verdict is Verdict.FAILED:
            failed.append(f"{size}: failed")
    told = [f"{size}: {size / step * 1e9:,.0f}/s" for size, step in sorted(points)] if len(points) > 1 else []
    return [shorten(f"Items by batch size: {' · '.join([*told, *failed])}", COLUMNS)] if told or failed else []


def reading(judgements: Sequence[Judgement]) -> str:
    """The table in a sentence."""
    ceiling = next((each for each in judgements if each.arm.name == NO_INPUT), None)
    adopted = [each for each in judgements if each.verdict is Verdict.ADOPT and each.speed is not None]
    best = max(adopted, key=lambda each: each.speed.value if each.speed is not None else 0.0, default=None)
    parts = []
    if ceiling is not None and ceiling.speed is not None and ceiling.speed.low > 1.1:
        parts.append(f"a perfect input would make steps {ceiling.speed.value:.2f}× as fast")
    elif ceiling is not None and ceiling.speed is not None and ceiling.speed.high < 1.1:
        parts.append("the input costs next to nothing")
    if best is not None and best.speed is not None:
        parts.append(f"{best.arm.label} pays ({best.speed.value:.2f}×)")
    elif judgements:
        parts.append("no precision or compilation tried here is faster beyond doubt")
    text = "; ".join(parts)
    return f"Reading: {text[:1].upper()}{text[1:]}."
