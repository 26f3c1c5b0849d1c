"""Arithmetic with savings, ns per step, and their intervals, and texts on fractions of the step."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from steptime.advice.device_uses import ReplayUse
from steptime.advice.run_uses import CategoryUse, StepSummary
from steptime.quantities import Estimate, format_duration, format_share

Key = TypeVar("Key", bound=Hashable)

NOTHING = Estimate(0.0, 0.0, 0.0, 0)
"""Estimate of no time."""


def scaled(estimate: Estimate, factor: float) -> Estimate:
    """Estimate multiplied by a factor >= 0 (negative factors count as 0)."""
    return _each(estimate, lambda bound: bound * max(0.0, factor))


def more(estimate: Estimate, amount: float) -> Estimate:
    """Estimate with a known amount >= 0 added."""
    return _each(estimate, lambda bound: bound + amount)


def less(estimate: Estimate, amount: float) -> Estimate:
    """Estimate with a known amount subtracted, at least 0."""
    return _each(estimate, lambda bound: max(0.0, bound - amount))


def at_most(estimate: Estimate, limit: float) -> Estimate:
    """Estimate limited to a known bound."""
    return _each(estimate, lambda bound: min(bound, limit))


def _each(estimate: Estimate, change: Callable[[float], float]) -> Estimate:
    low, value, high = map(change, (estimate.low, estimate.value, estimate.high))
    return replace(estimate, value=value, low=low, high=high)


def capped(estimate: Estimate, upper_bound: Estimate) -> Estimate:
    """Estimate limited to an upper bound that is an estimate itself."""
    value = min(estimate.value, upper_bound.value)
    low, high = min(estimate.low, upper_bound.low), min(estimate.high, upper_bound.high)
    return replace(estimate, value=value, low=min(low, value), high=max(high, value))


IDLE = ("input", "sync", "compile", "overhead", "python", "unexplained")
"""Categories in which a device idles."""
WORKING = ("compute", "communication", "copy")
"""Categories in which a device works."""


def as_decided(saving: Estimate, category: str, replay: ReplayUse | None) -> Estimate:
    """Savings in a category, limited to what they shorten the step by: kernels that wait for the CPU save nothing, nor
    does a CPU that waits for the device. Unchanged without a calibrated replay."""
    calibration = replay.calibration if replay is not None else None
    if calibration is None or not calibration.known or category not in IDLE + WORKING:
        return saving
    if category == "compute":
        return of_kernels(saving, replay)
    return at_most(saving, calibration.without_host if category in IDLE else calibration.without_device)


def of_kernels(saving: Estimate, replay: ReplayUse | None, casts: float = 1.0) -> Estimate:
    """Savings in the step if kernels take less time by `saving`. casts: factor by which dispatch takes longer, too."""
    calibration = replay.calibration if replay is not None else None
    if calibration is None or not calibration.known:
        return saving
    factors = {"dispatch": casts}
    return _each(saving, lambda bound: min(bound, calibration.saved_by_kernels(bound, factors)))


def of_usual_steps(part: Estimate, whole: float, category: CategoryUse | None) -> Estimate:
    """Savings in a category of traced steps, scaled to its time in the usual steps, since traced ones may take longer.
    whole: ns of the category per traced step. Nothing if the usual steps lack that category."""
    if category is None:
        return capped(part, NOTHING)
    return capped(part, scaled(category.duration, min(1.0, ratio(part.value, whole))))


def modelled(value: float, low: float, high: float, samples: int = 0) -> Estimate:
    """Estimate from a model's value and bounds, which are put in order around the value and raised to zero."""
    value = max(0.0, value)
    return Estimate(value, min(max(0.0, low), value), max(high, value), samples)


def partly(whole: float, likely: float, sure: float, step: StepSummary) -> Estimate:
    """Estimate of savings that are a part of `whole` ns per step. Value: the fraction `likely` of it; lower end: the
    fraction `sure`; upper end: all of it."""
    return modelled(likely * whole, sure * whole, whole, step.steady)


def total(estimates: Iterable[Estimate]) -> Estimate:
    """Sum of estimates with an interval that holds even if their errors go together (the bounds are added)."""
    parts = tuple(estimates)
    value = sum(part.value for part in parts)
    low, high = min(value, sum(part.low for part in parts)), max(value, sum(part.high for part in parts))
    return Estimate(value, low, high, min((part.samples for part in parts), default=0))


def ratio(part: float, whole: float) -> float:
    """part / whole, 0 for whole <= 0."""
    return float(part / whole) if whole > 0 else 0.0  # one of numpy's is no JSON


def summed(parts: Iterable[tuple[Key, float]]) -> dict[Key, float]:
    """Sums of the values by key, in the order in which the keys first appear."""
    sums: dict[Key, float] = {}
    for key, part in parts:
        sums[key] = sums.get(key, 0) + part
    return sums


def largest(sums: Mapping[Key, float]) -> tuple[Key, float] | tuple[None, float]:
    """(key of the largest sum, the first of equal ones; that sum), (None, 0) if there are no sums."""
    return max(sums.items(), key=lambda each: each[1], default=(None, 0.0))


def named(uses: tuple[CategoryUse, ...], name: str) -> CategoryUse | None:
    """Category or phase with this name; None if there is none."""
    return next((use for use in uses if use.name == name), None)


def spent_in(uses: tuple[CategoryUse, ...], name: str) -> float:
    """Time per step of the category or phase with this name, ns; 0 if there is none."""
    use = named(uses, name)
    return use.duration.value if use is not None else 0.0


def share_of_step(spent: float, step: StepSummary) -> str:
    """Text for a time as a percentage of the step: "23 %"."""
    return format_share(ratio(spent, step.duration.value))


def in_step(spent: float, step: StepSummary) -> str:
    """Text for a time per step: "12.3 ms per step (23 %)"; for a single step, "12.3 ms of this step (23 %)". Times of
    overlapping kernels may sum to more than the step, so they are limited to it."""
    spent = min(spent, step.duration.value)
    per = "of this step" if step.steady == 1 else "per step"
    return f"{format_duration(spent)} {per} ({share_of_step(spent, step)})"


def rises(growth: tuple[float, float]) -> str:
    """Text for a growth: "40 ms at first, 180 ms at the end". growth: both times, ns."""
    return f"{format_duration(growth[0])} at first, {format_duration(growth[1])} at the end"


def per_step(step: StepSummary) -> str:
    """Text that follows a count: "per step"; for a single step, "in this step"."""
    return "in this step" if step.steady == 1 else "per step"
