"""From runs to a verdict: pure functions, so that every rule of it is tested without running anything.

One law: an arm is adopted only when what it gains (speed, or peak memory where the trial is for that) beats the noise
of the control and the least gain, and its numbers keep the remedy's promise. What is not known is UNDECIDED, never a
win.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import fmean

from steptime.estimates import median_of
from steptime.quantities import Estimate
from steptime.remedies.remedy import Goal, Promise
from steptime.trials import parity
from steptime.trials.speed import LEAST_ROUNDS, Comparison, Series, compared, noise_of, speed_up
from steptime.trials.trial import BASELINE, CONTROL, Agreement, Arm, Judgement, Run, Verdict

MIN_GAIN = 0.03
"""A gain that a change of the code is worth, where the user says nothing else."""
OTHER_CPU = 0.25
"""CPUs' worth of foreign work above that of the quietest run, from which on a run counts as disturbed."""
KEPT = frozenset({Agreement.SAME_BITS, Agreement.SAME_CURVE, Agreement.OTHER_STREAM})
BROKEN = frozenset({Agreement.APART, Agreement.DEAD_GRADIENTS, Agreement.WILD_GRADIENTS})


@dataclass(frozen=True, slots=True)
class Numbers:
    """What the losses and gradients say, and why in words."""

    agreement: Agreement
    sentence: str


def judge(arm: Arm, runs: Sequence[Run], *, min_gain: float = MIN_GAIN, goal: Goal = Goal.SPEED) -> Judgement:
    """The verdict on an arm from the runs of its stage, the baselines' and the control's among them."""
    own = [run for run in runs if run.arm == arm.name]
    failed = [run for run in own if run.failure]
    if failed:
        return Judgement(arm, Verdict.FAILED, Agreement.NOT_SEEN, failed[-1].failure)
    idle = not_exercised(arm, own)
    if idle:
        return Judgement(arm, Verdict.NOT_EXERCISED, Agreement.NOT_SEEN, idle)
    numbers = agreement_of(arm, runs)
    comparisons = comparisons_of(arm.name, runs)
    speed, memory = _ratio(comparisons), _ratio(comparisons_of(arm.name, runs, _peak))
    noise = control_noise(runs, _peak if goal is Goal.MEMORY else _steps)
    verdict, sentence = _verdict(numbers, memory if goal is Goal.MEMORY else speed, noise, min_gain, goal)
    timed = [run for run in own if not run.rehearsal and run.step_ns]
    step = fmean(fmean(run.step_ns) for run in timed) if timed else None
    peak = max((run.peak_bytes for run in timed if run.peak_bytes is not None), default=None)
    told = noise if noise < inf else None
    return Judgement(
        arm,
        verdict,
        numbers.agreement,
        sentence,
        speed=_known(speed),
        noise=told,
        step_ns=step,
        rounds=len(comparisons),
        peak_bytes=peak,
        memory=_known(memory),
    )


def _known(ratio: Estimate | None) -> Estimate | None:
    return ratio if ratio is not None and ratio.samples >= LEAST_ROUNDS else None


def not_exercised(arm: Arm, own: Sequence[Run]) -> str:
    """Why the arm changed nothing, "" where it did. Every change must have acted in the last process that ran."""
    reported = {change.kind: change for change in own[-1].changes} if own else {}
    for change in arm.changes:
        fact = reported.get(change.kind)
        if fact is None:
            return f"{change.kind}: nothing in the job for it to act on"
        if not (fact.applied and fact.exercised):
            return fact.detail or f"{change.kind}: nothing in the job for it to act on"
    return ""


def cannot_win(arm: Arm, runs: Sequence[Run], *, min_gain: float = MIN_GAIN, goal: Goal = Goal.SPEED) -> bool:
    """Whether more rounds of the arm are a waste: it failed, changed nothing, broke its promise, or the whole interval
    of what it gains lies below the least gain."""
    judgement = judge(arm, runs, min_gain=min_gain, goal=goal)
    lost = {Verdict.FAILED, Verdict.NOT_EXERCISED, Verdict.BROKE_PROMISE}
    if judgement.verdict in lost:
        return True
    gain = judgement.gain(goal)
    return gain is not None and gain.high < 1 + min_gain


