"""The unprofiled step: phases as watched, split inside as profiled, without the profiler's own time."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from steptime.analysis.categories import Category
from steptime.analysis.recorded_breakdown import calibrate, calibrate_device, split
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


@given(TABLE, st.integers(1, 5), st.lists(ROW, max_size=6))
def test_every_row_sums_to_its_step(table: list[list[int]], steps: int, rows: list[list[int]]) -> None:
    phases, profile = np.array(rows, np.int64).reshape(len(rows), len(Phase)), np.array(table, np.int64)
    for breakdown in (
        calibrate(profile, steps, phases, "cpu", MANY),
        calibrate_device(profile.sum(axis=0), steps, phases.sum(axis=1), phases, "NVIDIA H100", MANY),
    ):
        assert breakdown.entries.sum(axis=1).tolist() == phases.sum(axis=1).tolist()
        assert (breakdown.entries >= 0).all()


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


def on_device(profiled: list[dict[Category, int]], wall: int, events: np.ndarray = MANY) -> dict[str, int]:
    """Categories of one steady step of so many ns."""
    spent = np.array([sum(step.get(category, 0) for step in profiled) for category in Category], np.int64)
    usual = np.array([wall], np.int64)
    breakdown = calibrate_device(spent, len(profiled), usual, watched({Phase.FORWARD: wall}), "NVIDIA H100", events)
    return {c.name.lower(): int(ns) for c, ns in zip(Category, breakdown.entries[0], strict=True) if ns}


def test_on_an_accelerator_the_whole_step_is_split_as_profiled() -> None:
    assert on_device([{Category.COMPUTE: 500, Category.INPUT: 500}], 1000) == {"compute": 500, "input": 500}
    assert on_device([{Category.COMPUTE: 500, Category.INPUT: 500}], 2000) == {"compute": 1000, "input": 1000}


def test_the_profiler_slows_the_host_alone_and_the_device_works_as_long_as_ever() -> None:
    step = {Category.COMPUTE: 2700, Category.COPY: 100, Category.OVERHEAD: 4000, Category.PYTHON: 700}
    assert on_device([step, step], 2850) == {"compute": 2700, "copy": 100, "python": 50}
    reported = on_device([step, step], 3500, np.array([0, 0, 3, 0, 0, 0, 0]))
    assert (reported["compute"], reported["copy"]) == (2700, 100)
    assert reported["overhead"] == 547, "3 µs of two steps, what three events can have cost, go before the rest"


def test_a_device_that_was_slower_in_the_profiler_gives_in_proportion() -> None:
    assert on_device([{Category.COMPUTE: 3000, Category.COPY: 1000, Category.SYNC: 10}], 2000) == {
        "compute": 1500, "copy": 500
    }  # fmt: skip


def test_what_a_step_is_far_longer_than_the_others_is_no_work_of_the_device() -> None:
    spent = np.zeros(len(Category), np.int64)
    spent[[Category.COMPUTE, Category.OVERHEAD]] = 900, 100
    usual, walls = np.full(9, 1000), watched(*[{Phase.FORWARD: 1000}] * 9, {Phase.FORWARD: 100_000})
    entries = calibrate_device(spent, 1, usual, walls, "NVIDIA H100", MANY * 0).entries
    assert entries[0, [Category.COMPUTE, Category.OVERHEAD]].tolist() == [900, 100]
    assert entries[9, [Category.COMPUTE, Category.OVERHEAD]].tolist() == [900, 99_100]
    spent[Category.OVERHEAD] = 0
    entries = calibrate_device(spent, 1, usual, walls, "NVIDIA H100", MANY * 0).entries
    assert entries[9, [Category.COMPUTE, Category.UNEXPLAINED]].tolist() == [1000, 99_000]


def test_nothing_is_known_of_a_device_that_was_not_profiled() -> None:
    assert on_device([], 100) == {"unexplained": 100}
