"""A comparison on its way out: the name gives the format, as for reports; `.xml` is the gate for a CI system."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from steptime.comparison import json, junit, markdown, text
from steptime.comparison.comparison import Comparison
from steptime.report.output import Renderer, check, write_as


def _page(comparison: Comparison) -> str:
    from steptime.comparison import page  # templates take a while to import

    return page.render(comparison)


RENDERERS: tuple[Renderer[Comparison], ...] = (
    Renderer(".txt", text.render),
    Renderer(".md", markdown.render),
    Renderer(".json", json.render),
    Renderer(".html", _page),
    Renderer(".xml", junit.render),
)


def check_outputs(destinations: Sequence[str], *, force: bool) -> None:
    """Refuses before the work what could not be written after it. Raises OutputError."""
    for destination in destinations:
        check(destination, force=force, renderers=RENDERERS)


def write(comparison: Comparison, destination: str, *, force: bool) -> None:
    """Writes it to a file, whole or not at all. Raises OutputError."""
    write_as(RENDERERS, comparison, destination, force=force)


def labels_of(paths: Sequence[str]) -> tuple[str, ...]:
    """A short and unique name for each path: its last parts, as few as tell them apart; else with its number."""
    parts = [Path(path).parts[::-1] or (path,) for path in paths]
    for count in range(1, max(map(len, parts)) + 1):
        names = ["/".join(each[:count][::-1]) for each in parts]
        if len(set(names)) == len(names):
            return tuple(names)
    return tuple(f"{path} ({number})" for number, path in enumerate(paths, 1))
