"""Intervals survive arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from steptime.advice.device_uses import MachineUse
from steptime.advice.engine import shared
from steptime.advice.evidence import Case, OptimizerUse
from steptime.advice.models import lower_bound
from steptime.advice.rule import Finding, Part, Weight
from steptime.advice.run_uses import CategoryUse, StepSummary
from steptime.advice.savings import NOTHING, capped, modelled, ratio, scaled, total
from steptime.quantities import Estimate, SourceLine

values = st.floats(0, 1e12)
estimates = st.tuples(values, values, values).map(sorted).map(lambda v: Estimate(v[1], v[0], v[2], 9))


@given(estimates, estimates)
def test_a_capped_estimate_is_nowhere_above_its_upper_bound(estimate: Estimate, upper_bound: Estimate) -> None:
    cut = capped(estimate, upper_bound)
    assert cut.value <= upper_bound.value
    assert cut.low <= upper_bound.low
    assert cut.high <= max(upper_bound.high, cut.value)


@given(estimates, st.floats(-1, 10))
def test_scaling_keeps_the_order_and_never_turns_negative(estimate: Estimate, factor: float) -> None:
    assert 0 <= scaled(estimate, factor).low <= scaled(estimate, factor).value


@given(st.lists(estimates, max_size=5))
def test_a_sum_is_as_wide_as_its_parts_together(parts: list[Estimate]) -> None:
    summed = total(parts)
    assert summed.high - summed.low >= sum(part.high - part.low for part in parts) * (1 - 1e-9)


@given(st.floats(-1e9, 1e12), st.floats(-1e9, 1e12), st.floats(-1e9, 1e12))
def test_a_model_may_give_anything_and_is_still_an_estimate(value: float, low: float, high: float) -> None:
    assert modelled(value, low, high).low >= 0


def test_nothing_of_nothing_is_nothing() -> None:
    assert ratio(5.0, 0.0) == 0.0


def test_the_floor_of_an_optimizer_is_its_traffic_at_the_machine_s_bandwidth() -> None:
    adam = OptimizerUse("AdamW", Estimate(1, 1, 1, 1), 10, 1_000_000)
    machine = MachineUse("cpu", True, None, 14e9, None)
    assert lower_bound(adam, machine) == 1_000_000 * 4 * 7 / 14e9 * 1e9
    assert lower_bound(adam, None) > lower_bound(adam, machine)


def test_an_optimizer_whose_state_fits_in_a_cache_has_the_cache_s_bandwidth() -> None:
    machine = MachineUse("cpu", True, None, 14e9, None, updates=((2**20, 150e9), (2**26, 40e9), (2**28, 20e9)))
    for elements, rate in ((60_000, 150e9), (1_000_000, 40e9), (10_000_000, 20e9), (1_000_000_000, 20e9)):
        adam = OptimizerUse("AdamW", Estimate(1, 1, 1, 1), 10, elements)
        assert lower_bound(adam, machine) == pytest.approx(elements * 4 * 7 / rate * 1e9)


def test_on_a_processor_each_tensor_has_its_price_even_fused() -> None:
    memory = MachineUse("cpu", True, None, 14e9, 900.0, updates=((2**20, 150e9), (2**28, 20e9)))
    few, many = (OptimizerUse("AdamW", Estimate(1, 1, 1, 1), tensors, 10_000) for tensors in (2, 200))
    assert lower_bound(many, memory) - lower_bound(few, memory) == pytest.approx(198 * 4 * 900)
    plain = OptimizerUse("SGD", Estimate(1, 1, 1, 1), 200, 10_000)
    assert lower_bound(plain, memory) < lower_bound(many, memory) / 1.9, "it keeps no state to look up"
    device = MachineUse("cuda", True, None, 3e12, 900.0)
    assert lower_bound(many, device) == lower_bound(few, device), "the host goes ahead of a device"


def finding(category: Part, saves: float, line: int) -> Finding:
    source, savings = SourceLine("train.py", line, "train"), Estimate(saves, saves, saves, 9)
    return Finding("ST000", "any", Weight.FINDING, "", "", savings, category, source)


def test_what_a_place_takes_is_missing_in_the_categories_that_it_is_made_of() -> None:
    step = StepSummary(Estimate(100.0, 99.0, 101.0, 9), 20, 9, 3, "optimizer", "cpu")
    uses = (("python", 40.0), ("overhead", 30.0), ("compute", 30.0))
    case = Case(step, categories=tuple(CategoryUse(name, Estimate(of, of, of, 9), NOTHING) for name, of in uses))

    def left(place: float) -> float:
        found = shared((finding("", place, 3), finding("overhead", 30.0, 9)), case, 0.0)
        return found[1].savings.value if found[1].savings is not None else 0.0

    assert left(40) == 30, "all of it may be Python's"
    assert left(70) == 15, "half of what is not Python's is the place's, of dispatch as of computing"
    assert left(100) == 0
