"""Answer: the result of a verb, in the one form that every renderer shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from steptime.advice.rule import Finding
from steptime.answer.tables import Table
from steptime.quantities import Estimate, format_share

SURE = 0.1
"""Largest half-width of an interval, relative to its value, for confidence."""


@dataclass(frozen=True, slots=True)
class Item:
    """Entry of a list in an answer. right: text at a terminal's right edge, such as the savings. summary: the finding;
    place: its source line; advice: what to do. lines: further lines, indented as given; details: lines for documents
    only; code: source text for documents only, unchanged."""

    title: str
    right: str = ""
    summary: str = ""
    place: str = ""
    advice: str = ""
    lines: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    code: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """List of items under a title, "" for none. first: number of items that a terminal shows, None for all."""

    title: str
    items: tuple[Item, ...]
    first: int | None = None


Part = Table | Section


@dataclass(frozen=True, slots=True)
class Figure:
    """Picture on the page. identity: id of its section. template: file of `answer/page` that shows `chart`."""

    identity: str
    title: str
    template: str
    chart: object


@dataclass(frozen=True, slots=True)
class Gain:
    """Big number of an answer, its possible or measured gain. number: "36.5 → 16.4 ms/step". word: "possible" or
    "measured". times: "2.2×". interval: sentence with that of the new time or the speed-up. cause: sentence on what
    gains most."""

    number: str
    word: str
    times: str
    interval: str
    cause: str

    @property
    def lines(self) -> tuple[str, ...]:
        """Lines of text: "36.5 → 16.4 ms/step possible (2.2×)", then the interval and the cause."""
        return tuple(filter(None, (f"{self.number} {self.word} ({self.times})", self.interval, self.cause)))


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer to the user's request. Every text may contain strangers' strings: the renderers make it safe.

    title: of the page. gain: big number above everything, None without one. headline: one or two sentences; badge:
    how certain it is and what is unknown; head: subject of the request (job, versions), a line each. parts: support
    of the headline, in order; details: parts for documents only (Markdown, page), made on demand. notes: further
    sentences. more: command that shows what a terminal leaves out. next_command: ready to paste. figures: of the
    page. data: for programs, or what makes it on demand. findings: of the rules, for editors and agents; step: ns, of
    which their savings are shares. exports: formats that this answer renders itself, by file extension."""

    title: str
    headline: str
    badge: str = ""
    head: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()
    notes: tuple[str, ...] = ()
    more: str = ""
    next_command: str = ""
    figures: tuple[Figure, ...] = ()
    gain: Gain | None = None
    details: Callable[[], Iterable[Part]] = tuple
    data: object = None
    findings: tuple[Finding, ...] = ()
    step: float = 0.0
    exports: Mapping[str, Callable[[], str | bytes]] = field(default_factory=dict)

    @property
    def tables(self) -> tuple[Table, ...]:
        """All non-empty tables."""
        every = (*self.parts, *self.details())
        return tuple(part for part in every if isinstance(part, Table) and part.rows)


def with_confidence(data: Mapping[str, object], headline: str, badge: str) -> dict[str, object]:
    """Data of an answer for programs, with the headline first."""
    return {"headline": headline, "confidence": badge, **data}


def confidence(times: Iterable[Estimate], basis: str, busy: str = "", *, enough: bool = True) -> str:
    """Badge of an answer: how certain its times are, and why. basis: text on how they were measured; busy: text on what
    disturbed them; enough: True if several processes measured them."""
    if busy:
        return f"Unclear: {busy} ({basis})."
    wide = max(((each.high - each.low) / 2 / each.value for each in times if each.value), default=0.0)
    return f"{'Confident' if wide <= SURE and enough else 'Likely'}: {basis}, ± {format_share(wide)} at the most."
