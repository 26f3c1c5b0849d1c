"""The bottleneck is said only as far as the numbers carry."""

from __future__ import annotations

from dataclasses import replace

from steptime.advice.bottleneck import bottleneck
from steptime.advice.evidence import Case, CategoryUse, RankUse, StepSummary
from steptime.advice.rule import Finding, Weight
from steptime.quantities import Estimate

STEP = StepSummary(Estimate(100.0, 99.0, 101.0, 50), 60, 50, 5, "optimizer", "cpu")


def use(name: str, value: float, spread: float) -> CategoryUse:
    estimate = Estimate(value, value - spread, value + spread, 50)
    return CategoryUse(name, estimate, estimate)


def case(*uses: CategoryUse) -> Case:
    return Case(step=STEP, categories=uses)


def test_the_category_with_the_most_to_recover_is_the_bottleneck_with_its_interval() -> None:
    found = bottleneck(case(use("compute", 20, 2), use("input", 60, 3), use("python", 5, 1)))
    assert found.name == "input"
    assert found.share is not None
    assert (found.share.value, found.share.low, found.share.high, found.share.unit) == (0.6, 0.57, 0.63, "1")
    assert found.sentence == "Bound by waiting for input: without it a step would be 60 % (57 to 63 %) shorter."


def test_what_counts_is_what_can_be_recovered_not_what_is_spent() -> None:
    compute = CategoryUse("compute", Estimate(80, 79, 81, 50), Estimate(10, 9, 11, 50))
    assert bottleneck(case(compute, use("overhead", 16, 1))).name == "overhead"


def test_nothing_worth_a_tenth_is_balanced() -> None:
    assert bottleneck(case(use("input", 6, 1), use("python", 5, 1))).name == "balanced"


def test_a_step_that_computes_and_could_hardly_do_without_the_rest_is_bound_by_computing() -> None:
    compute = CategoryUse("compute", Estimate(80, 79, 81, 50), Estimate(0, 0, 0, 50))
    found = bottleneck(case(compute, use("overhead", 12, 1)))
    assert found.name == "compute"
    assert (
        found.sentence == "Bound by computing, 80 % (79 to 81 %) of a step: no account could give back more than 12 %."
    )


def test_what_computing_could_give_back_is_what_a_finding_says() -> None:
    compute = CategoryUse("compute", Estimate(80, 79, 81, 50), Estimate(0, 0, 0, 50))
    fusion = Finding("ST401", "chain", Weight.FINDING, "x", "y.", Estimate(30, 25, 40, 50), category="compute")
    found = bottleneck(case(compute, use("overhead", 17, 1)), (fusion,))
    assert found.name == "compute"
    assert found.share is not None
    assert found.share.value == 0.3


def test_a_doubt_counts_more_than_a_clear_category() -> None:
    doubt = Finding("ST804", "few-steps", Weight.DOUBT, "Only 3 steps", "Wait.")
    assert bottleneck(case(use("input", 90, 1)), (doubt,)).name == "undecided"


def test_two_categories_within_each_others_narrow_intervals_are_balanced() -> None:
    found = bottleneck(case(use("input", 32, 3), use("overhead", 30, 3)))
    assert found.name == "balanced"
    assert "waiting for input" in found.sentence
    assert "operator overhead" in found.sentence


def test_two_categories_within_wide_intervals_are_undecided() -> None:
    found = bottleneck(case(use("input", 40, 25), use("overhead", 30, 20)))
    assert found.name == "undecided"
    assert "measure more steps" in found.sentence


def test_a_doubt_makes_it_undecided_and_is_named() -> None:
    doubt = Finding("ST802", "background-load", Weight.DOUBT, "Other processes used 1.5 of 2 CPUs", "Wait.")
    found = bottleneck(case(use("input", 60, 3)), (doubt,))
    assert found.name == "undecided"
    assert found.sentence.startswith("Undecided: other processes used 1.5 of 2 CPUs.")
    assert "Most of a step was waiting for input (60 %)" in found.sentence


def test_without_a_breakdown_it_is_undecided() -> None:
    assert bottleneck(case()).name == "undecided"
    assert bottleneck(
        Case(StepSummary(Estimate(0, 0, 0, 0), 0, 0, 0, "optimizer", "cpu"), (use("input", 1, 0),))
    ).name == ("undecided")


def test_without_a_profile_it_says_so_and_names_the_longest_phase() -> None:
    phases = [CategoryUse(name, Estimate(40, 39, 41, 9), Estimate(0, 0, 0, 9)) for name in ("forward", "backward")]
    found = bottleneck(case(*phases, use("input", 5, 1)))
    assert found.name == "undecided"
    assert "no step was profiled" in found.sentence
    assert "pass took 40 %" in found.sentence


def test_a_rank_that_waits_for_another_says_so_and_the_late_one_says_that_it_is_late() -> None:
    ranks = tuple(RankUse(number, 100, 60, wait, last) for number, wait, last in ((0, 50, 0), (1, 1, 1), (2, 49, 0)))
    late = replace(case(use("communication", 60, 3), use("input", 5, 1)), ranks=ranks, rank=0)
    early = bottleneck(late)
    assert early.name == "communication"
    assert "waiting for rank 1" in early.sentence
    assert bottleneck(replace(late, rank=1)).sentence.startswith("The other ranks wait for rank 1.")
    assert "rank" not in bottleneck(replace(late, ranks=())).sentence
