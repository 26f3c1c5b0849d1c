"""The checker of what is printed finds each kind of mistake; real runs and comparisons have none."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest
from documents import text_of
from printed import comparison_violations, one_path, rendered, violations, wrong_words
from report.stored_reports import BUSY, QUIET, longer_by, stored
from report.timelines import with_trials

from steptime.compare.compare import compare
from steptime.quantities import SourceLine, format_duration
from steptime.report.report import Report


@pytest.mark.parametrize(
    "sentence",
    [
        "It spends 5 ms more than the others' median in ; at that",
        "memory 391 MiB (−0 %)",
        "the step is 0 ns shorter",
        "mean of 1 steps",
        "waiting for input, 70 ms of 60 ms per step (117 %)",
        "waiting for input: 70 ms of 91 ms per step (60 %)",
        "419 µs ± 939 µs, mean of 2 steps",
        "451 kernels of 5.00 µs each take 9.24 ms per step",
        "calls 307 operators per step, 10.8 µs each: 29.0 ms",
        "Resident memory does not grow with the steps (41 to 191 KiB per step over 30 steps)",
        "allocation free: 99 % shorter (99 to 99 %)",
        "memory 391 MiB (+< 0.1 %)",
        "12 % shorter (15 to 20 %)",
        "it takes None of the step",
        "Computing takes 8 ms (120 %)",
    ],
)
def test_what_is_never_printed_is_found(sentence: str) -> None:
    assert wrong_words(sentence)


@pytest.mark.parametrize(
    "sentence",
    [
        "Each step waits 57.5 ms (72 %) for the loader: 1.77 ms per item, at slow_input.py:55.",
        "Steps vary by 222 % (interquartile range over median)",
        "input free: 33 % shorter (29 to 35 %)",
        "Resident memory does not grow with the steps (-4 to 191 KiB per step over 30 steps)",
        "The top row tells what the time went to. at::{lambda()#3}::operator()() const",
        "70.6 ms ± 3.74 ms, mean of 34 steps (excluded: 1 warm-up, 40 interrupted)",
    ],
)
def test_what_is_right_is_left_alone(sentence: str) -> None:
    assert not wrong_words(sentence)


def test_a_part_above_its_whole_and_two_values_of_one_quantity_are_found(report: Report) -> None:
    process = report.processes[0]
    more = replace(process.case.categories[0], duration=process.case.step.duration)
    case = replace(process.case, categories=(more, *process.case.categories[1:]))
    found = violations(replace(report, processes=(replace(process, case=case),)))
    assert any("categories sum to" in each for each in found)


def test_a_saving_of_the_headline_is_that_of_the_page_and_of_the_tables(report: Report) -> None:
    process = report.processes[0]
    compute = next(use for use in process.case.categories if use.name == "compute")
    took = format_duration(compute.duration.value)
    message = (
        f"Of 96.2 ms per step: computing {took} (20 %, of which 7.77 s could be saved) and waiting for input 68 ms."
    )
    verdict = replace(process.verdict, sentence=message)
    found = violations(replace(report, processes=(replace(process, verdict=verdict),)))
    assert sum("does not save up to 7.77 s" in each for each in found) == 2


def test_a_line_that_is_written_in_two_ways_is_found(
    report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    process = report.processes[0]
    source = SourceLine(str(tmp_path / "deep/train.py"), 88)
    verdict = replace(process.verdict, sentence="Each step waits 68 ms, at train.py:88.")
    changed = replace(process, verdict=verdict, findings=(replace(process.findings[0], source=source),))
    words = text_of(replace(report, processes=(changed,)))
    assert "at deep/train.py:88." in words
    assert "\n  deep/train.py:88" in words
    mixed = words.replace("at deep/train.py:88.", "at train.py:88.")
    assert list(one_path(changed, words)) == [] != list(one_path(changed, mixed))


def test_a_recording_that_has_a_trial_shows_what_was_tried_and_the_patch() -> None:
    tried = with_trials(stored("quiet-1"))
    for form, document in rendered(tried).items():
        assert wrong_words(document) == [], form
        assert "num_workers=2" in document, form
        assert "2.00×" in document or "| 2 |" in document, form
        assert "loader = DataLoader(data, num_workers=2)" in document, form


@pytest.mark.parametrize(("before", "after"), tuple(permutations((*QUIET, *BUSY), 2)))
def test_a_comparison_prints_nothing_that_cannot_be(before: str, after: str) -> None:
    comparison = compare([stored(before), stored(after)], [before, after])
    assert comparison_violations(comparison) == []


@pytest.mark.parametrize("nanoseconds", [-2e7, 0.0, 4e5, 3e7])
def test_a_comparison_of_alike_runs_says_no_difference_only_where_there_is_none(nanoseconds: float) -> None:
    reports = [stored("quiet-1"), longer_by(stored("quiet-2"), "input", nanoseconds)]
    assert comparison_violations(compare(reports, ["a", "b"])) == []
