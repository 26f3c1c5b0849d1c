"""Verdicts: what is adopted, what never is, and what is not known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from trials.shared_machine import LOSSES, SharedMachine, run, trial

from steptime.advice.fix import Goal, Promise
from steptime.advice.whole_run import OtherWork
from steptime.changes import Change
from steptime.quantities import Estimate
from steptime.recording.parity import StepWork
from steptime.trials.judge import asks_for_rehearsal, cannot_win, judge, overtaken
from steptime.trials.trial import (
    BASELINE,
    CONTROL,
    Agreement,
    AppliedChange,
    Judgement,
    MachineLoad,
    Run,
    TrialVerdict,
    Variant,
)

VARIANT = Variant("RM101", (Change("loader", arguments=(("num_workers", 2),)),), "RM101", "num_workers=2")
NORMS = ((("conv.weight", 1.0), ("fc.weight", 2.0)),)


def quiet(seed: int = 0) -> SharedMachine:
    return SharedMachine(seed, change=0.0, stalls=0.0)


def rehearsals(variant: Variant, own: tuple[tuple[tuple[str, float | None], ...], ...]) -> tuple[Run, ...]:
    first = run(BASELINE, -2, (), rehearsal=True, norms=NORMS)
    return first, run(variant.name, -1, (), rehearsal=True, norms=own)


def test_a_faster_variant_with_equal_losses_is_adopted() -> None:
    judgement = judge(VARIANT, trial(quiet(), VARIANT, speed=1.5))
    assert judgement.verdict is TrialVerdict.ADOPT
    assert judgement.agreement is Agreement.SAME_BITS
    assert judgement.speed is not None
    assert judgement.speed.low < 1.5 < judgement.speed.high


def judged(
    label: str, value: float, low: float, high: float, *, kind: str = "loader", adopted: bool = True
) -> Judgement:
    variant = Variant(f"RM-{label}", (Change(kind),), label=label)
    verdict = TrialVerdict.ADOPT if adopted else TrialVerdict.UNDECIDED
    return Judgement(variant, verdict, Agreement.SAME_BITS, "", speed=Estimate(value, low, high, 3, "1"))


def test_a_setting_that_gains_less_than_another_one_of_the_same_thing_is_not_asked_further() -> None:
    best = judged("two", 1.35, 1.16, 1.56)
    below = judged("one", 1.05, 0.98, 1.13, adopted=False)
    assert overtaken(below, [best, below]) == best.variant
    assert overtaken(best, [best, below]) is None
    assert overtaken(judged("one", 1.2, 0.9, 1.6, adopted=False), [best]) is None, "it may still be the better one"
    assert overtaken(judged("fused", 1.05, 0.98, 1.13, kind="optimizer", adopted=False), [best]) is None
    assert overtaken(below, [judged("two", 1.35, 1.16, 1.56, adopted=False)]) is None


def test_of_forty_comparisons_of_a_job_with_itself_at_most_two_are_adopted() -> None:
    verdicts = [judge(VARIANT, trial(SharedMachine(seed), VARIANT)).verdict for seed in range(40)]
    assert verdicts.count(TrialVerdict.ADOPT) <= 2


def test_three_times_as_fast_is_adopted_even_on_a_shared_machine_mostly() -> None:
    machines = (SharedMachine(seed, change=0.2, spread=0.2, stalls=0.01) for seed in range(20))
    verdicts = [judge(VARIANT, trial(machine, VARIANT, speed=3.0)).verdict for machine in machines]
    assert verdicts.count(TrialVerdict.ADOPT) >= 14
    assert TrialVerdict.SLOWER not in verdicts


def peaks(runs: tuple[Run, ...], own: int, usual: int = 1_000_000_000) -> tuple[Run, ...]:
    """The runs with peaks of memory, which differ from one to the next by a thousandth."""
    wiggle = [number % 3 * usual // 1000 for number in range(len(runs))]
    return tuple(
        replace(each, peak_bytes=(own if each.variant == VARIANT.name else usual) + more)
        for each, more in zip(runs, wiggle, strict=True)
    )


def test_less_memory_is_adopted_where_that_is_the_goal_though_it_takes_time() -> None:
    runs = peaks(trial(quiet(), VARIANT, speed=0.7), 600_000_000)
    judgement = judge(VARIANT, runs, goal=Goal.MEMORY)
    assert judgement.verdict is TrialVerdict.ADOPT
    assert judgement.memory is not None
    assert judgement.memory.value == pytest.approx(1 / 0.6, rel=0.01)
    assert judgement.speed is not None
    assert judgement.speed.high < 1, "what it costs is told"
    assert not cannot_win(judge(VARIANT, runs, goal=Goal.MEMORY), goal=Goal.MEMORY)
    assert judge(VARIANT, runs).verdict is TrialVerdict.SLOWER


@pytest.mark.parametrize(
    ("own", "verdict"),
    [
        (600_000_000, TrialVerdict.ADOPT),
        (1_400_000_000, TrialVerdict.MORE_MEMORY),
        (975_000_000, TrialVerdict.UNDECIDED),
    ],
)
def test_one_round_decides_on_memory_and_not_on_speed(own: int, verdict: TrialVerdict) -> None:
    """The unchanged job ran three times in it; of two peaks nothing is concluded."""
    runs = peaks(trial(quiet(), VARIANT, rounds=1, speed=2.0), own)
    judgement = judge(VARIANT, runs, goal=Goal.MEMORY)
    assert (judgement.verdict, judgement.rounds, judgement.speed) == (verdict, 1, None), judgement.sentence
    fewer = tuple(each for each in runs if each.variant != "control")
    assert judge(VARIANT, fewer, goal=Goal.MEMORY).memory is None


@pytest.mark.parametrize(
    ("own", "verdict"), [(1_000_000_000, TrialVerdict.NO_EFFECT), (1_400_000_000, TrialVerdict.MORE_MEMORY)]
)
def test_speed_does_not_count_where_memory_is_the_goal(own: int, verdict: TrialVerdict) -> None:
    runs = peaks(trial(quiet(), VARIANT, speed=2.0), own)
    assert judge(VARIANT, runs, goal=Goal.MEMORY).verdict is verdict
    assert cannot_win(judge(VARIANT, runs, goal=Goal.MEMORY), goal=Goal.MEMORY)


def test_peaks_that_nobody_saw_decide_nothing() -> None:
    judgement = judge(VARIANT, trial(quiet(), VARIANT, speed=2.0), goal=Goal.MEMORY)
    assert judgement.verdict is TrialVerdict.UNDECIDED
    assert "peak memory" in judgement.sentence


def test_less_memory_with_other_numbers_is_not_adopted() -> None:
    off = tuple(loss + 3.0 for loss in LOSSES)
    runs = peaks(trial(quiet(), VARIANT, losses=off), 500_000_000)
    assert judge(VARIANT, runs, goal=Goal.MEMORY).verdict is TrialVerdict.BROKE_PROMISE


def test_a_slower_variant_is_called_slower() -> None:
    assert judge(VARIANT, trial(quiet(), VARIANT, speed=0.6)).verdict is TrialVerdict.SLOWER


def test_a_gain_below_the_least_one_is_no_effect() -> None:
    assert judge(VARIANT, trial(quiet(), VARIANT, rounds=5, speed=1.0), min_gain=0.2).verdict is TrialVerdict.NO_EFFECT


def test_one_round_decides_nothing() -> None:
    judgement = judge(VARIANT, trial(quiet(), VARIANT, rounds=1, speed=5.0))
    assert judgement.verdict is TrialVerdict.UNDECIDED
    assert judgement.speed is None


def test_without_losses_nothing_is_adopted() -> None:
    runs = [replace(each, losses=()) for each in trial(quiet(), VARIANT, speed=3.0)]
    judgement = judge(VARIANT, runs)
    assert (judgement.verdict, judgement.agreement) == (TrialVerdict.UNDECIDED, Agreement.NOT_SEEN)


def test_another_training_is_never_adopted() -> None:
    variant = replace(VARIANT, promise=Promise.NEW_TRAINING)
    assert judge(variant, trial(quiet(), variant, speed=3.0)).verdict is TrialVerdict.UNDECIDED


def test_losses_that_should_be_equal_and_differ_break_the_promise() -> None:
    off = tuple(loss + 1e-6 for loss in LOSSES)
    judgement = judge(VARIANT, trial(quiet(), VARIANT, speed=2.0, losses=off))
    assert (judgement.verdict, judgement.agreement) == (TrialVerdict.BROKE_PROMISE, Agreement.APART)


def test_dropout_masks_are_named_only_where_the_jobs_forwards_draw() -> None:
    variant = replace(VARIANT, streams="dropout masks")
    inside = tuple(loss + 0.01 for loss in LOSSES)
    runs = trial(quiet(), variant, speed=2.0, losses=inside)
    found = {}
    for drew in (True, False):
        seen = [replace(each, work=(StepWork(drew=drew, options=(("{}", 1),)),)) for each in runs]
        found[drew] = judge(variant, seen).agreement
    assert found == {True: Agreement.OTHER_STREAM, False: Agreement.SAME_CURVE}


def test_another_random_stream_is_named_and_judged_by_the_band() -> None:
    variant = replace(VARIANT, streams="the workers' random numbers")
    inside = tuple(loss + 0.01 for loss in LOSSES)
    judgement = judge(variant, trial(quiet(), variant, speed=2.0, losses=inside))
    assert (judgement.verdict, judgement.agreement) == (TrialVerdict.ADOPT, Agreement.OTHER_STREAM)
    assert variant.streams in judgement.sentence
    outside = tuple(loss + 0.5 for loss in LOSSES)
    assert judge(variant, trial(quiet(), variant, speed=2.0, losses=outside)).verdict is TrialVerdict.BROKE_PROMISE


def test_a_curve_is_not_judged_by_too_few_seeds() -> None:
    variant = replace(VARIANT, promise=Promise.SAME_CURVE)
    near = tuple(loss + 0.01 for loss in LOSSES)
    runs = [each for each in trial(quiet(), variant, rounds=2, speed=2.0, losses=near) if each.seed != 2]
    assert judge(variant, runs).agreement is Agreement.NOT_SEEN


@pytest.mark.parametrize("promise", [Promise.SAME_BITS, Promise.SAME_CURVE])
def test_dead_gradients_break_any_promise_whatever_the_loss_says(promise: Promise) -> None:
    variant = replace(VARIANT, promise=promise)
    dead = ((("conv.weight", 0.0), ("fc.weight", 2.0)),)
    judgement = judge(variant, (*rehearsals(variant, dead), *trial(quiet(), variant, speed=3.0)))
    assert (judgement.verdict, judgement.agreement) == (TrialVerdict.BROKE_PROMISE, Agreement.DEAD_GRADIENTS)
    assert "conv.weight" in judgement.sentence


def test_gradients_that_die_in_the_second_step_are_dead() -> None:
    first = ((("conv.weight", 1.0), ("fc.weight", 2.0)), (("conv.weight", 1.1), ("fc.weight", 2.1)))
    later = (first[0], (("conv.weight", 0.0), ("fc.weight", 2.1)))
    baseline, own = (
        replace(each, norms=norms) for each, norms in zip(rehearsals(VARIANT, NORMS), (first, later), strict=True)
    )
    assert judge(VARIANT, (baseline, own, *trial(quiet(), VARIANT, speed=3.0))).agreement is Agreement.DEAD_GRADIENTS


def test_a_variant_whose_gradients_were_not_seen_is_not_adopted() -> None:
    baseline, own = rehearsals(VARIANT, NORMS)
    judgement = judge(VARIANT, (baseline, replace(own, norms=()), *trial(quiet(), VARIANT, speed=3.0)))
    assert (judgement.verdict, judgement.agreement) == (TrialVerdict.UNDECIDED, Agreement.NOT_SEEN)


def test_wild_gradients_count_unless_the_batches_are_others() -> None:
    wild = ((("conv.weight", 1.5), ("fc.weight", 2.0)),)
    runs = trial(quiet(), VARIANT, speed=3.0)
    assert judge(VARIANT, (*rehearsals(VARIANT, wild), *runs)).agreement is Agreement.WILD_GRADIENTS
    other = replace(VARIANT, other_data=True)
    assert judge(other, (*rehearsals(other, wild), *runs)).verdict is TrialVerdict.ADOPT


def clocked(*scales: float) -> tuple[Run, ...]:
    """Rehearsals of a job as it is whose gradients are each time so many times those of the first."""
    return tuple(run(BASELINE, -9 + place, (), rehearsal=True, norms=scaled(each)) for place, each in enumerate(scales))


def scaled(scale: float) -> tuple[tuple[tuple[str, float | None], ...], ...]:
    return ((("conv.weight", scale), ("fc.weight", 2.0 * scale)),)


def test_a_job_that_does_not_repeat_is_judged_by_its_own_spread_and_that_is_reported() -> None:
    runs = trial(quiet(), VARIANT, speed=3.0)
    own = rehearsals(VARIANT, scaled(1.12))[1]
    once = judge(VARIANT, (*clocked(1.0), own, *runs))
    assert (once.verdict, once.agreement) == (TrialVerdict.BROKE_PROMISE, Agreement.WILD_GRADIENTS)
    judgement = judge(VARIANT, (*clocked(1.0, 1.1, 0.95), own, *runs))
    assert judgement.verdict is TrialVerdict.ADOPT
    assert (
        "the job does not reproduce its own losses (seeded by the clock?): gradients compared within ±25 %"
        in judgement.sentence
    )


@pytest.mark.parametrize("scale", [0.5, 2.0, 3.0])
def test_what_lies_outside_of_the_jobs_own_spread_is_refused(scale: float) -> None:
    own = rehearsals(VARIANT, scaled(scale))[1]
    judgement = judge(VARIANT, (*clocked(1.0, 1.1, 0.95), own, *trial(quiet(), VARIANT, speed=3.0)))
    assert (judgement.verdict, judgement.agreement) == (TrialVerdict.BROKE_PROMISE, Agreement.WILD_GRADIENTS)
    assert "gradients compared within ±25 %" in judgement.sentence


def test_a_spread_in_which_anything_would_lie_adopts_nothing() -> None:
    own = rehearsals(VARIANT, scaled(2.0))[1]
    judgement = judge(VARIANT, (*clocked(1.0, 4.0), own, *trial(quiet(), VARIANT, speed=3.0)))
    assert (judgement.verdict, judgement.agreement) == (TrialVerdict.UNDECIDED, Agreement.NOT_SEEN)
    assert "not adopted: the job does not reproduce its own losses" in judgement.sentence
    assert "would hide that all are twice as large" in judgement.sentence


def test_a_gradient_that_the_job_itself_loses_now_and_then_is_not_the_variants_loss() -> None:
    dead = ((("conv.weight", 0.0), ("fc.weight", 2.0)),)
    own = rehearsals(VARIANT, dead)[1]
    lost = run(BASELINE, -3, (), rehearsal=True, norms=dead)
    runs = trial(quiet(), VARIANT, speed=3.0)
    assert judge(VARIANT, (*clocked(1.0, 1.0), own, *runs)).agreement is Agreement.DEAD_GRADIENTS
    assert judge(VARIANT, (*clocked(1.0), lost, own, *runs)).verdict is TrialVerdict.ADOPT


def test_a_job_is_rehearsed_again_until_it_is_known_whether_it_repeats() -> None:
    wild, same = rehearsals(VARIANT, scaled(1.5))[1], rehearsals(VARIANT, scaled(1.0))[1]
    assert not asks_for_rehearsal((VARIANT,), (*clocked(1.0), same))
    assert asks_for_rehearsal((VARIANT,), (*clocked(1.0), wild))
    assert not asks_for_rehearsal((VARIANT,), (*clocked(1.0, 1.0), wild)), "it repeats, and the variant does not"
    assert asks_for_rehearsal((VARIANT,), (*clocked(1.0, 1.1), wild))
    assert asks_for_rehearsal((VARIANT,), (*clocked(1.0, 1.1, 0.95), wild))
    assert not asks_for_rehearsal((VARIANT,), (*clocked(1.0, 1.1, 0.95, 1.0), wild)), "four times is enough"
    assert not asks_for_rehearsal((VARIANT,), (*clocked(1.0, 1.4), wild)), "it lies within the spread"
    unseen = [run(BASELINE, place, (), rehearsal=True) for place in range(3)]
    assert not asks_for_rehearsal((VARIANT,), (*clocked(1.0), *unseen, wild)), "gradients were not written again"


def test_what_changed_nothing_is_not_exercised_however_fast() -> None:
    idle = (AppliedChange("loader", False, False, "no DataLoader was made"),)
    judgement = judge(VARIANT, trial(quiet(), VARIANT, speed=3.0, changes=idle))
    assert judgement.verdict is TrialVerdict.NOT_EXERCISED
    assert judgement.sentence == "no DataLoader was made"
    assert judge(VARIANT, trial(quiet(), VARIANT, speed=3.0, changes=())).verdict is TrialVerdict.NOT_EXERCISED


def test_a_failure_is_reported_with_its_last_words() -> None:
    runs = (*trial(quiet(), VARIANT), run("RM101", 99, (), failure="It ended with status 1: MemoryError"))
    judgement = judge(VARIANT, runs)
    assert judgement.verdict is TrialVerdict.FAILED
    assert "MemoryError" in judgement.sentence


def test_disturbed_comparisons_are_left_out_where_enough_others_are_there() -> None:
    runs = list(trial(quiet(), VARIANT, rounds=4, speed=1.5))
    first = next(number for number, each in enumerate(runs) if each.variant == VARIANT.name)
    slow = tuple(20 * step for step in runs[first].step_ns)
    runs[first] = replace(runs[first], step_ns=slow, load=MachineLoad(1.5))
    judgement = judge(VARIANT, runs)
    assert judgement.rounds == 3
    assert judgement.verdict is TrialVerdict.ADOPT


def test_variants_that_cannot_win_are_known_early() -> None:
    assert cannot_win(judge(VARIANT, trial(quiet(), VARIANT, speed=0.5)))
    assert not cannot_win(judge(VARIANT, trial(quiet(), VARIANT, speed=1.5)))
    assert not cannot_win(judge(VARIANT, trial(quiet(), VARIANT, rounds=1, speed=0.5)))


def test_without_a_control_nothing_is_adopted() -> None:
    runs = [each for each in trial(quiet(), VARIANT, speed=3.0) if each.variant != CONTROL]
    assert judge(VARIANT, runs).verdict is TrialVerdict.UNDECIDED


def test_a_speed_that_is_judged_alone_is_faster_whatever_it_trains_but_not_where_it_does_less() -> None:
    alone = Variant("diff-1", promise=Promise.SAME_CURVE, speed_alone=True)
    runs = [
        replace(each, losses=tuple(9.0 for _ in LOSSES)) if each.variant == alone.name else each
        for each in trial(quiet(), alone, speed=1.5)
    ]
    assert judge(alone, runs).verdict is TrialVerdict.ADOPT
    assert judge(replace(alone, speed_alone=False), runs).verdict is not TrialVerdict.ADOPT
    assert judge(replace(alone, suspicion="It speaks of steptime"), runs).verdict is TrialVerdict.SUSPICIOUS


def test_steps_that_no_machine_could_make_are_suspicious() -> None:
    foreign = Variant("diff-1", promise=Promise.SAME_CURVE)
    runs = trial(quiet(), foreign, rounds=4, speed=4.0)
    assert judge(foreign, runs, least_ns=8e6).verdict is TrialVerdict.ADOPT
    judgement = judge(foreign, runs, least_ns=20e6)
    assert judgement.verdict is TrialVerdict.SUSPICIOUS
    assert "the job's matmuls alone need 20 ms/step at this machine's peak" in judgement.sentence
    wrong = judge(foreign, runs, least_ns=80e6)  # the job itself would be impossible, too
    assert wrong.verdict is TrialVerdict.ADOPT
    assert judge(replace(foreign, speed_alone=True), runs, least_ns=20e6).verdict is TrialVerdict.ADOPT


ROLLOUTS = OtherWork(0.86, "rollout", 320.0)


def with_rollouts(runs: tuple[Run, ...], speed: float = 1.0) -> tuple[Run, ...]:
    """The runs with two rollouts each, of about 2 s. speed: of the variant's."""
    lengths = [2e9 * (1 + 0.01 * (number % 3)) for number in range(len(runs))]
    return tuple(
        replace(each, other_ns=(("rollout", int(length / (speed if each.variant == VARIANT.name else 1.0))),) * 2)
        for each, length in zip(runs, lengths, strict=True)
    )


