"""The page of a fix, from its docstring, and docs/fixes: `python -m steptime.advice.fix_pages docs/fixes`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from steptime.advice.fix import Fix
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


def find_fix(code: str) -> Fix | None:
    """The fix of a code or a name, in any case; None if there is none."""
    wanted = code.strip().lower().replace("_", "-")
    return next((each for each in CATALOGUE if wanted in (each.code.lower(), each.name)), None)


def fix_page(fix: Fix) -> str:
    """The page of a fix, as Markdown."""
    parts = [f"# {fix.code} {fix.name}: {fix.page.title}"]
    parts += [f"## {heading}\n\n{text}" for heading, text in fix.page.sections]
    answers = ", ".join(sorted(fix.addresses))
    last = f"*Answers: {answers}. Promise: {fix.promise.value}. Risk: {RISKS[fix.risk]}.*"
    return "\n\n".join([*parts, last]) + "\n"


def fix_index(fixes: Iterable[Fix]) -> str:
    """The table of contents of docs/fixes, as Markdown."""
    lines = ["# Fixes", "", "What `steptime try` tries. `steptime explain CODE` shows the same pages."]
    family = ""
    for fix in sorted(fixes, key=lambda each: each.code):
        if fix.code[2] != family:
            family = fix.code[2]
            lines += ["", f"## {FAMILIES[family]}", ""]
        lines.append(f"- [{fix.code} {fix.name}]({fix.name}.md): {fix.page.title}.")
    return "\n".join(lines) + "\n"


def wanted_pages() -> dict[str, str]:
    """All pages by file name."""
    return {**{f"{each.name}.md": fix_page(each) for each in CATALOGUE}, "README.md": fix_index(CATALOGUE)}


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]), wanted_pages())
