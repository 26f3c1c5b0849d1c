"""Texts on verdicts of trials: how a variant compares, why, and what would decide it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil, log
from statistics import median

from steptime.advice.fix import Goal
from steptime.quantities import Estimate, format_bytes, format_change, format_count, format_duration
from steptime.recording.parity import StepWork
from steptime.report.trials import TrialReport, Tried
from steptime.trials import parity
from steptime.trials.judge import KEPT, LEAST_ROUNDS
from steptime.trials.results import Results
from steptime.trials.trial import (
    BASELINE,
    CONTROL,
    MAX_ROUNDS,
    PATCH,
    Agreement,
    Judgement,
    Run,
    TrialVerdict,
    batch_of,
    processes_of,
)

WORDS = {
    TrialVerdict.ADOPT: "faster",
    TrialVerdict.NO_EFFECT: "no difference",
    TrialVerdict.STEP_ONLY: TrialVerdict.STEP_ONLY.value,
    TrialVerdict.SLOWER: "slower",
    TrialVerdict.MORE_MEMORY: "more memory",
    TrialVerdict.SUSPICIOUS: "suspicious",
    TrialVerdict.NOT_REACHED: "not reached",
    TrialVerdict.BROKE_PROMISE: "different training",
    TrialVerdict.NOT_EXERCISED: "broken",
    TrialVerdict.FAILED: "broken",
    TrialVerdict.UNDECIDED: "undecided",
}
"""Verdicts in the words of `steptime judge`."""
NOT_FASTER = "not faster"
"""Verdict without a worthwhile gain whose interval includes a loss."""
NO_VERDICT = "no verdict"
"""Headline for an undecided candidate."""
MOST_REPORTED = 3
"""Most variants that a headline names."""


def word_of(judgement: Judgement, min_gain: float) -> str:
    """Verdict in a word or two. min_gain: least change that matters, in either direction, as a fraction."""
    return word_for(judgement.verdict, judgement.gain(Goal.SPEED), min_gain)


def word_for(verdict: TrialVerdict, speed: Estimate | None, min_gain: float) -> str:
    """Word for the verdict on a candidate with this speed-up of the run."""
    if verdict is TrialVerdict.NO_EFFECT and speed is not None and speed.low < 1 / (1 + min_gain):
        return NOT_FASTER
    return WORDS[verdict]


def speed_text(speed: Estimate | None, of_run: Estimate | None = None) -> str:
    """Speed-up with its interval: "2.90× (2.70–3.10)", "" if unknown. If steps are only a part of the run, with the
    run's: "1.20× (1.10–1.31) of a step, some 1.02× of the run"."""
    if speed is None:
        return ""
    text = f"{speed.value:.2f}× ({speed.low:.2f}–{speed.high:.2f})"
    return f"{text} of a step, some {of_run.value:.2f}× of the run" if of_run is not None else text


def memory_text(memory: Estimate) -> str:
    """Change of the peak memory from the ratio of peaks, baseline over variant: "−38 % (−40 to −36)"."""
    value, low, high = (format_change(1 / max(each, 1e-9) - 1) for each in (memory.value, memory.high, memory.low))
    return f"{value} ({low.removesuffix(' %')} to {high.removesuffix(' %')})"


def gain_text(judgement: Judgement, goal: Goal) -> str:
    """Gain at the goal as text, "" if unknown."""
    if goal is Goal.MEMORY:
        return memory_text(judgement.memory) if judgement.memory is not None else ""
    return speed_text(judgement.speed, judgement.of_run)


def counted(runs: Sequence[Run], variant: str) -> StepWork | None:
    """Step of a variant's rehearsal whose kernels and operators were counted; None without one."""
    own = (run.work[-1] for run in runs if (run.variant, run.stage, run.exact) == (variant, 0, False) and run.work)
    return next((work for work in own if work.operators), None)


def as_recorded(results: Results) -> str:
    """Sentence on the unchanged job if no process of the trial was timed: its recorded step, and the operators of its
    rehearsal."""
    work, seconds = counted(results.runs, BASELINE), results.plan.step_seconds
    if not seconds:
        return "The unchanged job was not timed"
    calls = (
        f", {work.kernels or work.operators:,} {'kernels' if work.kernels else 'operators'} per step" if work else ""
    )
    return f"Unchanged: {format_duration(seconds * 1e9)} per step as recorded{calls}; no process of the trial was timed"