def overtaken(judgement: Judgement, others: Sequence[Judgement], goal: Goal = Goal.SPEED) -> Arm | None:
    """An adopted arm, another setting of the same thing, whose gain lies above all that this one may gain: whether this
    one gains anything does not matter any more."""
    gain = judgement.gain(goal)
    for other in others:
        best = other.gain(goal)
        if other.verdict is not Verdict.ADOPT or other.arm == judgement.arm or not other.arm.rivals(judgement.arm):
            continue
        if gain is not None and best is not None and gain.high < best.value:
            return other.arm
    return None


def beside_each_other(judgements: Sequence[Judgement], goal: Goal = Goal.SPEED) -> tuple[Judgement, ...]:
    """As they are told when all are known: what is undecided because it was overtaken says so."""
    told = []
    for each in judgements:
        best = overtaken(each, judgements, goal) if each.verdict is Verdict.UNDECIDED else None
        told.append(replace(each, sentence=f"It gains less than {best.label}") if best is not None else each)
    return tuple(told)


# -- speed and memory -------------------------------------------------------------------------------------------------


def _steps(run: Run) -> Series:
    return run.step_ns


def _peak(run: Run) -> Series:
    return (run.peak_bytes,) if run.peak_bytes else ()


def _ratio(comparisons: Sequence[Comparison]) -> Estimate | None:
    return speed_up(comparisons) if comparisons else None


def comparisons_of(name: str, runs: Sequence[Run], of: Callable[[Run], Series] = _steps) -> tuple[Comparison, ...]:
    """An arm's runs, each between the baselines that enclose it: their steps, ns, or what else is asked `of` them.
    Disturbed ones are left out where enough others are there."""
    baselines = [run for run in runs if run.arm == BASELINE and _timed(run) and len(of(run))]
    calm, all_of_them = [], []
    for run in runs:
        if run.arm != name or not _timed(run) or not len(of(run)):
            continue
        here = [each for each in baselines if each.place == run.place]
        before = max((each for each in here if each.position < run.position), key=_position, default=None)
        after = min((each for each in here if each.position > run.position), key=_position, default=None)
        if before is None or after is None:
            continue
        place = (run.position - before.position) / (after.position - before.position)
        comparison = compared(of(before), of(run), of(after), place)
        all_of_them.append(comparison)
        quietest = min(each.load.other_cpu for each in runs if each.place == run.place and _timed(each))
        if not any(disturbed(each, quietest) for each in (before, run, after)):
            calm.append(comparison)
    return tuple(calm if len(calm) >= LEAST_ROUNDS else all_of_them)


def disturbed(run: Run, quietest: float) -> bool:
    """Whether somebody else used the machine while the run's steps were taken. quietest: the least foreign load, in
    CPUs, that any run of the trial had there."""
    load = run.load
    crowded = load.other_cpu > quietest + OTHER_CPU or (load.steal or 0.0) > OTHER_CPU
    return crowded or load.other_device_users or load.device_throttled


def control_noise(runs: Sequence[Run], of: Callable[[Run], Series] = _steps) -> float:
    """What factor a control that changes nothing may still seem to gain or lose; infinite where it was not run."""
    comparisons = comparisons_of(CONTROL, runs, of)
    return noise_of(comparisons) if comparisons else inf


def usual_step(runs: Sequence[Run]) -> Estimate | None:
    """The baseline's mean step, ns: the median over its runs; None without one."""
    import numpy as np

    means = [fmean(run.step_ns) for run in runs if run.arm in (BASELINE, CONTROL) and _timed(run)]
    return median_of(np.array(means)) if means else None


def _timed(run: Run) -> bool:
    return not run.rehearsal and not run.failure and bool(run.step_ns)


def _position(run: Run) -> int:
    return run.position


# -- numbers ----------------------------------------------------------------------------------------------------------


def agreement_of(arm: Arm, runs: Sequence[Run]) -> Numbers:
    """What is known of the arm's numbers: its gradients first, whatever the losses say."""
    if arm.promise is Promise.NEW_TRAINING:
        return Numbers(Agreement.NOT_JUDGED, "It trains something else, which is for you to decide")
    gradients = _gradients(arm, runs)
    if gradients is not None:
        return gradients
    own = [run for run in runs if run.arm == arm.name and _timed(run)]
    plain = [run for run in runs if run.arm in (BASELINE, CONTROL) and _timed(run)]
    if not own or not parity.seen(own[0].losses) or not any(parity.seen(run.losses) for run in plain):
        return Numbers(Agreement.NOT_SEEN, "No losses to compare were seen, so that nothing is known of its numbers")
    return _losses(arm, own[0], plain)


