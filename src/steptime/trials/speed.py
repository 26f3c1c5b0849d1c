"""How much faster an arm is: a ratio of step times with an interval that holds on a noisy machine.

One law: an arm is compared with the baselines that ran right before and after it, never with a distant one, because
the speed of a shared machine comes in regimes that last for several processes.

The statistic of a round is log(baseline / arm) of mean step times: means, because a loader's stalls come every few
steps and throughput is what is paid for. The baseline is interpolated (in the logarithm) between the two that enclose
the arm, which takes a steady drift out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, exp, inf, sqrt

import numpy as np

from steptime.arrays import Float64, Int64
from steptime.estimates import autocorrelation_time, student
from steptime.quantities import Estimate

Series = Sequence[int] | Int64 | Float64

REPLICATES = 2000
"""Of the bootstrap: the 2.5 % quantile then rests on fifty of them."""
QUANTILES = (0.025, 0.975)
LEAST_ROUNDS = 2
"""One round shows no spread between rounds, which is where a shared machine's noise is."""


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """An arm's steps in one round, ns each, between those of two baselines. place: where the arm ran between them, from
    0 (right after the first) to 1."""

    before: Float64
    arm: Float64
    after: Float64
    place: float = 0.5


def compared(before: Series, arm: Series, after: Series, place: float = 0.5) -> Comparison:
    """A comparison. Raises ValueError for a series without steps, or a place outside of 0 to 1."""
    columns = [np.asarray(series, np.float64) for series in (before, arm, after)]
    if not all(len(column) for column in columns) or not 0 <= place <= 1:
        raise ValueError("a comparison needs steps of the arm and of both baselines, and a place from 0 to 1")
    return Comparison(columns[0], columns[1], columns[2], place)


def log_ratio(comparison: Comparison) -> float:
    """log(baseline / arm): above zero where the arm is faster."""
    before, arm, after = (float(np.log(np.mean(each))) for each in _series(comparison))
    return (1 - comparison.place) * before + comparison.place * after - arm


def speed_up(rounds: Sequence[Comparison], seed: int = 0) -> Estimate:
    """baseline / arm over all rounds, with a 95 % interval, unit "1". Infinitely wide with fewer than LEAST_ROUNDS.

    Rounds are independent of each other as far as a machine's regimes allow, so the interval is Student's over the
    rounds' log-ratios; and it is never narrower than what the steps alone leave open, which a bootstrap of blocks of
    consecutive steps tells (Kuensch, Annals of Statistics 17, 1989): three rounds can agree by chance. Raises
    ValueError for no rounds.
    """
    if not rounds:
        raise ValueError("a speed-up needs a round")
    ratios = np.array([log_ratio(each) for each in rounds])
    count, value = len(rounds), float(ratios.mean())
    if count < LEAST_ROUNDS:
        return Estimate(exp(value), 0.0, inf, count, "1")
    reach = student(count - 1) * float(ratios.std(ddof=1)) / sqrt(count)
    low, high = _by_steps(rounds, np.random.default_rng(seed))
    return Estimate(exp(value), exp(min(value - reach, low)), _finite_exp(max(value + reach, high)), count, "1")


def _by_steps(rounds: Sequence[Comparison], generator: np.random.Generator) -> tuple[float, float]:
    """The 95 % interval of the mean log-ratio if these very rounds were run again: percentiles of the bootstrap."""
    means = np.mean([_replicates(each, generator) for each in rounds], axis=0)
    low, high = np.quantile(means, QUANTILES)
    return float(low), float(high)


def noise_of(control: Sequence[Comparison]) -> float:
    """By what factor a control, which changes nothing, may still seem faster or slower, at least 1: twice the standard
    error of its log-ratio, whose true value is known to be zero. Raises ValueError for no rounds."""
    if not control:
        raise ValueError("the noise of a control needs a round")
    ratios = np.array([log_ratio(each) for each in control])
    return _finite_exp(2 * sqrt(float(np.mean(ratios**2)) / len(ratios)))


def _series(comparison: Comparison) -> tuple[Float64, Float64, Float64]:
    return comparison.before, comparison.arm, comparison.after


def _replicates(comparison: Comparison, generator: np.random.Generator) -> Float64:
    """REPLICATES log-ratios of one round, its steps drawn in blocks."""
    before, arm, after = (np.log(block_means(each, REPLICATES, generator)) for each in _series(comparison))
    ratios: Float64 = (1 - comparison.place) * before + comparison.place * after - arm
    return ratios


def block_means(values: Float64, replicates: int, generator: np.random.Generator) -> Float64:
    """Means of so many series that are drawn from `values` in blocks of consecutive ones, round the end."""
    count = len(values)
    length = min(count, block_length(values))
    blocks = ceil(count / length)
    starts = generator.integers(0, count, (replicates, blocks))
    twice = np.concatenate((values, values))
    sums = np.concatenate(([0.0], np.cumsum(twice)))
    whole = sums[starts + length] - sums[starts]
    means: Float64 = whole.sum(axis=1) / (blocks * length)
    return means


def block_length(values: Float64) -> int:
    """How many neighbouring steps are drawn together: twice the autocorrelation time, and at least the cube root of
    their number, which is the rate of the optimum (Hall, Horowitz and Jing, Biometrika 82, 1995)."""
    count = len(values)
    alike = ceil(max(2 * autocorrelation_time(values), float(np.cbrt(count))))
    return max(1, min(ceil(count / 2), alike))


def _finite_exp(value: float) -> float:
    return exp(value) if value < 700 else inf
