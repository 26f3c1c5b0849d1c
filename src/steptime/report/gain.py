"""The big number of a report: the step as it is, and what its findings could leave of it or a trial has left of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from steptime.advice.engine import OF_A_PLACE
from steptime.advice.evidence import Case
from steptime.advice.rule import Finding, Weight
from steptime.advice.savings import capped, named, total
from steptime.advice.verdict import most_of_the_run
from steptime.advice.whole_run import UNCHANGED, OtherWork, other_work
from steptime.answer.answer import Gain
from steptime.quantities import Estimate, format_change_of, format_duration, format_speed
from steptime.report.report import ProcessReport, Report
from steptime.report.sentences import place_text
from steptime.report.trials import TrialReport
from steptime.trials.trial import PATCH, TrialVerdict

LEAST = 0.03
"""Fraction of the step: less is no news."""
MOST_TIMES = 100.0
"""A larger speed-up says only that next to nothing would be left."""


def gain_of(report: Report) -> Gain | None:
    """Gain of a report; None if nothing in the step is worth a big number. A trial's measurement comes before a
    prediction."""
    measured = measured_gain(report.trials) if report.trials is not None else None
    return measured or possible_gain(report.processes[0])


def measured_gain(trials: TrialReport) -> Gain | None:
    """Gain of a trial's adopted patch, else of its best adopted change; None if none was adopted."""
    adopted = [each for each in trials.variants if each.verdict == TrialVerdict.ADOPT.value and each.speed is not None]
    best = max(adopted, key=lambda each: (each.name == PATCH, each.speed.value if each.speed else 0.0), default=None)
    if best is None or best.speed is None or trials.step_ns is None or best.speed.value <= 1 or trials.kind == "lab":
        return None
    step, speed = trials.step_ns, best.speed
    return Gain(
        f"{format_change_of(step, step / speed.value)}/step",
        "measured",
        format_speed(speed.value),
        f"95 % interval: {format_speed(speed.low)} to {format_speed(speed.high)}, in turns with the job as it is",
        f"By: {best.label}{_of_run(best.of_run, trials.other)}",
    )


def _of_run(speed: Estimate | None, other: OtherWork) -> str:
    """Clause on the gain of the run, "" if steps are nearly all of it."""
    return f". {other.part}: some {format_speed(speed.value)} of the run" if speed is not None else ""


def possible_gain(process: ProcessReport) -> Gain | None:
    """Predicted gain: the step time that remains if all findings are fixed, None without any. Findings of one category
    save no more than it takes, and all together no more than the step. Bounds add, which is wider than independent
    errors. A finding at a place without a known cause counts nothing: nobody knows how much of its time is needed."""
    case, step = process.case, process.case.step.duration
    found = [
        (each, each.savings)
        for each in process.findings
        if each.weight is Weight.FINDING and each.savings is not None
        if each.source is not None or each.name not in OF_A_PLACE
    ]
    saved = capped(total(_by_category(found, case)), step)
    if not found or not step.value or saved.value < LEAST * step.value or most_of_the_run(case) is not None:
        return None
    left, other = step.value - saved.value, other_work(case.segments, step.value)
    most = max(left, step.value / MOST_TIMES)
    of_run = other.of_run(replace(UNCHANGED, high=step.value / most)).high
    whole = _of_run(replace(UNCHANGED, value=of_run, high=of_run) if other.share else None, other)
    return Gain(
        f"{format_change_of(step.value, left, 1 / MOST_TIMES)}/step",
        "possible",
        _times(step.value, left),
        _interval(step, saved),
        _cause(found, saved.value) + whole,
    )


def _by_category(found: Sequence[tuple[Finding, Estimate]], case: Case) -> Iterator[Estimate]:
    for category in dict.fromkeys(each.category for each, _ in found):
        saved = total(saved for each, saved in found if each.category == category)
        use = named(case.categories, category)
        yield saved if use is None else capped(saved, use.duration)


def _times(step: float, left: float) -> str:
    return format_speed(step / left) if left * MOST_TIMES > step else f"over {MOST_TIMES:.0f}×"


def _interval(step: Estimate, saved: Estimate) -> str:
    """Interval of the remaining step time. The step counts as known, because both come from the same steps."""
    if saved.samples < 2 or saved.high <= saved.low:
        return "One step, which has no interval" if saved.samples < 2 else ""
    least, most = max(step.value - saved.high, 0.0), step.value - max(saved.low, 0.0)
    if least * MOST_TIMES <= step.value:
        return f"95 % interval: at most {format_duration(most)}/step, {_times(step.value, most)} or more"
    return (
        f"95 % interval: {format_duration(least)} to {format_duration(most)}/step, "
        f"{_times(step.value, most)} to {_times(step.value, least)}"
    )


def _cause(found: Sequence[tuple[Finding, Estimate]], saved: float) -> str:
    """The finding that does most of it, with its line."""
    largest, own = max(found, key=lambda each: each[1].value)
    place = f" at {place_text(largest.source)}" if largest.source is not None else ""
    part = "All" if len(found) == 1 else format_duration(min(own.value, saved))
    return f"{part} of it: {largest.code} {largest.name}{place}"
