"""What one process has shown, and what processes of the set make of it."""

from __future__ import annotations

from dataclasses import replace

from trials.test_blocks import record

from steptime.advice.fix import Promise
from steptime.advice.whole_run import OtherWork
from steptime.changes import Change
from steptime.quantities import Estimate
from steptime.trials.blocks import BlockRecord, FirstSteps, SwitchedChange
from steptime.trials.switched import Switched
from steptime.trials.trial import Agreement, Judgement, TrialVerdict, Variant

FUSED = Variant("RM201", (Change("optimizer", arguments=(("fused", True),)),), "RM201", "AdamW(fused=True)")
CAST = Variant("RM301", (Change("autocast"),), "RM301", "bfloat16 autocast", Promise.SAME_CURVE)
COMPILED = Variant("RM303", (Change("compile"),), "RM303", "torch.compile(model)", Promise.SAME_CURVE)
SET = Judgement(Variant("patch"), TrialVerdict.ADOPT, Agreement.SAME_CURVE, "Losses lie in the band of 3 seeds")


def displayed(taken: int = 3, record_: BlockRecord | None = None) -> Switched:
    known = record({1: 1.5, 2: 1.2, 4: 1.0, 3: 1.8}) if record_ is None else record_
    return Switched((FUSED, CAST, COMPILED), known, taken, 0.03)


def verdicts(switched: Switched, confirmed: Judgement | None) -> list[TrialVerdict]:
    return [each.verdict for each in switched.judgements(confirmed)]


def test_what_pays_is_adopted_when_its_processes_train_as_promised() -> None:
    found = displayed().judgements(SET)
    assert [each.verdict for each in found] == [TrialVerdict.ADOPT, TrialVerdict.ADOPT, TrialVerdict.NO_EFFECT]
    assert found[0].agreement is Agreement.SAME_CURVE
    assert found[0].sentence.startswith("8 pairs of blocks in one process: losses lie in the band")
    assert found[0].speed is not None
    assert 1.45 < found[0].speed.low < found[0].speed.high < 1.55


def test_nothing_is_adopted_whose_training_was_not_compared() -> None:
    undecided = [TrialVerdict.UNDECIDED, TrialVerdict.UNDECIDED, TrialVerdict.NO_EFFECT]
    assert verdicts(displayed(), None) == undecided
    assert (
        verdicts(displayed(), replace(SET, verdict=TrialVerdict.FAILED, sentence="It ended with status 1")) == undecided
    )
    assert verdicts(displayed(), replace(SET, agreement=Agreement.NOT_SEEN)) == undecided


def test_a_set_that_trains_otherwise_breaks_the_promise_of_its_parts() -> None:
    apart = replace(SET, verdict=TrialVerdict.BROKE_PROMISE, agreement=Agreement.APART)
    assert verdicts(displayed(), apart)[:2] == [TrialVerdict.BROKE_PROMISE] * 2


def test_a_gain_that_processes_contradict_is_not_adopted() -> None:
    slower = replace(SET, verdict=TrialVerdict.SLOWER, speed=Estimate(0.8, 0.7, 0.9, 3, "1"))
    assert verdicts(displayed(), slower)[:2] == [TrialVerdict.UNDECIDED] * 2


def test_what_is_taken_is_one_variant_with_the_weaker_promise() -> None:
    found = displayed().together()
    assert found is not None
    assert found.variant.name == "RM201+RM301"
    assert found.variant.promise is Promise.SAME_CURVE
    assert found.speed is not None
    assert 1.7 < found.speed.value < 1.9
    assert displayed(taken=0).together() is None


def test_what_did_not_act_says_why() -> None:
    known = record({1: 1.5, 2: 1.2, 4: 1.0})
    idle = FirstSteps(4, (1, 1, 1), (SwitchedChange(True, False, "nothing was compiled"),))
    (found,) = displayed(3, replace(known, first=(*known.first[:2], idle))).judgements(SET)[2:]
    assert (found.verdict, found.sentence) == (TrialVerdict.NOT_EXERCISED, "nothing was compiled")


def test_what_was_not_begun_is_tried_by_processes_unless_it_rivals_what_is_taken() -> None:
    known = record({1: 1.5, 2: 1.2})
    rival = replace(COMPILED, changes=FUSED.changes)
    assert not displayed(3, known).proved(COMPILED)
    references = Switched((FUSED, CAST, rival), known, 3, 0.03)
    assert references.proved(rival)
    assert "no time was left to compile" in references.judgements(SET)[2].sentence


def test_what_failed_in_the_process_is_tried_by_processes() -> None:
    assert not displayed().proved(Variant("RM202", label="it was left out of the second attempt"))


def test_a_compilation_is_named_with_its_price() -> None:
    known = record({1: 1.5, 2: 1.2, 4: 1.4, 7: 2.0})
    slow = FirstSteps(4, (24_000_000_000, 21_000_000, 21_000_000), known.first[2].changes)
    found = displayed(7, replace(known, first=(*known.first[:2], slow, known.first[3]))).judgements(SET)
    assert found[2].sentence.endswith("its first steps take 24.0 s longer")


def test_a_gain_of_steps_that_are_little_of_the_run_is_one_of_the_step_only() -> None:
    little = replace(displayed(), other=OtherWork(0.97, "rollout", 320.0))
    found = little.judgements(SET)
    assert [each.verdict for each in found] == [TrialVerdict.STEP_ONLY] * 2 + [TrialVerdict.NO_EFFECT]
    assert found[0].of_run is not None
    assert found[0].of_run.high < 1.02
    assert verdicts(replace(displayed(), other=OtherWork(0.5, "rollout", 5.0)), SET)[:2] == [TrialVerdict.ADOPT] * 2
    apart = tuple(replace(each, apart=True) for each in little.record.blocks)
    held = replace(little, record=replace(little.record, blocks=apart))
    (first, *_) = held.judgements(SET)
    assert (first.verdict, first.of_run) == (TrialVerdict.ADOPT, None), "its blocks are of the run"
    assert first.sentence.startswith("8 pairs of blocks in one process, rollouts included: ")
    assert verdicts(held, replace(SET, verdict=TrialVerdict.STEP_ONLY))[0] is TrialVerdict.STEP_ONLY
    broken = replace(SET, agreement=Agreement.APART)
    assert verdicts(little, broken)[0] is TrialVerdict.BROKE_PROMISE, "other training comes first"
