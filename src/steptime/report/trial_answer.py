"""Answer of `steptime try`: the fixes that pay, their gains, and the patch.

A gain has an interval, or is not shown. A variant that trains something else shows a bound or a throughput, no win."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from statistics import fmean, median

from steptime.advice.fix import Goal
from steptime.answer.answer import Answer, Item, Section
from steptime.answer.tables import Table, integer, number, table_of, word
from steptime.quantities import Estimate, format_bytes, format_change, format_count, format_duration, format_share
from steptime.report.gain import measured_gain
from steptime.report.judge_answer import LONG_COMPILATION, as_document
from steptime.report.trials import TrialReport, Tried, trial_report
from steptime.report.verdict_words import (
    as_recorded,
    assumed_text,
    certainty,
    changes_text,
    gain_text,
    other_text,
    reason_text,
    speed_text,
    trial_headline,
)
from steptime.trials.judge import usual_step
from steptime.trials.plan import workers_of
from steptime.trials.results import Results
from steptime.trials.trial import BASELINE, CONTROL, PATCH, Judgement, Run, TrialVerdict

ORDER = (
    TrialVerdict.ADOPT,
    TrialVerdict.STEP_ONLY,
    TrialVerdict.UNDECIDED,
    TrialVerdict.NO_EFFECT,
    TrialVerdict.SLOWER,
    TrialVerdict.MORE_MEMORY,
    TrialVerdict.SUSPICIOUS,
    TrialVerdict.NOT_REACHED,
    TrialVerdict.BROKE_PROMISE,
    TrialVerdict.NOT_EXERCISED,
    TrialVerdict.FAILED,
)
AT = {Goal.SPEED: "at", Goal.MEMORY: "with peak"}
FEWEST_PREDICTED = 2
FIRST = 12
"""Most variants that a terminal shows."""


def answer_of(results: Results, folder: str, advice: Sequence[str] = (), next_command: str = "") -> Answer:
    """Answer of a trial. advice: sentences on what only the user can do."""
    goal, trials = results.plan.goal, trial_report(results, folder)
    singles = [judgement for stage, judgement in results.judgements if stage == 0]
    ordered = sorted(singles, key=lambda each: (ORDER.index(each.verdict), -_gain(each, goal)))
    command = shlex.join(results.plan.command)
    return Answer(
        title=f"Trials of {command}",
        headline=_headline(results, ordered) if goal is Goal.MEMORY else trial_headline(trials, trials.variants),
        badge=certainty(results, singles),
        gain=measured_gain(trials) if goal is Goal.SPEED else None,
        head=(f"Trials of {command}", _baseline(results)),
        parts=(
            _variants(ordered, results),
            _by_workers(results),
            Section("", (*_combined(results), *(Item(f"Yours: {each}") for each in advice), *_patch(results))),
        ),
        notes=(*assumed_text(results), *_optimum(results), *_predictions(singles), *_crowded(results.runs, goal)),
        more=f"steptime report {shlex.quote(folder)} -o trial.html",
        next_command=next_command,
        data=as_document(results),
    )


def _headline(results: Results, ordered: Sequence[Judgement]) -> str:
    """Headline of a trial for memory: the candidate that needs less."""
    less = [each for each in ordered if each.memory is not None and each.memory.low > 1 + results.plan.min_gain]
    first = next((each for each in less if each.verdict in (TrialVerdict.ADOPT, TrialVerdict.UNDECIDED)), None)
    if not any(each.memory for each in ordered):
        return "No peak is compared yet: the budget was too short for one round."
    if first is None:
        return "No tried fix measurably reduces memory."
    if first.verdict is TrialVerdict.ADOPT:
        return f"{first.variant.label} pays: peak memory {gain_text(first, Goal.MEMORY)}."
    return f"{first.variant.label}: peak memory {gain_text(first, Goal.MEMORY)}; its training is not judged yet."


def _variants(ordered: Sequence[Judgement], results: Results) -> Table:
    runs, goal = results.runs, results.plan.goal

    def why(judgement: Judgement) -> str:
        pays = _pays_from(judgement, runs) if goal is Goal.SPEED else _by_rank(judgement, runs)
        changed = "".join(f"{each}; " for each in (*other_text(judgement, results), *changes_text(judgement, runs)))
        return f"{_extra(judgement, goal)}{pays}{changed}{reason_text(judgement)}"

    return table_of(
        "tried", "", "", ordered,
        word("fix", "fix", lambda each: f"{each.variant.proposal} {each.variant.label}"),
        word("speed-up" if goal is Goal.SPEED else "peak", "gain", lambda each: gain_text(each, goal) or "–"),
        word("verdict", "verdict", lambda each: each.verdict.value),
        word("why", "why", why, room="below"),
        first=FIRST,
    )  # fmt: skip


def _baseline(results: Results) -> str:
    first, goal = [run for run in results.runs if run.stage == 0], results.plan.goal
    step = usual_step(first)
    if step is None:
        return as_recorded(results)
    peak = max((run.peak_bytes or 0 for run in first if run.variant in (BASELINE, CONTROL)), default=0)
    memory = f"peak memory {format_bytes(peak)}; " if goal is Goal.MEMORY and peak else ""
    return f"Unchanged: {memory}step {format_duration(step.value)}"


def _extra(judgement: Judgement, goal: Goal) -> str:
    if goal is Goal.MEMORY:
        return f"{judgement.speed.value:.2f}× as fast; " if judgement.speed is not None else ""
    predicted, speed = judgement.variant.predicted, judgement.speed
    if predicted is None or speed is None:
        return ""
    return f"predicted {predicted.value:.2f}× ({format_change(predicted.value / speed.value - 1)}); "


def _by_rank(judgement: Judgement, runs: Sequence[Run]) -> str:
    """Peak memory of each rank and the step, before and after: a single round has both, and without one a rehearsal."""
    known = [run for run in runs if run.step_ns and not (run.stage or run.exact or run.failure)]
    for rehearsal in (False, True):
        of_kind = [run for run in known if run.rehearsal is rehearsal]
        before, after = ([run for run in of_kind if run.variant == name] for name in (BASELINE, judgement.variant.name))
        if before and after:
            peaks = [" and ".join(map(format_bytes, each[-1].peaks)) for each in (before, after)]
            ranks = f"peak of each rank {' → '.join(peaks)}; " if len(before[-1].peaks) > 1 else ""
            steps = (format_duration(fmean(fmean(run.step_ns) for run in each)) for each in (before, after))
            return f"{'in a rehearsal: ' if rehearsal else ''}{ranks}step {' → '.join(steps)}; "
    return ""


def _predictions(judgements: Sequence[Judgement]) -> list[str]:
    known = [(each.variant.predicted, each.speed) for each in judgements]
    errors = [predicted.value / speed.value - 1 for predicted, speed in known if predicted and speed]
    if len(errors) < FEWEST_PREDICTED:
        return []
    off, worst = median(map(abs, errors)), max(errors, key=abs)
    reported = f"{format_share(off)} in the median, {format_change(worst)} at most"
    return [f"Predicted vs. measured: off by {reported} ({format_count(len(errors), 'prediction')})"]


def _pays_from(judgement: Judgement, runs: Sequence[Run]) -> str:
    """Step from which on a considerable compilation pays, as text. The longest counts: others found it in a cache."""
    step, speed = usual_step([run for run in runs if run.stage == 0]), judgement.speed
    if step is None or speed is None or judgement.verdict is not TrialVerdict.ADOPT:
        return ""
    longest = {
        variant: max((run.compile_seconds for run in runs if run.variant == variant), default=0.0)
        for variant in (judgement.variant.name, BASELINE)
    }
    compiling = longest[judgement.variant.name] - longest[BASELINE]
    saved = step.value * (1 - 1 / speed.value)
    return f"pays from step {compiling * 1e9 / saved:,.0f} on; " if compiling >= LONG_COMPILATION else ""


def trial_items(trials: TrialReport) -> tuple[Item, ...]:
    """Items on a trial in the report of its recording: variants with their results, and the lines of the patch."""
    order = {verdict.value: place for place, verdict in enumerate(ORDER)}
    singles = [each for each in trials.variants if each.stage == 0 and each.name != PATCH]
    last = len(order)  # of a verdict that the file alone knows
    ordered = sorted(
        singles, key=lambda each: (order.get(each.verdict, last), -(each.speed.value if each.speed else 0))
    )
    items = [Item(f"Tried: {f'{each.proposal} {each.label} {_came_out(each)}'.strip()}") for each in ordered]
    if trials.step_ns is not None and items:
        items.append(Item(f"Unchanged: step {format_duration(trials.step_ns)} ({trials.processes} processes)"))
    if not trials.diff:
        return tuple(items)
    patch = next((each for each in trials.variants if each.name == PATCH), None)
    changed = [line for line in trials.diff.splitlines() if re.match(r"[-+](?![-+]{2} )", line)]
    lines = tuple(f"{line[0]} {line[1:].strip()}" for line in changed)
    return (*items, Item(f"Patch: {_came_out(patch) if patch is not None else 'not timed'}", lines=lines))


def _came_out(variant: Tried) -> str:
    """Result of a variant: "1.66× (1.60–1.73), adopt"."""
    return ", ".join(filter(None, (speed_text(variant.speed, variant.of_run), variant.verdict)))


def _speeds_by_workers(results: Results) -> dict[int, Estimate]:
    """Speed-ups by number of workers; {} if the trial is no sweep over workers."""
    tried = {workers_of(each.variant): each.speed for stage, each in results.judgements if stage == 0}
    speeds = {workers: speed for workers, speed in tried.items() if workers is not None and speed is not None}
    return {} if len(speeds) < 2 or None in tried else dict(sorted(speeds.items()))


def _by_workers(results: Results) -> Table:
    step, speeds = usual_step([run for run in results.runs if run.stage == 0]), _speeds_by_workers(results)
    rate = 1e9 / step.value if step is not None else 0.0
    return table_of(
        "workers", f"Steps per second by workers (unchanged: {format_rate_of(rate)})", "",
        list(speeds.items()) if rate else [],
        integer("workers", "workers", lambda each: each[0]),
        number("steps/s", "steps_per_s", lambda each: rate * each[1].value, format_rate_of, barred=True),
        word("", "interval",
             lambda each: f"({format_rate_of(rate * each[1].low)}–{format_rate_of(rate * each[1].high)})"),
    )  # fmt: skip


def _optimum(results: Results) -> list[str]:
    """Answer of a sweep: the smallest number of workers that no other one significantly beats."""
    speeds = _speeds_by_workers(results)
    if not speeds:
        return []
    surest = max(speed.low for speed in speeds.values())
    if surest <= 1:
        return ["Optimum: the job's own number; none of these is measurably faster"]
    optimum = min(workers for workers, speed in speeds.items() if speed.high >= surest)
    further = ", the largest number tried: more workers may be faster still" if optimum == max(speeds) else ""
    return [f"Optimum: {format_count(optimum, 'worker')}{further}"]


def format_rate_of(value: float) -> str:
    """Number per second as text: "1,234", "12.3"."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _combined(results: Results) -> list[Item]:
    later = [judgement for stage, judgement in results.judgements if stage > 0 and judgement.variant.name != PATCH]
    gained = gain_text(later[-1], results.plan.goal) if later else ""
    return [Item(f"Together: {later[-1].variant.label}: {gained} {later[-1].verdict.value}")] if gained else []


