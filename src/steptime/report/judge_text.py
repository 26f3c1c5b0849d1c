"""What `steptime judge` says of each candidate: a text, a table for a pull request, and a document for programs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from math import ceil, log
from typing import Any

from steptime.quantities import Estimate, format_count, format_duration
from steptime.report.printable import one_line, printable
from steptime.report.trial_text import LONG_COMPILATION, memory_text, reason_text, speed_text
from steptime.trials import parity
from steptime.trials.judge import KEPT, LEAST_ROUNDS, usual_metric, usual_step
from steptime.trials.results import PatchResult, Results
from steptime.trials.trial import (
    BASELINE,
    CONTROL,
    MAX_ROUNDS,
    Agreement,
    Judgement,
    Run,
    TrialVerdict,
    batch_of,
    processes_of,
)

VERSION = 1
"""Of the document."""
WORDS = {
    TrialVerdict.ADOPT: "faster",
    TrialVerdict.NO_EFFECT: "no difference",
    TrialVerdict.SLOWER: "slower",
    TrialVerdict.MORE_MEMORY: "more memory",
    TrialVerdict.SUSPICIOUS: "suspicious",
    TrialVerdict.NOT_REACHED: "not reached",
    TrialVerdict.BROKE_PROMISE: "different training",
    TrialVerdict.NOT_EXERCISED: "broken",
    TrialVerdict.FAILED: "broken",
    TrialVerdict.UNDECIDED: "undecided",
}


NOT_FASTER = "not faster"
"""Nothing worth having is gained, and the interval does not exclude that something is lost."""


def word_of(judgement: Judgement, min_gain: float) -> str:
    """The verdict in a word or two. min_gain: relative, the least that matters, in either direction."""
    return word_for(judgement.verdict, judgement.speed, min_gain)


def word_for(verdict: TrialVerdict, speed: Estimate | None, min_gain: float) -> str:
    """The word of a verdict on a candidate with such a speed-up."""
    if verdict is TrialVerdict.NO_EFFECT and speed is not None and speed.low < 1 / (1 + min_gain):
        return NOT_FASTER
    return WORDS[verdict]


def render_judged(results: Results, next_command: str = "") -> str:
    """The whole text, with a line feed at its end."""
    lines = [f"Judged: {shlex.join(results.plan.command)}", _as_it_is(results), *_compared(results), ""]
    for judgement in _judged(results):
        lines.append(f"{word_of(judgement, results.plan.min_gain):<19}{_speed(judgement):<21}{judgement.variant.label}")
        lines += [f"    {one_line(sentence)}" for sentence in _sentences(judgement, results.runs)]
        further = seconds_to_decide(judgement, results)
        lines += [f"    About {format_duration(further * 1e9)} more would decide it"] if further is not None else []
    power = power_of(results)
    lines += ["", power] if power else []
    lines += [f"Next:  {one_line(next_command)}"] if next_command else []
    return "".join(f"{printable(line)}\n" for line in lines)


def render_markdown(results: Results) -> str:
    """A table for a pull request."""
    lines = [f"**{_as_it_is(results)}** `{shlex.join(results.plan.command)}`", *_compared(results), ""]
    lines += ["| candidate | verdict | speed-up | why |", "|---|---|---|---|"]
    for judgement in _judged(results):
        why = ". ".join(_sentences(judgement, results.runs))
        cells = (judgement.variant.label, word_of(judgement, results.plan.min_gain), _speed(judgement) or "–", why)
        lines.append("| " + " | ".join(one_line(cell).replace("|", "\\|") for cell in cells) + " |")
    power = power_of(results)
    return "\n".join([*lines, *(["", power] if power else [])]) + "\n"


def as_document(results: Results) -> dict[str, Any]:
    """The verdicts for programs: speed-ups with 95 % intervals, steps in ns."""
    step = usual_step(results.runs)
    return {
        "version": VERSION,
        "command": list(results.plan.command),
        "step_ns": step.value if step is not None else None,
        "metric": _metric(results),
        "until_loss": _until_loss(results),
        "power": power_of(results),
        "candidates": [
            {
                "name": each.variant.name,
                "label": each.variant.label,
                "verdict": word_of(each, results.plan.min_gain),
                "speed_up": _interval(each.speed),
                "peak_memory_ratio": _interval(each.memory),
                "training": each.agreement.value,
                "sentences": _sentences(each, results.runs),
                "rounds": each.rounds,
                "seconds_to_decide": seconds_to_decide(each, results),
                **_items(each, step),
            }
            for each in _judged(results)
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
    """What is compared where that is no step."""
    if results.plan.until_loss is None:
        return []
    return [
        "Compared: the time from the import of torch until the training loss, as a mean over the last tenth of the "
        f"steps, is {results.plan.until_loss.loss:g} or less; evaluations and checkpoints are not counted. Candidates "
        "may train otherwise."
    ]


def _patch(patch: PatchResult) -> dict[str, Any]:
    """What was adopted of our own fixes, as it was run by itself."""
    proved = patch.judgement
    return {
        "diff": patch.diff,
        "apply": patch.apply,
        "environment": dict(patch.environment),
        "yours": list(patch.snippets),
        "verdict": WORDS[proved.verdict] if proved is not None else None,
        "speed_up": _interval(proved.speed) if proved is not None else None,
    }


def _interval(estimate: Estimate | None) -> dict[str, float] | None:
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high} if estimate is not None else None


def _judged(results: Results) -> list[Judgement]:
    """Candidates by themselves; a lab's batch sizes behind the others."""
    own = [judgement for stage, judgement in results.judgements if stage == 0 and batch_of(judgement.variant) is None]
    return own + sorted(
        (judgement for _, judgement in results.judgements if batch_of(judgement.variant) is not None),
        key=lambda each: batch_of(each.variant) or 0,
    )


