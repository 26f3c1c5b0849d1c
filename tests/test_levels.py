"""Changes of level, slopes and differences of series: found where they are, with intervals that keep their promise."""

from __future__ import annotations

import numpy as np
import pytest

from steptime.quantities import BLOCKS, block_means, difference_of_series, jumps, slope_of

SEED = np.random.SeedSequence(20260801)


def test_the_interval_of_a_difference_holds_it_as_often_as_it_says() -> None:
    """Skewed steps, as real ones are: 95 % of the intervals hold the true difference."""
    random = np.random.default_rng(SEED)
    held = 0
    for _ in range(400):
        base = 100 + random.gamma(2.0, 3.0, 60)
        values = 110 + random.gamma(2.0, 3.0, 80)
        found = difference_of_series(values, base)
        held += found.low <= 10.0 <= found.high
    assert 0.91 <= held / 400 <= 0.99


def test_slow_drift_does_not_pass_for_a_difference() -> None:
    """Two runs of one job that wander: values in a row say less than independent ones."""
    random = np.random.default_rng(SEED)
    false = 0
    for _ in range(300):
        one, other = (_wandering(random) for _ in range(2))
        found = difference_of_series(one, other)
        false += not found.low <= 0.0 <= found.high
    assert false / 300 <= 0.15


def _wandering(random: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    noise = random.normal(0.0, 1.0, 100)
    values = np.zeros(100)
    for place in range(1, 100):
        values[place] = 0.6 * values[place - 1] + noise[place]
    return 100 + values


def test_few_values_have_an_interval_of_all_their_differences() -> None:
    found = difference_of_series(np.array([12.0, 13.0, 14.0]), np.array([1.0, 2.0, 3.0]))
    assert (found.low, found.value, found.high) == (9.0, 11.0, 13.0)


def test_a_single_value_is_no_series() -> None:
    found = difference_of_series(np.array([12.0]), np.array([1.0, 2.0, 3.0]))
    assert found.low < 0.0 < found.value == 10.0


@pytest.mark.parametrize("count", [1, 2, 9, 10, 11, 19, 100, 101])
def test_blocks_hold_all_values_in_order(count: int) -> None:
    means = block_means(np.arange(count, dtype=np.float64))
    assert len(means) == min(count, BLOCKS)
    assert list(means) == sorted(means)


def test_levels_are_found_where_they_change() -> None:
    random = np.random.default_rng(SEED)
    values = np.concatenate([random.normal(100, 1, 10), random.normal(112, 1, 10), random.normal(100, 1, 10)])
    found = jumps(values, 0.03)
    assert [jump.at for jump in found] == [10, 20]
    assert found[0].before == pytest.approx(100, rel=0.01)
    assert found[0].after == pytest.approx(112, rel=0.01)
    assert all(jump.confirmed for jump in found)


def test_noise_alone_changes_no_level() -> None:
    random = np.random.default_rng(SEED)
    false = sum(bool(jumps(random.normal(100, spread, 30), 0.03)) for spread in (0.5, 1, 2, 4, 8) for _ in range(20))
    assert false <= 5


def test_a_spread_of_its_own_excuses_a_value() -> None:
    values = np.array([100.0, 100.0, 120.0])
    assert jumps(values, 0.03, [1.0, 1.0, 30.0]) == ()
    assert len(jumps(values, 0.03, [1.0, 1.0, 1.0])) == 1
    assert jumps(values, 0.03, [30.0, 30.0, 1.0]) == (), "nobody knows the level"


def test_nothing_and_one_value_have_no_levels() -> None:
    assert jumps(np.array([]), 0.03) == ()
    assert jumps(np.array([5.0]), 0.03) == ()


def test_the_slope_of_a_line_is_its_slope() -> None:
    found = slope_of(np.array([100.0, 102.0, 104.0, 106.0, 108.0, 110.0]))
    assert (found.low, found.value, found.high) == pytest.approx((0.02, 0.02, 0.02))
    still = slope_of(np.array([100.0, 101.0, 99.0, 100.5, 99.5, 100.0]))
    assert still.low < 0 < still.high
