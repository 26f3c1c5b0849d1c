"""A gate fails what is beyond a bound for certain, and nothing else unless it is told to."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest
from documents import html_of, markdown_of, text_of
from report.stored_reports import QUIET, case_of, longer_by, step_of, stored, with_process

from steptime.compare import gate
from steptime.compare.answer import answer_of
from steptime.compare.compare import compare
from steptime.compare.comparison import Comparison, Ruling
from steptime.compare.gate import bounds_of, fails, judged
from steptime.errors import UsageError
from steptime.report.report import Report


def ruled(bounds: str, before: Report, after: Report) -> Comparison:
    return judged(compare((before, after), ("a", "b")), bounds_of(bounds))


def rulings(bounds: str, before: Report, after: Report) -> list[Ruling]:
    return [check.ruling for check in ruled(bounds, before, after).checks]


def grown(share: float) -> tuple[Report, Report]:
    before = stored("quiet-1")
    return before, longer_by(before, "python", share * step_of(before))


@pytest.mark.parametrize(
    ("share", "bound", "expected"),
    [
        (0.30, "step>5%", Ruling.BREACHED),
        (0.30, "step>5ms", Ruling.BREACHED),
        (0.30, "step>60%", Ruling.PASSED),
        (0.30, "step>1s", Ruling.PASSED),
        (0.30, "step>30%", Ruling.UNDECIDED),
        (0.06, "step>5%", Ruling.UNDECIDED),
        (0.00, "step>10%", Ruling.PASSED),
        (0.00, "step>0.1%", Ruling.UNDECIDED),
        (-0.2, "step>1%", Ruling.PASSED),
        (0.30, "python>50%", Ruling.BREACHED),
        (0.30, "python > 1000 us", Ruling.BREACHED),
        (0.30, "INPUT>5%", Ruling.PASSED),
        (0.30, "communication>5%", Ruling.PASSED),
        (0.30, "sync>1us", Ruling.PASSED),
    ],
)
def test_a_bound_holds_is_breached_or_is_undecided(share: float, bound: str, expected: Ruling) -> None:
    comparison = ruled(bound, *grown(share))
    (check,) = comparison.checks
    assert check.ruling is expected, check
    assert fails(comparison, strict=False) is (expected is Ruling.BREACHED)
    assert fails(comparison, strict=True) is (expected is not Ruling.PASSED)


def test_a_category_that_was_not_there_breaches_any_bound_that_is_relative_to_it() -> None:
    before = stored("quiet-1")
    assert "sync" not in {use.name for use in case_of(before).categories}
    assert rulings("sync>5%, sync>5ms", before, longer_by(before, "sync", 10e6)) == [Ruling.BREACHED] * 2


def test_memory_has_bounds_in_bytes_and_percent() -> None:
    before = with_process(stored("quiet-1"), peak_bytes=1_000_000_000)
    after = with_process(stored("quiet-1"), peak_bytes=1_500_000_000)
    expected = [Ruling.BREACHED, Ruling.BREACHED, Ruling.PASSED]
    assert rulings("memory>10%, memory>100MB, memory>1GiB", before, after) == expected


def test_what_was_not_measured_is_undecided() -> None:
    before = with_process(stored("quiet-1"), peak_bytes=None)
    comparison = ruled("memory>10%", before, stored("quiet-2"))
    (check,) = comparison.checks
    assert check.ruling is Ruling.UNDECIDED
    assert check.sentence == "memory was not measured on both sides"


def test_alongside_other_programs_no_bound_on_time_is_breached() -> None:
    before = stored("quiet-1")
    slow = stored("busy-1")
    comparison = ruled("step>5%, input>1ms", before, slow)
    assert [check.ruling for check in comparison.checks] == [Ruling.UNDECIDED] * 2
    assert "shared the CPUs" in comparison.checks[0].sentence
    assert not fails(comparison, strict=False)
    assert fails(comparison, strict=True)
    for document in (
        text_of(comparison, answer_of),
        markdown_of(comparison, answer_of),
        html_of(comparison, answer_of).partition("<script")[0],
    ):
        assert document.count("shared the CPUs") == 1, "the sentence gives the reason, its bounds refer to it"
        assert document.count("for the same reason") == 2


def test_equal_runs_pass_a_usual_gate() -> None:
    before, after = (stored(name) for name in QUIET)
    assert rulings("step>10%", before, after) == [Ruling.PASSED]
    assert not fails(ruled("step>5%, memory>10%", before, after), strict=False)


@pytest.mark.parametrize(
    "text",
    ["", "step", "step>", "step>5", "step<5%", "step>5 days", "steps>5%", "step>5MB", "memory>5ms", "step>5%,", ">5%"],
)
def test_a_bound_that_cannot_be_followed_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(UsageError, match=r"\A--fail-on cannot use .*: .*\(gate-bound\)\Z"):
        bounds_of(text)


def test_junit_has_a_test_for_each_bound() -> None:
    text = gate.render_junit(ruled("step>5%, step>30%, step>60%", *grown(0.3)))
    suite = ElementTree.fromstring(text).find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    inside = {case.get("name"): [child.tag for child in case] for case in suite.findall("testcase")}
    assert inside == {"step>5%": ["failure"], "step>30%": ["skipped"], "step>60%": []}


def test_junit_survives_what_no_xml_can_hold() -> None:
    before, after = grown(0.3)
    comparison = compare((before, after), ("\x00<&\ud800\uffff", "]]>"))
    comparison = replace(judged(comparison, bounds_of("step>5%")), sentence="\x1b[31m\x00")
    assert ElementTree.fromstring(gate.render_junit(comparison)).tag == "testsuites"


def test_without_bounds_junit_says_that_they_were_compared() -> None:
    suite = ElementTree.fromstring(gate.render_junit(compare(grown(0.3), ("a", "b")))).find("testsuite")
    assert suite is not None
    assert [case.get("name") for case in suite.findall("testcase")] == ["compare"]
