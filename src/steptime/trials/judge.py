"""Verdicts from runs, as pure functions, so that every rule is tested without running anything.

Two laws. A variant is adopted only if its gain (speed, or peak memory in a trial for memory) exceeds the control's
noise and the least gain, and its numbers keep the fix's promise. Unknown means UNDECIDED. A variant is compared with
the baseline that it took turns with, or with those right before and after it, because a shared machine has fast and
slow periods that last for several processes.

The statistic of a round is log(baseline / variant) of mean step times. Means, because a loader stalls only every few
steps and throughput is what users pay for. The baseline is interpolated (in the logarithm) between the two that enclose
the variant, which removes a steady drift."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil, exp, expm1, inf, isfinite, log1p, sqrt
from operator import attrgetter
from statistics import fmean
from typing import Any

import numpy as np

from steptime.advice.fix import Goal, Promise
from steptime.advice.whole_run import NO_OTHER_WORK, UNCHANGED, OtherWork
from steptime.arrays import Float64, Int64
from steptime.quantities import Estimate, autocorrelation_time, format_share, median_of, student
from steptime.trials import parity
from steptime.trials.exact import exactness, in_float64
from steptime.trials.results import Metric
from steptime.trials.same_work import beyond_roofline, is_refused, other_training, suspicion
from steptime.trials.trial import BASELINE, CONTROL, Agreement, Judgement, NumbersCheck, Run, TrialVerdict, Variant
from steptime.trials.until_loss import LossTarget, numbers_until

Series = Sequence[int] | Sequence[float] | Int64 | Float64

REPLICATES = 2000
"""Bootstrap replicates: the 2.5 % quantile then rests on fifty of them."""
LOOK = 0.0125
"""Error probability of each look at a trial, part of the 5 % in all. A trial is looked at after each round but the
first, and ends when decided: with a plain 95 % interval at every look, 18 of 100 trials at the least gain would be
wrong; with this one, fewer than 5 (Pocock, Biometrika 64, 1977; simulated: benchmarks/results/rounds.md)."""
QUANTILES = (LOOK / 2, 1 - LOOK / 2)
LEAST_TURNS = 6
"""Least number of turns of a round that are compared in pairs: with fewer, a bootstrap underestimates their spread."""
LEAST_PEAKS = 3
"""Least number of peaks of the unchanged job: those of one round, with its control."""
LEAST_ROUNDS = 2
"""Least number of rounds for an estimate: one shows no spread between rounds, where a shared machine's noise is."""


@dataclass(frozen=True, slots=True, eq=False)
class RoundComparison:
    """Times of a variant in one round with those of the two enclosing baselines. before, variant, after: step times, ns
    each. place: position of the variant between the baselines, from 0 (right after the first) to 1. turns: for
    processes that took turns, one row per common turn: total time and number of the baseline's steps, then the same of
    the variant's; else no rows."""

    before: Float64
    variant: Float64
    after: Float64
    place: float = 0.5
    turns: Float64 = field(default_factory=lambda: np.zeros((0, 4)))

    def log_ratio(self) -> float:
        """log(baseline / variant), above zero if the variant is faster; from the common turns if there are any."""
        if len(self.turns):
            return float(_of_turns(self.turns.sum(axis=0)))
        return float(self._of_means(np.mean))

    def replicates(self, generator: np.random.Generator) -> Float64:
        """Log-ratios of REPLICATES bootstrap series from these steps. Turns are drawn in pairs, because the machine
        affects both of a turn alike."""
        if len(self.turns):
            drawn = generator.integers(0, len(self.turns), (REPLICATES, len(self.turns)))
            return _of_turns(self.turns[drawn].sum(axis=1))
        found: Float64 = self._of_means(partial(block_means, replicates=REPLICATES, generator=generator))
        return found

    def _of_means(self, mean: Callable[[Float64], Any]) -> Any:
        before, variant, after = (np.log(mean(each)) for each in (self.before, self.variant, self.after))
        return (1 - self.place) * before + self.place * after - variant