def _patch(results: Results) -> Iterator[Item]:
    patch = results.patch
    if patch is None:
        return
    if patch.diff:
        gained = gain_text(patch.judgement, results.plan.goal) if patch.judgement is not None else ""
        ran = f"ran {AT[results.plan.goal]} {gained}" if gained else "not timed"
        yield Item(f"Patch: {ran}; saved as patch.diff next to the results", lines=patch.replaced)
    elif patch.judgement is not None and patch.judgement.verdict in (TrialVerdict.FAILED, TrialVerdict.BROKE_PROMISE):
        yield Item(f"Patch: none; it failed when run by itself: {patch.judgement.sentence}")
    if patch.environment:
        yield Item("Environment: " + " ".join(f"{name}={value}" for name, value in patch.environment))
    for snippet in patch.snippets:
        first, *further = snippet.split("\n")
        yield Item(f"To change by hand: {first}", lines=tuple(each.rstrip() for each in further))
    if patch.apply:
        timed = not patch.diff or patch.judgement is not None
        yield Item(f"Apply it{'' if timed else ' (untimed)'}: {patch.apply}")


def _crowded(runs: Sequence[Run], goal: Goal) -> list[str]:
    """Sentence on a considerable load by other processes, else on the peak memory."""
    busiest = max((run.load.other_cpu for run in runs), default=0.0)
    peak = max((run.peak_bytes or 0 for run in runs), default=0)
    lines = [f"Other processes on the machine: up to {busiest:.1f} CPUs during a run"] if busiest > 0.25 else []
    return [*lines, f"Peak memory: {format_bytes(peak)}"] if peak and not lines and goal is Goal.SPEED else lines


def _gain(judgement: Judgement, goal: Goal) -> float:
    gain = judgement.gain(goal)
    return gain.value if gain is not None else 0.0
