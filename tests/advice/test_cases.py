"""Each rule fires on its planted cases and is silent on the clean ones, traps included."""

from __future__ import annotations

import msgspec
import pytest
from advice.every_case import ALL, CLEAN, FIRING, check_all, examined
from advice.planted import PLANTED

from steptime.advice.engine import LEAST_SHARE
from steptime.advice.evidence import Case
from steptime.advice.rule import Examination, Finding, Weight
from steptime.advice.rules import CATALOGUE
from steptime.advice.savings import named

LONGEST_SUMMARY = 110
NAMES = {rule.name for rule in CATALOGUE}


def look(rule: str, name: str) -> Examination:
    examination = examined(rule, name)
    assert not examination.failed
    return examination


def chosen(rule: str, name: str) -> list[Finding]:
    return [finding for finding in look(rule, name).findings if finding.name == rule]


def test_every_rule_has_a_firing_and_a_clean_case_and_no_case_lacks_its_rule() -> None:
    for kind in (FIRING, CLEAN):
        assert {rule for rule, _ in kind} == NAMES
    assert sorted(FIRING + CLEAN) == ALL


def test_a_case_survives_a_round_trip_through_json() -> None:
    def law(_rule: str, _name: str, case: Case) -> None:
        assert msgspec.json.decode(msgspec.json.encode(case), type=Case) == case

    check_all(law)


def why_not(rule: str, name: str) -> str:
    """What became of a finding that the examination does not have."""
    case, made = PLANTED[rule][name], next(each for each in CATALOGUE if each.name == rule)
    if missing := made.evidence.missing_in(case):
        return f"the case lacks {', '.join(missing)}"
    own = made(case)
    if not own:
        return "the rule finds nothing in this case"
    savings, category = own[0].savings, named(case.categories, own[0].category)
    return (
        f"the rule finds {own[0].summary!r} and saves {savings.value if savings else 0:,.0f} ns; its category "
        f"{own[0].category!r} has {category.duration.value if category else 0:,.0f} ns in the case. examine() "
        f"caps savings by the category, then drops what is under {LEAST_SHARE:.0%} of the step or superseded"
    )


def test_a_rule_fires_first_on_its_own_fault() -> None:
    def law(rule: str, name: str, _case: Case) -> None:
        findings = look(rule, name).findings
        mine = [finding for finding in findings if finding.name == rule]
        assert mine, why_not(rule, name)
        if mine[0].weight is Weight.FINDING:
            assert findings[0].name == rule

    check_all(law, FIRING)


def test_a_rule_is_silent_on_a_clean_case() -> None:
    def law(rule: str, name: str, _case: Case) -> None:
        assert not chosen(rule, name)

    check_all(law, CLEAN)


def test_what_is_reported_is_short_has_numbers_and_stays_within_its_category() -> None:
    def law(rule: str, name: str, case: Case) -> None:
        for finding in examined(rule, name).findings:
            assert len(finding.summary) <= LONGEST_SUMMARY, finding.summary
            assert finding.advice.endswith(".")
            if finding.savings is None:
                assert finding.weight is not Weight.FINDING
                continue
            category = named(case.categories, finding.category)
            if category is not None:
                assert finding.savings.value <= category.duration.value
            if finding.name != "recompilation":  # the steps that compile are not among the steady ones
                assert finding.savings.value <= case.step.duration.value
            assert finding.savings.value >= 0.02 * case.step.duration.value

    check_all(law)


def test_nothing_at_all_is_found_in_a_healthy_job() -> None:
    """But for what it is made of: it computes."""
    assert [each.name for each in look("input-wait", "clean").findings] == ["compute-share"]


def test_what_a_function_has_made_is_freed_in_the_line_that_calls_it_and_goes_with_the_call() -> None:
    (found,) = chosen("python-time", "fires-with-what-its-call-frees")
    assert found.savings is not None
    assert found.savings.value == pytest.approx(6e6, rel=0.05)
    assert "job.py:15, called at train.py:" in found.summary


def test_of_slow_steps_with_a_line_the_part_of_the_line_is_to_be_saved_there() -> None:
    (found,) = chosen("periodic-steps", "fires-with-the-part-of-a-line")
    assert found.savings is not None
    assert found.savings.value == pytest.approx(6e6)


def test_what_a_line_does_in_every_fourth_step_is_reported_once_and_by_what_it_does() -> None:
    planted = ("list-conversion", "fires-in-every-fourth-step")
    (found,) = chosen(*planted)
    assert "periodic-steps" not in {each.name for each in look(*planted).findings}
    assert any("Every 4th step" in each for each in found.evidence)