def _of_turns(sums: Float64) -> Float64:
    """Log-ratios of mean step times from rows of sums. Sums, because a mean of each turn's ratio would hide stalls in
    only some turns."""
    found: Float64 = np.log(sums[..., 0] / sums[..., 1]) - np.log(sums[..., 2] / sums[..., 3])
    return found


def turns_of(before: Run, variant: Run) -> Float64:
    """Rows of `RoundComparison.turns` in which both took steps that count; no rows if fewer than LEAST_TURNS."""
    sums = []
    for run in (before, variant):
        steps, turns = np.array(run.step_ns, np.float64), np.array(run.turns, np.int64)
        if sum(run.turns) != len(steps) or not len(steps):
            return np.zeros((0, 4))
        sums += [np.bincount(np.repeat(np.arange(len(turns)), turns), steps, len(turns)), turns.astype(np.float64)]
    common = min(len(each) for each in sums)
    rows: Float64 = np.stack([each[:common] for each in sums], axis=1)
    rows = rows[(rows > 0).all(axis=1)]
    return rows if len(rows) >= LEAST_TURNS else rows[:0]


def compared(before: Series, variant: Series, after: Series, place: float = 0.5) -> RoundComparison:
    """RoundComparison from three series. Raises ValueError for an empty series, or a place outside of 0 to 1."""
    columns = [np.asarray(series, np.float64) for series in (before, variant, after)]
    if not all(len(column) for column in columns) or not 0 <= place <= 1:
        raise ValueError("a comparison needs steps of the variant and of both baselines, and a place from 0 to 1")
    return RoundComparison(columns[0], columns[1], columns[2], place)


def speed_up(rounds: Sequence[RoundComparison], control: Sequence[RoundComparison] = ()) -> Estimate:
    """Speed-up baseline / variant over all rounds, unit "1", with a 95 % interval that stays valid at every look. It is
    infinite for fewer than LEAST_ROUNDS. control: rounds of a variant that changes nothing.

    The interval is Student's over the rounds' log-ratios, as rounds are almost independent. Its variance is pooled from
    the variant and the control, or the variant's alone where that is larger, because two or three rounds can agree by
    chance. The interval is never narrower than a bootstrap of all rounds' steps, in blocks of consecutive steps
    (Kuensch, Annals of Statistics 17, 1989), or of their turns. Raises ValueError for no rounds."""
    if not rounds:
        raise ValueError("a speed-up needs a round")
    ratios = np.array([each.log_ratio() for each in rounds])
    count, value = len(rounds), float(ratios.mean())
    if count < LEAST_ROUNDS:
        return Estimate(exp(value), 0.0, inf, count, "1")
    own, freedom = float(ratios.var(ddof=1)), count - 1 + len(control)
    nothing = sum(float(each.log_ratio()) ** 2 for each in control)  # its true value is known to be zero
    variance = max(own, ((count - 1) * own + nothing) / freedom)
    reach = student(freedom, looks=True) * sqrt(variance / count)
    generator = np.random.default_rng(0)
    low, high = np.quantile(np.mean([each.replicates(generator) for each in rounds], axis=0), QUANTILES)
    return Estimate(exp(value), exp(min(value - reach, low)), _finite_exp(max(value + reach, high)), count, "1")


def peak_ratio(own: Sequence[Run], plain: Sequence[Run]) -> Estimate | None:
    """Peak memory of the unchanged job over a variant's, unit "1"; None with fewer than LEAST_PEAKS of the job's.

    Memory is no timing: the machine's load does not move it, so every run of the unchanged job counts for each of the
    variant's, and one of these is enough. The interval is Student's for two means of log peaks, whose common variance
    is pooled; it stays valid at every look."""
    ours, theirs = (np.log([run.peak_bytes for run in each if _timed(run) and run.peak_bytes]) for each in (plain, own))
    if len(ours) < LEAST_PEAKS or not len(theirs):
        return None
    freedom = len(ours) + len(theirs) - 2
    variance = (ours.var() * len(ours) + theirs.var() * len(theirs)) / freedom
    reach = student(freedom, looks=True) * sqrt(variance * (1 / len(ours) + 1 / len(theirs)))
    value = float(ours.mean() - theirs.mean())
    return Estimate(exp(value), exp(value - reach), _finite_exp(value + reach), len(theirs), "1")


