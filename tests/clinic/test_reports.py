"""Public reports, re-enacted: cases are whole, scores are what they say, and two cases go from end to end."""

from __future__ import annotations

import ast
import sys

import pytest
from every import for_every
from preloading import python

from benchmarks.reports import tables
from benchmarks.reports.answered import Answered, Told, answered, kept
from benchmarks.reports.score import counts, score
from benchmarks.reports.truth import JOB, TWIN, Truth, cases, has_all

CASES = cases()
TRUTH = next(each for each in CASES if each.name == "iterator_each_step")
(CULPRIT,) = TRUTH.culprits
LINE = min(TRUTH.lines)
RIGHT = Told("ST211", "iterator-in-step\nA new iterator in each step", "Keep the iterator", LINE, CULPRIT, 0.6)
OTHER = Told("ST302", "overhead-bound\nOperators are small", "Compile the model", 1, "x", 0.2)


def answer(*told: Told) -> Answered:
    return Answered(told, 10.0, "likely")


@for_every("truth", CASES)
def test_a_case_is_whole(truth: Truth) -> None:
    """Both scripts are Python, differ, and show a tool no marker; the truth has a source and what it is scored by."""
    assert truth.lines
    assert truth.culprits
    assert all(address.startswith("https://") for address in truth.source)
    assert 0 <= truth.share < 1
    assert truth.words
    assert truth.advice
    job, twin = truth.script(JOB), truth.script(TWIN)
    assert job != twin
    for script in (job, twin):
        ast.parse(script)
        assert "culprit" not in script
    assert len(job.splitlines()) == len((truth.folder / JOB).read_text(encoding="utf-8").splitlines())


def test_the_first_finding_with_the_cause_counts_and_its_line() -> None:
    found = score(TRUTH, answer(OTHER, RIGHT), answer())
    assert (found.place, found.line, found.advice, found.claimed, found.false) == (1, True, True, 0.6, ())
    assert score(TRUTH, answer(OTHER), None).place == -1
    assert not score(TRUTH, answer(OTHER), None).line
    fourth = score(TRUTH, answer(OTHER, OTHER, OTHER, RIGHT), None)
    assert (fourth.place, fourth.advice) == (-1, False)
    assert counts([(TRUTH, found), (TRUTH, fourth)])["cause, first three"].good == 1


def test_a_twin_that_is_told_the_old_cause_at_the_old_place_is_told_falsely() -> None:
    assert score(TRUTH, answer(RIGHT), answer(RIGHT)).false == ("ST211",)
    assert score(TRUTH, answer(RIGHT), answer(OTHER)).false == ()


def test_each_inner_list_has_one_expression_in_the_text() -> None:
    assert has_all("The List grows", (("list", "deque"), ("grow",)))
    assert not has_all("The list", (("list", "deque"), ("grow",)))


def test_what_is_kept_is_read_back() -> None:
    found = answer(RIGHT, OTHER)
    assert Answered.of(kept(found)) == found


def test_the_first_answer_stays_the_first_sight() -> None:
    about = {"date": "2026-01-01", "commit": "abc"}
    rows = [
        {"case": TRUTH.name, "about": about, "job": kept(answer(each)), "twin": None} for each in (OTHER, RIGHT, OTHER)
    ]
    first, newest = (tables.scored(rows[:2], first=when)[0][1].place for when in (True, False))
    assert (first, newest) == (-1, 0)
    assert f"[{TRUTH.name}]" in tables.page(rows)


@pytest.mark.parametrize(
    # Growth is judged by the steps' times, which a busy machine disturbs.
    "name",
    ["iterator_each_step", pytest.param("state_undetached", marks=pytest.mark.slow)],
)
def test_a_case_from_end_to_end(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The finding with the cause is among the first three, at a marked line."""
    monkeypatch.setattr(sys, "executable", python())
    (truth,) = cases((name,))
    found = score(truth, answered(truth, JOB), None)
    assert found.place >= 0
    assert found.line
