"""A rule: a pure function over the signals that it declares, with the page that explains it.

One law: a rule without its four sections of explanation does not exist; the docstring is the page.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from steptime.advice.evidence import Signal
from steptime.advice.signals import Signals
from steptime.quantities import Estimate, SourceLine


@dataclass(frozen=True, slots=True)
class Page:
    """An explanation. sections: (heading, text), in the order in which they were asked for."""

    title: str
    sections: tuple[tuple[str, str], ...]


def read_page(function: Callable[..., object], owner: str, headings: Sequence[str]) -> Page:
    """The page in a docstring: a first line, then each heading on a line of its own with its text below. owner: as a
    sentence names it ("rule input-wait"). Raises ValueError naming the sections that are missing or empty."""
    lines = (inspect.getdoc(function) or "").splitlines()
    places = {line.strip(): number for number, line in enumerate(lines) if line.strip() in headings}
    ends = [*sorted(places.values())[1:], len(lines)]
    spans = dict(zip(sorted(places.values()), ends, strict=False))
    texts = {heading: _paragraph(lines[start + 1 : spans[start]]) for heading, start in places.items()}
    missing = [heading for heading in headings if not texts.get(heading)]
    title = lines[0].strip() if lines else ""
    if missing or not title or title in headings:
        raise ValueError(f"the docstring of {owner} lacks: {', '.join(missing) or 'its first line'}")
    return Page(title, tuple((heading, texts[heading]) for heading in headings))


def _paragraph(lines: list[str]) -> str:
    """The text under a heading, without its indentation."""
    return inspect.cleandoc("\n".join(["", *lines])).strip()


class Weight(Enum):
    """How a finding is shown."""

    FINDING = "finding"
    """Time per training step is to be saved."""
    NOTE = "note"
    """Worth knowing, charged to no training step (a slow evaluation)."""
    DOUBT = "doubt"
    """What the measurement suffered from outside of the job: the verdict is less sure (background load)."""


@dataclass(frozen=True, slots=True)
class Finding:
    """at_stake: ns per step that a perfect fix of this alone could save, None for notes and doubts. summary: one line
    with the numbers. advice: what helps *given the configuration in force*, one or two sentences, naming no fix
    object. evidence: further sentences. account: name of the account that it explains."""

    code: str
    name: str
    weight: Weight
    summary: str
    advice: str
    savings: Estimate | None = None
    category: str = ""
    source: SourceLine | None = None
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Examination:
    """What examining a case gave. not_examined: (code, reason); failed: (code, message of the exception)."""

    findings: tuple[Finding, ...]
    not_examined: tuple[tuple[str, str], ...] = ()
    failed: tuple[tuple[str, str], ...] = ()


Outcome = Iterable[Finding] | Finding | None
Function = Callable[[Signals], Outcome]

SECTIONS = ("What it means", "How we know", "What helps", "When to ignore it")
"""The sections of a rule's docstring, in order, each heading on a line of its own."""

_CODE = re.compile(r"ST[1-9]\d\d")
_NAME = re.compile(r"[a-z]+(-[a-z]+)*")


@dataclass(frozen=True, slots=True)
class Rule:
    """needs: signals without which it is not examined. uses: signals that it reads where they exist.

    instead_of: names of more general rules whose finding about the same account this one replaces. by_line: its
    findings are about one line each, so that only a finding about the same line can replace them.
    """

    code: str
    name: str
    needs: frozenset[Signal]
    uses: frozenset[Signal]
    instead_of: frozenset[str]
    weight: Weight
    function: Function
    page: Page
    by_line: bool = False

    def __call__(self, signals: Signals) -> tuple[Finding, ...]:
        """The rule's findings; the function's None or single finding made a tuple. Raises what the function raises, and
        TypeError for what is no finding of this rule."""
        outcome = self.function(signals)
        if outcome is None:
            return ()
        found = (outcome,) if isinstance(outcome, Finding) else tuple(outcome)
        for each in found:
            self._check(each)
        return found

    def _check(self, finding: object) -> None:
        if not isinstance(finding, Finding):
            raise TypeError(f"it gives a {type(finding).__name__}, where a finding was expected: use finding(…) of it")
        if (finding.code, finding.name) != (self.code, self.name):
            raise TypeError(f"it gives a finding of {finding.code} {finding.name}: use finding(…) of the rule itself")
        if not isinstance(finding.savings, Estimate | None):
            raise TypeError(f"at_stake is a {type(finding.savings).__name__}, where an Estimate was expected")

    def finding(
        self,
        summary: str,
        advice: str,
        savings: Estimate | None = None,
        *,
        category: str = "",
        source: SourceLine | None = None,
        evidence: tuple[str, ...] = (),
        weight: Weight | None = None,
    ) -> Finding:
        """A finding of this rule."""
        return Finding(
            self.code, self.name, weight or self.weight, summary, advice, savings, category, source, evidence
        )


def rule(
    code: str,
    name: str,
    *,
    needs: set[Signal],
    uses: frozenset[Signal] | set[Signal] = frozenset(),
    instead_of: tuple[str, ...] = (),
    weight: Weight = Weight.FINDING,
    by_line: bool = False,
) -> Callable[[Function], Rule]:
    """Makes a rule of a function.

    Raises ValueError for a code that is not STnnn, a name that is not in kebab case, no needs, or a docstring that
    lacks one of the four sections.
    """
    if not _CODE.fullmatch(code) or not _NAME.fullmatch(name):
        raise ValueError(f"a rule needs a code like ST101 and a name like input-wait, not {code!r} and {name!r}")
    if not needs:
        raise ValueError(f"rule {name} declares no signal that it needs")

    def make(function: Function) -> Rule:
        page = read_page(function, f"rule {name}", SECTIONS)
        general = frozenset(instead_of)
        return Rule(code, name, frozenset(needs), frozenset(uses), general, weight, function, page, by_line)

    return make
