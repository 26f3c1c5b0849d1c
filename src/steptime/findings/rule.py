"""A rule: a pure function over the signals that it declares, with the page that explains it.

One law: a rule without its four sections of explanation does not exist; the docstring is the page.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from steptime.findings.case import Signal
from steptime.findings.finding import Finding, Weight
from steptime.findings.page import Page, read_page
from steptime.findings.signals import Signals
from steptime.quantities import Estimate, SourceLine

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
        if not isinstance(finding.at_stake, Estimate | None):
            raise TypeError(f"at_stake is a {type(finding.at_stake).__name__}, where an Estimate was expected")

    def finding(
        self,
        summary: str,
        advice: str,
        at_stake: Estimate | None = None,
        *,
        account: str = "",
        source: SourceLine | None = None,
        evidence: tuple[str, ...] = (),
        weight: Weight | None = None,
    ) -> Finding:
        """A finding of this rule."""
        return Finding(
            self.code, self.name, weight or self.weight, summary, advice, at_stake, account, source, evidence
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