def _gradients(arm: Arm, runs: Sequence[Run]) -> Numbers | None:
    """What the rehearsals show to be broken, if anything."""
    rehearsed = {run.arm: run for run in runs if run.rehearsal and run.norms and not run.failure}
    baseline, own = rehearsed.get(BASELINE), rehearsed.get(arm.name)
    if baseline is None:
        return None
    if own is None:
        return Numbers(Agreement.NOT_SEEN, "None of its gradients were seen")
    for before, after in zip(baseline.norms, own.norms, strict=False):
        dead = parity.compare_gradients(dict(before), dict(after)).dead
        if dead:
            more = f" and {len(dead) - 1} more" if len(dead) > 1 else ""
            return Numbers(
                Agreement.DEAD_GRADIENTS, f"The gradient of {dead[0]}{more} is zero or gone, and was not before"
            )
    compared_norms = parity.compare_gradients(dict(baseline.norms[0]), dict(own.norms[0]))
    tolerance = parity.LOW_PRECISION if arm.low_precision else parity.FULL_PRECISION
    if not arm.other_data and not compared_norms.within(tolerance):
        return Numbers(
            Agreement.WILD_GRADIENTS,
            f"Gradient norms of the first step differ by up to {compared_norms.largest:.2g} (median "
            f"{compared_norms.median:.2g}) of themselves; rounding explains {tolerance[0]:g} ({tolerance[1]:g})",
        )
    return None


def _losses(arm: Arm, own: Run, plain: Sequence[Run]) -> Numbers:
    same_seed = [run for run in plain if run.seed == own.seed and parity.seen(run.losses)]
    if any(parity.equal_bits(own.losses, run.losses) for run in same_seed):
        return Numbers(Agreement.SAME_BITS, "Losses are equal, bit by bit")
    repeats = len(same_seed) > 1 and parity.equal_bits(same_seed[0].losses, same_seed[1].losses)
    if arm.promise is Promise.SAME_BITS and repeats and not arm.streams:
        step = parity.first_difference(own.losses, same_seed[0].losses)
        return Numbers(Agreement.APART, f"Losses should be equal and differ from step {step} on")
    others = {run.seed: run.losses for run in plain if parity.seen(run.losses)}
    if len(others) < parity.LEAST_SEEDS + (own.seed in others):
        return Numbers(Agreement.NOT_SEEN, "Too few baselines with other seeds were run to judge its losses")
    if not parity.within_band(own.losses, list(others.values())):
        return Numbers(Agreement.APART, f"Its loss lies outside the band that {len(others)} seeds span")
    if arm.streams:
        return Numbers(Agreement.OTHER_STREAM, f"Losses in the band of {len(others)} seeds; it changes {arm.streams}")
    return Numbers(Agreement.SAME_CURVE, f"Losses lie in the band of {len(others)} seeds")


# -- verdict ----------------------------------------------------------------------------------------------------------


def _verdict(numbers: Numbers, gain: Estimate | None, noise: float, min_gain: float, goal: Goal) -> tuple[Verdict, str]:
    if numbers.agreement in BROKEN:
        return Verdict.BROKE_PROMISE, numbers.sentence
    if gain is None or gain.samples < LEAST_ROUNDS:
        what = "its speed" if goal is Goal.SPEED else "its peak memory"
        return Verdict.UNDECIDED, f"Too few rounds were run to tell {what}"
    needed = max(1 + min_gain, noise)
    if gain.low > needed:
        if numbers.agreement in KEPT:
            return Verdict.ADOPT, numbers.sentence
        better = "Faster" if goal is Goal.SPEED else "Less memory"
        return Verdict.UNDECIDED, f"{better}, and not adopted: {numbers.sentence[0].lower()}{numbers.sentence[1:]}"
    if gain.high < 1 and gain.value < 1 - min_gain and gain.high < 1 / min(noise, 1 + min_gain):
        return Verdict.SLOWER if goal is Goal.SPEED else Verdict.MORE_MEMORY, numbers.sentence
    if gain.high < 1 + min_gain:
        return Verdict.NO_EFFECT, "Whatever it gains is below the least gain asked for"
    why = "the machine was too noisy" if noise > 1 + min_gain else "more rounds would be needed"
    return Verdict.UNDECIDED, f"It may gain and it may not: {why}"