def noise_of(control: Sequence[RoundComparison]) -> float:
    """Factor, at least 1, by which a control, which changes nothing, may still seem faster or slower: twice the
    standard error of its log-ratio about zero; infinite without a control."""
    if not control:
        return inf
    ratios = np.array([each.log_ratio() for each in control])
    return _finite_exp(2 * sqrt(float(np.mean(ratios**2)) / len(ratios)))


def block_means(values: Float64, replicates: int, generator: np.random.Generator) -> Float64:
    """Means of `replicates` series, each drawn from `values` in blocks of consecutive elements that wrap around the
    end."""
    count = len(values)
    length = min(count, block_length(values))
    blocks = ceil(count / length)
    starts = generator.integers(0, count, (replicates, blocks))
    sums = np.concatenate(([0.0], np.cumsum(np.concatenate((values, values)))))
    whole = sums[starts + length] - sums[starts]
    means: Float64 = whole.sum(axis=1) / (blocks * length)
    return means


def block_length(values: Float64) -> int:
    """Number of neighbouring steps per bootstrap block: twice the autocorrelation time, and at least the cube root of
    the number of steps, the optimal rate (Hall, Horowitz and Jing, Biometrika 82, 1995)."""
    count = len(values)
    alike = ceil(max(2 * autocorrelation_time(values), float(np.cbrt(count))))
    return max(1, min(ceil(count / 2), alike))


def _finite_exp(value: float) -> float:
    return exp(value) if value < 700 else inf


MIN_GAIN = 0.03
"""Default least gain, as a fraction, that justifies a change of the code."""
OTHER_CPU = 0.25
"""Foreign work, in CPUs above that of the quietest run, from which on a run counts as noisy."""
NEVER = frozenset(
    {
        TrialVerdict.FAILED,
        TrialVerdict.NOT_EXERCISED,
        TrialVerdict.BROKE_PROMISE,
        TrialVerdict.SUSPICIOUS,
        TrialVerdict.NOT_REACHED,
    }
)
"""Verdicts that no further round can change."""
KEPT = frozenset({Agreement.SAME_BITS, Agreement.SAME_CURVE, Agreement.OTHER_STREAM})
BROKEN = frozenset({Agreement.APART, Agreement.DEAD_GRADIENTS, Agreement.WILD_GRADIENTS, Agreement.OTHER_WORK})
ONLY_STEP = "A gain of the step only: the run gains less than --min-gain"
REHEARSED = "Its rehearsal matches the job's; losses were not compared"
DROPOUT_MASKS = "dropout masks"
"""Random numbers of a forward, among those that a fix names."""
NOT_REPEATED = "The job does not reproduce its own losses (seeded by the clock?)"


