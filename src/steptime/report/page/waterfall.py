"""The first picture: the step as a waterfall, from what was measured down to what no fix could take away.

All positions are percent of the plot's width, so that the picture is as wide as the reader's window.
"""

from __future__ import annotations

from dataclasses import dataclass

from steptime.findings.case import AccountUse, Case
from steptime.quantities import Estimate, format_duration, format_share
from steptime.report.page.scale import Tick, even_ticks

SMALLEST = 0.0005
"""Of the step: what is shorter would be no pixel wide; such accounts are summed up in one row."""


@dataclass(frozen=True, slots=True)
class Fall:
    """One account: its block hangs where the one before it began. begin, kept, recoverable: percent; the hatched part
    lies at the right of the block."""

    name: str
    begin: float
    kept: float
    recoverable: float
    duration: str
    share: str
    interval: str
    saving: str


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a stacked bar, in percent."""

    name: str
    begin: float
    width: float
    words: str


@dataclass(frozen=True, slots=True)
class Waterfall:
    """measured: width of the measured step; low, high: its interval, empty where one step has none. floor: what is left
    of every account."""

    measured: float
    low: float
    high: float
    duration: str
    interval: str
    falls: tuple[Fall, ...]
    floor: tuple[Segment, ...]
    floor_words: str
    floor_share: str
    ticks: tuple[Tick, ...]


def waterfall(case: Case) -> Waterfall | None:
    """The picture of a case; None where it has no accounts."""
    accounts = _shown(case)
    if not accounts:
        return None
    step = case.step.duration
    whole = sum(use.duration.value for use in accounts)
    known = step.samples > 1  # the interval of a single step is a formality
    scale = 100 / max(step.high if known else step.value, whole)
    left = [use.duration.value - _saved(use) for use in accounts]
    return Waterfall(
        measured=step.value * scale,
        low=(step.low if known else step.value) * scale,
        high=(step.high if known else step.value) * scale,
        duration=format_duration(step.value),
        interval=interval_text(step),
        falls=tuple(_falls(accounts, whole, step.value, scale)),
        floor=stacked([(use.name, kept) for use, kept in zip(accounts, left, strict=True)], scale),
        floor_words=format_duration(sum(left)),
        floor_share=format_share(sum(left) / step.value) if step.value else "",
        ticks=even_ticks(100 / scale),
    )


def stacked(parts: list[tuple[str, float]], scale: float) -> tuple[Segment, ...]:
    """A stacked bar of (name, ns); scale: percent per ns."""
    segments, begin = [], 0.0
    for name, spent in parts:
        if spent > 0:
            segments.append(Segment(name, begin * scale, spent * scale, f"{name} {format_duration(spent)}"))
        begin += spent
    return tuple(segments)


def interval_text(estimate: Estimate) -> str:
    """ "95.1 ms to 97.3 ms"; what one value is, is said."""
    if estimate.samples < 2:
        return "one step, no spread"
    return f"{format_duration(estimate.low)} to {format_duration(estimate.high)}"


def _falls(accounts: list[AccountUse], whole: float, step: float, scale: float) -> list[Fall]:
    falls, remaining = [], whole
    for use in accounts:
        spent, saved = use.duration.value, _saved(use)
        remaining -= spent
        falls.append(
            Fall(
                name=use.name,
                begin=max(remaining, 0.0) * scale,
                kept=(spent - saved) * scale,
                recoverable=saved * scale,
                duration=format_duration(spent),
                share=format_share(spent / step) if step else "",
                interval=interval_text(use.duration),
                saving=format_duration(saved) if saved > 0 else "",
            )
        )
    return falls


def _shown(case: Case) -> list[AccountUse]:
    """The accounts in the order of the ledger; the smallest summed up at the end."""
    step = case.step.duration.value
    large = [use for use in case.accounts if use.duration.value >= SMALLEST * step and use.duration.value > 0]
    rest = sum(use.duration.value for use in case.accounts if use not in large)
    if rest >= SMALLEST * step and rest > 0:
        nothing = Estimate(0.0, 0.0, 0.0, case.step.duration.samples)
        large.append(AccountUse("other", Estimate(rest, rest, rest, case.step.duration.samples), nothing))
    return large


def _saved(use: AccountUse) -> float:
    """The recoverable part: never more than the account has, whatever the interval of its estimate."""
    return min(max(use.recoverable.value, 0.0), use.duration.value)
