"""How the clinic scores: what counts as right, as a false alarm, and as an abstention."""

from __future__ import annotations

import ast

import pytest
from every import for_every

from benchmarks.clinic.cases import CASES, Case
from benchmarks.clinic.diagnosed import Reported
from benchmarks.clinic.score import Count, Row, bottlenecks, precision_and_recall, score
from benchmarks.clinic.truth import Dose

DECODING = next(case for case in CASES if case.job == "heavy_decode")
CASTS = next(case for case in CASES if case.job == "casts")
HEALTHY = Dose(0, 0.0, 0.0, 1e7, 1e7)
SEVERE = Dose(4, 0.4, 0.4, 1e7, 1.67e7, 0.38, 0.42)
MILD = Dose(1, 0.05, 0.05, 1e7, 1.05e7)
NOTHING = Reported("compute")


def naming(*causes: str, share: tuple[float, float, float] = (0.4, 0.35, 0.45), line: int = 0) -> Reported:
    lines = tuple(("heavy_decode.py", line) for _ in causes)
    return Reported("input", causes, tuple(share for _ in causes), lines)


def test_the_right_cause_in_first_place_counts_for_both_scores() -> None:
    found = score([Row(DECODING, SEVERE, naming("input-wait", "python-time"))])
    assert (found.first.share, found.among_three.share) == (1, 1)


def test_the_right_cause_in_second_place_counts_for_one() -> None:
    found = score([Row(DECODING, SEVERE, naming("python-time", "input-wait"))])
    assert (found.first.share, found.among_three.share) == (0, 1)


def test_silence_about_a_severe_fault_is_a_miss_and_about_a_mild_one_is_none() -> None:
    assert score([Row(DECODING, SEVERE, NOTHING)]).first == Count(0, 1)
    assert score([Row(DECODING, MILD, NOTHING)]).first == Count(0, 0)


def test_anything_charged_to_a_twin_is_a_false_alarm() -> None:
    rows = [Row(DECODING, HEALTHY, naming("python-time")), Row(CASTS, HEALTHY, NOTHING)]
    assert score(rows).false_alarms == Count(1, 2)


def test_where_nothing_is_to_be_blamed_every_amount_is_healthy() -> None:
    blameless = Case("slow_validation", "")
    assert score([Row(blameless, SEVERE, naming("input-wait"))]).false_alarms == Count(1, 1)


def test_undecided_is_an_abstention_neither_right_nor_wrong() -> None:
    found = score([Row(DECODING, SEVERE, Reported("undecided"))])
    assert (found.abstained, found.first) == (Count(1, 1), Count(0, 0))


def test_a_line_is_right_when_it_is_a_marked_one() -> None:
    marked = min(DECODING.marked)
    assert score([Row(DECODING, SEVERE, naming("input-wait", line=marked))]).line == Count(1, 1)
    assert score([Row(DECODING, SEVERE, naming("input-wait", line=1))]).line == Count(0, 1)


def test_a_job_that_failed_counts_nowhere() -> None:
    found = score([Row(DECODING, SEVERE, None, "no torch")])
    assert (found.first.all, found.false_alarms.all, found.abstained.all) == (0, 0, 0)


def test_the_planted_share_is_covered_by_the_interval_of_the_right_finding_alone() -> None:
    wide, narrow = naming("input-wait"), naming("input-wait", share=(0.2, 0.1, 0.3))
    found = score([Row(DECODING, SEVERE, wide), Row(DECODING, SEVERE, narrow), Row(CASTS, SEVERE, wide)])
    assert found.covered == Count(1, 2)
    assert found.errors == pytest.approx((0.0, -0.2))


def test_another_run_may_differ_by_a_little_more_than_the_interval() -> None:
    near, far = naming("input-wait", share=(0.34, 0.33, 0.36)), naming("input-wait", share=(0.3, 0.29, 0.31))
    found = score([Row(DECODING, SEVERE, near), Row(DECODING, SEVERE, far)])
    assert (found.covered, found.covered_by_another_run) == (Count(0, 2), Count(1, 2))


def test_precision_and_recall_of_a_cause() -> None:
    rows = [
        Row(DECODING, SEVERE, naming("input-wait")),
        Row(DECODING, SEVERE, naming("python-time")),
        Row(CASTS, SEVERE, naming("input-wait")),
    ]
    assert precision_and_recall(rows)["slow items"] == (Count(1, 2), Count(1, 2))
    assert precision_and_recall(rows)["casts"] == (Count(0, 0), Count(0, 1))


def test_bottlenecks_are_counted_by_what_was_planted() -> None:
    rows = [Row(DECODING, SEVERE, naming("input-wait")), Row(CASTS, HEALTHY, NOTHING)]
    assert bottlenecks(rows) == {("slow items", "input"): 1, ("healthy", "compute"): 1}


def test_an_interval_of_a_share_holds_it_and_stays_within_0_and_1() -> None:
    for good in range(11):
        low, high = Count(good, 10).interval()
        assert 0 <= low <= good / 10 <= high <= 1


@for_every("case", CASES)
def test_every_case_has_a_job_that_parses_and_a_marked_line_where_it_claims_one(case: Case) -> None:
    ast.parse(case.script.read_text(encoding="utf-8"))
    assert bool(case.marked) or not case.line
    assert bool(case.cause) or not case.rules
