"""Numbers with units and uncertainty: time is integer nanoseconds, and estimates have an interval.

Step times are skewed and have outliers, so nothing here assumes a normal distribution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, sqrt

import numpy as np

from steptime.arrays import Float64, Int64


@dataclass(frozen=True, slots=True)
class Estimate:
    """Value with a 95 % interval, both in `unit` ("ns", "bytes", "1"). `samples`: number of observations.

    Raises ValueError unless low <= value <= high."""

    value: float
    low: float
    high: float
    samples: int
    unit: str = "ns"

    def __post_init__(self) -> None:
        if not self.low <= self.value <= self.high:
            raise ValueError(f"an estimate must be in its interval: {self.low} <= {self.value} <= {self.high}")


@dataclass(frozen=True, slots=True)
class SourceLine:
    """Source line as the job ran it. `text`: the stripped line, "" if it could not be read."""

    file: str
    line: int
    function: str = ""
    text: str = ""

    @property
    def place(self) -> tuple[str, int]:
        """(file, line): equal for one line, however its function and text are known."""
        return self.file, self.line


MINUS = "−"
"""Sign of all negative numbers in the output, where a hyphen joins words."""


def format_duration(nanoseconds: float) -> str:
    """Duration as text with three significant digits: "850 ns", "12.3 µs", "2 min 05 s", "19 h 16 min"."""
    if nanoseconds < 0:
        return f"{MINUS}{format_duration(-nanoseconds)}"
    for size, unit in ((1.0, "ns"), (1e3, "µs"), (1e6, "ms"), (1e9, "s")):
        if float(f"{nanoseconds / size:.3g}") < (60 if unit == "s" else 1000):
            return f"{_three_digits(nanoseconds / size)} {unit}"
    minutes, seconds = divmod(round(nanoseconds / 1e9), 60)
    return f"{minutes} min {seconds:02d} s" if minutes < 120 else f"{minutes // 60:,} h {minutes % 60:02d} min"


def format_spread(time: Estimate) -> str:
    """Interval of a mean time as text: "± 3.1 ms", or "between 4.10 ms and 25 ms" if half of the interval exceeds half
    of the mean, where ± would reach down to zero."""
    half = (time.high - time.low) / 2
    if 2 * half > time.value:
        return f"between {format_duration(time.low)} and {format_duration(time.high)}"
    return f"± {format_duration(half)}"


def format_change_of(before: float, after: float, least: float = 0.0) -> str:
    """Text of two durations (ns) in the unit of the first: "36.5 → 16.4 ms", or "1.20 s → 8 ms" if that unit is too
    large. least: fraction of the first, below which only a bound is reported: "36.5 ms → under 365 µs"."""
    words = format_duration(before)
    if after < least * before:
        return f"{words} → under {format_duration(least * before)}"
    number, _, unit = words.rpartition(" ")
    size = {"ns": 1.0, "µs": 1e3, "ms": 1e6, "s": 1e9}.get(unit, 0.0)
    if " " in number or after < 0.01 * size:
        return f"{words} → {format_duration(after)}"
    return f"{number} → {_three_digits(after / size)} {unit}"


def format_speed(ratio: float) -> str:
    """Speed-up as text: "2.2×", "12×", "1.04×" if one decimal would hide it."""
    return f"{ratio:.0f}×" if ratio >= 9.95 else f"{ratio:.1f}×" if ratio >= 1.15 else f"{ratio:.2f}×"


def format_share(fraction: float) -> str:
    """Fraction as percent for a sentence: "45 %", "4.5 %" below ten, "< 0.1 %" if too small to print."""
    percent = 100 * abs(fraction)
    if 0 < percent < 0.1 and fraction > 0:
        return "< 0.1 %"
    sign = MINUS if fraction < 0 and percent >= 0.05 else ""
    return f"{sign}{percent:.1f} %" if 0.05 <= percent < 9.95 else f"{sign}{percent:.0f} %"


def format_change(fraction: float) -> str:
    """Change as percent with its sign: "+45 %", "−4.5 %"; "0 %" if too small to print."""
    percent = abs(100 * fraction)
    if percent < 0.05:
        return "0 %"
    return with_sign(fraction, format_share(max(percent, 0.1) / 100))


def with_sign(value: float, size: str) -> str:
    """Size of a value, as text, with its sign: "+1.2 ms", "−3.4 MiB"; without one for zero."""
    return f"{'+' if value > 0 else MINUS if value < 0 else ''}{size}"


def format_count(count: float, noun: str) -> str:
    """Count, which may be a mean, with its noun: "1 call", "2.5 calls", "3 copies", "4 processes"."""
    text = f"{count:.0f}" if count >= 999.5 else f"{count:.3g}"
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{text} {noun if text == '1' else plural}"


def format_times(ratio: float) -> str:
    """Ratio as text: "1.4", "12", "140"."""
    return f"{ratio:,.0f}" if ratio >= 9.95 else f"{ratio:.2g}"


def format_samples(rate: float) -> str:
    """Throughput as text: "401 samples/s", "1,234 samples/s", "0.52 samples/s"."""
    return f"{rate:,.0f} samples/s" if rate >= 99.5 else f"{rate:.3g} samples/s"


def format_bytes(count: float) -> str:
    """Number of bytes for a sentence, in binary units: "512 B", "1.50 KiB", "23.4 GiB"."""
    if count < 0:
        return f"{MINUS}{format_bytes(-count)}"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 999.5:
            return f"{_three_digits(count)} {unit}"
        count /= 1024
    return f"{_three_digits(count)} TiB"


PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def format_rate(rate: float) -> str:
    """Rate with a decimal prefix, before its unit: "12.3 T"."""
    size, prefix = next(((size, prefix) for size, prefix in PREFIXES if rate >= size), (1.0, ""))
    return f"{rate / size:.3g} {prefix}"


def format_intensity(intensity: float) -> str:
    """Arithmetic per byte moved: "12.3 FLOP/byte", "1,024 FLOP/byte"."""
    return f"{intensity:,.0f} FLOP/byte" if intensity >= 999.5 else f"{intensity:.3g} FLOP/byte"


def format_source(source: SourceLine) -> str:
    """Short place of a line: "train.py:12", "In [5], line 3" in a notebook; the file alone for an unknown line (0)."""
    file = source.file.replace(chr(92), "/").rsplit("/", 1)[-1]
    between = ", line " if file.startswith("In [") else ":"
    return f"{file}{between}{source.line}" if source.line else file


def _three_digits(value: float) -> str:
    """Three significant digits without an exponent; whole numbers below 100 stay whole."""
    if abs(value) < 99.95 and value == round(value):
        return f"{value:.0f}"
    decimals = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
    return f"{value:.{decimals}f}"


Numbers = Int64 | Float64
NORMAL = 1.959964
"""Quantile of the normal distribution at 97.5 %, for 95 % intervals."""
TO_DEVIATION = 1.4826
"""Ratio of standard deviation to median absolute deviation of a normal distribution."""
NORMAL_OF_LOOKS = 2.497705
"""Quantile of the normal distribution at 99.375 %, for 98.75 % intervals, of which ten (similar ones) miss together in
5 %."""
BETWEEN_RUNS = 0.03
"""Assumed largest difference between single runs of one unchanged job on a quiet machine, as a fraction of a step,
unless measured on that machine (`steptime env --between-runs`). Repeated runs of the job are more accurate."""
BLOCKS = 10
"""Blocks into which a series is cut: enough for the ranks of an interval, few enough that each averages over correlated
neighbours."""
CONFIRMING = 2
"""Values after the first one of a new level that must agree with it."""
LEVEL_SPREADS = 3.0
"""Distance from a level, in standard deviations, up to which a value belongs to it."""
LEAST_FOR_SCATTER = 5
"""Least number of values for a scatter."""


def median_of(values: Numbers, unit: str = "ns") -> Estimate:
    """Median with its 95 % interval from order statistics (Conover, Practical Nonparametric Statistics, 3.2; ranks by
    the normal approximation of the binomial). With fewer than six values the interval is their range, which is less
    than 95 %. Raises ValueError for no values."""
    if not len(values):
        raise ValueError("a median needs values")
    ordered = np.sort(values)
    count = len(ordered)
    reach = NORMAL * sqrt(count) / 2
    low = max(0, floor(count / 2 - reach) - 1)
    high = min(count - 1, ceil(count / 2 + reach))
    return Estimate(float(np.median(ordered)), float(ordered[low]), float(ordered[high]), count, unit)


def mean_of(values: Numbers) -> Estimate:
    """Mean of independent values with Student's 95 % interval. Raises ValueError for fewer than two."""
    if len(values) < 2:
        raise ValueError("an interval of a mean needs two values")
    mean = float(np.mean(values))
    reach = student(len(values) - 1) * float(np.std(values, ddof=1)) / sqrt(len(values))
    return Estimate(mean, mean - reach, mean + reach, len(values))