def judge(
    variant: Variant,
    runs: Sequence[Run],
    *,
    min_gain: float = MIN_GAIN,
    goal: Goal = Goal.SPEED,
    metric: Metric | LossTarget | None = None,
    least_ns: float = 0.0,
    other: OtherWork = NO_OTHER_WORK,
) -> Judgement:
    """Verdict on a variant. runs: its stage's, with the baselines' and the control's. metric: quantity in place of step
    times. least_ns: as in `beyond_roofline`. other: work between the steps; the gain of the run decides."""
    target = metric if isinstance(metric, LossTarget) else None
    own = [run for run in runs if run.variant == variant.name]
    failed = [run for run in own if run.failure and not run.exact]
    if failed:
        return Judgement(variant, TrialVerdict.FAILED, Agreement.NOT_SEEN, failed[-1].failure)
    idle = not_exercised(variant, own) if own else ""
    if idle:
        return Judgement(variant, TrialVerdict.NOT_EXERCISED, Agreement.NOT_SEEN, idle)
    numbers = agreement_of(variant, runs, target)
    if variant.foreign and not variant.speed_alone and numbers.agreement not in BROKEN:
        numbers = beyond_roofline(own, _plain(runs), least_ns) or numbers
    of: Callable[[Run], Series] = _steps if metric is None else metric.cost
    comparisons, usual = comparisons_of(variant.name, runs, of), comparisons_of(CONTROL, runs, of)
    speed = speed_up(comparisons, usual) if len(comparisons) >= LEAST_ROUNDS else None
    memory = peak_ratio(own, [run for run in runs if run.variant in (BASELINE, CONTROL)])
    noise = noise_of(comparisons_of(CONTROL, runs, _peak) if goal is Goal.MEMORY else usual)
    kept = numbers.agreement in KEPT or variant.speed_alone
    of_run, between, gain, needed = None, None, memory if goal is Goal.MEMORY else speed, noise
    if other.share and speed is not None and metric is None and goal is Goal.SPEED:
        between = other_speed(variant, runs, other)
        gain = of_run = other.of_run(speed, between or UNCHANGED)
        needed = other.of_run(replace(UNCHANGED, high=noise)).high if noise < inf else inf
    verdict, sentence = _verdict(numbers, gain, needed, min_gain, goal, kept=kept)
    faster = speed is not None and speed.low > max(1 + min_gain, noise)
    if verdict is TrialVerdict.NO_EFFECT and of_run is not None and faster:
        verdict, sentence = TrialVerdict.STEP_ONLY, ONLY_STEP
    missed = target.missed(own, _plain(runs)) if target is not None else ""
    if missed and verdict not in NEVER:
        verdict, sentence = TrialVerdict.NOT_REACHED, missed
    timed = [run for run in own if not run.rehearsal and run.step_ns]
    return Judgement(
        variant,
        verdict,
        numbers.agreement,
        sentence,
        speed=speed,
        noise=noise if noise < inf else None,
        step_ns=fmean(fmean(run.step_ns) for run in timed) if timed else None,
        rounds=len(comparisons),
        training="" if numbers.sentence in sentence else numbers.sentence,
        peak_bytes=max((run.peak_bytes for run in timed if run.peak_bytes is not None), default=None),
        memory=memory,
        of_run=of_run,
        other=between,
    )


def not_exercised(variant: Variant, own: Sequence[Run]) -> str:
    """Reason why the variant changed nothing, "" if every change acted in the last process that ran."""
    reported = {change.kind: change for change in own[-1].changes} if own else {}
    for change in variant.changes:
        fact = reported.get(change.kind)
        if fact is None:
            return f"{change.kind}: the job has nothing for it to change"
        if not (fact.applied and fact.exercised):
            return fact.detail or f"{change.kind}: the job has nothing for it to change"
    return ""


def cannot_win(judgement: Judgement, *, min_gain: float = MIN_GAIN, goal: Goal = Goal.SPEED) -> bool:
    """True if more rounds of the variant are useless: it failed, changed nothing or broke its promise, or its gain's
    interval is wholly below the least gain."""
    if judgement.verdict in NEVER:
        return True
    gain = judgement.gain(goal)
    return gain is not None and gain.high < 1 + min_gain


def overtaken(judgement: Judgement, others: Sequence[Judgement], goal: Goal = Goal.SPEED) -> Variant | None:
    """Adopted variant that sets the same thing and whose gain exceeds the upper end of this one's; None without one.
    Further rounds of this one are then pointless."""
    gain = judgement.gain(goal)
    for other in others:
        best = other.gain(goal)
        if gain is None or best is None or other.verdict is not TrialVerdict.ADOPT or gain.high >= best.value:
            continue
        if other.variant != judgement.variant and other.variant.rivals(judgement.variant):
            return other.variant
    return None


