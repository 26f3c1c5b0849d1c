"""Examining a case: every rule once, then what is immaterial or said better by another finding goes.

One law: a rule that fails costs one row, never the diagnosis.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from steptime.findings.case import Case, Signal
from steptime.findings.catalogue import CATALOGUE
from steptime.findings.finding import Examination, Finding, Weight
from steptime.findings.plugins import plugin_rules
from steptime.findings.rule import Rule
from steptime.findings.signals import ABSENCE, NOT_IN_TRACES, Signals, measured
from steptime.findings.stakes import capped, named
from steptime.quantities import Estimate

LEAST_SHARE = 0.03
"""Of the step: a finding worth less is not worth an edit, and is within what two runs of one job differ by."""
FEWEST_FOR_NOTHING = 6
"""Values: an interval of fewer often reaches down to nothing although each of them is large; that says more about their
number than about the fault, so that a finding is kept, and said to rest on so few."""
REPLACES_FROM = 0.5
"""A particular finding replaces the general one about the same account when it explains at least half of it."""
_ORDER = {Weight.FINDING: 0, Weight.NOTE: 1, Weight.DOUBT: 2}


@lru_cache(maxsize=1)
def all_rules() -> tuple[tuple[Rule, ...], tuple[tuple[str, str], ...]]:
    """Built-in rules and those of plugins, and the problems of plugins that cannot be used."""
    plugins, problems = plugin_rules(CATALOGUE)
    return CATALOGUE + plugins, problems


def examine(case: Case, rules: Iterable[Rule] | None = None) -> Examination:
    """All findings of a case, by time at stake; notes, then doubts after them.

    A rule whose needed signals are missing is listed as not examined with the reason, one that raises as failed.
    """
    chosen, problems = all_rules() if rules is None else (tuple(rules), ())
    findings: list[Finding] = []
    absent: list[tuple[str, str]] = []
    failed = list(problems)
    reasons = ABSENCE | NOT_IN_TRACES if case.step.mode == "trace" else ABSENCE
    for rule in chosen:
        found, reason, failure = _outcome(rule, case, reasons)
        findings += found
        absent += [(rule.code, reason)] if reason else []
        failed += [(rule.code, failure)] if failure else []
    material = [bounded for finding in findings if (bounded := _bounded(finding, case)) is not None]
    kept = _without_generalities(material, {rule.name: rule for rule in chosen})
    return Examination(tuple(sorted(kept, key=_rank)), tuple(absent), tuple(failed))


def _outcome(rule: Rule, case: Case, reasons: dict[Signal, str]) -> tuple[tuple[Finding, ...], str, str]:
    """(findings, why it was not examined, why it failed)."""
    try:
        missing = [signal for signal in rule.needs if not measured(case, signal)]
        if missing:
            return (), "; ".join(sorted(reasons[signal] for signal in missing)), ""
        return rule(Signals(case, rule.needs | rule.uses)), "", ""
    except (Exception, SystemExit) as error:  # noqa: BLE001 - some rules are not ours: one row, not the diagnosis
        return (), "", f"{type(error).__name__}: {error}"


def _rank(finding: Finding) -> tuple[int, float, str]:
    stake = finding.at_stake.value if finding.at_stake is not None else 0.0
    return _ORDER[finding.weight], -stake, finding.code


def _bounded(finding: Finding, case: Case) -> Finding | None:
    """The finding with its stake cut to its account (or to the step); None when it is not material."""
    if finding.at_stake is None:
        return finding
    stake = capped(finding.at_stake, _ceiling(finding, case))
    step = case.step.duration.value
    if finding.weight is not Weight.FINDING:
        return replace(finding, at_stake=stake)
    if stake.value < LEAST_SHARE * step or (stake.low <= 0 and not _rests_on_few(case)):
        return None
    few = (f"This rests on {_steps(case)}: no interval excludes that it is nothing.",) if stake.low <= 0 else ()
    return replace(finding, at_stake=stake, evidence=finding.evidence + few)


def _rests_on_few(case: Case) -> bool:
    """In a bare trace, where nobody can let the job run longer."""
    return case.step.mode == "trace" and case.step.steady < FEWEST_FOR_NOTHING


def _steps(case: Case) -> str:
    return "one step" if case.step.steady == 1 else f"{case.step.steady} steps"


def _ceiling(finding: Finding, case: Case) -> Estimate:
    """No more can be saved than the account holds; what lies between steps (no account) is bounded by nothing."""
    account = named(case.accounts, finding.account) if finding.account else None
    if account is not None:
        return account.duration
    if finding.account:
        return case.step.duration
    return finding.at_stake or case.step.duration


def _without_generalities(findings: list[Finding], rules: dict[str, Rule]) -> list[Finding]:
    """Drops general findings that a particular one explains, and keeps their summary as its evidence."""
    kept: list[Finding] = []
    absorbed: dict[int, list[Finding]] = {}
    for general in findings:
        better = [number for number, finding in enumerate(findings) if _replaces(finding, general, rules)]
        if better:
            best = max(better, key=lambda number: _stake(findings[number]))
            absorbed.setdefault(best, []).append(general)
    gone = {id(general) for many in absorbed.values() for general in many}
    for number, finding in enumerate(findings):
        if id(finding) not in gone:
            also = tuple(general.summary for general in absorbed.get(number, ()))
            kept.append(replace(finding, evidence=finding.evidence + also) if also else finding)
    return kept


def _replaces(finding: Finding, general: Finding, rules: dict[str, Rule]) -> bool:
    """Whether a particular finding stands for a general one: same account, same line where both are about lines."""
    rule = rules.get(finding.name)
    if rule is None or general.name not in rule.instead_of or finding.weight is not Weight.FINDING:
        return False
    if finding.account and general.account and finding.account != general.account:
        return False
    if rules[general.name].by_line and general.source is not None and not _same_line(finding, general):
        return False
    return _stake(finding) >= REPLACES_FROM * _stake(general)


def _same_line(finding: Finding, general: Finding) -> bool:
    one, other = finding.source, general.source
    return one is not None and other is not None and (one.file, one.line) == (other.file, other.line)


def _stake(finding: Finding) -> float:
    return finding.at_stake.value if finding.at_stake is not None else 0.0