def mean_of_series(values: Numbers) -> Estimate:
    """Mean of a series in time order with its 95 % interval: Student's, for the effective number of values (length over
    autocorrelation time). Means of parts add up to the mean of the whole, unlike medians.

    Values are never negative here, so no interval is below zero. The interval of a single value is from zero to twice
    the value. Raises ValueError for no values."""
    if not len(values):
        raise ValueError("a mean needs values")
    mean = float(np.mean(values))
    if len(values) == 1:
        return Estimate(mean, min(0.0, mean), max(0.0, 2 * mean), 1)
    worth = max(2.0, len(values) / autocorrelation_time(np.asarray(values, np.float64)))
    error = float(np.std(values, ddof=1)) / sqrt(worth)
    reach = student(worth - 1) * error
    return Estimate(mean, min(mean, max(0.0, mean - reach)), mean + reach, len(values))


def difference_of_series(values: Numbers, base: Numbers) -> Estimate:
    """mean(values) - mean(base) of two series in time order, with a distribution-free interval. The interval is that of
    Moses for a shift (Hollander and Wolfe, Nonparametric Statistical Methods, 4.3), over the means of blocks of
    neighbours, so that slow drift widens it. With fewer than four blocks on each side it is the range of all pairs'
    differences, which is less than 95 %. If one series is a single value, its interval is that of `mean_of_series`.
    Raises ValueError for an empty series."""
    difference = float(np.mean(values)) - float(np.mean(base))
    samples = len(values) + len(base)
    if min(len(values), len(base)) < 2:
        return difference_of(mean_of_series(values), mean_of_series(base))
    one, other = block_means(values), block_means(base)
    pairs = np.sort(np.subtract.outer(one, other), axis=None)
    count = len(pairs)
    rank = floor(count / 2 - NORMAL * sqrt(count * (len(one) + len(other) + 1) / 12))
    low, high = float(pairs[max(0, rank - 1)]), float(pairs[min(count - 1, count - rank)])
    centre = float(np.median(pairs))
    return Estimate(difference, difference - (centre - low), difference + (high - centre), samples)


