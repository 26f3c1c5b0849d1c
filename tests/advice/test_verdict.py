"""The verdict: the answer first, then how sure it is and why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from steptime.advice.evidence import Case, OptimizerUse, PathUse
from steptime.advice.rule import Finding, Weight
from steptime.advice.run_uses import (
    CategoryUse,
    Contention,
    HolderUse,
    MemoryUse,
    SegmentLine,
    SegmentUse,
    StepSummary,
)
from steptime.advice.verdict import verdict, with_savings, worsening
from steptime.analysis.stragglers.comparison import Straggler
from steptime.quantities import Estimate, SourceLine

ONE, MUCH = Estimate(1, 1, 1, 50), Estimate(50, 49, 51, 50)
STEP = StepSummary(Estimate(100.0, 99.0, 101.0, 50), 60, 50, 5, "optimizer", "cpu")


def use(name: str, value: float, spread: float) -> CategoryUse:
    estimate = Estimate(value, value - spread, value + spread, 50)
    return CategoryUse(name, estimate, estimate)


def case(*uses: CategoryUse) -> Case:
    return Case(step=STEP, categories=uses)


def test_the_category_with_the_most_to_recover_is_the_bottleneck_with_its_share() -> None:
    found = verdict(case(use("compute", 20, 2), use("input", 60, 3), use("python", 5, 1)))
    assert found.bottleneck == "input"
    assert found.share is not None
    assert (found.share.value, found.share.low, found.share.high, found.share.unit) == (0.6, 0.57, 0.63, "1")
    assert found.sentence == "Waiting for input: 60 ns of 100 ns per step (60 %)."
    assert found.badge == "Confident: 50 steps, ± 1 ns."


def test_the_line_that_most_of_the_forward_pass_is_at_is_named() -> None:
    seen = case(use("compute", 90, 2), use("python", 5, 1))
    lookup, head = SourceLine("model.py", 27, "forward"), SourceLine("model.py", 28, "forward")
    paths = (PathUse(60, "forward", (lookup,)), PathUse(20, "forward", (head,)), PathUse(90, "optimizer", (head,)))
    amount = "Computing: 90 ns of 100 ns per step (90 %)"
    assert verdict(replace(seen, paths=paths)).sentence == f"{amount}; 75 % of the forward pass at model.py:27."
    even = tuple(PathUse(20, "forward", (SourceLine("model.py", line, "forward"),)) for line in range(3, 9))
    assert verdict(replace(seen, paths=even)).sentence == f"{amount}."
    assert verdict(replace(seen, paths=paths[:1])).sentence == f"{amount}.", "the only line of a model says nothing"
    phases = (use("forward", 10, 1), use("backward", 20, 1), use("optimizer", 60, 2))
    adam = OptimizerUse("Adam", Estimate(60.0, 58.0, 62.0, 50), 12, 1_000_000)
    updating = replace(seen, paths=paths, phases=phases, optimizers=(adam,))
    assert verdict(updating).sentence == f"{amount}; Adam takes 60 % of the step."
    both = (replace(adam, duration=Estimate(35.0, 33.0, 37.0, 50)), replace(adam, type="SGD", duration=ONE))
    assert verdict(replace(updating, optimizers=both)).sentence == f"{amount}; Adam takes 35 % of the step."
    device = replace(seen, paths=paths, step=replace(seen.step, device="cuda"))
    assert "forward" not in verdict(device).sentence, "there the host's lines say where it waits"


def test_a_finding_of_no_category_alone_writes_the_headline_where_it_saves_most() -> None:
    saving = Estimate(30.0, 28.0, 32.0, 50)
    loop = Finding("ST301", "dispatch-loop", Weight.FINDING, "a.py:3 calls 9 operators", "y.", saving, "")
    seen = case(use("overhead", 25, 2), use("python", 20, 1))
    assert verdict(seen, (loop,)).sentence == "a.py:3 calls 9 operators."
    small = verdict(seen, (replace(loop, savings=ONE),)).sentence
    assert small == "Operator overhead: 25 ns of 100 ns per step (25 %). Also: your own Python 20 ns (20 %)."


def test_work_that_runs_well_but_need_not_run_writes_the_headline() -> None:
    """It is above no roofline, so that no category could give it back."""
    saving = Estimate(55.0, 50.0, 60.0, 50)
    muon = Finding(
        "ST501", "optimizer-share", Weight.FINDING, "Muon takes 55 ns", "y.", saving, "", SourceLine("m.py", 11)
    )
    compute = replace(use("compute", 96, 2), recoverable=Estimate(11.0, 10.0, 12.0, 50))
    found = verdict(case(compute, use("python", 2, 1)), (muon,))
    assert (found.bottleneck, found.sentence) == ("compute", "Muon takes 55 ns, at m.py:11.")
    assert verdict(case(compute, use("python", 2, 1)), (replace(muon, savings=ONE),)).sentence.startswith("Computing")


def test_the_line_of_a_small_finding_stands_behind_the_category() -> None:
    elsewhere = Finding("ST201", "python-time", Weight.FINDING, "x", "y.", ONE, "python", SourceLine("a.py", 3))
    slow = Finding("ST101", "input-wait", Weight.FINDING, "x", "y.", ONE, "input", SourceLine("train.py", 80))
    found = verdict(case(use("input", 60, 1), use("python", 5, 1)), (elsewhere, slow))
    assert (
        found.sentence
        == "Waiting for input: 60 ns of 100 ns per step (60 %); 1 ns of it could be saved at train.py:80."
    )


def test_the_first_finding_writes_the_headline_with_its_line_once() -> None:
    message = "Tensors in memory are read one by one, 55 ns per step (55 %)"
    why = Finding("ST105", "per-sample-fetch", Weight.FINDING, message, "y.", MUCH, "input", SourceLine("data.py", 12))
    assert verdict(case(use("input", 60, 1)), (why,)).sentence == f"{message}, at data.py:12."
    named = replace(why, summary="data.py:12 takes 55 ns per step (55 %)")
    assert verdict(case(use("input", 60, 1)), (named,)).sentence == "data.py:12 takes 55 ns per step (55 %)."


def test_the_finding_that_saves_most_of_the_category_writes_the_headline_before_a_smaller_one() -> None:
    small = Finding("ST503", "one-by-one", Weight.FINDING, "Adam is slow", "y.", ONE, "python", SourceLine("a.py", 3))
    large = Finding("ST201", "python-time", Weight.FINDING, "a.py:9 is slow", "y.", MUCH, "python", None)
    found = verdict(case(use("python", 60, 1)), (small, large))
    assert found.sentence == "a.py:9 is slow."


def test_what_no_finding_saves_is_not_said_to_be_saved() -> None:
    slow = replace(use("compute", 40, 2), recoverable=Estimate(29.0, 25.0, 33.0, 50))
    assert "could be saved" not in verdict(case(use("input", 55, 1), slow)).sentence


def test_of_several_costs_the_largest_comes_first_and_two_more_next_to_it() -> None:
    found = verdict(case(use("input", 30, 1), use("overhead", 25, 1), use("python", 20, 1), use("sync", 16, 1)))
    assert found.sentence == (
        "Waiting for input: 30 ns of 100 ns per step (30 %). Also: operator overhead 25 ns (25 %) and your own "
        "Python 20 ns (20 %)."
    )
    message = "`decode` reads one item after the other, 29 ns per step (29 %)"
    why = Finding("ST105", "per-sample-fetch", Weight.FINDING, message, "y.", MUCH, "input", SourceLine("data.py", 12))
    reported = verdict(case(use("input", 30, 1), use("overhead", 25, 1), use("python", 20, 1)), (why,)).sentence
    assert reported.startswith(f"{message}, at data.py:12. Also: operator overhead 25 ns (25 %)")


def test_what_else_takes_time_is_the_longest_of_the_others() -> None:
    seen = case(replace(use("compute", 90, 1), recoverable=use("", 11, 1).duration), use("python", 5, 1))
    assert verdict(seen).sentence == "Computing: 90 ns of 100 ns per step (90 %); nothing else takes more than 5.0 %."


def test_few_steps_are_reported_by_the_shortest_and_the_longest() -> None:
    few = replace(STEP, steady=4, shortest=90, longest=1076)
    found = verdict(replace(case(use("input", 60, 1)), step=few))
    assert found.badge == "Likely: 4 steps, 90 ns to 1.08 µs long."


def test_rollouts_that_take_most_of_the_run_come_before_the_step() -> None:
    lines = (
        SegmentLine(SourceLine("ppo.py", 21, "collect", "obs, reward, done = env.step(action)"), 0.71),
        SegmentLine(SourceLine("ppo.py", 20, "collect", "action = policy(obs).argmax()"), 0.2),
    )
    rollouts = SegmentUse("rollout", 30, 9_100, 0.91, forward=0.18, lines=lines)
    found = verdict(replace(case(use("input", 60, 1)), segments=(rollouts,)))
    assert found.sentence == (
        "Rollouts take 91 % of the run: 71 % of that in the environment at ppo.py:21, 20 % at ppo.py:20; the models' "
        "forward takes 18 %. Waiting for input: 60 ns of 100 ns per step (60 %)."
    )


def test_shares_of_lines_that_were_slowed_much_are_not_reported() -> None:
    lines = (SegmentLine(SourceLine("rl.py", 34, "rollout", "p = policy(state)"), 0.99),)
    rollouts = SegmentUse("rollout", 30, 9_100, 0.8, forward=0.53, lines=lines, slowed=14.0)
    message = verdict(replace(case(use("input", 60, 1)), segments=(rollouts,))).sentence
    assert message.startswith(
        "Rollouts take 80 % of the run: most of that at rl.py:34; the models' forward takes 53 %. "
    )


def test_a_tensor_that_is_made_on_a_cpu_is_no_transfer() -> None:
    lines = (SegmentLine(SourceLine("rl.py", 34, "rollout", "p = policy(torch.tensor(state))"), 0.9),)
    seen = replace(case(use("input", 60, 1)), segments=(SegmentUse("rollout", 30, 9_100, 0.91, lines=lines),))
    assert "90 % of that at rl.py:34." in verdict(seen).sentence
    on_device = replace(seen, step=replace(STEP, device="cuda"))
    assert "90 % of that in transfers at rl.py:34." in verdict(on_device).sentence


def test_what_else_a_good_part_of_the_run_goes_to_stands_behind_the_step() -> None:
    saved = SegmentUse("checkpoint", 3, 2_300, 0.23, forward=0.0, lines=())
    waiting = "Waiting for input: 60 ns of 100 ns per step (60 %)."
    found = verdict(replace(case(use("input", 60, 1)), segments=(saved,)))
    assert found.sentence == f"{waiting} Writing checkpoints takes 23 % of the run besides."
    assert verdict(replace(case(use("input", 60, 1)), segments=(replace(saved, share=0.1),))).sentence == waiting


def test_what_counts_is_what_can_be_recovered_not_what_is_spent() -> None:
    compute = CategoryUse("compute", Estimate(80, 79, 81, 50), Estimate(10, 9, 11, 50))
    assert verdict(case(compute, use("overhead", 16, 1))).bottleneck == "overhead"


def test_nothing_worth_a_tenth_is_balanced() -> None:
    assert verdict(case(use("input", 6, 1), use("python", 5, 1))).bottleneck == "balanced"


def test_a_step_that_computes_and_could_hardly_do_without_the_rest_is_bound_by_computing() -> None:
    compute = CategoryUse("compute", Estimate(80, 79, 81, 50), Estimate(0, 0, 0, 50))
    found = verdict(case(compute, use("overhead", 12, 1)))
    assert found.bottleneck == "compute"
    expected = "Computing: 80 ns of 100 ns per step (80 %); nothing else takes more than 12 %."
    assert found.sentence == expected


def test_what_computing_could_give_back_is_what_a_finding_says() -> None:
    compute = CategoryUse("compute", Estimate(80, 79, 81, 50), Estimate(0, 0, 0, 50))
    fusion = Finding("ST401", "chain", Weight.FINDING, "x", "y.", Estimate(30, 25, 40, 50), category="compute")
    reported = with_savings(case(compute, use("overhead", 17, 1)), (fusion,))
    assert [each.recoverable.value for each in reported.categories] == [30, 17]
    found = verdict(reported, (fusion,))
    assert found.bottleneck == "compute"
    assert found.share is not None
    assert found.share.value == 0.3
    assert found.sentence == "x. Also: operator overhead 17 ns (17 %)."


def test_a_doubt_leaves_the_answer_and_says_how_sure_it_is() -> None:
    caveat = Finding("ST804", "few-steps", Weight.CAVEAT, "Only 3 of 8 steps were steady", "Wait.")
    found = verdict(case(use("input", 90, 1)), (caveat,))
    assert found.sentence.startswith("Waiting for input: 90 ns of 100 ns per step")
    assert found.badge == "Likely: only 3 of 8 steps were steady."


@pytest.mark.parametrize(("spread", "confidence"), [(0.04, "likely"), (0.5, "unclear")])
def test_other_programs_count_as_far_as_the_steps_felt_them(spread: float, confidence: str) -> None:
    caveat = Finding("ST802", "background-load", Weight.CAVEAT, "Other processes used 1.5 of 2 CPUs", "Wait.")
    loaded = replace(case(use("input", 60, 1)), contention=Contention(0.5, 1.5, 2, 20.0, spread, 0.0, 50))
    found = verdict(loaded, (caveat,))
    assert (found.bottleneck, found.confidence) == ("input", confidence)
    assert found.reason == "Other processes used 1.5 of 2 CPUs"


def test_the_gravest_doubt_is_the_one_that_is_reported() -> None:
    few = Finding("ST804", "few-steps", Weight.CAVEAT, "Only 3 steps", "Wait.")
    untraced = Finding("ST807", "device-not-traced", Weight.CAVEAT, "No kernel was recorded", "Trace.")
    found = verdict(case(use("input", 60, 1)), (few, untraced))
    assert (found.confidence, found.reason) == ("unclear", "No kernel was recorded")


def test_one_step_is_reported_as_what_it_is() -> None:
    found = verdict(replace(case(use("input", 60, 0)), step=replace(STEP, steady=1, total=1)))
    assert "60 ns of 100 ns in this step" in found.sentence


def test_two_categories_within_each_others_narrow_intervals_are_balanced() -> None:
    found = verdict(case(use("input", 32, 3), use("overhead", 30, 3)))
    assert found.bottleneck == "balanced"
    assert found.sentence.startswith("Waiting for input: 32 ns")
    assert "operator overhead" in found.sentence


def test_of_two_categories_within_wide_intervals_both_are_named_and_none_is_sure() -> None:
    found = verdict(case(use("input", 40, 25), use("overhead", 30, 20)))
    assert (found.bottleneck, found.confidence) == ("input", "unclear")
    assert "operator overhead" in found.sentence
    assert found.reason == "50 steps, ± 1 ns; measure more of them"


def test_what_is_several_times_the_rest_is_likely_however_much_the_steps_differ() -> None:
    found = verdict(case(use("overhead", 90, 80), use("compute", 9, 8)))
    assert (found.bottleneck, found.confidence) == ("overhead", "likely")
    assert found.sentence == "Operator overhead: 90 ns of 100 ns per step (90 %)."


def test_without_a_breakdown_nothing_is_known() -> None:
    assert verdict(case()).bottleneck == "unknown"
    nothing = StepSummary(Estimate(0, 0, 0, 0), 0, 0, 0, "optimizer", "cpu")
    assert verdict(Case(nothing, (use("input", 1, 0),))).bottleneck == "unknown"


def test_without_a_profile_it_names_the_longest_phase_and_says_so() -> None:
    phases = [CategoryUse(name, Estimate(40, 39, 41, 9), Estimate(0, 0, 0, 9)) for name in ("forward", "backward")]
    found = verdict(case(*phases, use("input", 5, 1)))
    assert found.bottleneck in ("forward", "backward")
    assert "pass: 40 ns of 100 ns per step" in found.sentence
    assert found.badge.startswith("Likely: no step was profiled")


def test_a_rank_that_waits_for_another_says_so_and_the_late_one_says_that_it_is_late() -> None:
    straggler = Straggler((1,), "", 50, 1.0, "", 0.0, (), MUCH)
    late = replace(case(use("communication", 60, 3), use("input", 5, 1)), straggler=straggler, rank=0)
    early = verdict(late)
    assert early.bottleneck == "communication"
    assert early.sentence.startswith("Waiting for rank 1: ")
    straggling = verdict(replace(late, rank=1)).sentence
    assert straggling.startswith("Rank 1 is the straggler: the others wait 50 ns per step (50 %) for it. ")
    assert "rank" not in verdict(replace(late, straggler=None)).sentence


def test_that_a_rank_is_late_is_reported_once() -> None:
    straggler = Straggler((1,), "", 50, 1.0, "", 0.0, (), MUCH)
    late = replace(case(use("input", 60, 3)), straggler=straggler, rank=1)
    message = Finding(
        "ST806",
        "straggler",
        Weight.FINDING,
        "Rank 1 is the straggler: the others wait 50 ns per step (50 %) for it",
        "Mend it.",
        MUCH,
    )
    assert verdict(late, [message]).sentence.count("others wait") == 1


def test_what_takes_most_of_the_step_is_reported_before_what_little_of_it_could_be_saved() -> None:
    made_of = Finding("ST908", "compute-share", Weight.NOTE, "Computing takes 78 ns per step (78 %): mm 60 ns",
                      "Try it.", category="compute")  # fmt: skip
    nothing = Estimate(0.0, 0.0, 0.0, 50)
    message = verdict(
        case(replace(use("compute", 78, 0), recoverable=nothing), use("python", 16, 1)), [made_of]
    ).sentence
    assert (
        message == "Computing takes 78 ns per step (78 %): mm 60 ns. Your own Python: 16 ns of 100 ns per step (16 %)."
    )
    waits = verdict(case(replace(use("compute", 55, 0), recoverable=nothing), use("input", 45, 1)), [made_of]).sentence
    assert waits.startswith("Waiting for input")


def test_a_saving_of_no_category_is_one_of_the_step() -> None:
    place = SourceLine("train.py", 9, "main", "optimizer.step()")
    found = Finding("ST501", "optimizer-share", Weight.FINDING, "SGD takes 15 ns", "Fuse it.", Estimate(14, 13, 15, 50),
                    source=place)  # fmt: skip
    message = verdict(case(use("python", 43, 1), use("input", 2, 1)), [found]).sentence
    assert message.endswith("; 14 ns of the step could be saved at train.py:9.")


def test_growth_that_nothing_was_seen_to_keep_leads_only_as_far_as_the_run_can_tell() -> None:
    """Sixty steps of 100 ns were seen: memory that is full after a thousand more leads, after a million it may be a
    buffer; a list that holds it leads either way."""
    growth = Estimate(8.0, 7.0, 9.0, 50, "bytes")
    memory = MemoryUse("cpu", 0, capacity=8_000, growth=growth, grows=True, grown=1 << 20)
    seen = case(use("compute", 90, 2))
    assert worsening(replace(seen, memory=memory)) == "memory-leak"
    far = replace(memory, capacity=8_000_000)
    assert worsening(replace(seen, memory=far)) == ""
    held = replace(far, holders=(HolderUse("list", "outputs", 1.0, 8.0),))
    assert worsening(replace(seen, memory=held)) == "memory-leak"
