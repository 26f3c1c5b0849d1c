"""The page of a rule or of a remedy: the docstring of its function, in sections."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Page:
    """An explanation. sections: (heading, text), in the order in which they were asked for."""

    title: str
    sections: tuple[tuple[str, str], ...]


def read_page(function: Callable[..., object], owner: str, headings: Sequence[str]) -> Page:
    """The page in a docstring: a first line, then each heading on a line of its own with its text below. owner: as a
    sentence names it ("rule input-wait"). Raises ValueError naming the sections that are missing or empty."""
    lines = (inspect.getdoc(function) or "").splitlines()
    places = {line.strip(): number for number, line in enumerate(lines) if line.strip() in headings}
    ends = [*sorted(places.values())[1:], len(lines)]
    spans = dict(zip(sorted(places.values()), ends, strict=False))
    texts = {heading: _paragraph(lines[start + 1 : spans[start]]) for heading, start in places.items()}
    missing = [heading for heading in headings if not texts.get(heading)]
    title = lines[0].strip() if lines else ""
    if missing or not title or title in headings:
        raise ValueError(f"the docstring of {owner} lacks: {', '.join(missing) or 'its first line'}")
    return Page(title, tuple((heading, texts[heading]) for heading in headings))


def _paragraph(lines: list[str]) -> str:
    """The text under a heading, without its indentation."""
    return inspect.cleandoc("\n".join(["", *lines])).strip()
