"""The page of a rule, from its docstring: the same text in `steptime explain`, in docs/rules and in the report."""

from __future__ import annotations

from collections.abc import Iterable

from steptime.advice.engine import all_rules
from steptime.advice.rule import Rule

FAMILIES = {
    "1": "Input",
    "2": "Host",
    "3": "Dispatch, synchronisation, compilation",
    "4": "Memory traffic",
    "5": "Optimiser",
    "6": "Debugging switches",
    "7": "Recomputation and memory",
    "8": "The machine and the network",
    "9": "Notes",
}
"""What the first digit of a code stands for."""


def find_rule(code: str) -> Rule | None:
    """The rule of a code or a name, in any case; None if there is none."""
    wanted = code.strip().lower().replace("_", "-")
    return next((rule for rule in all_rules()[0] if wanted in (rule.code.lower(), rule.name)), None)


def rule_page(rule: Rule) -> str:
    """The page of a rule, as Markdown."""
    signals = ", ".join(sorted(signal.value for signal in rule.needs))
    parts = [f"# {rule.code} {rule.name}: {rule.page.title}"]
    parts += [f"## {heading}\n\n{text}" for heading, text in rule.page.sections]
    return "\n\n".join(parts) + f"\n\n*Weight: {rule.weight.value}. Needs: {signals}.*\n"


def rule_index(rules: Iterable[Rule]) -> str:
    """The table of contents of docs/rules, as Markdown."""
    lines = ["# Rules", "", "What steptime looks for. `steptime explain CODE` shows the same pages."]
    family = ""
    for rule in sorted(rules, key=lambda rule: rule.code):
        if rule.code[2] != family:
            family = rule.code[2]
            lines += ["", f"## {FAMILIES[family]}", ""]
        lines.append(f"- [{rule.code} {rule.name}]({rule.name}.md): {rule.page.title}.")
    return "\n".join(lines) + "\n"
