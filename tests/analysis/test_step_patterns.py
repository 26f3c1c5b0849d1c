"""What no mean shows: a level that changes and stays, and every k-th step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from every import for_every

from steptime.advice.pattern_evidence import take_turns
from steptime.analysis.step_patterns import find_change, find_period
from steptime.analysis.timeline import Phase, RecordTable, Steps

MS = 1_000_000
SEEDS = range(30)


def made(rows: dict[Phase, np.ndarray]) -> Steps:
    """Steps of these phases, ns."""
    count = len(next(iter(rows.values())))
    phases = np.zeros((count, len(Phase)), np.int64)
    for phase, values in rows.items():
        phases[:, phase] = values
    duration = phases.sum(axis=1)
    end = np.cumsum(duration)
    no, yes = np.zeros(count, np.bool_), np.ones(count, np.bool_)
    return Steps(end - duration, end, duration, phases, np.ones(count, np.int64), no, no, yes, no, no)


def noisy(level: np.ndarray | float, count: int, seed: int, noise: float = 0.1) -> np.ndarray:
    return level * MS * np.exp(noise * np.random.default_rng(seed).normal(size=count))


@for_every("seed", SEEDS)
def test_a_loader_that_slows_down_for_good_is_dated_to_its_step(seed: int) -> None:
    level = np.where(np.arange(200) < 120, 1.0, 4.0)
    change = find_change(made({Phase.INPUT: noisy(level, 200, seed), Phase.FORWARD: noisy(5, 200, seed + 1000)}))
    assert change is not None
    assert (change.phase, change.step) == ("input", 121)
    assert change.growth == pytest.approx(3 * MS, rel=0.15)


@for_every("seed", SEEDS)
def test_noise_and_a_slower_machine_are_no_change(seed: int) -> None:
    even = noisy(5, 200, seed)
    assert find_change(made({Phase.FORWARD: even, Phase.INPUT: noisy(1, 200, seed + 1000)})) is None
    for slower in (np.where(np.arange(200) < 100, 1.0, 1.6), np.linspace(1, 1.8, 200)):
        both = {Phase.FORWARD: noisy(5 * slower, 200, seed), Phase.BACKWARD: noisy(6 * slower, 200, seed + 1000)}
        assert find_change(made(both)) is None


@pytest.mark.parametrize("level", [np.linspace(1, 5, 200), 1 + np.arange(200) // 20 * 0.45], ids=["a line", "stairs"])
@for_every("seed", SEEDS)
def test_what_grows_bit_by_bit_is_reported_with_what_the_mean_step_bears(level: np.ndarray, seed: int) -> None:
    change = find_change(made({Phase.FORWARD: noisy(5, 200, seed), Phase.REST: noisy(level, 200, seed + 1000, 0.05)}))
    assert change is not None
    assert (change.phase, change.gradual) == ("rest", True)
    first = np.median(level[:40])
    assert change.growth == pytest.approx((np.median(level[-40:]) - first) * MS, rel=0.1)
    assert change.growth * change.share == pytest.approx((level.mean() - first) * MS, rel=0.15)


@for_every("seed", SEEDS)
def test_few_steps_show_growth_that_no_chance_explains_and_no_slower_machine(seed: int) -> None:
    """A graph that reaches one step further back each time, seen in the second half of a short run."""
    level = np.linspace(47, 92, 28)
    change = find_change(made({Phase.BACKWARD: noisy(level, 28, seed, 0.03), Phase.REST: noisy(2, 28, seed + 1000)}))
    assert change is not None
    assert (change.phase, change.gradual) == ("backward", True)
    slower = {Phase.BACKWARD: noisy(level, 28, seed, 0.03), Phase.REST: noisy(level / 20, 28, seed + 1000, 0.03)}
    assert find_change(made(slower)) is None
    even = {Phase.BACKWARD: noisy(60, 28, seed, 0.3), Phase.REST: noisy(2, 28, seed + 1000)}
    assert find_change(made(even)) is None


@for_every("seed", SEEDS)
def test_steps_that_the_probe_slowed_at_the_start_show_growth_all_the_same(seed: int) -> None:
    """A short run is half over before it has steps that are as they would be without the probe."""
    level = np.linspace(2, 60, 60)
    level[:20] *= 1.5
    steps = made({Phase.BACKWARD: noisy(level, 60, seed, 0.1), Phase.REST: noisy(2, 60, seed + 1000)})
    change = find_change(replace(steps, excluded=np.arange(60) < 24))
    assert change is not None
    assert change.gradual
    assert change.grows_much
    level[:20] = 200.0
    slowed = made({Phase.BACKWARD: noisy(np.r_[level[:20], np.full(40, 30.0)], 60, seed), Phase.REST: noisy(2, 60, 1)})
    assert find_change(replace(slowed, excluded=np.arange(60) < 24)) is None


@for_every("seed", SEEDS)
def test_a_drift_is_no_sudden_change_even_where_it_passes_for_one(seed: int) -> None:
    level = np.linspace(2, 9, 200) + np.where(np.arange(200) > 110, 2.5, 0.0)
    change = find_change(made({Phase.REST: noisy(level, 200, seed, 0.15), Phase.FORWARD: noisy(3, 200, seed + 1000)}))
    assert change is not None
    assert change.gradual


def test_a_run_of_a_hundred_thousand_steps_is_looked_at_in_little_memory() -> None:
    level = np.linspace(1, 5, 100_000)
    change = find_change(made({Phase.FORWARD: noisy(5, 100_000, 1), Phase.REST: noisy(level, 100_000, 2)}))
    assert change is not None
    assert change.gradual


@for_every("seed", SEEDS)
def test_what_comes_and_goes_is_no_growth(seed: int) -> None:
    level = np.where((np.arange(200) > 60) & (np.arange(200) < 120), 5.0, 1.0)
    assert find_change(made({Phase.FORWARD: noisy(5, 200, seed), Phase.REST: noisy(level, 200, seed + 1000)})) is None


def test_load_on_the_machine_hides_no_period() -> None:
    chance = np.random.default_rng(1)
    rest = np.where(np.arange(400) % 25 == 1, 60.0, np.where(chance.random(400) < 0.1, 8.0, 0.2))
    waits = np.where(chance.random(400) < 0.3, 12.0, 0.0)
    period = find_period(made({Phase.FORWARD: noisy(5 + waits, 400, 2), Phase.REST: noisy(rest, 400, 3)}))
    assert period is not None
    assert (period.every, period.phase) == (25, Phase.REST)


@pytest.mark.parametrize("every", [2, 3, 10, 25])
def test_every_kth_step_is_found_with_what_it_costs(every: int) -> None:
    slow = np.where(np.arange(200) % every == 1, 8.0, 0.5)
    period = find_period(made({Phase.FORWARD: noisy(5, 200, every, 0.03), Phase.REST: noisy(slow, 200, 3, 0.03)}))
    assert period is not None
    assert (period.every, period.phase) == (every, Phase.REST)
    assert period.extra == pytest.approx(7.5 * MS, rel=0.1)


@pytest.mark.parametrize("least", [1.5, 4.0])
def test_slow_steps_that_become_slower_have_their_period_and_their_growth(least: float) -> None:
    slow = np.where(np.arange(400) % 16 == 3, np.linspace(least, 60, 400), 0.2)
    period = find_period(made({Phase.FORWARD: noisy(5, 400, 1, 0.03), Phase.REST: noisy(slow, 400, 2, 0.03)}))
    assert period is not None
    assert (period.every, period.phase) == (16, Phase.REST)
    assert period.growth is not None
    assert period.growth[0] == pytest.approx((least + (60 - least) / 6) * MS, rel=0.2)
    assert period.growth[1] == pytest.approx((60 - (60 - least) / 6) * MS, rel=0.1)


@for_every("seed", SEEDS)
def test_slow_steps_that_scatter_do_not_rise(seed: int) -> None:
    slow = np.where(np.arange(400) % 16 == 3, 30.0, 0.2)
    period = find_period(made({Phase.FORWARD: noisy(5, 400, seed, 0.03), Phase.REST: noisy(slow, 400, seed + 9, 0.4)}))
    assert period is not None
    assert period.growth is None


@for_every("seed", SEEDS)
def test_slow_steps_that_come_by_chance_have_no_period(seed: int) -> None:
    slow = np.random.default_rng(seed).random(200) < 0.1
    assert find_period(made({Phase.FORWARD: noisy(np.where(slow, 9.0, 5.0), 200, seed + 1000, 0.03)})) is None


def test_networks_that_take_turns_are_no_slow_steps() -> None:
    steps = made({Phase.BACKWARD: noisy(np.where(np.arange(200) % 2 == 1, 40.0, 22.0), 200, 1, 0.03)})
    period = find_period(steps)
    assert period is not None

    def updates(*identities: int) -> RecordTable:
        """By these optimizers in turn, each at the end of a step."""
        by = np.array([identities[number % len(identities)] for number in range(200)])
        of_all = np.concatenate((np.ones(200, np.int64), by))
        start = np.concatenate((steps.end, steps.end)) - MS
        return RecordTable(np.zeros(400, np.int64), np.zeros(400, np.int64), of_all, start, start + 1)

    assert take_turns(steps, updates(1, 2), period.slow), "the second network is trained every second step"
    assert not take_turns(steps, updates(1, 1), period.slow)
    assert not take_turns(steps, updates(1, 2, 2), period.slow)