def difference_of(one: Estimate, other: Estimate) -> Estimate:
    """Difference one - other of independent estimates: the half-widths add like standard deviations, each side by
    itself (Zou and Donner, Statistics in Medicine 27, 2008: MOVER)."""
    difference = one.value - other.value
    low = sqrt((one.value - one.low) ** 2 + (other.high - other.value) ** 2)
    high = sqrt((one.high - one.value) ** 2 + (other.value - other.low) ** 2)
    return Estimate(difference, difference - low, difference + high, one.samples + other.samples, one.unit)


def block_means(values: Numbers) -> Float64:
    """Means of up to BLOCKS blocks of neighbours of almost equal length, in order."""
    means = [float(np.mean(block)) for block in np.array_split(values, min(BLOCKS, len(values)))]
    return np.array(means, np.float64)


@dataclass(frozen=True, slots=True)
class Jump:
    """Change of level in a series. at: index of the first value of the new level; before, after: medians of the levels
    on both sides. confirmed: True if further values of the new level follow."""

    at: int
    before: float
    after: float
    confirmed: bool


def jumps(values: Float64, least: float, spreads: Sequence[float] = ()) -> tuple[Jump, ...]:
    """Positions where the level of a series changes beyond noise, by a rule that a person can check by hand.

    A level is the median of its values so far. Its noise is the largest of three. `least` is relative to the level.
    `spreads` are half-widths of each value's own interval: the next value's, and the level's median. The third is
    LEVEL_SPREADS times the scatter of neighbours: the median of their distances, times 1.4826 / sqrt(2), which is the
    standard deviation of a normal distribution. A value beyond the noise starts a new level if the median of it and the
    next CONFIRMING values is also beyond, on the same side. Without next values it decides alone."""
    found: list[Jump] = []
    start, scatter = 0, _scatter_of(values)
    for index in range(1, len(values)):
        level = float(np.median(values[start:index]))
        own = max(spreads[index], float(np.median(spreads[start:index]))) if len(spreads) else 0.0
        noise = max(least * level, LEVEL_SPREADS * scatter, own)
        ahead = values[index : index + 1 + CONFIRMING]
        now = float(np.median(ahead))
        away, together = float(values[index]) - level, now - level
        if abs(away) > noise and abs(together) > noise and (away > 0) == (together > 0):
            found.append(Jump(index, level, now, len(ahead) > 1))
            start = index
    ends = [*(jump.at for jump in found[1:]), len(values)][: len(found)]
    levels = (float(np.median(values[jump.at : end])) for jump, end in zip(found, ends, strict=True))
    return tuple(replace(jump, after=level) for jump, level in zip(found, levels, strict=True))


