"""Estimates from samples: medians and their differences, with intervals that assume no distribution.

Step times are skewed and have outliers, so nothing here takes them for normal.
"""

from __future__ import annotations

from math import ceil, floor, sqrt

import numpy as np
import numpy.typing as npt

from steptime.quantities import Estimate

Numbers = npt.NDArray[np.int64] | npt.NDArray[np.float64]
NORMAL = 1.959964
"""The 97.5 % quantile of the normal distribution: for 95 % intervals."""


def median_of(values: Numbers, unit: str = "ns") -> Estimate:
    """The median with its 95 % interval from order statistics (Conover, Practical Nonparametric Statistics, 3.2; the
    ranks by the normal approximation of the binomial). With fewer than six values the interval is all of them, which is
    less than 95 %. Raises ValueError for no values.
    """
    if not len(values):
        raise ValueError("a median needs values")
    ordered = np.sort(values)
    count = len(ordered)
    reach = NORMAL * sqrt(count) / 2
    low = max(0, floor(count / 2 - reach) - 1)
    high = min(count - 1, ceil(count / 2 + reach))
    return Estimate(float(np.median(ordered)), float(ordered[low]), float(ordered[high]), count, unit)


def difference_of_medians(values: Numbers, base: Numbers, unit: str = "ns") -> Estimate:
    """median(values) - median(base). The interval adds the two variances, each median's standard error taken from its
    own interval: right for independent samples. Raises ValueError where one is empty."""
    one, other = median_of(values, unit), median_of(base, unit)
    difference = one.value - other.value
    low = sqrt((one.value - one.low) ** 2 + (other.high - other.value) ** 2)
    high = sqrt((one.high - one.value) ** 2 + (other.value - other.low) ** 2)
    return Estimate(difference, difference - low, difference + high, one.samples + other.samples, unit)
