"""Answer of `steptime judge`: the verdict on each candidate, also as a document for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import to_builtins

from steptime.advice.fix import Goal
from steptime.answer.answer import Answer
from steptime.answer.tables import Table, table_of, word
from steptime.quantities import Estimate, format_duration
from steptime.report.judge_details import details_of
from steptime.report.trials import trial_report
from steptime.report.verdict_words import (
    WORDS,
    as_recorded,
    assumed_text,
    certainty,
    changes_text,
    gain_text,
    judged,
    may_go_on,
    memory_text,
    other_text,
    power_of,
    reason_text,
    seconds_needed,
    trial_headline,
    word_of,
)
from steptime.trials.judge import usual_metric, usual_step
from steptime.trials.results import PatchResult, Results
from steptime.trials.trial import Judgement, batch_of

VERSION = 1
"""Version of the document."""
HOPELESS = "More rounds would hardly decide it here. Use a quieter machine, or another --min-gain"
LONG_COMPILATION = 0.5
"""Least compilation time that is reported, s."""


def answer_of(results: Results, folder: str, next_command: str = "") -> Answer:
    """Answer of a trial. folder: of the results."""
    trials = trial_report(results, folder)
    every = judged(results)
    return Answer(
        title=f"Judged: {trials.command}",
        headline=trial_headline(trials, trials.variants),
        badge=certainty(results, every),
        head=(f"Judged: {trials.command}", _as_it_is(results), *_compared(results)),
        parts=(_table(results, every),),
        notes=(*assumed_text(results), *filter(None, (power_of(results),))),
        next_command=next_command,
        details=lambda: details_of(results, every),
        data=as_document(results),
    )


def _table(results: Results, every: Sequence[Judgement]) -> Table:
    def why(judgement: Judgement) -> str:
        reported = _sentences(judgement, results)
        further = seconds_needed(judgement, results)
        if further is not None:
            about = format_duration(further * 1e9)
            reported.append(
                f"About {about} more should decide it" if judgement.rounds else f"Its first rounds take about {about}"
            )
        elif may_go_on(judgement) and judgement.speed is not None:
            reported.append(HOPELESS)
        return ". ".join(reported)

    return table_of(
        "candidates", "", "", every,
        word("verdict", "verdict", lambda each: word_of(each, results.plan.min_gain)),
        word("speed-up", "speed", lambda each: gain_text(each, Goal.SPEED) or "–"),
        word("candidate", "candidate", lambda each: each.variant.label),
        word("why", "why", why, room="below"),
    )  # fmt: skip


def as_document(results: Results) -> dict[str, Any]:
    """Verdicts as a document for programs: speed-ups with 95 % intervals, steps in ns."""
    step = usual_step(results.runs)
    return {
        "version": VERSION,
        "command": list(results.plan.command),
        "step_ns": step.value if step is not None else None,
        "between_steps": to_builtins(results.plan.other) if results.plan.other.share else None,
        "metric": _metric(results),
        "until_loss": _until_loss(results),
        "power": power_of(results),
        "candidates": [
            {
                "name": each.variant.name,
                "label": each.variant.label,
                "verdict": word_of(each, results.plan.min_gain),
                "speed_up": _interval(each.speed),
                "speed_up_of_run": _interval(each.of_run),
                "peak_memory_ratio": _interval(each.memory),
                "training": each.agreement.value,
                "sentences": _sentences(each, results),
                "rounds": each.rounds,
                "seconds_to_decide": seconds_needed(each, results),
                **_items(each, step),
            }
            for each in judged(results)
        ],
        "patch": _patch(results.patch) if results.patch is not None else None,
    }


def _metric(results: Results) -> dict[str, Any] | None:
    metric, value = results.plan.metric, usual_metric(results.runs)
    if metric is None:
        return None
    better = {"pattern": metric.pattern, "lower_is_better": metric.lower_is_better}
    return {**better, "value": value.value if value is not None else None}


def _until_loss(results: Results) -> dict[str, Any] | None:
    target, value = results.plan.until_loss, usual_metric(results.runs)
    if target is None:
        return None
    return {"loss": target.loss, "seconds": value.value if value is not None else None}


def _compared(results: Results) -> list[str]:
    """Sentence on the compared quantity, if that is not the step time."""
    if results.plan.until_loss is None:
        return []
    return [
        "Compared: the time from the import of torch until the mean training loss over the last tenth of the "
        f"steps is {results.plan.until_loss.loss:g} or less, without evaluations and checkpoints. Candidates "
        "may train differently."
    ]


def _patch(patch: PatchResult) -> dict[str, Any]:
    proved = patch.judgement
    return {
        "diff": patch.diff,
        "apply": patch.apply,
        "environment": dict(patch.environment),
        "yours": list(patch.snippets),
        "verdict": WORDS[proved.verdict] if proved is not None else None,
        "speed_up": _interval(proved.speed) if proved is not None else None,
        "speed_up_of_run": _interval(proved.of_run) if proved is not None else None,
    }


def _interval(estimate: Estimate | None) -> dict[str, float] | None:
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high} if estimate is not None else None


def _items(judgement: Judgement, step: Estimate | None) -> dict[str, Any]:
    """Fields of a batch size: its size, and its samples per second."""
    size, speed = batch_of(judgement.variant), judgement.speed
    if size is None:
        return {}
    rate = size / step.value * 1e9 if step is not None else None
    ends = {name: rate * each for name, each in (_interval(speed) or {}).items()} if rate is not None else {}
    reported = {"batch_size": size, "items_per_second": ends or None, "peak_bytes": judgement.peak_bytes}
    return {"verdict": "timed", **reported} if ends else reported  # a longer step says nothing of larger batches


def _as_it_is(results: Results) -> str:
    step, printed, metric = usual_step(results.runs), usual_metric(results.runs), results.plan.metric
    target = results.plan.until_loss
    if printed is None and (step is None or target is not None):
        return as_recorded(results)
    if metric is not None and printed is not None:
        better = "lower" if metric.lower_is_better else "higher"
        value = f"{printed.value:,.0f}" if printed.value >= 1000 else f"{printed.value:.4g}"
        what = f"{value} from {metric.pattern}, {better} is better"
    elif target is not None and printed is not None:
        what = f"{format_duration(printed.value * 1e9)} to a loss of {target.loss:g}"
    else:
        what = f"{format_duration(step.value)} per step" if step is not None else ""
    return f"Unchanged: {what}"


def _sentences(judgement: Judgement, results: Results) -> list[str]:
    runs = results.runs
    reported = [reason_text(judgement), *filter(None, (judgement.training,)), *other_text(judgement, results)]
    if judgement.memory is not None:
        reported.append(f"Peak memory {memory_text(judgement.memory)}")
    reported += changes_text(judgement, runs)
    compiling = max((run.compile_seconds for run in runs if run.variant == judgement.variant.name), default=0.0)
    step, speed = usual_step(runs), judgement.speed
    by_steps = not any(run.metric is not None for run in runs)
    if by_steps and compiling >= LONG_COMPILATION and step is not None and speed is not None and speed.low > 1:
        saved = step.value * (1 - 1 / speed.value)
        reported.append(f"It compiles for {compiling:.1f} s, which {compiling * 1e9 / saved:,.0f} steps pay back")
    return reported