def side_by_side(judgements: Sequence[Judgement], goal: Goal = Goal.SPEED) -> tuple[Judgement, ...]:
    """Judgements of one stage; one that is undecided because another variant overtook it says so."""
    reported = []
    for each in judgements:
        best = overtaken(each, judgements, goal) if each.verdict is TrialVerdict.UNDECIDED else None
        reported.append(replace(each, sentence=f"It gains less than {best.label}") if best is not None else each)
    return tuple(reported)


# -- speed and memory -------------------------------------------------------------------------------------------------


def _steps(run: Run) -> Series:
    return run.step_ns


def other_speed(variant: Variant, runs: Sequence[Run], other: OtherWork) -> Estimate | None:
    """Speed-up of the work between the steps, of the kind that takes the most time. None unless it is beyond noise,
    because a process has few such pieces of work, and most changes do not affect them."""

    def each(run: Run) -> Series:
        return tuple(length for kind, length in run.other_ns if kind == other.kind)

    comparisons = comparisons_of(variant.name, runs, each)
    if len(comparisons) < LEAST_ROUNDS:
        return None
    found = speed_up(comparisons, comparisons_of(CONTROL, runs, each))
    return None if found.low <= 1 <= found.high else found


def _peak(run: Run) -> Series:
    return (run.peak_bytes,) if run.peak_bytes else ()


def comparisons_of(name: str, runs: Sequence[Run], of: Callable[[Run], Series] = _steps) -> tuple[RoundComparison, ...]:
    """Comparisons of a variant's runs with their enclosing baselines. of: the compared quantity, by default step times
    in ns. Comparisons under foreign load are left out if enough others remain."""
    usable = [run for run in runs if _timed(run) and len(of(run))]
    calm, all_of_them = [], []
    for run in usable:
        if run.variant != name:
            continue
        enclosing = _enclosing(run, usable)
        if enclosing is None:
            continue
        before, after = enclosing
        place = (run.position - before.position) / (after.position - before.position) if after != before else 0.0
        comparison = compared(of(before), of(run), of(after), place)
        if of is _steps and run.alternated:
            comparison = replace(comparison, turns=turns_of(before, run))
        all_of_them.append(comparison)
        quietest = min(each.load.other_cpu for each in runs if each.place == run.place and _timed(each))
        if not any(under_load(each, quietest) for each in (before, run, after)):
            calm.append(comparison)
    return tuple(calm if len(calm) >= LEAST_ROUNDS else all_of_them)


def _enclosing(run: Run, usable: Sequence[Run]) -> tuple[Run, Run] | None:
    """Baselines that enclose a run: the last before it and the first after it, or twice the one that it took turns
    with. None if one is missing."""
    here = [each for each in usable if each.variant == BASELINE and each.place == run.place]
    here = [each for each in here if each.alternated == run.alternated]
    if run.alternated:
        here = [each for each in here if each.round == run.round]
        return (here[0], here[0]) if here else None
    before = max((each for each in here if each.position < run.position), key=_position, default=None)
    after = min((each for each in here if each.position > run.position), key=_position, default=None)
    return (before, after) if before is not None and after is not None else None


def under_load(run: Run, quietest: float) -> bool:
    """True if other processes used the machine during the run, or its device was throttled. quietest: least foreign
    load of any run of the trial on that machine, in CPUs."""
    load = run.load
    crowded = load.other_cpu > quietest + OTHER_CPU or (load.steal or 0.0) > OTHER_CPU
    return crowded or load.other_device_users or load.device_throttled


def usual_step(runs: Sequence[Run]) -> Estimate | None:
    """Mean step time of the baseline, ns: the median over its runs; None without a run."""
    means = [fmean(run.step_ns) for run in runs if run.variant in (BASELINE, CONTROL) and _timed(run) and run.step_ns]
    means = means or [each.step_ns for run in runs for each in run.switched.blocks if not each.block]
    return median_of(np.array(means)) if means else None


def usual_metric(runs: Sequence[Run]) -> Estimate | None:
    """Metric of the unchanged job, or its seconds to a loss: the median over its runs; None without a run."""
    plain = [run for run in runs if run.variant in (BASELINE, CONTROL) and _timed(run)]
    printed = [run.metric for run in plain if run.metric is not None]
    return median_of(np.array(printed)) if printed else None


