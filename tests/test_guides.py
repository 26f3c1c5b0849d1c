"""docs/guides.md says what is so: its commands are run, where they take seconds, and show what a row says."""

from __future__ import annotations

import re
import shlex
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from guides import Row, rendered, rows

from steptime.advice.explain import find_fix, find_rule
from steptime.cli.main import main

ROOT = Path(__file__).resolve().parents[1]
EXPLAINED = re.compile(r"steptime explain ((?:ST|RM)\d+)$")
RUN_HERE = re.compile(r"steptime (diagnose|memory|compare|new) (tests/data\S*|-)")


def test_every_row_is_there_once_and_the_page_is_made_of_them() -> None:
    assert [row.number for row in rows()] == list(range(1, 171))
    assert (ROOT / "docs" / "guides.md").read_text(encoding="utf-8") == rendered(), ".test/bin/python tests/guides.py"


@cache
def shown(command: str) -> str:
    """Everything that a command prints and writes."""
    import contextlib
    import io
    import tempfile

    words = shlex.split(command)[1:]
    printed = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(printed):
        out = Path(folder) / "report.md"
        words = [str(out) if word.endswith((".md", ".html")) else word for word in words]
        words = [str(ROOT / word) if word.startswith("tests/") else word for word in words]
        assert main(words) in (0, 3), command
        text = out.read_text(encoding="utf-8") if out.exists() else ""
    return f"{printed.getvalue()}\n{text}"


def plain(text: str) -> str:
    return " ".join(text.split())


EXECUTED = [row for row in rows() if RUN_HERE.match(row.command) and '"' not in row.look and "html" not in row.command
            and "speedscope" not in row.command]  # fmt: skip


@pytest.mark.parametrize("row", EXECUTED, ids=lambda row: str(row.number))
def test_a_command_shows_what_its_row_says(row: Row) -> None:
    assert plain(row.look) in plain(shown(row.command)), row.words


PAGES = [row for row in rows() if EXPLAINED.match(row.command)]


@pytest.mark.parametrize("row", PAGES, ids=lambda row: str(row.number))
def test_a_page_says_what_its_row_says(row: Row) -> None:
    found = EXPLAINED.match(row.command)
    assert found is not None
    made = find_rule(found[1]) if found[1].startswith("ST") else find_fix(found[1])
    assert made is not None
    page = f"{made.page.title} {' '.join(text for _, text in made.page.sections)}"
    assert plain(row.look) in plain(page), row.words


OTHERS = [row for row in rows() if row.command and row not in EXECUTED and row not in PAGES]


@pytest.mark.parametrize("row", OTHERS, ids=lambda row: str(row.number))
def test_the_options_of_a_longer_command_are_there(row: Row, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(row.command)[1:]
    own = words[: words.index("--")] if "--" in words else words
    assert main([own[0], "--help"]) == 0
    described = capsys.readouterr().out
    options = [word for before, word in pairwise(own) if word.startswith("-") and before != "--args"]
    assert all(word in described for word in options if word != "-"), row.command
    assert row.look, "a reader must know what to look for"


def test_few_rows_are_missing_and_each_says_what() -> None:
    missing = [row for row in rows() if not row.command]
    assert len(missing) <= 12
    assert all(len(row.missing) > 5 for row in missing)
