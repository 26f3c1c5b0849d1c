"""Arithmetic of times at stake: estimates are scaled, capped and added with their intervals.

One law: an interval is never made narrower than what it was computed from.
"""

from __future__ import annotations

from collections.abc import Iterable

from steptime.findings.case import AccountUse
from steptime.quantities import Estimate

NOTHING = Estimate(0.0, 0.0, 0.0, 0)
"""No time."""


def scaled(estimate: Estimate, factor: float) -> Estimate:
    """An estimate times a factor >= 0 (negative factors count as 0)."""
    factor = max(0.0, factor)
    return Estimate(
        estimate.value * factor, estimate.low * factor, estimate.high * factor, estimate.samples, estimate.unit
    )


def capped(estimate: Estimate, ceiling: Estimate) -> Estimate:
    """An estimate that is nowhere above a ceiling."""
    value, low, high = (
        min(estimate.value, ceiling.value),
        min(estimate.low, ceiling.low),
        min(estimate.high, ceiling.high),
    )
    return Estimate(value, min(low, value), max(high, value), estimate.samples, estimate.unit)


def more(estimate: Estimate, amount: float) -> Estimate:
    """An estimate with an amount >= 0 beside it, which is known."""
    value, low, high = (each + amount for each in (estimate.value, estimate.low, estimate.high))
    return Estimate(value, low, high, estimate.samples, estimate.unit)


def less(estimate: Estimate, amount: float) -> Estimate:
    """An estimate of what remains beyond an amount; nothing where the amount is larger."""
    value, low, high = (max(0.0, each - amount) for each in (estimate.value, estimate.low, estimate.high))
    return Estimate(value, low, high, estimate.samples, estimate.unit)


def modelled(value: float, low: float, high: float, samples: int = 0) -> Estimate:
    """An estimate that comes from a model: its bounds are put in order around the value, none below zero."""
    value = max(0.0, value)
    return Estimate(value, min(max(0.0, low), value), max(high, value), samples)


def total(estimates: Iterable[Estimate]) -> Estimate:
    """A sum whose interval holds when the parts err together (bounds add): wider than independent errors would give."""
    parts = tuple(estimates)
    return Estimate(
        sum(part.value for part in parts),
        min(sum(part.low for part in parts), sum(part.value for part in parts)),
        max(sum(part.high for part in parts), sum(part.value for part in parts)),
        min((part.samples for part in parts), default=0),
    )


def ratio(part: float, whole: float) -> float:
    """part / whole, 0 where there is no whole."""
    return part / whole if whole > 0 else 0.0


def named(uses: tuple[AccountUse, ...], name: str) -> AccountUse | None:
    """The account or phase of a name."""
    return next((use for use in uses if use.name == name), None)