def changes_text(judgement: Judgement, runs: Sequence[Run]) -> list[str]:
    """Kernels per step (else operators), launches and memory growth, where they differ: "532 → 48 kernels per step"."""
    before, after = counted(runs, BASELINE), counted(runs, judgement.variant.name)
    reported = []
    if before is not None and after is not None:
        names = ("kernels", "launches") if before.kernels or after.kernels else ("operators",)
        pairs = [(name, getattr(before, name) or 0, getattr(after, name) or 0) for name in names]
        reported = [f"{one:,} → {two:,} {name} per step" for name, one, two in pairs if one != two]
    grown, grows = _growth(runs, (BASELINE, CONTROL)), _growth(runs, (judgement.variant.name,))
    if grown is not None and grows is not None and (grown or grows):
        by = (f"{format_bytes(each)}/step" if each else "no certain one" for each in (grown, grows))
        reported.append(f"Memory growth {' → '.join(by)}")
    return reported


def _growth(runs: Sequence[Run], variants: Sequence[str]) -> float | None:
    """Median memory growth over timed runs, bytes per step; None if unknown."""
    known = [run.growth for run in runs if run.variant in variants and not run.stage and run.growth is not None]
    return median(known) if known else None


def assumed_text(results: Results) -> tuple[str, ...]:
    """Sentence on the work between the steps and what a gain of the run assumes of it, if such a gain is reported."""
    judgements = [each for _, each in results.judgements]
    return (results.plan.other.sentence,) if any(each.of_run is not None for each in judgements) else ()


def other_text(judgement: Judgement, results: Results) -> tuple[str, ...]:
    """Speed-up of the work between the steps, if it is beyond noise: "Rollouts: 1.30× (1.20–1.40)"."""
    if judgement.other is None:
        return ()
    return (f"{results.plan.other.name.capitalize()}: {speed_text(judgement.other)}",)


def reason_text(judgement: Judgement) -> str:
    """Reason of a judgement; for one that stays undecided after MAX_ROUNDS, also that no further round is run."""
    ended = judgement.verdict is TrialVerdict.UNDECIDED and judgement.rounds >= MAX_ROUNDS
    sentence = judgement.sentence.rstrip(".")
    return f"{sentence}; still undecided after {MAX_ROUNDS} rounds, the maximum" if ended else sentence


def trial_headline(trials: TrialReport, variants: Sequence[Tried]) -> str:
    """Headline of a trial: the patch if it pays, else the variants of one stage with their verdicts."""
    patch = next((each for each in variants if each.name == PATCH and each.speed is not None), None)
    if patch is not None and patch.verdict == TrialVerdict.ADOPT.value and patch.speed is not None:
        fast = speed_text(patch.speed, patch.of_run) + " as fast" * (patch.of_run is None)
        return f"The patch pays: {fast}, measured by itself.{part_text(trials)}"
    alone = [each for each in variants if trials.kind != "try" or not each.stage]
    untimed = [each for each in alone if each.speed is None and each.verdict == TrialVerdict.UNDECIDED.value]
    best = sorted(
        (each for each in alone if each not in untimed),
        key=lambda each: (each.verdict != TrialVerdict.ADOPT.value, not each.speed),
    )
    reported = [f"{each.label}: {_outcome(each, trials)}" for each in best[:MOST_REPORTED]]
    reported += [f"{len(best) - MOST_REPORTED} more below"] if len(best) > MOST_REPORTED else []
    reported += [f"{len(untimed)} {'more ' if reported else ''}not timed"] if untimed else []
    message = f". {best[0].sentence.rstrip('. ')}" if len(best) == 1 and best[0].sentence else ""
    return f"{'; '.join(reported)}{message}.{part_text(trials)}"


def part_text(trials: TrialReport) -> str:
    """Sentence on the fraction of the run that a gain of the step is about; "" if that is nearly all."""
    return f" {trials.other.part}." if any(each.of_run is not None for each in trials.variants) else ""


def _outcome(variant: Tried, trials: TrialReport) -> str:
    word = NO_VERDICT if variant.verdict == TrialVerdict.UNDECIDED.value else tried_word(variant, trials)
    return ", ".join(filter(None, (word, speed_text(variant.speed, variant.of_run))))


def tried_word(variant: Tried, trials: TrialReport) -> str:
    """Word for a variant's verdict; for a candidate, in the words of `steptime judge`."""
    if trials.kind != "judge":
        return "pays" if variant.verdict == TrialVerdict.ADOPT.value else variant.verdict
    return word_for(TrialVerdict(variant.verdict), variant.of_run or variant.speed, trials.min_gain)