def _timed(run: Run) -> bool:
    return not run.rehearsal and not run.failure and bool(run.step_ns or run.metric)


_position = attrgetter("position")


# -- numbers ----------------------------------------------------------------------------------------------------------


def agreement_of(variant: Variant, runs: Sequence[Run], target: LossTarget | None = None) -> NumbersCheck:
    """Agreement of the variant's numbers with the job's; gradients decide before losses. target: the loss to reach, for
    a variant that may train differently."""
    if target is not None and not variant.suspicion:
        own = [run for run in runs if run.variant == variant.name and not run.failure]
        return numbers_until(target, variant, own, _plain(runs))
    found = _work(variant, runs)
    if found is not None and found.agreement is Agreement.LESS_WORK:
        return found
    if variant.speed_alone:
        return NumbersCheck(Agreement.NOT_JUDGED, "Training was not judged")
    if variant.promise is Promise.NEW_TRAINING:
        return NumbersCheck(
            Agreement.NOT_JUDGED, "It trains something else on purpose; whether that is fine is your decision"
        )
    broken, widened = _gradients(variant, runs)
    if broken is not None and (found is None or broken.agreement is Agreement.DEAD_GRADIENTS):
        return broken
    if found is not None:
        return found
    own = [run for run in runs if run.variant == variant.name and _timed(run)]
    plain = [run for run in runs if run.variant in (BASELINE, CONTROL) and _timed(run)]
    exact = exactness([run for run in runs if run.variant == variant.name], _plain(runs)) if variant.foreign else None
    same = exact.sentence if exact is not None and exact.same else ""
    if not own and variant.foreign and _rehearsals(variant.name, runs):
        return NumbersCheck(Agreement.NOT_SEEN, same or REHEARSED)
    if not own or not parity.seen(own[0].losses) or not any(parity.seen(run.losses) for run in plain):
        return NumbersCheck(Agreement.NOT_SEEN, "No losses were recorded, so its numerics are unchecked")
    numbers = _losses(variant, own, plain)
    if same:
        numbers = replace(numbers, sentence=f"{numbers.sentence}. {same}")
    return replace(numbers, sentence=f"{numbers.sentence}; {widened}") if widened else numbers


def _work(variant: Variant, runs: Sequence[Run]) -> NumbersCheck | None:
    """Result for a user's own candidate that leaves out work of the job, or does it differently; None for no such
    sign."""
    if variant.suspicion:
        return NumbersCheck(Agreement.LESS_WORK, variant.suspicion)
    if not variant.foreign:
        return None
    own = [run for run in runs if run.variant == variant.name and not run.failure]
    plain = _plain(runs)
    return suspicion(own, plain) or other_training(variant, own, plain)


def _plain(runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if run.variant in (BASELINE, CONTROL) and not run.failure]


def asks_for_rehearsal(variants: Sequence[Variant], runs: Sequence[Run]) -> bool:
    """True if the unchanged job needs another rehearsal to separate a variant's gradients from the job's own spread."""
    done = sum(run.variant == BASELINE and run.rehearsal and not run.exact for run in runs)
    if done == 1 and any(each.foreign and not is_proved(each, runs) for each in variants):
        return True
    if all(each.speed_alone for each in variants):
        return False
    norms = [dict(run.norms[0]) for run in _rehearsals(BASELINE, runs)]
    if done >= parity.REPEATS or not norms or (len(norms) > 1 and parity.own_tolerance(norms) is None):
        return False
    found = [_gradients(variant, runs)[0] for variant in variants if _rehearsals(variant.name, runs)]
    return any(numbers is not None and numbers.agreement in BROKEN for numbers in found)


