"""The page of a remedy, from its docstring, and docs/remedies: `python -m steptime.advice.fix_pages docs/remedies`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from steptime.advice.fix import Remedy
from steptime.advice.fixes import CATALOGUE
from steptime.advice.rule_pages import write_pages

FAMILIES = {
    "1": "Input and host",
    "2": "Optimiser",
    "3": "Precision, layout, compilation",
    "4": "The machine",
    "5": "Switches",
    "6": "Memory",
    "7": "Several ranks",
}
"""What the first digit of a code stands for."""
RISKS = ("", "cannot hurt", "low", "medium", "considerable", "high")


def find_remedy(code: str) -> Remedy | None:
    """The remedy of a code or a name, in any case; None if there is none."""
    wanted = code.strip().lower().replace("_", "-")
    return next((each for each in CATALOGUE if wanted in (each.code.lower(), each.name)), None)


def remedy_page(remedy: Remedy) -> str:
    """The page of a remedy, as Markdown."""
    parts = [f"# {remedy.code} {remedy.name}: {remedy.page.title}"]
    parts += [f"## {heading}\n\n{text}" for heading, text in remedy.page.sections]
    answers = ", ".join(sorted(remedy.addresses))
    last = f"*Answers: {answers}. Promise: {remedy.promise.value}. Risk: {RISKS[remedy.risk]}.*"
    return "\n\n".join([*parts, last]) + "\n"


def remedy_index(remedies: Iterable[Remedy]) -> str:
    """The table of contents of docs/remedies, as Markdown."""
    lines = ["# Remedies", "", "What `steptime try` tries. `steptime explain CODE` shows the same pages."]
    family = ""
    for remedy in sorted(remedies, key=lambda each: each.code):
        if remedy.code[2] != family:
            family = remedy.code[2]
            lines += ["", f"## {FAMILIES[family]}", ""]
        lines.append(f"- [{remedy.code} {remedy.name}]({remedy.name}.md): {remedy.page.title}.")
    return "\n".join(lines) + "\n"


def wanted_pages() -> dict[str, str]:
    """All pages by file name."""
    return {**{f"{each.name}.md": remedy_page(each) for each in CATALOGUE}, "README.md": remedy_index(CATALOGUE)}


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]), wanted_pages())
