"""Losses and gradients: what counts as the same training."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from steptime.trials import parity

norms = st.dictionaries(st.text("abc.", min_size=1, max_size=6), st.floats(1e-2, 1e2), min_size=1, max_size=20)
curve = st.lists(st.floats(-1e6, 1e6), min_size=8, max_size=60)


def test_another_run_of_a_job_that_does_not_repeat_lies_in_its_own_spread_mostly() -> None:
    draw = np.random.default_rng(0)

    def gradients() -> dict[str, float | None]:
        together = draw.normal(0, 0.1)  # of the loss, which scales all of them
        return {str(number): float(np.exp(together + draw.normal(0, 0.05))) for number in range(20)}

    outside = 0
    for _ in range(200):
        rehearsals, variant = [gradients() for _ in range(parity.REPEATS)], gradients()
        allowed = parity.own_tolerance(rehearsals)
        assert allowed is not None
        outside += not parity.nearest(rehearsals, variant, factors=True).within(allowed)
    assert outside <= 10


def test_a_job_that_repeats_but_for_rounding_has_no_spread_of_its_own() -> None:
    once = {"conv.weight": 1.0, "fc.weight": 2.0}
    assert parity.own_tolerance([once]) is None
    assert parity.own_tolerance([once, {**once, "fc.weight": 2.0001}]) is None
    assert parity.own_tolerance([once, {**once, "fc.weight": 2.2}]) is not None


@given(norms)
def test_equal_gradients_are_alive_and_do_not_differ(baseline: dict[str, float]) -> None:
    found = parity.compare_gradients(baseline, baseline)
    assert found.dead == ()
    assert found.within((0.0, 0.0))


@pytest.mark.parametrize("dead", [None, 0.0, float("nan"), float("inf")])
@given(baseline=norms)
def test_a_gradient_that_dies_is_named(baseline: dict[str, float], dead: float | None) -> None:
    name = max(baseline, key=lambda each: baseline[each])
    assert parity.compare_gradients(baseline, {**baseline, name: dead}).dead == (name,)


def test_what_was_rounding_before_is_not_compared() -> None:
    before = {"weight": 10.0, "bias": 1e-8}
    assert parity.compare_gradients(before, {"weight": 10.0, "bias": 0.0}).dead == ()
    assert parity.compare_gradients(before, {"weight": 10.0, "bias": 7e-7}).largest == 0.0


def test_the_tolerances_tell_rounding_from_a_miscompiled_network() -> None:
    before = {f"layer{number}": 1.0 for number in range(10)}
    rounded = {name: 1.0 + 3e-3 * (name == "layer0") for name in before}
    assert parity.compare_gradients(before, rounded).within(parity.FULL_PRECISION)
    wild = {name: 2.2 if name == "layer0" else 1.0 for name in before}
    assert not parity.compare_gradients(before, wild).within(parity.LOW_PRECISION)


@given(curve)
def test_a_curve_equals_itself_and_lies_in_its_own_band(losses: list[float]) -> None:
    assert parity.equal_bits(losses, losses)
    assert parity.first_difference(losses, losses) is None
    assert parity.within_band({0: losses}, {0: losses, 1: losses})
    assert parity.within_band(dict.fromkeys(range(3), losses), dict.fromkeys(range(3), losses))


@pytest.mark.parametrize("seeds", [3, 5, 8])
def test_another_seed_lies_in_the_band_nineteen_times_of_twenty(seeds: int) -> None:
    draw = np.random.default_rng(seeds)
    inside = 0
    for _ in range(1000):
        *baselines, variant = (list(draw.normal(0, 1, 10) + draw.normal(0, 1)) for _ in range(seeds + 1))
        inside += parity.within_band({0: variant}, dict(enumerate(baselines)))
    assert 930 <= inside <= 970


def within(seeds: int, shift: float, alike: float) -> float:
    """How often variants pass that were run from the baselines' seeds but one, with losses so many deviations off.
    alike: the correlation of losses from one seed."""
    draw = np.random.default_rng(seeds)
    inside = 0
    for _ in range(500):
        theirs = draw.normal(0, 1, seeds + 1)
        mine = alike * theirs[:seeds] + np.sqrt(1 - alike**2) * draw.normal(0, 1, seeds) + shift
        curves = [{seed: [float(value)] * 10 for seed, value in enumerate(each)} for each in (mine, theirs)]
        inside += parity.within_band(*curves)
    return inside / 500


@pytest.mark.parametrize("seeds", [3, 4, 8])
def test_a_loss_five_deviations_off_is_seen_and_one_in_the_band_passes(seeds: int) -> None:
    assert within(seeds, 0.0, 0.0) > 0.985  # of 6000: 0.9925 with three seeds, 0.9933 with four, 0.9977 with eight
    assert within(seeds, 5.0, 0.0) < (0.15 if seeds == 3 else 0.01)


def test_pairs_of_one_seed_show_what_seeds_apart_would_hide() -> None:
    assert within(4, 1.5, 0.999) < 0.01
    assert within(4, 0.2, 0.999) > 0.985
    assert within(4, 1.5, 0.0) > 0.8


@given(curve, st.floats(0.1, 10))
def test_the_band_ends(losses: list[float], width: float) -> None:
    baselines = dict(enumerate([losses, [loss + width for loss in losses], [loss - width for loss in losses]]))
    assert parity.within_band({0: [loss + 2 * width for loss in losses]}, baselines)
    assert not parity.within_band({0: [loss + 6 * width for loss in losses]}, baselines)


def test_one_bit_is_a_difference() -> None:
    losses = [1.0] * 10
    assert not parity.equal_bits(losses, [*losses[:9], 1.0 + 2**-52])
    assert parity.first_difference(losses, [*losses[:9], 1.0 + 2**-52]) == 9


def test_a_curve_that_is_not_finite_any_more_is_outside() -> None:
    fine = [1.0] * 10
    assert not parity.within_band({0: [*fine[:9], None]}, {0: fine, 1: [1.1] * 10})


def test_too_few_losses_prove_nothing() -> None:
    assert not parity.equal_bits([1.0] * 3, [1.0] * 3)
    assert not parity.seen([1.0] * 3)
    with pytest.raises(ValueError, match="a band needs"):
        parity.within_band({0: [1.0] * 10}, {0: [1.0] * 10})