def next_in_float64(
    variants: Sequence[Variant], runs: Sequence[Run], baseline: Variant, *, at_once: bool = False
) -> Sequence[Variant]:
    """Variants to rehearse in float64 next. First the unchanged job. If that works, the candidates that passed their
    other rehearsal and are not rejected yet. Last the unchanged job once more if a candidate differs, to measure its
    own spread."""
    exact = [run for run in runs if run.exact]
    plain = [run for run in exact if run.variant == BASELINE]
    known = {run.variant for run in exact}
    through = {run.variant for run in runs if run.rehearsal and not run.exact and not run.failure}
    asked = [
        each
        for each in variants
        if each.foreign and not each.speed_alone and not each.low_precision and each.name in through - known
        if not is_refused(each, runs, _plain(runs))
    ]
    if not plain:
        return asked and (baseline, *asked) if at_once else asked and (baseline,)
    if not any(map(in_float64, plain)):
        return ()
    if asked or len(plain) > 1:
        return asked
    found = [exactness([run for run in runs if run.variant == each.name], _plain(runs)) for each in variants]
    return (baseline,) if any(each is not None and not each.same and each.repeats is None for each in found) else ()


def is_proved(variant: Variant, runs: Sequence[Run]) -> bool:
    """True if the variant reached the job's own parameters in float64."""
    exact = exactness([run for run in runs if run.variant == variant.name], _plain(runs))
    return exact is not None and exact.same


def _rehearsals(variant: str, runs: Sequence[Run]) -> list[Run]:
    rehearsed = [run for run in runs if run.variant == variant and run.rehearsal and not run.exact]
    return [run for run in rehearsed if run.norms and not run.failure]


def _gradients(variant: Variant, runs: Sequence[Run]) -> tuple[NumbersCheck | None, str]:
    """(gradient fault of the rehearsals or None, sentence on a widened tolerance or "")."""
    baselines, own = _rehearsals(BASELINE, runs), _rehearsals(variant.name, runs)
    if not baselines:
        return None, ""
    if not own:
        return NumbersCheck(Agreement.NOT_SEEN, "No gradients were recorded"), ""
    for step in zip(own[-1].norms, *(run.norms for run in baselines), strict=False):
        after, *before = map(dict, step)
        dead = parity.dead_in_all(before, after)
        if dead:
            more = f" and {len(dead) - 1} more" if len(dead) > 1 else ""
            how = "zero or missing" if all(isfinite(after[name] or 0.0) for name in dead) else "not finite"
            lost = f"The gradient of {dead[0]}{more} is {how}; in the unchanged job it is not"
            return NumbersCheck(Agreement.DEAD_GRADIENTS, lost), ""
    if variant.other_data:
        return None, ""
    return _first_gradients(variant, dict(own[-1].norms[0]), [dict(run.norms[0]) for run in baselines])


def _first_gradients(
    variant: Variant, own: parity.Norms, baselines: Sequence[parity.Norms]
) -> tuple[NumbersCheck | None, str]:
    """Compares the first step's gradients within rounding, or within the job's own spread: (fault or None, sentence on
    a widened tolerance or "")."""
    usual = parity.LOW_PRECISION if variant.low_precision else parity.FULL_PRECISION
    found, spread = parity.nearest(baselines, own), parity.own_tolerance(baselines)
    if found.within(usual):
        return None, ""
    differ = f"Gradient norms of the first step differ by up to {found.largest:.2g} (median {found.median:.2g})"
    if spread is None:
        explained = f"rounding explains {usual[0]:g} ({usual[1]:g})"
        return NumbersCheck(Agreement.WILD_GRADIENTS, f"{differ} of themselves; {explained}"), ""
    allowed = max(log1p(usual[0]), spread[0]), max(log1p(usual[1]), spread[1])
    within = f"gradients compared within {_reach(allowed[0])} (median {_reach(allowed[1])})"
    if allowed[1] >= parity.JUDGEABLE:
        return NumbersCheck(Agreement.NOT_SEEN, f"{NOT_REPEATED}: {within} would hide that all are twice as large"), ""
    if parity.nearest(baselines, own, factors=True).within(allowed):
        return None, f"{NOT_REPEATED[0].lower()}{NOT_REPEATED[1:]}: {within}"
    return NumbersCheck(Agreement.WILD_GRADIENTS, f"{differ} of themselves. {NOT_REPEATED}: {within}"), ""


