"""The bottleneck: which account a training step is bound by, with its interval, or why that cannot be said."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from steptime.advice.evidence import Case, CategoryUse
from steptime.advice.models import late_name, late_of, late_reason
from steptime.advice.rule import Finding, Weight
from steptime.advice.savings import named, ratio
from steptime.quantities import Estimate, format_share

BALANCED = "balanced"
UNDECIDED = "undecided"
LEAST_SHARE = 0.15
"""Of the step: when no account can give back more, the step is not bound by any of them."""
MOST_OF_IT = 0.5
"""Of the step: when computing takes this much and nothing else can give back LEAST_SHARE, computing is the
bottleneck."""
COMPUTE = "compute"
COMMUNICATION = "communication"
UNSPLIT = ("forward", "backward", "optimizer")
"""Phases of the model that stand for categories where no step was profiled."""
WIDEST = 0.3
"""Of the step: an interval wider than this decides nothing when another account's interval overlaps it."""

WORDS = {
    "compute": "computing",
    "communication": "communication",
    "copy": "copies",
    "input": "waiting for input",
    "sync": "waiting for the device to be read",
    "compile": "compiling",
    "overhead": "operator overhead",
    "python": "your own Python",
    "unexplained": "time that nothing explains",
    "forward": "the forward pass",
    "backward": "the backward pass",
    "optimizer": "the optimiser",
}
"""What an account is called in a sentence."""


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """name: of an account, "balanced" or "undecided". share: recoverable part of the step (unit "1"). sentence: for a
    person."""

    name: str
    sentence: str
    share: Estimate | None = None


def bottleneck(case: Case, findings: Iterable[Finding] = ()) -> Bottleneck:
    """The account with the largest recoverable time; for a rank that the others wait for, that is said first."""
    found = _bottleneck(case, findings)
    known, late = case.lateness, late_of(case.ranks)
    if known is not None and case.rank in known.ranks:
        reason = late_reason(known)
        told = f"The other ranks wait for {late_name(known)}" + (f": {reason}." if reason else ".")
        return replace(found, sentence=f"{told} {found.sentence}")
    if late is None or late.rank != case.rank:
        return found
    return replace(found, sentence=f"The other ranks wait for rank {late.rank}. {found.sentence}")


def _bottleneck(case: Case, findings: Iterable[Finding]) -> Bottleneck:
    """The account with the largest recoverable time.

    What computing could give back, no breakdown knows: there it is the largest saving that a finding has in it.
    Undecided with a doubt among the findings, without a breakdown, and when intervals are too wide to tell two
    categories apart; balanced when no account can give much or two give the same within narrow intervals.
    """
    findings = tuple(findings)
    if not case.categories or case.step.duration.value <= 0:
        return Bottleneck(UNDECIDED, "Undecided: the steps could not be split into categories.")
    uses = [_with_savings(use, findings) for use in case.categories]
    ranked = sorted(uses, key=lambda use: use.recoverable.value, reverse=True)
    first = _share(ranked[0].recoverable, case)
    doubt = next((finding for finding in findings if finding.weight is Weight.DOUBT), None)
    if doubt is not None:
        largest = max(uses, key=lambda use: use.duration.value)
        share = format_share(_share(largest.duration, case).value)
        because = f"{doubt.summary[:1].lower()}{doubt.summary[1:]}"
        what = "it" if case.step.steady == 1 else "a step"
        return Bottleneck(
            UNDECIDED, f"Undecided: {because}. Most of {what} was {_words(largest, case)} ({share}).", first
        )
    if first.value < LEAST_SHARE:
        return _nothing_to_recover(uses, first, case)
    return _between(ranked, first, case)


def _with_savings(use: CategoryUse, findings: tuple[Finding, ...]) -> CategoryUse:
    """Computing with the largest saving that a finding has in it; other categories as they are."""
    savings = [finding.savings for finding in findings if finding.savings and finding.category == use.name]
    best = max(savings, key=lambda saving: saving.value, default=None)
    if use.name != COMPUTE or best is None or best.value <= use.recoverable.value:
        return use
    return replace(use, recoverable=best)


def _nothing_to_recover(uses: list[CategoryUse], first: Estimate, case: Case) -> Bottleneck:
    """Computing, when it is most of the step; else nothing in particular. Without a profile, only that is known."""
    unsplit = [use for use in uses if use.name in UNSPLIT]
    if unsplit:
        largest = max(unsplit, key=lambda use: use.duration.value)
        most = f"{_words(largest, case)} took {_interval(_share(largest.duration, case))} of a step"
        sentence = f"Undecided: no step was profiled, let the job run longer. {most.capitalize()}."
        return Bottleneck(UNDECIDED, sentence, first)
    least = f"no account could give back more than {format_share(first.value)}"
    compute = named(tuple(uses), COMPUTE)
    share = _share(compute.duration, case) if compute is not None else None
    if share is None or share.low < MOST_OF_IT:
        return Bottleneck(BALANCED, f"Balanced: {least}.", first)
    return Bottleneck(COMPUTE, f"Bound by computing, {_interval(share)} of a step: {least}.", first)


def _between(ranked: list[CategoryUse], first: Estimate, case: Case) -> Bottleneck:
    """The first account, unless the second cannot be told from it."""
    second = _share(ranked[1].recoverable, case) if len(ranked) > 1 else None
    if second is not None and second.high >= first.low and second.value > 0:
        pair = f"{_words(ranked[0], case)}, {_interval(first)}, and {_words(ranked[1], case)}, {_interval(second)},"
        if max(first.high - first.low, second.high - second.low) > WIDEST:
            return Bottleneck(UNDECIDED, f"Undecided: {pair} cannot be told apart; measure more steps.", first)
        return Bottleneck(BALANCED, f"Balanced between {pair[:-1]}.", first)
    words = _words(ranked[0], case)
    if ranked[0].name == COMPUTE:
        sentence = f"Bound by computing: faster kernels could make a step {_interval(first)} shorter."
        return Bottleneck(COMPUTE, sentence, first)
    return Bottleneck(
        ranked[0].name, f"Bound by {words}: without it a step would be {_interval(first)} shorter.", first
    )


def _share(part: Estimate, case: Case) -> Estimate:
    """A part of the step, with its interval. The step is taken as known: both were measured in the same steps."""
    step = case.step.duration.value
    value, low, high = (min(ratio(each, step), 1.0) for each in (part.value, part.low, part.high))
    return Estimate(value, low, high, part.samples, "1")


def _words(use: CategoryUse, case: Case) -> str:
    """What an account is called; communication of a rank that mostly waits for a late one is that waiting."""
    if use.name == COMMUNICATION and case.lateness is not None and case.rank not in case.lateness.ranks:
        return f"waiting for {late_name(case.lateness)}"
    late = late_of(case.ranks) if use.name == COMMUNICATION else None
    if late is not None and late.rank != case.rank:
        return f"waiting for rank {late.rank}"
    return WORDS.get(use.name, use.name)


def _interval(share: Estimate) -> str:
    return f"{format_share(share.value)} ({100 * share.low:.0f} to {100 * share.high:.0f} %)"
