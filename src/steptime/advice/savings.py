"""Arithmetic of savings: estimates are scaled, capped and added with their intervals.

One law: an interval is never made narrower than what it was computed from.

Which steps speak for the job, and what a quantity is worth per step.

One law: everything per step is a mean over the same steps, so that parts add up to the step.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from steptime.advice.evidence import CategoryUse
from steptime.analysis.layout import Layout
from steptime.analysis.timeline import Phase
from steptime.arrays import Bool, Int64
from steptime.intervals import measure
from steptime.journal import Kind
from steptime.quantities import Estimate, mean_of_series

NOTHING = Estimate(0.0, 0.0, 0.0, 0)
"""No time."""


def scaled(estimate: Estimate, factor: float) -> Estimate:
    """An estimate times a factor >= 0 (negative factors count as 0)."""
    factor = max(0.0, factor)
    return Estimate(
        estimate.value * factor, estimate.low * factor, estimate.high * factor, estimate.samples, estimate.unit
    )


def capped(estimate: Estimate, upper_bound: Estimate) -> Estimate:
    """An estimate that is nowhere above an upper bound."""
    value, low, high = (
        min(estimate.value, upper_bound.value),
        min(estimate.low, upper_bound.low),
        min(estimate.high, upper_bound.high),
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


def named(uses: tuple[CategoryUse, ...], name: str) -> CategoryUse | None:
    """The account or phase of a name."""
    return next((use for use in uses if use.name == name), None)


FAR = 10.0
"""Interquartile ranges above the upper quartile …"""
TIMES = 2.0
"""… and times the median from which a step is an outlier …"""
MOST_OUTLIERS = 0.02
"""… unless more than this share of the steps are such: then they are how the job runs (a late batch now and then)."""
MOST_STALLS = 0.25
"""Share for outliers of the model's own phases: the same operators on the same shapes take the same time, unless the
machine was busy with something else. (Shapes that vary widen the interquartile range.)"""
MODEL = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)


def usual_steps(layout: Layout) -> Int64:
    """Indices of the steady steps without stalls of the machine, which in a mean would outweigh the job. A step that
    the collector makes long is the job's own, however rare: looking through all objects takes longest and comes seldom.
    """
    steps = layout.timeline.steps
    collected = measure(layout.lane.of(Kind.GARBAGE).intervals, steps.begin, steps.end)
    usual = np.flatnonzero(steps.steady)
    for values, most in ((steps.phases[:, MODEL].sum(axis=1), MOST_STALLS), (steps.duration, MOST_OUTLIERS)):
        far = _far((values - collected)[usual])
        if far.sum() <= most * len(usual):
            usual = usual[~far]
    return usual


def _far(values: Int64) -> Bool:
    if not len(values):
        return np.zeros(0, np.bool_)
    lower, middle, upper = np.percentile(values, (25, 50, 75))
    far: Bool = values > max(upper + FAR * (upper - lower), TIMES * middle)
    return far


def per_step(values: Int64, unit: str = "ns") -> Estimate:
    """The mean of one value per step, in time order."""
    return mean_of_series(values, unit)
