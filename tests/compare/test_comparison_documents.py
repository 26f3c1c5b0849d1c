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
from documents import html_of, markdown_of, text_of
from printed import sound
from report.report_variants import HOSTILE
from report.stored_reports import longer_by, stored, with_loader

from steptime.answer.json import document as as_json
from steptime.answer.printable import one_line, plain
from steptime.compare.answer import answer_of
from steptime.compare.compare import compare
from steptime.compare.comparison import Comparison
from steptime.compare.gate import labels_of
from steptime.report.json import schema_text

ROOT = Path(__file__).resolve().parents[2]
render_text = sound(lambda comparison: text_of(comparison, answer_of))
render_markdown = sound(lambda comparison: markdown_of(comparison, answer_of))


@pytest.mark.parametrize("make", [simple, busy, hostile])
def test_the_text_starts_with_the_answer_in_signs_that_a_terminal_has(make: object) -> None:
    assert callable(make)
    rendered = render_text(make())
    assert rendered.startswith(one_line(make().sentence)), "the answer comes first"
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\u2028\ud800-\udfff]", rendered)
    plain(rendered).encode("ascii")


def test_the_text_says_the_sentence_first_then_settings_and_the_step() -> None:
    before, after = stored("quiet-1"), with_loader(longer_by(stored("quiet-2"), "input", -20e6), workers=4)
    comparison = compare((before, after), ("a", "b"))
    lines = render_text(comparison).splitlines()
    assert lines[0] == comparison.sentence
    settings = next(line for line in lines if line.startswith("  loader workers"))
    assert settings.split() == ["loader", "workers", "0", "(read", "in", "the", "training", "process)", "4"]
    step = next(line for line in lines if line.startswith("  step "))
    assert step.split()[:5] == ["step", "66.6", "ms", "47.3", "ms"]
    assert step.endswith("less")
    assert lines.index(settings) < lines.index(step)


def test_the_text_of_many_runs_has_all_of_them() -> None:
    rows = [line.split() for line in render_text(busy()).splitlines()]
    assert [row[:2] for row in rows if row[1:] and row[1].startswith("run-")] == [
        [str(number + 1), f"run-{number}"] for number in range(14)
    ]


def test_json_round_trips_and_is_versioned() -> None:
    comparison = busy()
    document = as_json(comparison)
    assert standard_json.loads(document)["schema_version"] == 3
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
    assert titles == [
        "Gate",
        "Settings that differ",
        "Runs",
        "Step, categories and memory",
        "Parts of the step",
        "Next",
    ]
    assert "| loader workers | 0 (read in the training process) | 4 |" in document
    assert "| python>1us |" in document.replace("\\>", ">")


def test_no_string_of_strangers_is_markup_in_markdown() -> None:
    document = render_markdown(hostile())
    document = re.sub("```sh\n.*\n```", "", document)  # a command to paste, in which nothing is markup
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
    elements = Elements(html_of(comparison, answer_of))
    assert comparison.sentence in elements.text
    for part in comparison.parts:
        assert part.name in elements.text
    for setting in comparison.settings:
        assert setting.after in elements.text
    names = [attributes["id"] for _, attributes in elements.found if "id" in attributes]
    assert len(names) == len(set(names))
    assert {"changes", "settings-table", "runs-table", "tables", "differences", "pieces"} <= set(names)


def test_the_page_is_one_file_in_which_strangers_write_text() -> None:
    quiet, strange = Elements(html_of(busy(), answer_of)), Elements(html_of(hostile(), answer_of))
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
