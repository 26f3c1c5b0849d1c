"""The regime: which account a training step is bound by, with its interval, or why that cannot be said."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from steptime.findings.case import AccountUse, Case
from steptime.findings.finding import Finding, Weight
from steptime.findings.stakes import ratio
from steptime.quantities import Estimate, format_share

BALANCED = "balanced"
UNDECIDED = "undecided"
LEAST_SHARE = 0.1
"""Of the step: when no account can give a tenth, no account is what the step is bound by."""
WIDEST = 0.3
"""Of the step: an interval wider than this decides nothing when another account's interval overlaps it."""

WORDS = {
    "compute": "computing",
    "communication": "communication",
    "copy": "copies",
    "input": "waiting for input",
    "sync": "waiting for the device to be read",
    "compile": "compiling",
    "launch": "dispatching operators",
    "host": "Python on the host",
    "unexplained": "time that nothing explains",
}
"""What an account is called in a sentence."""


@dataclass(frozen=True, slots=True)
class Regime:
    """name: of an account, "balanced" or "undecided". share: recoverable part of the step (unit "1"). sentence: for a
    person."""

    name: str
    sentence: str
    share: Estimate | None = None


def regime(case: Case, findings: Iterable[Finding] = ()) -> Regime:
    """The account with the largest recoverable time.

    Undecided with a doubt among the findings, without a ledger, and when intervals are too wide to tell two accounts
    apart; balanced when no account can give much or two give the same within narrow intervals.
    """
    doubts = [finding for finding in findings if finding.weight is Weight.DOUBT]
    if not case.accounts or case.step.duration.value <= 0:
        return Regime(UNDECIDED, "Undecided: the steps could not be split into accounts.")
    ranked = sorted(case.accounts, key=lambda use: use.recoverable.value, reverse=True)
    first = _share(ranked[0], case)
    if doubts:
        likely = (
            f" The largest account is {_words(ranked[0])} ({format_share(first.value)})." if first.value > 0 else ""
        )
        return Regime(UNDECIDED, f"Undecided: {doubts[0].summary[:1].lower()}{doubts[0].summary[1:]}.{likely}", first)
    if first.value < LEAST_SHARE:
        return Regime(
            BALANCED, f"Balanced: no account alone could give back more than {format_share(first.value)}.", first
        )
    return _between(ranked, first, case)


def _between(ranked: list[AccountUse], first: Estimate, case: Case) -> Regime:
    """The first account, unless the second cannot be told from it."""
    second = _share(ranked[1], case) if len(ranked) > 1 else None
    if second is not None and second.high >= first.low and second.value > 0:
        pair = f"{_words(ranked[0])}, {_interval(first)}, and {_words(ranked[1])}, {_interval(second)},"
        if max(first.high - first.low, second.high - second.low) > WIDEST:
            return Regime(UNDECIDED, f"Undecided: {pair} cannot be told apart; measure more steps.", first)
        return Regime(BALANCED, f"Balanced between {pair[:-1]}.", first)
    words = _words(ranked[0])
    return Regime(ranked[0].name, f"Bound by {words}: without it a step would be {_interval(first)} shorter.", first)


def _share(use: AccountUse, case: Case) -> Estimate:
    """Recoverable part of the step, with its interval. The step is taken as known: both were measured in the same
    steps."""
    step = case.step.duration.value
    value, low, high = (
        ratio(part, step) for part in (use.recoverable.value, use.recoverable.low, use.recoverable.high)
    )
    return Estimate(min(value, 1.0), min(low, 1.0), min(high, 1.0), use.recoverable.samples, "1")


def _words(use: AccountUse) -> str:
    return WORDS.get(use.name, use.name)


def _interval(share: Estimate) -> str:
    return f"{format_share(share.value)} ({100 * share.low:.0f} to {100 * share.high:.0f} %)"
