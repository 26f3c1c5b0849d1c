"""A comparison as text, Markdown, JSON and page: the same story, in little room, and strangers' strings stay text."""

from __future__ import annotations

import html.parser
import json as standard_json
import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from compare.comparisons import busy, hostile, simple
from printed import sound
from report.report_variants import HOSTILE
from report.stored_reports import longer_by, stored, with_loader

from steptime.compare import page, text as comparison_text
from steptime.compare.compare import compare
from steptime.compare.comparison import Comparison
from steptime.compare.gate import labels_of
from steptime.report.json import document as as_json, schema_text
from steptime.report.printable import plain

ROOT = Path(__file__).resolve().parents[2]
render_text, render_markdown = sound(comparison_text.render_text), sound(comparison_text.render_markdown)


@pytest.mark.parametrize("make", [simple, busy, hostile])
def test_the_text_fits_a_terminal(make: object) -> None:
    assert callable(make)
    rendered = render_text(make())
    lines = rendered.splitlines()
    assert len(lines) <= 25
    assert not any(line.endswith("…") for line in lines), "a terminal wraps, nothing is cut"
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\u2028\ud800-\udfff]", rendered)
    plain(rendered).encode("ascii")


def test_the_text_says_settings_first_and_the_sentence_whole() -> None:
    before, after = stored("quiet-1"), with_loader(longer_by(stored("quiet-2"), "input", -20e6), workers=4)
    comparison = compare((before, after), ("a", "b"))
    lines = render_text(comparison).splitlines()
    assert lines[4].startswith("Settings: loader workers  0 (read in the training process) → 4")
    step = next(number for number, line in enumerate(lines) if line.startswith("step "))
    assert step > 4
    assert "66.6 ms" in lines[step]
    assert "47.3 ms" in lines[step]
    assert lines[step].endswith("shorter")
    assert comparison.sentence in " ".join(lines).replace("  ", " ")


def test_the_text_of_many_runs_has_the_first_and_the_last() -> None:
    lines = render_text(busy()).splitlines()
    assert any(line.startswith("  1 run-0") for line in lines)
    assert any(line.startswith(" 14 run-13") for line in lines)
    assert any("runs between them are left out" in line for line in lines)


def test_json_round_trips_and_is_versioned() -> None:
    comparison = busy()
    document = as_json(comparison)
    assert standard_json.loads(document)["schema_version"] == 2
    assert msgspec.json.decode(document, type=Comparison) == comparison
    standard_json.loads(as_json(hostile()))
    standard_json.loads(as_json(replace(comparison, sentence="\ud800")))


def test_the_published_schema_is_current() -> None:
    published = (ROOT / "docs" / "comparison-schema.json").read_text(encoding="utf-8")
    assert published == schema_text(Comparison), "make docs writes it anew"


@pytest.mark.parametrize("make", [simple, busy])
def test_comparisons_follow_the_published_schema(make: object) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    assert callable(make)
    schema = standard_json.loads((ROOT / "docs" / "comparison-schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(standard_json.loads(as_json(make())))


def test_markdown_says_gate_settings_and_differences() -> None:
    document = render_markdown(busy())
    titles = re.findall("^## (.*)$", document, re.MULTILINE)
    assert titles == ["Gate", "Settings that differ", "Runs", "Step, categories and memory", "Parts of the step"]
    assert "| loader workers | 0 (read in the training process) | 4 |" in document
    assert "| python>1us |" in document.replace("\\>", ">")


def test_no_string_of_strangers_is_markup_in_markdown() -> None:
    document = render_markdown(hostile())
    assert "<script>" not in document.replace("\\<script\\>", "")
    assert not re.search(r"(?<!\\)<", document)


class Elements(html.parser.HTMLParser):
    """Elements with attributes, and the text outside of script and style."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str]]] = []
        self.text = self.inside = ""
        self.feed(source)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attributes}))
        self.inside = tag

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside not in ("script", "style"):
            self.text += data


def test_the_page_shows_the_waterfall_and_all_figures() -> None:
    comparison = busy()
    elements = Elements(page.render(comparison))
    assert comparison.sentence in elements.text
    for part in comparison.parts:
        assert part.name in elements.text
    for setting in comparison.settings:
        assert setting.after in elements.text
    names = [attributes["id"] for _, attributes in elements.found if "id" in attributes]
    assert len(names) == len(set(names))
    assert {"changes", "settings", "runs", "tables", "differences", "pieces"} <= set(names)


def test_the_page_is_one_file_in_which_strangers_write_text() -> None:
    quiet, strange = Elements(page.render(busy())), Elements(page.render(hostile()))
    assert {tag for tag, _ in strange.found} <= {tag for tag, _ in quiet.found}
    assert [tag for tag, _ in strange.found].count("script") == 2
    for _, attributes in strange.found:
        assert not any(name.startswith("on") for name in attributes)
        assert not any(value.startswith(("http", "//", "javascript:")) for name, value in attributes.items()
                       if name in ("src", "href"))  # fmt: skip
    assert HOSTILE[0] in strange.text


def test_labels_are_as_short_as_they_can_be() -> None:
    assert labels_of(["runs/a", "runs/b"]) == ("a", "b")
    assert labels_of(["monday/run", "tuesday/run"]) == ("monday/run", "tuesday/run")
    assert labels_of(["a", "a"]) == ("a (1)", "a (2)")
    assert labels_of(["/", "x"]) == ("/", "x")
