"""The pages of the rules are their docstrings."""

from __future__ import annotations

from pathlib import Path

import pytest

from steptime.advice.explain import find_rule, rule_page
from steptime.advice.rule_pages import main, stale_pages, wanted_pages, write_pages
from steptime.advice.rules import CATALOGUE

DOCS = Path(__file__).parents[2] / "docs" / "rules"


def test_the_committed_pages_are_current() -> None:
    assert stale_pages(DOCS, wanted_pages()) == (), "run: python -m steptime.advice.rule_pages docs/rules"


def test_pages_are_written_and_what_is_not_current_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "rules"
    assert main([str(folder), "--check"]) == 1
    write_pages(folder, wanted_pages())
    assert main([str(folder), "--check"]) == 0
    (folder / "gone.md").write_text("old")
    (folder / "input-wait.md").write_text("edited")
    assert stale_pages(folder, wanted_pages()) == ("gone.md", "input-wait.md")
    capsys.readouterr()
    assert main([str(folder), "--check"]) == 1
    assert "input-wait.md is not current" in capsys.readouterr().err
    assert main([str(folder)]) == 0
    assert {path.name for path in folder.iterdir()} == set(wanted_pages())


@pytest.mark.parametrize("spelling", ["ST101", "st101", "input-wait", "input_wait", " ST101 "])
def test_a_rule_is_found_by_code_or_name(spelling: str) -> None:
    rule = find_rule(spelling)
    assert rule is not None
    assert rule.code == "ST101"
    page = rule_page(rule)
    assert page.startswith("# ST101 input-wait: The training step waits for the next batch\n")
    for heading in ("What it means", "How we know", "What helps", "When to ignore it"):
        assert f"\n## {heading}\n\n" in page


def test_an_unknown_code_is_no_rule() -> None:
    assert find_rule("ST000") is None


def test_every_rule_is_in_the_index() -> None:
    index = wanted_pages()["README.md"]
    for rule in CATALOGUE:
        assert f"[{rule.code} {rule.name}]({rule.name}.md)" in index
