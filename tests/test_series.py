"""Intervals of series whose neighbours are alike."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from steptime.arrays import among, quartiles
from steptime.quantities import Estimate, autocorrelation_time, mean_of_series, student

SERIES = 400
STEP = 50e6


def correlated(generator: np.random.Generator, length: int, coefficient: float) -> npt.NDArray[np.float64]:
    """A first-order autoregressive series around STEP with a deviation of a tenth of it."""
    noise = generator.normal(size=length + 100)
    values = np.empty(length + 100)
    values[0] = noise[0]
    for index in range(1, len(values)):
        values[index] = coefficient * values[index - 1] + (1 - coefficient**2) ** 0.5 * noise[index]
    return STEP + 0.1 * STEP * values[100:]


@pytest.mark.parametrize(("coefficient", "length"), [(0.0, 30), (0.0, 200), (0.5, 200), (0.8, 400)])
def test_intervals_cover_the_truth_as_often_as_they_say(coefficient: float, length: int) -> None:
    generator = np.random.default_rng(7)
    held = 0
    for _ in range(SERIES):
        found = mean_of_series(correlated(generator, length, coefficient))
        held += found.low <= STEP <= found.high
    assert 0.90 <= held / SERIES <= 0.99


def test_the_plain_interval_would_be_too_narrow() -> None:
    generator = np.random.default_rng(1)
    times = [autocorrelation_time(correlated(generator, 400, 0.8)) for _ in range(50)]
    assert np.median(times) == pytest.approx(9, rel=0.25)  # 1 + 2 * 0.8 / (1 - 0.8) in theory
    assert np.median([autocorrelation_time(generator.normal(size=400)) for _ in range(50)]) < 1.2


def test_one_value_says_nothing_of_its_spread() -> None:
    assert mean_of_series(np.array([10])) == Estimate(10.0, 0.0, 20.0, 1)
    assert mean_of_series(np.array([0])) == Estimate(0.0, 0.0, 0.0, 1)
    with pytest.raises(ValueError, match="needs values"):
        mean_of_series(np.array([], np.int64))


def test_a_constant_series_is_known_exactly() -> None:
    assert mean_of_series(np.full(40, 7)) == Estimate(7.0, 7.0, 7.0, 40)


def test_rare_events_have_a_mean_and_no_negative_time() -> None:
    found = mean_of_series(np.array([0] * 49 + [1000]))
    assert found.value == 20
    assert found.low == 0


@pytest.mark.parametrize(("freedom", "quantile"), [(1, 12.706), (4, 2.776), (9, 2.262), (20, 2.086), (1e6, 1.960)])
def test_students_quantile(freedom: float, quantile: float) -> None:
    assert student(freedom) == pytest.approx(quantile, rel=0.002)


@pytest.mark.parametrize("values", [[7], [1, 2], [5, 1, 9, 3], [4, 4, 4], list(range(101))])
def test_quartiles_are_those_of_numpy(values: list[int]) -> None:
    assert quartiles(np.array(values)) == pytest.approx(tuple(np.percentile(values, (25, 50, 75))))


@pytest.mark.parametrize("known", [[], [3], [9, 1, 1 << 40, -5]])
def test_what_is_among_others_is_found_as_numpy_finds_it(known: list[int]) -> None:
    values = np.array([1, 3, 9, -5, 1 << 40, 1 << 41])
    assert among(values, np.array(known, np.int64)).tolist() == np.isin(values, known).tolist()
