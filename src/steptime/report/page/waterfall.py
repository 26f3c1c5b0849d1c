"""The first picture: the step as a waterfall, from what was measured down to what no fix could take away.

All positions are percent of the plot's width, so that the picture is as wide as the reader's window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from steptime.advice.evidence import Case
from steptime.advice.run_uses import CategoryUse
from steptime.answer.page.axes import Tick, even_ticks
from steptime.quantities import Estimate, format_duration, format_share, with_sign
from steptime.report.sentences import interval_text, step_text

SMALLEST = 0.0005
"""Fraction of the step: what is shorter would be no pixel wide; such categories are summed up in one row."""


@dataclass(frozen=True, slots=True)
class Fall:
    """Block of the waterfall: one category, which starts where the previous block ends. start, kept, recoverable:
    percent of the plot; the recoverable part is hatched, at the block's right."""

    name: str
    start: float
    kept: float
    recoverable: float
    duration: str
    share: str
    interval: str
    saving: str


@dataclass(frozen=True, slots=True)
class BarSegment:
    """Segment of a stacked bar. start, width: percent of the bar."""

    name: str
    start: float
    width: float
    words: str


@dataclass(frozen=True, slots=True)
class Waterfall:
    """Waterfall chart from the measured step to its lower bound. measured: width of the measured step, percent; low,
    high: its interval, equal without one. falls: a block per category. remainder: time that stays in each category."""

    measured: float
    low: float
    high: float
    duration: str
    mean: str
    falls: tuple[Fall, ...]
    remainder: tuple[BarSegment, ...]
    remainder_words: str
    remainder_share: str
    ticks: tuple[Tick, ...]


def waterfall(case: Case) -> Waterfall | None:
    """Waterfall chart of a case; None if the case has no categories."""
    categories = _displayed(case)
    if not categories:
        return None
    step = case.step.duration
    whole = sum(use.duration.value for use in categories)
    known = step.samples > 1  # the interval of a single step is a formality
    scale = 100 / max(step.high if known else step.value, whole)
    left = [use.duration.value - _saved(use) for use in categories]
    return Waterfall(
        measured=step.value * scale,
        low=(step.low if known else step.value) * scale,
        high=(step.high if known else step.value) * scale,
        duration=format_duration(step.value),
        mean=step_text(case.step),
        falls=tuple(_falls(categories, whole, step.value, scale)),
        remainder=stacked([(use.name, kept) for use, kept in zip(categories, left, strict=True)], scale),
        remainder_words=format_duration(sum(left)),
        remainder_share=format_share(sum(left) / step.value) if step.value else "",
        ticks=even_ticks(100 / scale),
    )


def stacked(parts: list[tuple[str, float]], scale: float) -> tuple[BarSegment, ...]:
    """Segments of a stacked bar. parts: (name, ns); scale: percent per ns."""
    segments, start = [], 0.0
    for name, spent in parts:
        if spent > 0:
            segments.append(BarSegment(name, start * scale, spent * scale, f"{name} {format_duration(spent)}"))
        start += spent
    return tuple(segments)


def _falls(categories: list[CategoryUse], whole: float, step: float, scale: float) -> list[Fall]:
    falls, remaining = [], whole
    for use in categories:
        spent, saved = use.duration.value, _saved(use)
        remaining -= spent
        falls.append(
            Fall(
                name=use.name,
                start=max(remaining, 0.0) * scale,
                kept=(spent - saved) * scale,
                recoverable=saved * scale,
                duration=format_duration(spent),
                share=format_share(spent / step) if step else "",
                interval=interval_text(use.duration),
                saving=format_duration(saved) if saved > 0 else "",
            )
        )
    return falls


def _displayed(case: Case) -> list[CategoryUse]:
    """The categories in the order of the breakdown; the smallest summed up at the end."""
    step = case.step.duration.value
    large = [use for use in case.categories if use.duration.value >= SMALLEST * step and use.duration.value > 0]
    rest = sum(use.duration.value for use in case.categories if use not in large)
    if rest >= SMALLEST * step and rest > 0:
        nothing = Estimate(0.0, 0.0, 0.0, case.step.duration.samples)
        large.append(CategoryUse("other", Estimate(rest, rest, rest, case.step.duration.samples), nothing))
    return large


def _saved(use: CategoryUse) -> float:
    """The recoverable part: never more than the category has, whatever the interval of its estimate."""
    return min(max(use.recoverable.value, 0.0), use.duration.value)


@dataclass(frozen=True, slots=True)
class Move:
    """Block of the comparison's waterfall: one category's effect on the step. start, width: percent of the plot; grown:
    True if it made the step longer; certain: True if beyond noise; low, high: interval of the block's end, percent."""

    name: str
    start: float
    width: float
    grown: bool
    certain: bool
    low: float
    high: float
    words: str
    interval: str


@dataclass(frozen=True, slots=True)
class Moves:
    """Waterfall chart from the step before to the one after a change. before, after: widths of those bars, percent."""

    before: float
    after: float
    before_words: str
    after_words: str
    rows: tuple[Move, ...]
    ticks: tuple[Tick, ...]


def moves_of(rows: Sequence[tuple[str, Estimate]], before: float, after: float) -> Moves:
    """Waterfall chart of category changes between two runs. rows: (name, change in ns) in display order; a last row is
    added for the unexplained rest. before, after: duration of the step, ns."""
    left = after - before - sum(change.value for _, change in rows)
    if abs(left) > 0.001 * max(before, after, 1.0):
        rows = (*rows, ("other", Estimate(left, left, left, 1)))
    heights = [before]
    for _, change in rows:
        heights.append(heights[-1] + change.value)
    top = max(*heights, after, *(start + change.high for start, (_, change) in zip(heights, rows, strict=False)), 1.0)
    scale = 100 / top
    return Moves(
        before=before * scale,
        after=after * scale,
        before_words=format_duration(before),
        after_words=format_duration(after),
        rows=tuple(_move(name, change, start, scale) for (name, change), start in zip(rows, heights, strict=False)),
        ticks=even_ticks(top),
    )


def _move(name: str, change: Estimate, start: float, scale: float) -> Move:
    end = start + change.value
    known = change.samples > 1
    return Move(
        name=name,
        start=max(min(start, end), 0.0) * scale,
        width=abs(change.value) * scale,
        grown=change.value > 0,
        certain=known and (change.low > 0 or change.high < 0),
        low=max(start + change.low, 0.0) * scale if known else end * scale,
        high=max(start + change.high, 0.0) * scale if known else end * scale,
        words=_signed(change.value),
        interval=f"{_signed(change.low)} to {_signed(change.high)}" if known else "",
    )


def _signed(nanoseconds: float) -> str:
    """ "+12.3 ms", "−4 µs"."""
    if not nanoseconds:
        return "0"
    return with_sign(nanoseconds, format_duration(abs(nanoseconds)))
