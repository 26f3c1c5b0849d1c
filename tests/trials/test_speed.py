"""Speed-ups with their intervals: right where the truth is known, wide where the machine is noisy."""

from __future__ import annotations

import os
from math import exp, inf
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from steptime.trials.execute import clock_rate
from steptime.trials.judge import block_means, compared, noise_of, speed_up

steps = st.lists(st.integers(1_000, 10**9), min_size=1, max_size=40)
comparisons = st.builds(compared, steps, steps, steps, st.floats(0, 1))


@given(st.lists(comparisons, min_size=1, max_size=6))
def test_an_interval_holds_its_value(rounds: list) -> None:  # type: ignore[type-arg]
    estimate = speed_up(rounds)
    assert 0 <= estimate.low <= estimate.value <= estimate.high
    assert estimate.samples == len(rounds)


@given(comparisons, st.floats(0.01, 100))
def test_a_machine_that_is_slower_for_all_changes_nothing(comparison, factor: float) -> None:  # type: ignore[no-untyped-def]
    slower = compared(
        comparison.before * factor, comparison.variant * factor, comparison.after * factor, comparison.place
    )
    assert slower.log_ratio() == pytest.approx(comparison.log_ratio(), abs=1e-6)


@given(comparisons)
def test_a_variant_and_its_baseline_exchanged_are_each_others_inverse(comparison) -> None:  # type: ignore[no-untyped-def]
    one = compared(comparison.before, comparison.variant, comparison.before)
    other = compared(comparison.variant, comparison.before, comparison.variant)
    assert one.log_ratio() == pytest.approx(-other.log_ratio(), abs=1e-9)


def test_a_steady_drift_between_the_baselines_is_taken_out() -> None:
    drifting = compared([100], [100], [400], 0.5)
    assert exp(drifting.log_ratio()) == pytest.approx(2.0)


def test_one_round_tells_no_interval() -> None:
    estimate = speed_up([compared([100] * 9, [50] * 9, [100] * 9)])
    assert estimate.value == pytest.approx(2.0)
    assert (estimate.low, estimate.high) == (0.0, inf)


def test_rounds_that_agree_by_chance_are_no_surer_than_their_steps() -> None:
    noisy = [60, 140] * 10
    estimate = speed_up([compared(noisy, noisy, noisy)] * 3)
    assert estimate.low < 0.95
    assert estimate.high > 1.05


def test_blocks_keep_the_mean_and_widen_with_what_is_alike() -> None:
    generator = np.random.default_rng(0)
    alike = np.repeat(generator.normal(100, 10, 12), 10)
    shuffled = generator.permutation(alike)
    spread = [np.std(block_means(each, 4000, np.random.default_rng(1))) for each in (alike, shuffled)]
    assert block_means(alike, 4000, np.random.default_rng(1)).mean() == pytest.approx(alike.mean(), rel=0.01)
    assert spread[0] > 1.5 * spread[1]


def test_the_noise_of_a_quiet_control_is_small_and_never_below_one() -> None:
    assert noise_of([compared([100], [100], [100])] * 3) == 1.0
    assert noise_of([compared([100], [80], [100]), compared([100], [125], [100])]) > 1.3


def test_what_is_no_comparison_is_refused() -> None:
    with pytest.raises(ValueError, match="needs steps"):
        compared([], [1], [1])
    with pytest.raises(ValueError, match="place"):
        compared([1], [1], [1], 1.5)
    with pytest.raises(ValueError, match="needs a round"):
        speed_up([])


def test_the_rate_of_a_clock_is_read_from_plain_files_alone(tmp_path: Path) -> None:
    for name, seconds in (("clock-started-7", 0), ("clock-ended-7", 2)):
        (tmp_path / name).write_text(f"{3 * seconds * 10**9}\n")
        os.utime(tmp_path / name, (seconds, seconds))
    os.mkfifo(tmp_path / "clock-started-8")
    os.mkfifo(tmp_path / "clock-ended-8")
    (tmp_path / "clock-ended-9").symlink_to("/dev/zero")
    (tmp_path / "clock-started-9").write_text("0\n")
    assert clock_rate(tmp_path) == 3.0
