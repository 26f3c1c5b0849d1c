"""Writes docs/rules from the docstrings: `python -m steptime.advice.rule_pages docs/rules`; with --check, compares."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from steptime.advice.explain import rule_index, rule_page
from steptime.advice.rules import CATALOGUE


def wanted_pages() -> dict[str, str]:
    """All pages by file name."""
    pages = {f"{rule.name}.md": rule_page(rule) for rule in CATALOGUE}
    pages["README.md"] = rule_index(CATALOGUE)
    return pages


def stale_pages(folder: Path, wanted: Mapping[str, str]) -> tuple[str, ...]:
    """Names of pages that are missing, differ, or are not wanted any more."""
    there = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.md")} if folder.is_dir() else {}
    return tuple(sorted(name for name in wanted.keys() | there.keys() if wanted.get(name) != there.get(name)))


def write_pages(folder: Path, wanted: Mapping[str, str]) -> None:
    """Writes all pages and removes the others."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.md"):
        path.unlink()
    for name, text in wanted.items():
        (folder / name).write_text(text, encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Writes or, with --check, names what is not current (exit status 1)."""
    folder = Path(next(argument for argument in arguments if not argument.startswith("-")))
    if "--check" not in arguments:
        write_pages(folder, wanted_pages())
        return 0
    stale = stale_pages(folder, wanted_pages())
    sys.stderr.write("".join(f"{folder / name} is not current\n" for name in stale))
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
