"""Pages of rules and fixes, made from their docstrings: the same text for `steptime explain`, the report and the
site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from steptime.advice.engine import all_rules
from steptime.advice.fix import Fix
from steptime.advice.fixes import CATALOGUE as FIXES
from steptime.advice.rule import Rule, Weight
from steptime.advice.rules import CATALOGUE as RULES

RULE_FAMILIES = {
    "1": "Input",
    "2": "Python and CPU",
    "3": "Dispatch, synchronisation, compilation",
    "4": "Memory traffic",
    "5": "Optimizer",
    "6": "Debugging switches",
    "7": "Recomputation and memory",
    "8": "The machine and the network",
    "9": "Notes",
}
"""Titles by the first digit of a rule's code."""
FIX_FAMILIES = {
    "1": "Input and Python",
    "2": "Optimizer",
    "3": "Precision, layout, compilation",
    "4": "The machine",
    "5": "Switches",
    "6": "Memory",
    "7": "Several ranks",
}
"""Titles by the first digit of a fix's code."""
KINDS = {
    Weight.FINDING: "A finding: it states what it saves per step",
    Weight.NOTE: "A note: worth knowing, without savings per step",
    Weight.CAVEAT: "A caveat: something disturbed the measurement",
}
RISKS = ("", "very low", "low", "medium", "considerable", "high")


def find_rule(code: str) -> Rule | None:
    """Rule with this code or name, ignoring case; None if there is none."""
    return next((each for each in all_rules()[0] if _is_called(each, code)), None)


def find_fix(code: str) -> Fix | None:
    """Fix with this code or name, ignoring case; None if there is none."""
    return next((each for each in FIXES if _is_called(each, code)), None)


def _is_called(entry: Rule | Fix, code: str) -> bool:
    return code.strip().lower().replace("_", "-") in (entry.code.lower(), entry.name)


def page_of(entry: Rule | Fix) -> str:
    """Documentation page of a rule or a fix, as Markdown."""
    parts = [f"# {entry.code} {entry.name}: {entry.page.title}"]
    parts += [f"## {heading}\n\n{text}" for heading, text in entry.page.sections]
    if isinstance(entry, Rule):
        needs = ", ".join(sorted({"step", *entry.evidence.needed} - {"case"}))
        last = f"{KINDS[entry.weight]}. Evidence that it needs: {needs}."
    else:
        answers = ", ".join(sorted(entry.addresses))
        last = f"For the findings {answers}. Promise: {entry.promise.value}. Risk: {RISKS[entry.risk]}."
    return "\n\n".join([*parts, f"*{last}*"]) + "\n"


def site_pages() -> dict[str, str]:
    """Texts of all pages on rules and fixes, with an index of each kind, by their paths on the site."""
    pages = {f"rules/{each.name}.md": page_of(each) for each in RULES}
    pages |= {f"fixes/{each.name}.md": page_of(each) for each in FIXES}
    pages["rules/README.md"] = _index("Rules", "What steptime looks for.", RULE_FAMILIES, RULES)
    pages["fixes/README.md"] = _index("Fixes", "What `steptime try` tries.", FIX_FAMILIES, FIXES)
    return pages


def _index(title: str, what: str, families: Mapping[str, str], entries: Sequence[Rule | Fix]) -> str:
    lines = [f"# {title}", "", f"{what} `steptime explain CODE` shows the same pages."]
    for digit, family in families.items():
        lines += ["", f"## {family}", ""]
        lines += [_row(each) for each in entries if each.code[2] == digit]
    return "\n".join(lines) + "\n"


def _row(entry: Rule | Fix) -> str:
    return f"- [{entry.code} {entry.name}]({entry.name}.md): {entry.page.title}."
