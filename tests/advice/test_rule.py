"""A rule declares what it sees and explains itself, or it does not exist."""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from steptime.advice.engine import plugin_rules
from steptime.advice.evidence import Case, Signal, StepSummary
from steptime.advice.rule import SECTIONS, Finding, Rule, rule
from steptime.advice.rules import CATALOGUE
from steptime.advice.signals import Declared, Signals, UndeclaredSignalError
from steptime.quantities import Estimate

CASE = Case(step=StepSummary(Estimate(10.0, 9.0, 11.0, 9), 20, 9, 3, "optimizer", "cpu"))


def explained(signals: Signals) -> Finding | None:
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


def unexplained(signals: Signals) -> Finding | None:
    """A title

    What it means
        Something.

    How we know

    When to ignore it
        Never.
    """
    return None


def test_a_docstring_becomes_the_page() -> None:
    made = rule("ST999", "a-rule", needs={Signal.STEP})(explained)
    assert made.page.title == "A title"
    assert [heading for heading, _ in made.page.sections] == list(SECTIONS)
    assert dict(made.page.sections)["How we know"] == "It was measured.\n\nIn two paragraphs."


def test_a_rule_without_its_sections_is_refused_and_the_missing_ones_are_named() -> None:
    with pytest.raises(ValueError, match=r"lacks: How we know, What helps$"):
        rule("ST999", "a-rule", needs={Signal.STEP})(unexplained)


@pytest.mark.parametrize(("code", "name"), [("ST1", "a-rule"), ("XX101", "a-rule"), ("ST101", "A rule")])
def test_a_bad_code_or_name_is_refused(code: str, name: str) -> None:
    with pytest.raises(ValueError, match="a rule needs a code like"):
        rule(code, name, needs={Signal.STEP})


def test_every_rule_needs_the_step() -> None:
    assert rule("ST999", "a-rule")(explained).needs == {Signal.STEP}


def test_signals_hide_what_was_not_declared() -> None:
    signals = Signals(CASE, frozenset({Signal.STEP, Signal.LOADER, Signal.LINES}))
    assert signals.step is CASE.step
    assert signals.lines == ()
    assert not signals.has(Signal.LOADER)
    with pytest.raises(LookupError, match="loader was not measured"):
        _ = signals.loader
    with pytest.raises(UndeclaredSignalError, match=r"without declaring Signal\.GARBAGE"):
        _ = signals.garbage
    with pytest.raises(UndeclaredSignalError):
        signals.has(Signal.OPERATORS)


def test_every_signal_is_a_field_of_the_case_a_property_and_has_words_for_its_absence() -> None:
    for signal in Signal:
        assert hasattr(CASE, signal.value)
        assert isinstance(vars(Signals)[signal.value], Declared)
        assert signal.absent


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


GOOD: Rule = rule("ST998", "good-rule", needs={Signal.STEP})(explained)


def test_plugins_are_verified_at_load_and_what_is_wrong_is_reported() -> None:
    entries = [Entry(name, f"plugin:{name}", "steptime.rules") for name in ("good", "function", "taken", "gone")]
    rules, problems = plugin_rules(CATALOGUE, entries)
    assert rules == (GOOD,)
    message = {name.removeprefix("plug-in "): why for name, why in problems}
    assert "plugin:function is a function, not a rule" in message["function"]
    assert "code ST101, which input-wait has already" in message["taken"]
    assert "cannot be imported: ImportError: no module named plugin" in message["gone"]