def test_a_gain_of_steps_that_are_little_of_the_run_is_not_adopted() -> None:
    runs = with_rollouts(trial(quiet(), VARIANT, speed=1.2))
    judgement = judge(VARIANT, runs, other=ROLLOUTS)
    assert judgement.verdict is TrialVerdict.STEP_ONLY
    assert judgement.of_run is not None
    assert judgement.of_run.value == pytest.approx(1.024, abs=0.004)
    assert judgement.other is None, "rollouts of the same length within noise are as long as before"
    assert cannot_win(judgement), "no further round makes it a gain of the run"
    assert judge(VARIANT, runs).verdict is TrialVerdict.ADOPT, "without anything between the steps"
    assert judge(VARIANT, runs, other=ROLLOUTS, min_gain=0.01).verdict is TrialVerdict.ADOPT, "if so little is enough"


def test_a_gain_that_the_run_keeps_is_adopted() -> None:
    judgement = judge(VARIANT, trial(quiet(), VARIANT, speed=2.0), other=OtherWork(0.5, "evaluation", 100.0))
    assert judgement.verdict is TrialVerdict.ADOPT
    assert judgement.of_run is not None
    assert judgement.of_run.value == pytest.approx(4 / 3, rel=0.02)


def test_what_makes_the_work_between_the_steps_faster_or_slower_counts() -> None:
    faster = judge(VARIANT, with_rollouts(trial(quiet(), VARIANT, speed=1.2), 1.5), other=ROLLOUTS)
    assert faster.verdict is TrialVerdict.ADOPT
    assert faster.of_run is not None
    assert faster.of_run.value > 1.35
    slower = judge(VARIANT, with_rollouts(trial(quiet(), VARIANT, speed=1.2), 0.5), other=ROLLOUTS)
    assert slower.verdict is TrialVerdict.SLOWER


def test_nothing_is_adopted_of_a_run_without_a_control() -> None:
    runs = tuple(each for each in trial(quiet(), VARIANT, speed=3.0) if each.variant != CONTROL)
    assert judge(VARIANT, runs, other=OtherWork(0.3, "rollout", 5.0)).verdict is TrialVerdict.UNDECIDED


def test_memory_is_that_of_the_run() -> None:
    runs = peaks(trial(quiet(), VARIANT, speed=0.7), 600_000_000)
    assert judge(VARIANT, runs, goal=Goal.MEMORY, other=ROLLOUTS).verdict is TrialVerdict.ADOPT
