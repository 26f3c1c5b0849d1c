"""The pages of the rules are their docstrings."""

from __future__ import annotations

import pytest

from steptime.advice.explain import find_rule, page_of, site_pages
from steptime.advice.rules import CATALOGUE


@pytest.mark.parametrize("spelling", ["ST101", "st101", "input-wait", "input_wait", " ST101 "])
def test_a_rule_is_found_by_code_or_name(spelling: str) -> None:
    rule = find_rule(spelling)
    assert rule is not None
    assert rule.code == "ST101"
    page = page_of(rule)
    assert page.startswith("# ST101 input-wait: The training step waits for the next batch\n")
    for heading in ("What it means", "How we know", "What helps", "When to ignore it"):
        assert f"\n## {heading}\n\n" in page


def test_an_unknown_code_is_no_rule() -> None:
    assert find_rule("ST000") is None


def test_every_rule_is_in_the_index() -> None:
    index = site_pages()["rules/README.md"]
    for rule in CATALOGUE:
        assert f"[{rule.code} {rule.name}]({rule.name}.md)" in index
