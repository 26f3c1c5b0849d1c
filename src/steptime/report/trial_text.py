"""The result of a trial in a terminal: a table of at most 25 lines, ending with the next command.

One law: a gain is shown with its interval, or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence

from steptime.quantities import Estimate, format_bytes, format_duration
from steptime.remedies.remedy import Goal
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
    Verdict.MORE_MEMORY,
    Verdict.BROKE_PROMISE,
    Verdict.NOT_EXERCISED,
    Verdict.FAILED,
)
_ARMS = 12
_AT = {Goal.SPEED: "at", Goal.MEMORY: "with peak"}
LONG_COMPILATION = 0.5
"""Seconds."""


def render(results: Results, advice: Sequence[str] = (), next_command: str = "") -> str:
    """The whole text, with a line feed at its end. advice: sentences on what only the user can do."""
    goal = results.plan.goal
    singles = [judgement for stage, judgement in results.judgements if stage == 0]
    ordered = sorted(singles, key=lambda each: (ORDER.index(each.verdict), -_value(each.gain(goal))))
    top = [shorten(f"Trials of {' '.join(results.plan.command)}", COLUMNS), _baseline(results.runs, goal), ""]
    bottom = [*_combined(results), *_patch(results), *_crowded(results.runs, goal)]
    if next_command:
        bottom.append(f"Next:  {one_line(next_command)}")
    rows = [line for judgement in ordered[:_ARMS] for line in _row(judgement, results.runs, goal)]
    if len(ordered) > _ARMS:
        rows.append(f"  … and {len(ordered) - _ARMS} more, in the results file")
    room = LINES - len(top) - len(bottom) - 1
    if len(rows) > room:  # the reasons go before the figures do
        rows = [line for judgement in ordered[:_ARMS] for line in _row(judgement, results.runs, goal)[:1]][:room]
    left = max(0, room - len(rows))
    told = [line for each in advice for line in wrap(each, "Yours: ", 3, COLUMNS)][:left]
    return "".join(f"{printable(line)}\n" for line in (*top, *rows, *told, "", *bottom))


def _baseline(runs: Sequence[Run], goal: Goal) -> str:
    first = [run for run in runs if run.stage == 0]
    step = usual_step(first)
    if step is None:
        return "No baseline was timed."
    rounds = sum(run.arm == CONTROL and not run.rehearsal for run in first)
    processes = f"{len(runs)} processes, {rounds} round{'s' * (rounds != 1)}"
    peak = max((run.peak_bytes or 0 for run in first if run.arm in (BASELINE, CONTROL)), default=0)
    memory = f"peak memory {format_bytes(peak)}; " if goal is Goal.MEMORY and peak else ""
    return f"As it is: {memory}step {format_duration(step.value)} ({processes}, {_seconds(runs)})"


def _seconds(runs: Sequence[Run]) -> str:
    return format_duration(sum(run.seconds for run in runs) * 1e9)


def _row(judgement: Judgement, runs: Sequence[Run], goal: Goal) -> list[str]:
    """What was tried, what came out; and why, on a line of its own."""
    arm = judgement.arm
    label = shorten(f"{arm.proposal} {arm.label}".strip(), 41)
    line = f"{label:<41} {gain_text(judgement, goal) or '–':<19} {judgement.verdict.value}"
    pays = _pays_from(judgement, runs) if goal is Goal.SPEED else ""
    return [
        shorten(line, COLUMNS),
        shorten(f"    {_extra(judgement, goal)}{pays}{one_line(judgement.sentence)}", COLUMNS),
    ]


def _extra(judgement: Judgement, goal: Goal) -> str:
    if goal is Goal.MEMORY:
        return f"{judgement.speed.value:.2f}× as fast; " if judgement.speed is not None else ""
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


def memory_text(memory: Estimate) -> str:
    """A ratio of peaks, the baseline's over the arm's, as what the peak changed by: "−38 % (−40 to −36)"."""
    value, low, high = (
        f"{100 * (1 / max(each, 1e-9) - 1):+.0f}".replace("-", "−") for each in (memory.value, memory.high, memory.low)
    )
    return f"{value} % ({low} to {high})"


def gain_text(judgement: Judgement, goal: Goal) -> str:
    """What was gained at the goal, "" where that is not known."""
    gain = judgement.gain(goal)
    if gain is None:
        return ""
    return memory_text(gain) if goal is Goal.MEMORY else speed_text(gain)


def _combined(results: Results) -> list[str]:
    later = [judgement for stage, judgement in results.judgements if stage > 0 and judgement.arm.name != "patch"]
    gained = gain_text(later[-1], results.plan.goal) if later else ""
    return [shorten(f"Together: {later[-1].arm.label}: {gained} {later[-1].verdict.value}", COLUMNS)] if gained else []


def _patch(results: Results) -> list[str]:
    patch = results.patch
    if patch is None:
        return []
    lines = []
    if patch.diff:
        gained = gain_text(patch.judgement, results.plan.goal) if patch.judgement is not None else ""
        ran = f"ran {_AT[results.plan.goal]} {gained}" if gained else "was not timed"
        lines.append(f"Patch: this diff {ran}: patch.diff beside the results")
        lines += [f"    {one_line(patch.replaced[0])}{_of(patch.replaced)}"] if patch.replaced else []
    elif patch.judgement is not None and patch.judgement.verdict in (Verdict.FAILED, Verdict.BROKE_PROMISE):
        lines.append(f"Patch: none, as it failed when it ran by itself: {one_line(patch.judgement.sentence)}")
    if patch.environment:
        lines.append("Environment: " + " ".join(f"{name}={value}" for name, value in patch.environment))
    if patch.snippets:
        lines.append(f"To write yourself{_of(patch.snippets)}: {one_line(patch.snippets[0])}")
    lines = [shorten(line, COLUMNS) for line in lines]
    return [*lines, f"Apply it: {one_line(patch.apply)}"] if patch.apply else lines


def _of(several: Sequence[str]) -> str:
    """That the first of them is not the only one."""
    return f" (and {len(several) - 1} more in results.jsonl)" if len(several) > 1 else ""


def _crowded(runs: Sequence[Run], goal: Goal) -> list[str]:
    """What the machine did besides, where that was considerable."""
    busiest = max((run.load.other_cpu for run in runs), default=0.0)
    peak = max((run.peak_bytes or 0 for run in runs), default=0)
    lines = [f"Other load on the machine: up to {busiest:.1f} CPUs during a process"] if busiest > 0.25 else []
    return [*lines, f"Peak memory: {format_bytes(peak)}"] if peak and not lines and goal is Goal.SPEED else lines


def _value(gain: Estimate | None) -> float:
    return gain.value if gain is not None else 0.0
