"""What a terminal shows."""

from __future__ import annotations

import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest
from documents import text_of as render
from hypothesis import given, strategies as st

from steptime.advice.evidence import Case
from steptime.advice.rule import Finding, Weight
from steptime.answer.printable import one_line, plain, printable
from steptime.answer.text import as_text
from steptime.quantities import Estimate, SourceLine
from steptime.report.answer import answer_of
from steptime.report.report import Report
from steptime.report.sentences import cost_text, left_out_text
from steptime.report.steps import StepSeries


def with_process(report: Report, **changes: object) -> Report:
    return replace(report, processes=(replace(report.processes[0], **changes),))  # type: ignore[arg-type]


def test_it_ends_with_the_next_command(report: Report) -> None:
    lines = render(report).splitlines()
    assert lines[-1] == "Next:  steptime explain ST102"


def test_it_says_step_bottleneck_findings_source_lines_cost_and_the_recording(report: Report) -> None:
    text = render(report)
    for part in (
        "Step 96.2 ms ± 2.89 ms",
        "mean of 58 steps (excluded: 3 warm-up, 19 interrupted)",
        "Bound by waiting for input: without it a step would be 71 %",
        "ST102 too-few-workers",
        "saves 60 ms per step (62 %)",
        "train.py:88: for images, labels in loader:",
        "Caveat: ST801 other programs use 1.1 of 2 CPUs",
        "Note: ST901 evaluation takes 12 % of the run",
        "Left out: trace 2 is cut",
        "Cost: 6 µs/step always (< 0.1 %); 120 ms once, for 3 profiled steps",
        "From: runs/train",
    ):
        assert part in text


def test_the_cost_says_what_was_left_out_to_keep_it_small(report: Report) -> None:
    less = "profiled less than usual (no stacks): a step has about 90,000 events of the profiler"
    (line,) = [each for each in render(with_process(report, notes=("another", less))).splitlines() if "Cost: " in each]
    assert line.endswith(f"; {less}")


def test_the_largest_category_has_the_longest_bar_and_the_first_row(report: Report) -> None:
    rows = [line for line in render(report).splitlines() if "█" in line]
    assert rows[0].split()[0] == "input"
    assert [row.count("█") for row in rows] == sorted((row.count("█") for row in rows), reverse=True)
    assert "71 %" in rows[0]


def test_every_category_that_takes_time_has_a_row(report: Report, case: Case) -> None:
    many = tuple(replace(case.categories[0], name=f"account{number}") for number in range(9))
    displayed = render(with_process(report, case=replace(case, categories=many)))
    assert all(f"  {use.name} " in displayed for use in many)


def test_what_has_most_savings_gets_its_advice_first(report: Report, findings: tuple[Finding, ...]) -> None:
    assert "→ Raise num_workers" in render(with_process(report, findings=findings[:1]))


def test_a_long_verdict_a_long_command_and_no_findings_fit_too(report: Report) -> None:
    crowded = with_process(report, findings=(), verdict=replace(report.processes[0].verdict, sentence="long " * 60))
    crowded = replace(crowded, environment=replace(report.environment, command="python train.py " * 20))
    assert crowded.environment.command.strip() in render(crowded)


def test_nothing_is_cut(report: Report, findings: tuple[Finding, ...]) -> None:
    text = render(report)
    assert "…" not in text
    for finding in findings[:3]:
        assert finding.summary in text
    assert findings[0].advice in text


@pytest.mark.parametrize("columns", [50, 80, 110])
def test_bars_and_titles_take_the_width_that_there_is(report: Report, columns: int) -> None:
    lines = as_text(answer_of(report), columns).splitlines()
    bars = [line for line in lines if "█" in line]
    assert bars
    assert max(map(len, bars)) <= columns
    assert {len(line) for line in lines if line.startswith("ST") and "saves" in line} == {columns}


