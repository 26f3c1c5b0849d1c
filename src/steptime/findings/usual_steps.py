"""Which steps speak for the job, and what a quantity is worth per step.

One law: everything per step is a mean over the same steps, so that parts add up to the step.
"""

from __future__ import annotations

import numpy as np

from steptime.arrays import Bool, Int64
from steptime.estimates import mean_of_series
from steptime.intervals import measure
from steptime.journal import Kind
from steptime.quantities import Estimate
from steptime.timeline.layout import Layout
from steptime.timeline.timeline import Phase

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