def _reach(factor: float) -> str:
    """Text of a tolerance that is given as the logarithm of a factor."""
    return f"±{100 * expm1(factor):.2g} %" if factor < parity.JUDGEABLE else f"a factor of {exp(factor):.2g}"


def _losses(variant: Variant, own: Sequence[Run], plain: Sequence[Run]) -> NumbersCheck:
    plain = [run for run in plain if parity.seen(run.losses)]
    alike = [[run for run in plain if run.seed == each.seed] for each in own]
    equal = [
        any(parity.equal_bits(each.losses, run.losses) for run in those) for each, those in zip(own, alike, strict=True)
    ]
    if all(equal):
        return NumbersCheck(Agreement.SAME_BITS, "Losses are equal, bit for bit")
    other = equal.index(False)
    repeats = len(alike[other]) > 1 and parity.equal_bits(alike[other][0].losses, alike[other][1].losses)
    if variant.promise is Promise.SAME_BITS and repeats and not variant.streams:
        step = parity.first_difference(own[other].losses, alike[other][0].losses)
        return NumbersCheck(Agreement.APART, f"Losses differ from step {step} on, and should be equal")
    band = {run.seed: run.losses for run in plain}
    if len(band) <= parity.LEAST_SEEDS:
        return NumbersCheck(Agreement.NOT_SEEN, "Too few baselines with other seeds ran to judge its losses")
    tried = {run.seed: run.losses for run in own if parity.seen(run.losses)}
    if not parity.within_band(tried, band):
        return NumbersCheck(Agreement.APART, f"Its loss is outside the band of {len(band)} seeds")
    drew = [step.drew for run in plain if not run.rehearsal for step in run.work if step.drew is not None]
    without = drew and not any(drew) and DROPOUT_MASKS in variant.streams  # the job's forwards have none to change
    if variant.streams and not without:
        return NumbersCheck(
            Agreement.OTHER_STREAM, f"Losses are within the band of {len(band)} seeds; it changes {variant.streams}"
        )
    return NumbersCheck(Agreement.SAME_CURVE, f"Losses are within the band of {len(band)} seeds")


# -- verdict ----------------------------------------------------------------------------------------------------------


def _verdict(
    numbers: NumbersCheck, gain: Estimate | None, noise: float, min_gain: float, goal: Goal, *, kept: bool
) -> tuple[TrialVerdict, str]:
    if numbers.agreement in BROKEN:
        return TrialVerdict.BROKE_PROMISE, numbers.sentence
    if numbers.agreement is Agreement.LESS_WORK:
        return TrialVerdict.SUSPICIOUS, numbers.sentence
    if gain is None:
        what = "its speed" if goal is Goal.SPEED else "its peak memory"
        return TrialVerdict.UNDECIDED, f"Too few rounds ran to measure {what}"
    needed = max(1 + min_gain, noise)
    if gain.low > needed:
        if kept:
            return TrialVerdict.ADOPT, numbers.sentence
        better = "Faster" if goal is Goal.SPEED else "Less memory"
        return TrialVerdict.UNDECIDED, f"{better}, and not adopted: {numbers.sentence[0].lower()}{numbers.sentence[1:]}"
    if gain.high < 1 and gain.value < 1 - min_gain and gain.high < 1 / min(noise, 1 + min_gain):
        return TrialVerdict.SLOWER if goal is Goal.SPEED else TrialVerdict.MORE_MEMORY, numbers.sentence
    if gain.high < 1 + min_gain:
        return TrialVerdict.NO_EFFECT, "Any gain is below --min-gain"
    if noise > 1 + min_gain:
        return TrialVerdict.UNDECIDED, f"Unclear: ±{format_share(noise - 1)} noise on this machine"
    return TrialVerdict.UNDECIDED, "Unclear: more rounds should decide it"
