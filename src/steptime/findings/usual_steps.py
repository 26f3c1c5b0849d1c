"""Which steps speak for the job, and what a quantity is worth per step.

One law: everything per step is a mean over the same steps, so that parts add up to the step.
"""

from __future__ import annotations

import numpy as np

from steptime.estimates import mean_of_series
from steptime.quantities import Estimate
from steptime.timeline.lane import Int64
from steptime.timeline.timeline import Steps

FAR = 10.0
"""Interquartile ranges above the upper quartile …"""
TIMES = 3.0
"""… and times the median from which a step is an outlier …"""
MOST_OUTLIERS = 0.02
"""… unless more than this share of the steps are such: then they are how the job runs (a late batch now and then)."""


def usual_steps(steps: Steps) -> Int64:
    """Indices of the steady steps without lone outliers: in a mean, one stall of the machine would outweigh the job."""
    steady = np.flatnonzero(steps.steady)
    duration = steps.duration[steady]
    if not len(steady):
        return steady
    lower, middle, upper = np.percentile(duration, (25, 50, 75))
    far = duration > max(upper + FAR * (upper - lower), TIMES * middle)
    return steady[~far] if far.sum() <= MOST_OUTLIERS * len(steady) else steady


def per_step(values: Int64, unit: str = "ns") -> Estimate:
    """The mean of one value per step, in time order."""
    return mean_of_series(values, unit)
