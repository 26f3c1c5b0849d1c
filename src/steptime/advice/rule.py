"""Rule: a pure function from evidence to findings. Its parameters are the parts of a case that it needs, and its
docstring is its page and must have all sections."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal, TypeAlias, TypeVar, cast

from steptime.advice.evidence import Case, Evidence, evidence_of
from steptime.analysis.categories import CategoryName
from steptime.analysis.timeline import PhaseName
from steptime.quantities import Estimate, SourceLine

LONGEST_SUMMARY = 110
"""Most characters of a finding's summary."""


@dataclass(frozen=True, slots=True)
class Page:
    """Page of a rule or a fix. sections: (heading, text), in order."""

    title: str
    sections: tuple[tuple[str, str], ...]


def read_page(function: Callable[..., object], owner: str, headings: Sequence[str]) -> Page:
    """Page from a docstring: a title, then each heading at the start of a line, with its text after a colon or indented
    below. owner: text for the error ("rule input-wait"). Raises ValueError naming the sections that are missing or
    empty."""
    title, _, body = (inspect.getdoc(function) or "").partition("\n")
    parts = re.split(rf"^({'|'.join(headings)})(?:: |:?\n)", body, flags=re.MULTILINE)
    texts = {heading: inspect.cleandoc(text) for heading, text in zip(parts[1::2], parts[2::2], strict=True)}
    missing = [heading for heading in headings if not texts.get(heading)]
    if missing or not title or title in headings:
        raise ValueError(f"the docstring of {owner} lacks: {', '.join(missing) or 'its first line'}")
    return Page(title, tuple((heading, texts[heading]) for heading in headings))


Made = TypeVar("Made")


def as_tuple(outcome: Iterable[Made] | Made | None, kind: type[Made]) -> tuple[Made, ...]:
    """Result of a rule's or a fix's function as a tuple: it may be one, several or None."""
    if outcome is None:
        return ()
    return (outcome,) if isinstance(outcome, kind) else tuple(cast(Iterable[Made], outcome))


Part: TypeAlias = CategoryName | PhaseName | Literal[""]
"""Part of a step that a finding explains: a category; a phase, if no step was profiled; "" for no single one."""


class Weight(Enum):
    """Kind of a finding, which decides how it is shown."""

    FINDING = "finding"
    """Time per training step can be saved."""
    NOTE = "note"
    """Worth knowing, but no time of a training step (a slow evaluation)."""
    CAVEAT = "caveat"
    """Disturbance of the measurement from outside of the job, such as background load: the verdict is less certain."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Finding of a rule. savings: ns per step that a perfect fix of this finding alone could save; None for notes and
    caveats, and for a part of another finding (`engine.shared`). summary: one line with the numbers. advice: one or two
    sentences on what helps *given the configuration in force*, without naming fix objects. evidence: further sentences.
    category: the part of the step that it explains. source: the line to look at; below: the line in which the time is
    spent, if that is another."""

    code: str
    name: str
    weight: Weight
    summary: str
    advice: str
    savings: Estimate | None = None
    category: Part = ""
    source: SourceLine | None = None
    evidence: tuple[str, ...] = ()
    below: SourceLine | None = None

    @property
    def spent_at(self) -> SourceLine | None:
        """Line in which the finding's time is spent, as far as known."""
        return self.below or self.source


@dataclass(frozen=True, slots=True)
class Examination:
    """Result of examining a case. findings: what the rules found, in the order to show. not_examined: (code, reason) of
    each rule without its evidence; failed: (code, message of the exception) of each rule that raised."""

    findings: tuple[Finding, ...]
    not_examined: tuple[tuple[str, str], ...] = ()
    failed: tuple[tuple[str, str], ...] = ()


Outcome = Iterable[Finding] | Finding | None
Function = Callable[..., Outcome]

SECTIONS = ("What it means", "How we know", "What helps", "When to ignore it")
"""Sections of a rule's docstring, in order."""

KEBAB_CASE = re.compile(r"[a-z]+(-[a-z]+)*")
"""Pattern of the names of rules and fixes."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Rule of the catalogue or of a plug-in. evidence: fields of a case that its function needs; without them, the rule
    is not examined. supersedes: names of more general rules whose finding about the same category this one replaces.
    by_line: its findings are about one line each, so that only a finding about the same line can replace them.
    at_setting: its finding is about the line of a setting, wherever the time goes. fallback: its finding describes a
    category of which no other finding explains a good part."""

    code: str
    name: str
    evidence: Evidence
    supersedes: frozenset[str]
    weight: Weight
    function: Function
    page: Page
    by_line: bool = False
    at_setting: bool = False
    fallback: bool = False

    def __call__(self, case: Case) -> tuple[Finding, ...]:
        """Findings of the rule as a tuple. Raises what the function raises, and TypeError for a result that is not a
        finding of this rule."""
        found = as_tuple(self.function(**self.evidence.of(case)), Finding)
        for each in found:
            if not isinstance(each, Finding):
                raise TypeError(f"it yields a {type(each).__name__}, not a finding: use finding(…) of the rule")
            if (each.code, each.name) != (self.code, self.name):
                raise TypeError(f"it yields a finding of {each.code} {each.name}: use finding(…) of the rule itself")
            if not isinstance(each.savings, Estimate | None):
                raise TypeError(f"savings is a {type(each.savings).__name__}, where an Estimate was expected")
        return found

    def finding(
        self,
        summary: str,
        advice: str,
        savings: Estimate | None = None,
        *,
        category: Part = "",
        source: SourceLine | None = None,
        evidence: tuple[str, ...] = (),
        weight: Weight | None = None,
        below: SourceLine | None = None,
    ) -> Finding:
        """Constructs a finding of this rule."""
        weight = weight or self.weight
        return Finding(self.code, self.name, weight, summary, advice, savings, category, source, evidence, below)


def rule(
    code: str,
    name: str,
    *,
    supersedes: tuple[str, ...] = (),
    weight: Weight = Weight.FINDING,
    by_line: bool = False,
    at_setting: bool = False,
    fallback: bool = False,
) -> Callable[[Function], Rule]:
    """Decorator that makes a rule of a function. Its parameters are fields of `Case`; one with a default may be
    missing.

    Raises ValueError for a code that is not STnnn, a name that is not in kebab case, a parameter that no case has, or a
    docstring that lacks one of the four sections."""
    if not re.fullmatch(r"ST[1-9]\d\d", code) or not KEBAB_CASE.fullmatch(name):
        raise ValueError(f"a rule needs a code like ST101 and a name like input-wait, not {code!r} and {name!r}")

    def make(function: Function) -> Rule:
        page, evidence = read_page(function, f"rule {name}", SECTIONS), evidence_of(function, f"rule {name}")
        replaced = frozenset(supersedes)
        return Rule(code, name, evidence, replaced, weight, function, page, by_line, at_setting, fallback)

    return make
