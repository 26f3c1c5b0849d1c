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


def median_of_series(values: Numbers, unit: str = "ns") -> Estimate:
    """The median of a series in time order, whose neighbours are alike (steps are): as `median_of`, with the ranks
    spread by the autocorrelation time of being above the median. A single value says nothing of its spread: its
    interval reaches from nothing to twice. Raises ValueError for no values.
    """
    if len(values) == 1:
        return _single(float(values[0]), unit)
    plain = median_of(values, unit)
    time = autocorrelation_time(np.asarray(values > plain.value, np.float64))
    ordered = np.sort(values)
    count = len(ordered)
    reach = NORMAL * sqrt(count * time) / 2
    low, high = max(0, floor(count / 2 - reach) - 1), min(count - 1, ceil(count / 2 + reach))
    return Estimate(plain.value, float(ordered[low]), float(ordered[high]), count, unit)


def mean_of_series(values: Numbers, unit: str = "ns") -> Estimate:
    """The mean of a series in time order with its 95 % interval: Student's, on as many values as the series is worth
    (its length over its autocorrelation time). Means of parts add up to the mean of the whole, which medians do not.

    Values are never negative here, so no interval reaches below zero. A single value's interval reaches from nothing to
    twice. Raises ValueError for no values.
    """
    if not len(values):
        raise ValueError("a mean needs values")
    mean = float(np.mean(values))
    if len(values) == 1:
        return _single(mean, unit)
    worth = max(2.0, len(values) / autocorrelation_time(np.asarray(values, np.float64)))
    error = float(np.std(values, ddof=1)) / sqrt(worth)
    reach = student(worth - 1) * error
    return Estimate(mean, min(mean, max(0.0, mean - reach)), mean + reach, len(values), unit)


def autocorrelation_time(values: npt.NDArray[np.float64]) -> float:
    """How many values of a series are worth one independent value, at least 1: the sum of its autocorrelations in both
    directions, up to the first lag that is 2.5 times it (Sokal, Monte Carlo Methods in Statistical Mechanics, 1997,
    section 3: five times his tau, which is half of this), by Fourier transform."""
    count = len(values)
    centred = values - values.mean()
    power = float(centred @ centred)
    if count < 4 or power <= 0:
        return 1.0
    spectrum = np.fft.rfft(centred, 2 * count)
    correlation = np.fft.irfft(spectrum * spectrum.conj(), 2 * count)[: count // 2] / power
    times = 2 * np.cumsum(correlation) - 1
    enough = np.flatnonzero(np.arange(len(times)) >= 2.5 * times)
    return float(max(1.0, times[enough[0] if len(enough) else -1]))


def student(freedom: float) -> float:
    """The 97.5 % quantile of Student's t for `freedom` >= 1: exact for whole numbers up to 9, on a line between them,
    beyond them the expansion of Cornish and Fisher (Abramowitz and Stegun 26.7.5), whose error is below 0.2 % there."""
    if freedom < len(_STUDENT):
        below = int(freedom)
        return _STUDENT[below - 1] * (below + 1 - freedom) + _STUDENT[below] * (freedom - below)
    z = NORMAL
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2


_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


def _single(value: float, unit: str) -> Estimate:
    return Estimate(value, min(0.0, value), max(0.0, 2 * value), 1, unit)
