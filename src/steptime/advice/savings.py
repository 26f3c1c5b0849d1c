"""Savings, in ns per step: arithmetic with intervals, which are never narrower than what they come from, and the steps
that they are means over."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from steptime.advice.device_uses import ReplayUse
from steptime.advice.run_uses import CategoryUse, StepSummary
from steptime.quantities import Estimate, format_duration, format_share

NOTHING = Estimate(0.0, 0.0, 0.0, 0)
"""No time."""


def scaled(estimate: Estimate, factor: float) -> Estimate:
    """An estimate times a factor >= 0 (negative factors count as 0)."""
    return _each(estimate, lambda bound: bound * max(0.0, factor))


def more(estimate: Estimate, amount: float) -> Estimate:
    """An estimate with an amount >= 0 next to it, which is known."""
    return _each(estimate, lambda bound: bound + amount)


def less(estimate: Estimate, amount: float) -> Estimate:
    """An estimate of what remains beyond an amount; nothing where the amount is larger."""
    return _each(estimate, lambda bound: max(0.0, bound - amount))


def at_most(estimate: Estimate, limit: float) -> Estimate:
    """An estimate that is nowhere above a limit that is known."""
    return _each(estimate, lambda bound: min(bound, limit))


def _each(estimate: Estimate, change: Callable[[float], float]) -> Estimate:
    low, value, high = map(change, (estimate.low, estimate.value, estimate.high))
    return replace(estimate, value=value, low=low, high=high)


def capped(estimate: Estimate, upper_bound: Estimate) -> Estimate:
    """An estimate that is nowhere above an upper bound."""
    value = min(estimate.value, upper_bound.value)
    low, high = min(estimate.low, upper_bound.low), min(estimate.high, upper_bound.high)
    return replace(estimate, value=value, low=min(low, value), high=max(high, value))


IDLE = ("input", "sync", "compile", "overhead", "python", "unexplained")
"""Categories in which a device idles."""
WORKING = ("compute", "communication", "copy")
"""Categories in which it does not."""


def as_decided(saving: Estimate, category: str, replay: ReplayUse | None) -> Estimate:
    """A saving in a category, as far as the step gets shorter by it: kernels that wait for the host save nothing, nor
    does a host that the device keeps waiting. As it is where no replay says who decides."""
    calibration = replay.calibration if replay is not None else None
    if calibration is None or not calibration.known or category not in IDLE + WORKING:
        return saving
    if category == "compute":
        return of_kernels(saving, replay)
    return at_most(saving, calibration.without_host if category in IDLE else calibration.without_device)


def of_kernels(saving: Estimate, replay: ReplayUse | None, casts: float = 1.0) -> Estimate:
    """Part of a saving in kernels by which the step gets shorter. casts: by what dispatching grows besides."""
    calibration = replay.calibration if replay is not None else None
    if calibration is None or not calibration.known:
        return saving
    factors = {"dispatch": casts}
    return _each(saving, lambda bound: min(bound, calibration.saved_by_kernels(bound, factors)))


def of_usual_steps(part: Estimate, whole: float, category: CategoryUse | None) -> Estimate:
    """Savings in a category by traced steps, at most its share of the category's time in the steps that count: traced
    ones may take longer. whole: ns of the category in a traced step. Nothing where the steps have no such category."""
    if category is None:
        return capped(part, NOTHING)
    return capped(part, scaled(category.duration, min(1.0, ratio(part.value, whole))))


def modelled(value: float, low: float, high: float, samples: int = 0) -> Estimate:
    """An estimate that comes from a model: its bounds are put in order around the value, none below zero."""
    value = max(0.0, value)
    return Estimate(value, min(max(0.0, low), value), max(high, value), samples)


def partly(whole: float, likely: float, sure: float, step: StepSummary) -> Estimate:
    """Part of so many ns per step that goes by a model: a likely share of them, a sure one, all at most."""
    return modelled(likely * whole, sure * whole, whole, step.steady)


def total(estimates: Iterable[Estimate]) -> Estimate:
    """A sum whose interval holds when the parts err together (bounds add): wider than independent errors would give."""
    parts = tuple(estimates)
    value = sum(part.value for part in parts)
    low, high = min(value, sum(part.low for part in parts)), max(value, sum(part.high for part in parts))
    return Estimate(value, low, high, min((part.samples for part in parts), default=0))


def ratio(part: float, whole: float) -> float:
    """part / whole, 0 where there is no whole."""
    return float(part / whole) if whole > 0 else 0.0  # one of numpy's is no JSON


def named(uses: tuple[CategoryUse, ...], name: str) -> CategoryUse | None:
    """The category or phase of a name."""
    return next((use for use in uses if use.name == name), None)


def share_of_step(spent: float, step: StepSummary) -> str:
    """So many ns as a share of the step: "23 %"."""
    return format_share(ratio(spent, step.duration.value))


def in_step(spent: float, step: StepSummary) -> str:
    """So many ns per step, for a sentence: "12.3 ms per step (23 %)"; of a single step, "12.3 ms of this step (23 %)".
    Times of kernels that overlap may add up to more than the step, and no part is larger than its whole."""
    spent = min(spent, step.duration.value)
    per = "of this step" if step.steady == 1 else "per step"
    return f"{format_duration(spent)} {per} ({share_of_step(spent, step)})"


def per_step(step: StepSummary) -> str:
    """Behind a count: "a step"; of a single step, "in this step"."""
    return "in this step" if step.steady == 1 else "per step"
