"""In a notebook: the first screen without script, style sheet or request; strangers' strings stay text."""

from __future__ import annotations

import html.parser
import re
from pathlib import Path

import pytest
from report_variants import HOSTILE, with_hostile_strings
from stored_reports import REPORTS, stored

import steptime
from steptime.api import Loaded
from steptime.errors import RecordingError


class Elements(html.parser.HTMLParser):
    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.open = 0
        self.text = ""
        self.feed(source)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.open += 1
        self.attributes += [(name, value or "") for name, value in attributes]

    def handle_endtag(self, tag: str) -> None:
        self.open -= 1

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_report_is_loaded_and_shown() -> None:
    loaded = steptime.load(REPORTS / "quiet-1.json")
    assert loaded.report == stored("quiet-1")
    elements = Elements(loaded._repr_html_())
    process = loaded.report.processes[0]
    assert process.verdict.sentence in elements.text
    assert "66.6 ms" in elements.text
    for use in process.case.categories:
        assert use.name in elements.text
    for finding in process.findings[:3]:
        assert finding.summary in elements.text
    assert loaded.report.next_command in elements.text
    assert elements.open == 0


def test_it_is_nothing_but_boxes_of_text() -> None:
    for report in (stored("quiet-1"), with_hostile_strings(stored("quiet-1"))):
        elements = Elements(Loaded(report)._repr_html_())
        assert set(elements.tags) <= {"div", "span", "b", "code"}
        assert {name for name, _ in elements.attributes} <= {"style", "title"}
        assert not any(
            "url(" in value or "expression" in value for name, value in elements.attributes if name == "style"
        )


def test_strings_of_strangers_are_text() -> None:
    rendered = Loaded(with_hostile_strings(stored("quiet-1")))._repr_html_()
    assert HOSTILE[0] in Elements(rendered).text
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069]", rendered)
    rendered.encode("utf-8")


def test_the_text_and_the_name_of_it() -> None:
    loaded = steptime.load(str(REPORTS / "quiet-1.json"))
    assert str(loaded).startswith("steptime ")
    assert repr(loaded).startswith("<steptime.load('runs/quiet-1'): Bound by waiting for input")


def test_what_cannot_be_loaded_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"\A[^\n]*\(no-recording\)\Z"):
        steptime.load(tmp_path)


def test_a_trace_is_loaded(shared_data: Path) -> None:
    loaded = steptime.load(shared_data / "kineto" / "resnet50_workers0.pt.trace.json.gz")
    assert "Bound by waiting for input" in loaded._repr_html_()
