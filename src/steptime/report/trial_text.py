"""The result of a trial in a terminal: a table of at most 25 lines, ending with the next command.

One law: a speed is shown with its interval and the control's noise, or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence

from steptime.quantities import Estimate, format_bytes, format_duration
from steptime.report.printable import one_line, printable, shorten, wrap
from steptime.trials.judge import usual_step
from steptime.trials.results import Results
from steptime.trials.trial import BASELINE, CONTROL, Judgement, Run, Verdict

LINES = 25
COLUMNS = 80
ORDER = (
    Verdict.ADOPT,
    Verdict.UNDECIDED,
    Verdict.NO_EFFECT,
    Verdict.SLOWER,
    Verdict.BROKE_PROMISE,
    Verdict.NOT_EXERCISED,
    Verdict.FAILED,
)
_ARMS = 12
LONG_COMPILATION = 0.5
"""Seconds."""


def render(results: Results, advice: Sequence[str] = (), next_command: str = "") -> str:
    """The whole text, with a line feed at its end. advice: sentences on what only the user can do."""
    singles = [judgement for stage, judgement in results.judgements if stage == 0]
    ordered = sorted(singles, key=lambda each: (ORDER.index(each.verdict), -_value(each.speed)))
    top = [shorten(f"Trials of {' '.join(results.plan.command)}", COLUMNS), _baseline(results.runs), ""]
    bottom = [*_combined(results), *_patch(results), *_crowded(results.runs)]
    if next_command:
        bottom.append(f"Next:  {one_line(next_command)}")
    rows = [line for judgement in ordered[:_ARMS] for line in _row(judgement, results.runs)]
    if len(ordered) > _ARMS:
        rows.append(f"  … and {len(ordered) - _ARMS} more, in the results file")
    room = LINES - len(top) - len(bottom) - 1
    if len(rows) > room:  # the reasons go before the figures do
        rows = [line for judgement in ordered[:_ARMS] for line in _row(judgement, results.runs)[:1]][:room]
    left = max(0, room - len(rows))
    told = [line for each in advice for line in wrap(each, "Yours: ", 3, COLUMNS)][:left]
    return "".join(f"{printable(line)}\n" for line in (*top, *rows, *told, "", *bottom))


def _baseline(runs: Sequence[Run]) -> str:
    first = [run for run in runs if run.stage == 0]
    step = usual_step(first)
    if step is None:
        return "No baseline was timed."
    rounds = sum(run.arm == CONTROL and not run.rehearsal for run in first)
    processes = f"{len(runs)} processes, {rounds} round{'s' * (rounds != 1)}"
    return f"Step as it is: {format_duration(step.value)} ({processes}, {_seconds(runs)})"


def _seconds(runs: Sequence[Run]) -> str:
    return format_duration(sum(run.seconds for run in runs) * 1e9)


def _row(judgement: Judgement, runs: Sequence[Run]) -> list[str]:
    """What was tried, what came out; and why, on a line of its own."""
    arm = judgement.arm
    label = shorten(f"{arm.proposal} {arm.label}".strip(), 41)
    speed = speed_text(judgement.speed) if judgement.speed is not None else "–"
    line = f"{label:<41} {speed:<19} {judgement.verdict.value}"
    return [
        shorten(line, COLUMNS),
        shorten(f"    {_extra(judgement)}{_pays_from(judgement, runs)}{one_line(judgement.sentence)}", COLUMNS),
    ]


def _extra(judgement: Judgement) -> str:
    predicted = judgement.arm.predicted
    return f"predicted {predicted.value:.2f}×; " if predicted is not None and judgement.speed is not None else ""


def _pays_from(judgement: Judgement, runs: Sequence[Run]) -> str:
    """From which step on the time that it compiles is paid back, where that is considerable. The longest compilation
    counts: the others found it in a cache."""
    step, speed = usual_step([run for run in runs if run.stage == 0]), judgement.speed
    if step is None or speed is None or judgement.verdict is not Verdict.ADOPT:
        return ""
    longest = {
        arm: max((run.compile_seconds for run in runs if run.arm == arm), default=0.0)
        for arm in (judgement.arm.name, BASELINE)
    }
    compiling = longest[judgement.arm.name] - longest[BASELINE]
    saved = step.value * (1 - 1 / speed.value)
    return f"pays from step {compiling * 1e9 / saved:,.0f} on; " if compiling >= LONG_COMPILATION else ""


def speed_text(speed: Estimate) -> str:
    """ "2.90× (2.70–3.10)"."""
    return f"{speed.value:.2f}× ({speed.low:.2f}–{speed.high:.2f})"


def _combined(results: Results) -> list[str]:
    later = [judgement for stage, judgement in results.judgements if stage > 0 and judgement.arm.name != "patch"]
    if not later or later[-1].speed is None:
        return []
    last = later[-1]
    return (
        [shorten(f"Together: {last.arm.label}: {speed_text(last.speed)} {last.verdict.value}", COLUMNS)]
        if last.speed
        else []
    )


def _patch(results: Results) -> list[str]:
    patch = results.patch
    if patch is None:
        return []
    lines = []
    if patch.diff:
        proved = patch.judgement
        ran = (
            f"ran at {speed_text(proved.speed)}" if proved is not None and proved.speed is not None else "was not timed"
        )
        lines.append(f"Patch: this diff {ran}: patch.diff beside the results")
    if patch.environment:
        lines.append("Environment: " + " ".join(f"{name}={value}" for name, value in patch.environment))
    if patch.snippets:
        lines.append(f"To write yourself: {one_line(patch.snippets[0])}")
    return [shorten(line, COLUMNS) for line in lines]


def _crowded(runs: Sequence[Run]) -> list[str]:
    """What the machine did besides, where that was considerable."""
    busiest = max((run.load.other_cpu for run in runs), default=0.0)
    peak = max((run.peak_bytes or 0 for run in runs), default=0)
    lines = [f"Other load on the machine: up to {busiest:.1f} CPUs during a process"] if busiest > 0.25 else []
    return [*lines, f"Peak memory: {format_bytes(peak)}"] if peak and not lines else lines


def _value(speed: Estimate | None) -> float:
    return speed.value if speed is not None else 0.0
