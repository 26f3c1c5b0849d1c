"""Time that could be saved in a step and that no finding is about: its category, with the place of most of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import cast

from steptime.advice.evidence import Case
from steptime.advice.line_evidence import line_times, own_times, steady_time
from steptime.advice.rule import LONGEST_SUMMARY, Finding, Part, Rule, Weight
from steptime.advice.savings import in_step, summed
from steptime.advice.verdict import WORDS
from steptime.quantities import SourceLine, format_source

LARGE = 0.1
"""Fraction of the step: a line, an operator or a category that takes so much is named, by a finding or by a note of its
own."""
MOST_UNCLAIMED = 0.2
"""Fraction of all that could be saved in a step: so much may be in no finding without a word."""
ASK = "Ask what it is for, and whether each step needs it."


def unclaimed(findings: Iterable[Finding], case: Case) -> dict[str, float]:
    """Savings, ns per step by category, that no finding or note covers, the largest first; {} if they are less than a
    fifth of all possible savings. Findings outside the breakdown's categories count for the category with most left."""
    left = {use.name: min(use.recoverable.value, use.duration.value) for use in case.categories}
    step = case.step.duration.value
    whole, general = min(sum(left.values()), step), 0.0
    for each in findings:
        if each.weight is Weight.NOTE and each.category in left:
            left[each.category] = 0.0
        elif each.weight is Weight.FINDING and each.savings is not None:
            if each.category in left:
                left[each.category] -= each.savings.value
            else:
                general += each.savings.value
    for name in sorted(left, key=lambda name: -left[name]):
        taken = min(max(0.0, left[name]), general)
        left[name], general = left[name] - taken, general - taken
    rest = sorted((item for item in left.items() if item[1] >= LARGE * step), key=lambda item: -item[1])
    return dict(rest) if sum(amount for _, amount in rest) > MOST_UNCLAIMED * whole else {}


def notes(findings: Iterable[Finding], case: Case, rule: Rule) -> Iterator[Finding]:
    """Yields a note for each category with unclaimed savings, at the line with most of the category's time."""
    for name, amount in unclaimed(findings, case).items():
        place, operator = _place(name, case)
        words = " at ".join(filter(None, (operator, format_source(place) if place is not None else "")))
        saved = f"Up to {in_step(amount, case.step)} could be saved in {WORDS.get(name, name)}"
        summary = f"{saved}; look first at {words}" if words else f"{saved}; no finding is about it"
        summary = summary if len(summary) <= LONGEST_SUMMARY else saved
        yield replace(rule.finding(summary, ASK, source=place), category=cast(Part, name))


def _place(category: str, case: Case) -> tuple[SourceLine | None, str]:
    """(line, operator) with most of a category's time; (None, "") where none is known."""
    if category == "input" and case.loader is not None:
        return case.loader.site, ""
    if category == "sync" and case.sites:
        most = max(case.sites, key=lambda site: site.calls)
        return most.source, most.name
    computing = category in {"compute", "copy"}
    operator = _operator(case) if computing else (None, "")
    return operator if operator[1] else (_line(case), "")


def _line(case: Case) -> SourceLine | None:
    """Line of the job by its time outside of operators where lines were timed, and by samples below them. Not the one
    that starts backward: what runs in it was made by others."""
    timed = {each.line.source: each.python.value for each in line_times(case.lines, case.phases)}
    passes = {line.source for line in case.lines if line.role == "backward"}
    spent = summed((*timed.items(), *own_times(case.paths).items()))
    return max(spent.keys() - passes, key=lambda each: spent[each], default=None)


def _operator(case: Case) -> tuple[SourceLine | None, str]:
    kernel = max(case.kernels, key=lambda use: use.duration, default=None)
    if kernel is not None:
        return kernel.source, kernel.operator or kernel.name
    if not case.operators:
        return None, ""
    most = max(case.operators, key=lambda use: steady_time([use], case.operators, case.categories, case.machine))
    return most.place, most.name
