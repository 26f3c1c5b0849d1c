"""Operators' times in a steady step: what a profile adds lies above the roofline."""

from __future__ import annotations

from dataclasses import replace

import pytest
from advice.healthy import MACHINE, MS, categories, operator

from steptime.advice.line_evidence import profile_scale, steady_time
from steptime.advice.run_uses import CategoryUse

PRODUCT = operator("mm", 10, 12 * MS, "compute", flops=1e9, bytes=1e6)
"""10 ms at the machine's 100 GFLOP/s."""
MOVING = operator("mul", 10, 28 * MS, "memory", bytes=100e6)
"""5 ms at 20 GB/s."""
OPERATORS = (PRODUCT, MOVING)
CACHED = replace(MACHINE, updates=((1 << 20, 50e9), (1 << 24, 20e9)))


def at_work(milliseconds: float) -> tuple[CategoryUse, ...]:
    return categories(milliseconds * MS)


def test_what_the_profile_adds_is_taken_from_what_lies_above_the_roofline() -> None:
    work = at_work(27.5)
    assert steady_time((PRODUCT,), OPERATORS, work, CACHED) == pytest.approx(11 * MS)
    assert steady_time((MOVING,), OPERATORS, work, CACHED) == pytest.approx(16.5 * MS)


def test_the_parts_sum_to_the_steady_step() -> None:
    for steady in (1, 15, 20, 39):
        parts = [steady_time((each,), OPERATORS, at_work(steady), CACHED) for each in OPERATORS]
        assert sum(parts) == pytest.approx(steady * MS)
        assert min(parts) > 0


def test_a_profile_that_was_no_slower_is_believed() -> None:
    assert steady_time((MOVING,), OPERATORS, at_work(50), CACHED) == 28 * MS
    assert steady_time((MOVING,), OPERATORS, (), CACHED) == 28 * MS


def test_without_measured_rates_all_are_scaled_alike() -> None:
    for machine in (MACHINE, None):
        scaled = steady_time((MOVING,), OPERATORS, at_work(20), machine)
        assert scaled == pytest.approx(profile_scale(OPERATORS, at_work(20)) * 28 * MS) == pytest.approx(14 * MS)