def test_a_line_has_the_path_that_an_editor_opens_from_here(
    report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ada").mkdir()
    monkeypatch.chdir(tmp_path)
    assert "  train.py:88: for images" in render(report), "it lies nowhere here"
    (tmp_path / "ada" / "train.py").touch()
    assert "  ada/train.py:88: for images" in render(report), "the report is of another machine"


def test_a_hostile_name_cannot_steer_the_terminal(report: Report, findings: tuple[Finding, ...]) -> None:
    hostile = SourceLine("/tmp/\x1b[2Jevil\u202e.py", 3, "f", "\x1b]0;owned\x07x = 1\r\x9b31m")
    text = render(
        replace(
            with_process(report, findings=(replace(findings[0], source=hostile),)),
            source="runs/\x1b[31mred\nST999 forged finding",
            environment=replace(report.environment, command="python \x1b[2J.py \ud800"),
        )
    )
    assert not [letter for letter in text if unicodedata.category(letter) in {"Cc", "Cs", "Cf"} and letter != "\n"]
    assert "\\x1b[2Jevil\\u202e.py" in text
    assert not any(line.startswith("ST999") for line in text.splitlines())


@given(st.text())
def test_printable_text_has_no_controls_whatever_came_in(text: str) -> None:
    bad = {"Cc", "Cs", "Zl", "Zp"}
    assert not [letter for letter in printable(text) if unicodedata.category(letter) in bad and letter != "\n"]
    assert "\n" not in one_line(text)
    assert plain(printable(text)).isascii()


def test_a_terminal_without_unicode_gets_the_same_lines_in_ascii(report: Report) -> None:
    text = render(report)
    simple = plain(text)
    assert simple.isascii()
    assert len(simple.splitlines()) == len(text.splitlines())
    assert "####" in simple
    assert "+-" in simple


@pytest.mark.parametrize("ranks", [1, 8])
def test_a_job_of_several_ranks_says_which_one_is_displayed(report: Report, ranks: int) -> None:
    displayed = replace(report, environment=replace(report.environment, ranks=ranks))
    assert ("pid 4242 of 8" in render(displayed)) == (ranks == 8)


@pytest.mark.parametrize(
    ("watch", "text"),
    [
        (Estimate(6e3, 2e3, 9e3, 200), "6 µs/step always (< 0.1 %)"),
        (Estimate(-1e6, -3e6, 2e6, 60), "about 5 µs/step always (< 0.1 %)"),
        (None, "about 5 µs/step always (< 0.1 %)"),
    ],
)
def test_a_cost_that_noise_hides_is_computed_and_never_negative(
    report: Report, watch: Estimate | None, text: str
) -> None:
    cost = report.processes[0].cost
    assert cost is not None
    line = cost_text(replace(cost, instrumentation=watch), 96e6)
    assert text in line
    assert not line.startswith("-")


def test_steps_are_left_out_with_the_reason(report: Report) -> None:
    process = report.processes[0]
    step = replace(process.case.step, total=12, steady=6, warm_up=1)
    series = StepSeries(("steady", "warm-up", "profiled", "with evaluation"), (1, 2, 2, 2, 3, 3, *[0] * 6), (), 1, ())
    case = replace(process.case, step=step, outliers=None)
    assert left_out_text(replace(process, case=case, series=series)) == (
        "1 warm-up, 3 for measurements of steptime, 2 with evaluation"
    )
    assert left_out_text(replace(process, case=case, series=None)) == "1 warm-up, 5 interrupted"


def test_a_note_is_reported_with_what_to_do_where_nothing_else_is(
    report: Report, findings: tuple[Finding, ...]
) -> None:
    displayed = render(with_process(report, findings=findings[3:]))
    assert "ST901 slow-evaluation" in displayed
    assert "  → Evaluate less often." in displayed
    assert "Note:" not in displayed, "once is enough"


def test_every_finding_is_reported_with_what_to_do_however_long_it_is(
    report: Report, findings: tuple[Finding, ...]
) -> None:
    lines = tuple(replace(each, summary="so many words " * 6) for each in findings[:1] * 12)
    text = render(with_process(report, findings=lines))
    assert text.count("  → ") == 12
    assert " more: " not in text


def test_the_answer_comes_first_and_the_command_stands_as_typed(report: Report) -> None:
    command = "python train.py config/train_shakespeare_char.py --out_dir=/tmp/o1 --max_iters 80"
    typed = replace(report, environment=replace(report.environment, command=command))
    number, interval, cause, empty, first, *rest = render(typed).splitlines()
    assert number == "96.2 → 33.2 ms/step possible (2.9×)"
    assert interval == "  95 % interval: 31.3 ms to 35.1 ms/step, 2.7× to 3.1×"
    assert cause == "  60 ms of it: ST102 too-few-workers at train.py:88"
    assert (empty, first) == ("", report.processes[0].verdict.sentence)
    assert any(f" · {command} · " in line for line in rest)


def test_a_note_in_the_words_of_the_headline_is_not_reported_again(report: Report) -> None:
    process = report.processes[0]
    message = "338 of 4834 steps took 24.1 ms, excluded here: the backward pass"
    note = Finding("ST906", "outlier-steps", Weight.NOTE, message, "Look at them.")
    verdict = replace(process.verdict, sentence=f"{process.verdict.sentence} {message}.")
    whole = replace(report, processes=(replace(process, verdict=verdict, findings=(*process.findings, note)),))
    assert render(whole).count(message) == 1