def _items(judgement: Judgement, step: Estimate | None) -> dict[str, Any]:
    """Of a batch size: what it is, and the items a second."""
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
        return "The job as it is was not timed."
    rounds = sum(run.variant == CONTROL and not run.rehearsal for run in results.runs)
    spent = format_duration(sum(run.seconds for run in results.runs) * 1e9)
    if metric is not None and printed is not None:
        better = "lower" if metric.lower_is_better else "higher"
        value = f"{printed.value:,.0f}" if printed.value >= 1000 else f"{printed.value:.4g}"
        what = f"{value} by {metric.pattern}, {better} is better"
    elif target is not None and printed is not None:
        what = f"{format_duration(printed.value * 1e9)} to a loss of {target.loss:g}"
    else:
        what = f"{format_duration(step.value)} a step" if step is not None else ""
    return f"As it is: {what} ({len(results.runs)} processes, {format_count(rounds, 'round')}, {spent})"


def _speed(judgement: Judgement) -> str:
    return speed_text(judgement.speed) if judgement.speed is not None else ""


def _sentences(judgement: Judgement, runs: Sequence[Run]) -> list[str]:
    reported = [reason_text(judgement)]
    if judgement.memory is not None:
        reported.append(f"Peak memory {memory_text(judgement.memory)}")
    compiling = max((run.compile_seconds for run in runs if run.variant == judgement.variant.name), default=0.0)
    step, speed = usual_step(runs), judgement.speed
    by_steps = not any(run.metric is not None for run in runs)
    if by_steps and compiling >= LONG_COMPILATION and step is not None and speed is not None and speed.low > 1:
        saved = step.value * (1 - 1 / speed.value)
        reported.append(f"It compiles for {compiling:.1f} s, paid back after {compiling * 1e9 / saved:,.0f} steps")
    return reported


def seconds_to_decide(judgement: Judgement, results: Results) -> float | None:
    """How long further rounds would take until the interval leaves the least gain on one side; None where that is
    decided, where nothing was timed, or where no further round is run. A half-width shrinks with the root of the
    rounds."""
    speed = judgement.speed
    if not may_go_on(judgement) or speed is None or speed.low <= 0 or not judgement.rounds:
        return None
    half = (log(speed.high) - log(speed.low)) / 2
    gap = abs(log(speed.value) - log(1 + results.plan.min_gain))
    if not gap:
        return None
    further = ceil(judgement.rounds * (half / gap) ** 2) - judgement.rounds
    timed = sum(run.seconds for run in results.runs if not run.rehearsal)
    return max(1, further) * timed / judgement.rounds


def seconds_to_start(results: Results) -> float | None:
    """How long the first rounds of a trial take of which none was run: without them nothing is known of any speed. None
    where some were run, and where not even a process was."""
    whole = [run.seconds for run in results.runs if run.stage == 0 and not run.failure]
    if not whole or any(not run.rehearsal for run in results.runs):
        return None
    return LEAST_ROUNDS * processes_of(1) * max(whole)


def may_go_on(judgement: Judgement) -> bool:
    """Whether further rounds would be run."""
    return judgement.verdict is TrialVerdict.UNDECIDED and judgement.rounds < MAX_ROUNDS


def power_of(results: Results) -> str:
    """Which difference of the losses would have been seen in every candidate that trains the same; "" where the losses
    of none were compared."""
    same = [each for each in _judged(results) if each.agreement in KEPT]
    if not same:
        return ""
    plain = _losses(results.runs, BASELINE, CONTROL)
    steps = min((len(losses) for losses in plain.values()), default=0)
    banded = [each for each in same if each.agreement is not Agreement.SAME_BITS]
    if not banded:
        return f"Power: losses were equal bit by bit for {steps} steps, so that any difference in them would be seen."
    drifts = [parity.visible_drift(_losses(results.runs, each.variant.name), plain) for each in banded]
    known = [drift for drift in drifts if drift is not None]
    if not known:
        return ""
    return (
        f"Power: after {steps} steps, a loss that lies {100 * max(known):.2g} % off would be seen with 80 % "
        f"(band of {len(plain)} seeds)."
    )


def _losses(runs: Sequence[Run], *variants: str) -> dict[int, parity.Losses]:
    """Of timed runs, by seed."""
    timed = [
        run for run in runs if run.variant in variants and run.stage == 0 and not run.rehearsal and not run.failure
    ]
    return {run.seed: run.losses for run in timed if parity.seen(run.losses)}
