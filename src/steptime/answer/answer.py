"""Answer: what a verb has found, in the one form that every renderer shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from steptime.answer.tables import Table
from steptime.quantities import Estimate, format_share

SURE = 0.1
"""Half of an interval over its value: a wider one is worth a word."""


@dataclass(frozen=True, slots=True)
class Item:
    """An entry of a list. right: what a terminal aligns at its right edge, such as the savings. summary: what it is;
    place: the line of source; advice: what to do. lines: further ones, indented as they are given; details: those that
    only documents have."""

    title: str
    right: str = ""
    summary: str = ""
    place: str = ""
    advice: str = ""
    lines: tuple[str, ...] = ()
    details: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """A list under a title, "" for none. first: items that a terminal shows, None for all; it says how many more there
    are."""

    title: str
    items: tuple[Item, ...]
    first: int | None = None


Part = Table | Section


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture of the page. identity: of its section. template: a file of `answer/page`, which shows `chart`."""

    identity: str
    title: str
    template: str
    chart: object


@dataclass(frozen=True, slots=True)
class Gain:
    """The big number. number: "36.5 → 16.4 ms/step". word: "possible" or "measured". times: "2.2×". interval: of what
    is left, a sentence. cause: what does most of it, a sentence."""

    number: str
    word: str
    times: str
    interval: str
    cause: str

    @property
    def lines(self) -> tuple[str, ...]:
        """ "36.5 → 16.4 ms/step possible (2.2×)", then the interval and the cause."""
        return tuple(filter(None, (f"{self.number} {self.word} ({self.times})", self.interval, self.cause)))


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to what was asked. Every text may hold what strangers wrote: the renderers make it safe.

    title: of the page. gain: the big number that stands before all, None where there is none. headline: one or two
    sentences; badge: how sure it is and what is not known; head: what was asked about (job, versions), a line each.
    parts: what supports the headline, in order; details: what only documents show (Markdown, page), made when it is
    asked for. notes: what the parts do not say. more: command that shows what a terminal leaves out. next_command:
    ready to paste. figures: of the page. data: for programs. exports: formats that this answer renders in its own way,
    by file extension.
    """

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
    exports: Mapping[str, Callable[[], str | bytes]] = field(default_factory=dict)

    @property
    def tables(self) -> tuple[Table, ...]:
        """All tables that have rows."""
        every = (*self.parts, *self.details())
        return tuple(part for part in every if isinstance(part, Table) and part.rows)


def with_confidence(data: Mapping[str, object], headline: str, badge: str) -> dict[str, object]:
    """Data of an answer for programs, its headline first."""
    return {"headline": headline, "confidence": badge, **data}


def confidence(times: Iterable[Estimate], basis: str, busy: str = "", *, enough: bool = True) -> str:
    """How sure an answer is that compares times. basis: how they were measured; busy: what disturbed them, "" for
    nothing; enough: whether one process did not decide alone."""
    if busy:
        return f"Unclear: {busy} ({basis})."
    wide = max(((each.high - each.low) / 2 / each.value for each in times if each.value), default=0.0)
    return f"{'Confident' if wide <= SURE and enough else 'Likely'}: {basis}, ± {format_share(wide)} at the most."
