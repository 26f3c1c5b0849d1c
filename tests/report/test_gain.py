"""The big number: what the findings leave of the step, or a trial has left, before everything else of each document."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest
from documents import html_of, markdown_of, text_of
from printed import words_of
from report.report_variants import HOSTILE, with_hostile_strings
from report.stored_reports import stored, with_case, with_process

from steptime.advice.run_uses import SegmentUse
from steptime.answer import output
from steptime.answer.answer import Answer, Gain
from steptime.answer.page import card
from steptime.answer.screen import styled
from steptime.cli.options import REPORT_FORMATS
from steptime.errors import OutputError
from steptime.quantities import Estimate, format_change_of, format_speed
from steptime.report.answer import answer_of
from steptime.report.gain import gain_of, possible_gain
from steptime.report.page.pictures import render_svg
from steptime.report.report import Report

NUMBER = Gain("91.1 → 30.0 ms/step", "possible", "3.0×", "95 % interval: x", "All of it: ST101")


def test_the_findings_savings_are_taken_off_the_step(report: Report) -> None:
    gain = gain_of(report)
    assert gain is not None
    assert gain.lines == (
        "96.2 → 33.2 ms/step possible (2.9×)",
        "95 % interval: 31.3 ms to 35.1 ms/step, 2.7× to 3.1×",
        "60 ms of it: ST102 too-few-workers at train.py:88",
    )


def test_every_document_opens_with_it(report: Report) -> None:
    gain = gain_of(report)
    assert gain is not None
    sentence = report.processes[0].verdict.sentence
    documents = {"text": text_of(report), "Markdown": markdown_of(report), "SVG": render_svg(report)}
    documents["page"] = words_of(html_of(report)).partition("Findings")[2]
    for form, document in documents.items():
        places = [document.index(each) for each in (gain.number, gain.interval, gain.cause, sentence[:40])]
        assert places == sorted(places), form


def test_there_is_none_without_a_finding_or_where_the_run_goes_elsewhere(report: Report) -> None:
    assert gain_of(with_process(report, findings=())) is None
    assert not text_of(with_process(report, findings=())).startswith("96.2")
    rollout = SegmentUse("rollout", 3, 9_000_000_000, 0.9)
    assert gain_of(with_case(report, segments=(rollout,))) is None


@pytest.mark.parametrize("saved", [90e6, 96.1e6, 500e6])
def test_no_more_than_the_step_is_saved(report: Report, saved: float) -> None:
    process = report.processes[0]
    finding = replace(process.findings[0], savings=Estimate(saved, 0.9 * saved, 1.1 * saved, 58))
    gain = possible_gain(replace(process, findings=(finding,)))
    assert gain is not None
    assert "-" not in gain.number + gain.interval
    assert "inf" not in gain.times + gain.interval
    assert " 0 ns" not in gain.number


def test_a_place_that_is_not_known_promises_nothing(report: Report) -> None:
    process = report.processes[0]
    known = replace(process.findings[0], name="python-time", savings=Estimate(90e6, 80e6, 95e6, 58))
    assert possible_gain(replace(process, findings=(known,))) is not None
    assert possible_gain(replace(process, findings=(replace(known, source=None),))) is None


def test_findings_of_one_category_save_no_more_than_it_takes() -> None:
    report = stored("quiet-1")  # two findings about the same wait
    gain = gain_of(report)
    assert gain is not None
    assert gain.lines[0] == "66.6 → 13.0 ms/step possible (5.1×)"


def test_a_single_step_has_no_interval(report: Report) -> None:
    process = report.processes[0]
    finding = replace(process.findings[0], savings=Estimate(60e6, 60e6, 60e6, 1))
    gain = possible_gain(replace(process, findings=(finding,)))
    assert gain is not None
    assert gain.interval == "One step, which has no interval"


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (36.5e6, 16.4e6, "36.5 → 16.4 ms"),
        (1.2e9, 8e6, "1.20 s → 8 ms"),
        (1.2e9, 0.5e9, "1.20 → 0.50 s"),
        (36.5e6, 1e3, "36.5 ms → under 365 µs"),
        (125e9, 61e9, "2 min 05 s → 1 min 01 s"),
    ],
)
def test_two_durations_share_a_unit_where_they_can(before: float, after: float, words: str) -> None:
    assert format_change_of(before, after, 0.01 if after < 1e4 else 0.0) == words


@pytest.mark.parametrize(("ratio", "words"), [(2.16, "2.2×"), (1.04, "1.04×"), (12.4, "12×")])
def test_a_speed_up_says_what_matters(ratio: float, words: str) -> None:
    assert format_speed(ratio) == words


def test_a_terminal_shows_the_number_and_the_answer_in_bold(report: Report) -> None:
    text = text_of(report)
    bold = {text[span.start : span.end].strip() for span in styled(text).spans if "bold" in str(span.style)}
    gain = gain_of(report)
    assert gain is not None
    assert gain.lines[0] in bold
    assert any(report.processes[0].verdict.sentence in each for each in bold)


def test_a_card_has_the_size_that_is_shared(tmp_path: Path) -> None:
    pytest.importorskip("resvg_py")
    if not any(Path(folder).expanduser().is_dir() for folder in card.FONTS):
        pytest.skip("no fonts on this system")
    for name in ("card.png", "quiet-card.png"):
        output.write(answer_of(stored("quiet-1")), str(tmp_path / name), REPORT_FORMATS, force=False)
        assert struct.unpack(">II", (tmp_path / name).read_bytes()[16:24]) == (1200, 630)
    assert output.extension_of("postcard.png", REPORT_FORMATS) == ".png"


def test_a_card_holds_what_strangers_wrote_as_text() -> None:
    svg = card.as_svg(answer_of(with_hostile_strings(stored("quiet-1"))))
    assert HOSTILE[0] not in svg or "<" not in HOSTILE[0]
    assert "<script" not in svg
    assert "href" not in svg


def test_a_card_without_a_number_shows_the_headline() -> None:
    svg = card.as_svg(Answer("bench", "fast is 2.1× as fast as slow.", "Confident: 3 processes."))
    assert "fast is 2.1× as fast as slow." in svg
    assert "faster, " not in svg
    assert "faster, possible" in card.as_svg(Answer("bench", "x", gain=NUMBER))


def test_a_card_needs_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "find_spec", lambda _: None)
    with pytest.raises(OutputError, match="images-missing"):
        output.check(str(tmp_path / "card.png"), REPORT_FORMATS, force=False)


def test_what_steps_could_save_is_told_of_the_run_too(report: Report) -> None:
    evaluations = SegmentUse("evaluation", 3, 900_000_000, 0.3, every=7.0)
    gain = gain_of(with_case(report, segments=(evaluations,)))
    assert gain is not None
    assert gain.lines[0] == "96.2 → 33.2 ms/step possible (2.9×)"
    assert gain.cause.endswith("train.py:88. Steps are 70 % of the run: some 1.8× of the run")
