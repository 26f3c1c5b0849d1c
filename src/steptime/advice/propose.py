"""Proposals for a case: the fixes that answer its findings, ordered by predicted gain per risk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from steptime.advice.evidence import Case
from steptime.advice.fix import Fix, Goal, Option, Proposal, Snippet
from steptime.advice.fixes import CATALOGUE
from steptime.advice.line_evidence import function_of
from steptime.advice.rule import Finding, Weight
from steptime.advice.savings import at_most
from steptime.advice.verdict import LEAST_REPORTED
from steptime.analysis.what_if.calibrated import HOST
from steptime.quantities import format_duration

UNKNOWN = 0.25
"""Assumed gain of a fix without a model, as a fraction of the savings, or of the step if these are unknown. It only
orders proposals and is never printed."""

MEMORY_NOTES = frozenset({"ST703", "ST704", "ST705"})
"""Notes about memory: a trial could win no time, so what answers them is advice."""
COST_UNKNOWN = frozenset({"ST606"})
"""Notes whose cost only a trial shows: it may be much or nothing."""
COMPUTING = frozenset({"ST908"})
"""Notes on computing that no finding explains: fixes for all computing are tried after those for findings."""


def propose(
    case: Case, findings: Sequence[Finding], fixes: Sequence[Fix] = CATALOGUE, *, goal: Goal = Goal.SPEED
) -> tuple[Proposal, ...]:
    """Fixes to propose for a case, best first; those that only the user can apply come last. With memory as the goal,
    these are all fixes that reduce it and fit the case, whatever was found; with speed, fixes that answer a finding. No
    predicted saving exceeds the savings of the findings that a fix answers (or of everything that it affects, where
    that is more), nor the step. A fix that cannot pay because the host decides the step is not proposed."""
    if goal is Goal.MEMORY:
        freeing = [each for fix in fixes if fix.frees for each in _freeing(fix, case)]
        return tuple(sorted(freeing, key=lambda each: (each.advice_only, -each.fix.frees / each.fix.risk)))
    answered = MEMORY_NOTES | COST_UNKNOWN | COMPUTING
    found = [finding for finding in findings if finding.weight is Weight.FINDING or finding.code in answered]
    made = [each for fix in fixes for each in _proposals(fix, case, found)]
    step = case.step.duration.value
    return tuple(sorted(made, key=lambda each: (each.advice_only, -_worth(each, step))))


def _freeing(fix: Fix, case: Case) -> list[Proposal]:
    """Options of a fix, as if memory were full."""
    if case.memory is not None:
        case = replace(case, memory=replace(case.memory, capacity=case.memory.peak))
    return [Proposal(fix, replace(option, saving=None), "") for option in fix(case)]


def _proposals(fix: Fix, case: Case, findings: Sequence[Finding]) -> list[Proposal]:
    answered = [finding for finding in findings if finding.code in fix.addresses and _acts_on(fix, finding, case)]
    if not answered:
        return []
    first = max(answered, key=lambda finding: finding.savings.value if finding.savings is not None else 0.0)
    step = case.step.duration.value
    savings = first.savings.high if first.savings is not None else None
    by_host = case.replay is not None and case.replay.decides == HOST
    proposals = []
    for option in fix(case):
        upper_bound = min(step, max(savings, option.reach)) if savings is not None else None
        limit = step if upper_bound is None else upper_bound
        saving = at_most(option.saving, limit) if option.saving is not None else None
        if by_host and saving is not None and saving.high < LEAST_REPORTED * step:
            continue
        placed = _placed(replace(option, saving=saving), first, step)
        proposals.append(Proposal(fix, placed, first.code, upper_bound))
    return proposals


def _acts_on(fix: Fix, finding: Finding, case: Case) -> bool:
    """True if a finding is about something that a fix can change: compiling the model does nothing for a line of the
    dataset or of the optimizer. True also if no operators of the line's function are known."""
    source, loader = finding.source, case.loader
    if not fix.phases or source is None:
        return True
    if loader is not None and loader.item_site is not None and function_of(loader.item_site) == function_of(source):
        return "input" in fix.phases
    known = [(use.phase, use.source) for use in case.operators if use.source is not None]
    phases = {phase for phase, place in known if function_of(place) == function_of(source)}
    return not phases or not phases.isdisjoint(fix.phases)


def _placed(option: Option, finding: Finding, step: float) -> Option:
    """Option with the finding's line and the gain of a perfect fix, if it is advice."""
    if finding.code in MEMORY_NOTES:
        return replace(
            option, changes=(), as_written=False, saving=None, advice=f"{option.label} would take less memory."
        )
    if option.changes or not option.advice:
        return option
    edit = option.edit
    if isinstance(edit, Snippet) and edit.site is None and finding.source is not None:
        edit = replace(edit, site=finding.source)
    savings = finding.savings.value if finding.savings is not None else 0.0
    if not 0 < savings < step or "at most" in option.advice:  # it has a bound of its own, which is no higher
        return replace(option, edit=edit)
    most = f"At most {step / (step - savings):.2f}×: savings of up to {format_duration(savings)}/step."
    return replace(option, edit=edit, advice=f"{option.advice} {most}")


def _worth(proposal: Proposal, step: float) -> float:
    """Predicted savings over the risk, ns per step, for the order only."""
    saving = proposal.option.saving
    savings = step if proposal.finding in COST_UNKNOWN else proposal.upper_bound or 0.0
    return (saving.value if saving is not None else UNKNOWN * savings) / proposal.fix.risk
