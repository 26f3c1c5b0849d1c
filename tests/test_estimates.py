"""Medians and their intervals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from steptime.quantities import Estimate, difference_of, format_spread, median_of

numbers = st.lists(st.integers(0, 10**12), min_size=1, max_size=80).map(lambda values: np.array(values, np.int64))


def difference_of_medians(one: np.ndarray, other: np.ndarray) -> Estimate:
    return difference_of(median_of(one), median_of(other))


@given(numbers)
def test_a_median_lies_in_its_interval_and_the_interval_among_the_values(values: np.ndarray) -> None:
    estimate = median_of(values)
    assert values.min() <= estimate.low <= estimate.value <= estimate.high <= values.max()
    assert estimate.samples == len(values)


@given(numbers, numbers)
def test_differences_are_opposite_when_turned_round(one: np.ndarray, other: np.ndarray) -> None:
    forth, back = difference_of_medians(one, other), difference_of_medians(other, one)
    assert forth.value == -back.value
    assert forth.low == pytest.approx(-back.high)


def test_the_interval_holds_the_true_median_as_often_as_it_says() -> None:
    random = np.random.default_rng(7)
    for count in (10, 40, 200):
        samples = random.lognormal(size=(2000, count))
        held = [estimate.low <= 1.0 <= estimate.high for estimate in map(median_of, samples)]
        assert 0.945 <= np.mean(held) <= 0.999, count


def test_a_real_difference_is_reported_from_none() -> None:
    random = np.random.default_rng(3)
    base = random.normal(100.0, 5.0, 200)
    assert difference_of_medians(random.normal(110.0, 5.0, 200), base).low > 0
    same = difference_of_medians(random.normal(100.0, 5.0, 200), base)
    assert same.low < 0 < same.high


def test_no_values_are_refused() -> None:
    with pytest.raises(ValueError, match="needs values"):
        median_of(np.array([], np.int64))


@given(st.lists(st.integers(0, 10**12), min_size=3, max_size=3).map(sorted))
def test_a_spread_never_reaches_below_nothing(ends: list[int]) -> None:
    low, value, high = ends
    printed = format_spread(Estimate(value, low, high, 9))
    if printed.startswith("± "):
        assert (high - low) / 2 <= value / 2
    else:
        assert printed.startswith("between ")


def test_a_wide_spread_is_printed_by_its_ends() -> None:
    assert format_spread(Estimate(9.7e6, 4.1e6, 25e6, 39)) == "between 4.10 ms and 25 ms"
    assert format_spread(Estimate(9.7e6, 9.2e6, 10.2e6, 39)) == "± 500 µs"