def _scatter_of(values: Float64) -> float:
    """Standard deviation of a series around its levels, from distances of neighbours, whose median a few changes of
    level do not affect; 0 for fewer than LEAST_FOR_SCATTER values."""
    if len(values) < LEAST_FOR_SCATTER:
        return 0.0
    return TO_DEVIATION / sqrt(2) * float(np.median(np.abs(np.diff(values))))


def slope_of(values: Float64) -> Estimate:
    """Trend of a series per value, relative to its first one: median slope of all pairs with Sen's interval (Sen,
    Journal of the American Statistical Association 63, 1968), without ties. At least four values."""
    count = len(values)
    later, earlier = np.tril_indices(count, -1)
    slopes = np.sort((values[later] - values[earlier]) / (later - earlier)) / values[0]
    reach = NORMAL * sqrt(count * (count - 1) * (2 * count + 5) / 18)
    low = max(0, floor((len(slopes) - reach) / 2) - 1)
    high = min(len(slopes) - 1, ceil((len(slopes) + reach) / 2))
    return Estimate(float(np.median(slopes)), float(slopes[low]), float(slopes[high]), count, "1")


def autocorrelation_time(values: Float64) -> float:
    """Number of values of a series that are worth one independent value, at least 1. It is the sum of the
    autocorrelations in both directions, up to the first lag that is 2.5 times it, by Fourier transform (Sokal, Monte
    Carlo Methods in Statistical Mechanics, 1997, section 3: five times his tau, which is half of this)."""
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


def student(freedom: float, *, looks: bool = False) -> float:
    """Quantile of Student's t at 97.5 % for `freedom` >= 1, at 99.375 % for `looks`. It is exact for whole numbers up
    to 9 and linear between them; beyond, it is the expansion of Cornish and Fisher (Abramowitz and Stegun 26.7.5),
    whose error is below 0.4 % there."""
    table, z = (_STUDENT_OF_LOOKS, NORMAL_OF_LOOKS) if looks else (_STUDENT, NORMAL)
    if freedom < len(table):
        below = int(freedom)
        return table[below - 1] * (below + 1 - freedom) + table[below] * (freedom - below)
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2


_STUDENT_OF_LOOKS = (50.923, 8.86, 5.392, 4.315, 3.81, 3.521, 3.335, 3.206, 3.111)
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
