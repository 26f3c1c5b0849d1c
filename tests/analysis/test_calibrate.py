"""The unprofiled step: phases as watched, split inside as profiled, without the profiler's own time."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from steptime.analysis.categories import Category
from steptime.analysis.recorded_breakdown import calibrate, split
from steptime.analysis.timeline import Phase

NANOSECONDS = st.integers(0, 10**10)
MANY = np.full(len(Phase), 10**6)
"""Events: the profiler may have cost anything."""
ROW = st.lists(NANOSECONDS, min_size=len(Phase), max_size=len(Phase))
TABLE = st.lists(
    st.lists(NANOSECONDS, min_size=len(Category), max_size=len(Category)), min_size=len(Phase), max_size=len(Phase)
)


def profiled(**phases: dict[Category, int]) -> np.ndarray:
    table = np.zeros((len(Phase), len(Category)), np.int64)
    for name, categories in phases.items():
        for category, spent in categories.items():
            table[Phase[name.upper()], category] = spent
    return table


def watched(*rows: dict[Phase, int]) -> np.ndarray:
    return np.array([[row.get(phase, 0) for phase in Phase] for row in rows], np.int64)


@given(TABLE, st.integers(1, 5), st.lists(ROW, max_size=6), st.sampled_from(["cpu", "NVIDIA H100"]))
def test_every_row_sums_to_its_step(table: list[list[int]], steps: int, rows: list[list[int]], device: str) -> None:
    phases = np.array(rows, np.int64).reshape(len(rows), len(Phase))
    breakdown = calibrate(np.array(table, np.int64), steps, phases, device, MANY)
    assert breakdown.entries.sum(axis=1).tolist() == phases.sum(axis=1).tolist()


@given(st.lists(NANOSECONDS, max_size=5), st.lists(st.integers(0, 10**9), min_size=1, max_size=9))
def test_a_split_is_exact_and_off_by_less_than_two(totals: list[int], shares: list[int]) -> None:
    if not any(shares):
        shares[0] = 1
    parts = split(np.array(totals, np.int64), np.array(shares, np.int64))
    assert parts.sum(axis=1).tolist() == totals
    assert (parts >= 0).all()
    exact = np.outer(np.array(totals, float), np.array(shares, float) / sum(shares))
    assert np.abs(parts - exact).max(initial=0) < 2


def test_input_and_transfer_are_what_was_measured_whatever_the_profile_says() -> None:
    table = profiled(input={Category.COMPUTE: 900}, transfer={Category.OVERHEAD: 50}, forward={Category.COMPUTE: 100})
    breakdown = calibrate(table, 1, watched({Phase.INPUT: 300, Phase.TRANSFER: 7, Phase.FORWARD: 80}), "cpu", MANY)
    assert breakdown.entries[0, [Category.INPUT, Category.COPY, Category.COMPUTE]].tolist() == [300, 7, 80]


def test_the_profilers_own_time_comes_off_launch_first() -> None:
    table = profiled(forward={Category.COMPUTE: 600, Category.OVERHEAD: 400})
    breakdown = calibrate(table, 2, watched({Phase.FORWARD: 350}), "cpu", MANY)
    assert breakdown.entries[0, [Category.COMPUTE, Category.OVERHEAD]].tolist() == [300, 50]


def test_launch_gives_no_more_than_the_profiler_can_have_cost() -> None:
    table = profiled(forward={Category.COMPUTE: 600_000, Category.OVERHEAD: 400_000})
    events = np.array([0, 0, 100, 0, 0, 0, 0])
    breakdown = calibrate(table, 1, watched({Phase.FORWARD: 450_000}), "cpu", events)
    assert breakdown.entries[0, [Category.COMPUTE, Category.OVERHEAD]].tolist() == [300_000, 150_000]


def test_when_launch_is_not_enough_the_rest_gives_in_proportion() -> None:
    table = profiled(backward={Category.COMPUTE: 600, Category.PYTHON: 300, Category.OVERHEAD: 100})
    breakdown = calibrate(table, 1, watched({Phase.BACKWARD: 300}), "cpu", MANY)
    assert breakdown.entries[0, [Category.COMPUTE, Category.PYTHON, Category.OVERHEAD]].tolist() == [200, 100, 0]


def test_a_phase_that_the_profile_never_saw_is_host_outside_the_model_and_unexplained_inside() -> None:
    breakdown = calibrate(profiled(), 0, watched({Phase.REST: 40, Phase.OPTIMIZER: 60}), "cpu", MANY)
    assert breakdown.entries[0, [Category.PYTHON, Category.UNEXPLAINED]].tolist() == [40, 60]


def test_on_an_accelerator_the_whole_step_is_split_as_profiled() -> None:
    table = profiled(forward={Category.COMPUTE: 500, Category.INPUT: 500})
    breakdown = calibrate(table, 1, watched({Phase.INPUT: 10, Phase.BACKWARD: 990}), "Tesla V100", MANY)
    assert breakdown.entries[0, [Category.COMPUTE, Category.INPUT]].tolist() == [500, 500]