def judged(results: Results) -> list[Judgement]:
    """Single candidates, followed by a lab's batch sizes."""
    own = [judgement for stage, judgement in results.judgements if stage == 0 and batch_of(judgement.variant) is None]
    return own + sorted(
        (judgement for _, judgement in results.judgements if batch_of(judgement.variant) is not None),
        key=lambda each: batch_of(each.variant) or 0,
    )


def certainty(results: Results, judgements: Iterable[Judgement]) -> str:
    """Confidence of the verdicts and its basis: "Confident: 12 processes in 3 rounds, 4 min."; of processes that took
    turns, and so ran at the same time, "4 min together"."""
    rounds = sum(run.variant == CONTROL and not run.rehearsal and not run.stage for run in results.runs)
    spent = format_duration(sum(run.seconds for run in results.runs) * 1e9)
    spent += " together" * any(run.turns for run in results.runs)
    basis = f"{format_count(len(results.runs), 'process')} in {format_count(rounds, 'round')}, {spent}"
    alone = results.patch is not None and results.patch.diff and results.patch.judgement is None
    basis += "; the budget ended before the patch ran by itself" if alone else ""
    every = list(judgements)
    unsure = sum(each.verdict is TrialVerdict.UNDECIDED for each in every)
    if unsure or not rounds:
        open_ = f"; {unsure} of {len(every)} not decided" if unsure else ""
        if (first := seconds_to_start(results)) is not None:
            open_ += f"; its first rounds take about {format_duration(first * 1e9)}, more than the budget allowed"
        return f"{'Unclear' if unsure == len(every) else 'Likely'}: {basis}{open_}."
    return f"Confident: {basis}."


def seconds_to_decide(judgement: Judgement, results: Results) -> float | None:
    """Seconds of further rounds until the interval is on one side of the least gain; None if decided, if nothing was
    timed, or if MAX_ROUNDS would hardly suffice. A half-width shrinks with the root of the rounds."""
    speed = judgement.gain(Goal.SPEED)
    if not may_go_on(judgement) or speed is None or speed.low <= 0 or not judgement.rounds:
        return None
    half = (log(speed.high) - log(speed.low)) / 2
    gap = abs(log(speed.value) - log(1 + results.plan.min_gain))
    if not gap:
        return None
    needed = judgement.rounds * (half / gap) ** 2
    if needed > MAX_ROUNDS:
        return None
    further = ceil(needed) - judgement.rounds
    timed = sum(run.seconds for run in results.runs if not run.rehearsal)
    return max(1, further) * timed / judgement.rounds


def seconds_to_start(results: Results) -> float | None:
    """Seconds of a trial's first rounds, which a speed needs; None if some were run, or no process at all."""
    whole = [run.seconds for run in results.runs if run.stage == 0 and not run.failure]
    if not whole or any(not run.rehearsal for run in results.runs):
        return None
    return LEAST_ROUNDS * processes_of(1) * max(whole)


def seconds_needed(judgement: Judgement, results: Results) -> float | None:
    """`seconds_to_decide`; before any round, `seconds_to_start`."""
    if may_go_on(judgement) and not judgement.rounds:
        return seconds_to_start(results)
    return seconds_to_decide(judgement, results)


def may_go_on(judgement: Judgement) -> bool:
    """True if further rounds would be run."""
    return judgement.verdict is TrialVerdict.UNDECIDED and judgement.rounds < MAX_ROUNDS


def power_of(results: Results) -> str:
    """Sentence on the smallest loss difference that candidates which train the same would show; "" without losses."""
    same = [each for each in judged(results) if each.agreement in KEPT]
    if not same:
        return ""
    plain = _losses(results.runs, BASELINE, CONTROL)
    steps = min((len(losses) for losses in plain.values()), default=0)
    banded = [each for each in same if each.agreement is not Agreement.SAME_BITS]
    if not banded:
        return f"Power: losses were equal bit for bit for {steps} steps, so any difference would show."
    drifts = [parity.visible_drift(_losses(results.runs, each.variant.name), plain) for each in banded]
    known = [drift for drift in drifts if drift is not None]
    if not known:
        return ""
    return (
        f"Power: a loss that is {100 * max(known):.2g} % off after {steps} steps would show with 80 % "
        f"probability (band of {len(plain)} seeds)."
    )


def _losses(runs: Sequence[Run], *variants: str) -> dict[int, parity.Losses]:
    timed = [
        run for run in runs if run.variant in variants and run.stage == 0 and not run.rehearsal and not run.failure
    ]
    return {run.seed: run.losses for run in timed if parity.seen(run.losses)}
