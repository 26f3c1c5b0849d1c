"""A rule declares what it sees and explains itself, or it does not exist."""

from __future__ import annotations

import re
from dataclasses import fields
from importlib.metadata import EntryPoint
from pathlib import Path
from types import NoneType, UnionType
from typing import get_args, get_type_hints

import pytest
from every import for_every

from steptime.advice.engine import plugin_rules
from steptime.advice.evidence import ABSENT, Case, LineUse, evidence_of
from steptime.advice.fix import Fix
from steptime.advice.fixes import CATALOGUE as FIXES
from steptime.advice.rule import SECTIONS, Finding, Rule, rule
from steptime.advice.rules import CATALOGUE
from steptime.advice.run_uses import StepSummary
from steptime.quantities import Estimate

CASE = Case(step=StepSummary(Estimate(10.0, 9.0, 11.0, 9), 20, 9, 3, "optimizer", "cpu"))


def explained(step: StepSummary, lines: tuple[LineUse, ...] = ()) -> Finding | None:
    """A title

    What it means
        Something.

    How we know
        It was measured.

        In two paragraphs.

    What helps
        Rest.

    When to ignore it
        Never.
    """
    return None


def unexplained(step: StepSummary, lines: tuple[LineUse, ...] = ()) -> Finding | None:
    """A title

    What it means
        Something.

    How we know

    When to ignore it
        Never.
    """
    return None


def test_a_docstring_becomes_the_page() -> None:
    made = rule("ST999", "a-rule")(explained)
    assert made.page.title == "A title"
    assert [heading for heading, _ in made.page.sections] == list(SECTIONS)
    assert dict(made.page.sections)["How we know"] == "It was measured.\n\nIn two paragraphs."


def test_a_rule_without_its_sections_is_refused_and_the_missing_ones_are_named() -> None:
    with pytest.raises(ValueError, match=r"lacks: How we know, What helps$"):
        rule("ST999", "a-rule")(unexplained)


@pytest.mark.parametrize(("code", "name"), [("ST1", "a-rule"), ("XX101", "a-rule"), ("ST101", "A rule")])
def test_a_bad_code_or_name_is_refused(code: str, name: str) -> None:
    with pytest.raises(ValueError, match="a rule needs a code like"):
        rule(code, name)


def test_what_a_rule_takes_is_what_it_looks_at_and_a_default_may_be_missing() -> None:
    evidence = rule("ST999", "a-rule")(explained).evidence
    assert evidence.needed == {"step"}
    assert evidence.names == ("step", "lines")
    assert evidence.of(CASE) == {"step": CASE.step, "lines": ()}


def test_a_rule_that_asks_for_what_no_case_has_is_refused() -> None:
    def asking(step: StepSummary, weather: str) -> None:
        """No case has this."""

    with pytest.raises(ValueError, match=r"^rule a-rule asks for weather, where a case has allocations, "):
        evidence_of(asking, "rule a-rule")


def test_every_part_of_a_case_but_the_step_has_words_for_its_absence() -> None:
    assert {each.name for each in fields(Case)} - set(ABSENT) == {"step"}
    for name in ABSENT:
        assert not CASE.has(name)
        assert CASE.why_absent(name)


@for_every("made", [*CATALOGUE, *FIXES])
def test_rules_and_fixes_take_their_evidence_as_a_case_holds_it(made: Rule | Fix) -> None:
    held = get_type_hints(Case) | {"compiled": bool, "between_runs": float, "case": Case}
    taken = get_type_hints(made.function)
    for name in made.evidence.names:
        needed = (NoneType,) if name in made.evidence.needed else ()
        assert _choices(taken[name]) == [each for each in _choices(held[name]) if each not in needed], name


def _choices(hint: object) -> list[object]:
    return list(get_args(hint)) if isinstance(hint, UnionType) else [hint]


def test_codes_and_names_are_unique_and_every_rule_is_in_the_catalogue() -> None:
    assert len({made.code for made in CATALOGUE}) == len({made.name for made in CATALOGUE}) == len(CATALOGUE)
    folder = Path(__file__).parents[2] / "src" / "steptime" / "advice" / "rules"
    written = [
        code
        for path in folder.glob("*.py")
        for code in re.findall(r'^@rule\(\s*"(ST\d+)"', path.read_text(), re.MULTILINE)
    ]
    assert sorted(written) == sorted(made.code for made in CATALOGUE)


def test_what_a_rule_replaces_exists() -> None:
    names = {made.name for made in CATALOGUE}
    for made in CATALOGUE:
        assert made.supersedes <= names, made.name
        assert made.name not in made.supersedes


class Entry(EntryPoint):
    """An entry point that loads what a test gives it."""

    def load(self) -> object:
        """What the name stands for."""
        return {"good": GOOD, "function": explained, "taken": CATALOGUE[0], "gone": None}[self.name] or self._fail()

    def _fail(self) -> object:
        raise ImportError("no module named plugin")


GOOD: Rule = rule("ST998", "good-rule")(explained)


def test_plugins_are_verified_at_load_and_what_is_wrong_is_reported() -> None:
    entries = [Entry(name, f"plugin:{name}", "steptime.rules") for name in ("good", "function", "taken", "gone")]
    rules, problems = plugin_rules(CATALOGUE, entries)
    assert rules == (GOOD,)
    message = {name.removeprefix("plug-in "): why for name, why in problems}
    assert "plugin:function is a function, not a rule" in message["function"]
    assert "code ST101, which input-wait already uses" in message["taken"]
    assert "cannot be imported: ImportError: no module named plugin" in message["gone"]
