"""What steps leave behind, and what only looks like it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from memory.allocator import BATCH, FORWARD, Allocator, frame, train, triage_of

from steptime.analysis.memory_samples import growth_of, without_profiler
from steptime.analysis.timeline import Phase, Steps

LOSSES = [frame("/home/me/train.py", 31, "<module>")]


def test_a_line_that_keeps_something_of_every_step_leaks(tmp_path: Path) -> None:
    allocator = Allocator()
    for _ in range(6):
        allocator.malloc(123_000, LOSSES)
        train(allocator, 1)
    (leak,) = triage_of(allocator, tmp_path).leaks
    assert leak.source is not None
    assert (leak.source.file, leak.source.line) == ("/home/me/train.py", 31)
    assert leak.per_step.value == leak.per_step.low == 123_000
    assert leak.steps == 4


def test_a_healthy_job_leaks_nothing(tmp_path: Path) -> None:
    allocator = Allocator()
    train(allocator, 8)
    assert triage_of(allocator, tmp_path).leaks == ()


def test_a_list_that_is_emptied_now_and_then_is_no_leak(tmp_path: Path) -> None:
    allocator = Allocator()
    kept: list[int] = []
    for step in range(12):
        kept.append(allocator.malloc(123_000, LOSSES))
        train(allocator, 1)
        if step % 5 == 4:
            for each in kept:
                allocator.free(each, BATCH)
            kept.clear()
    assert triage_of(allocator, tmp_path).leaks == ()


def test_a_buffer_of_the_last_batches_is_no_leak(tmp_path: Path) -> None:
    allocator = Allocator()
    kept: list[int] = []
    for _ in range(10):
        kept.append(allocator.malloc(123_000, LOSSES))
        train(allocator, 1)
        if len(kept) > 3:
            allocator.free(kept.pop(0), FORWARD)
    assert triage_of(allocator, tmp_path).leaks == ()


def test_too_few_steps_give_no_leak(tmp_path: Path) -> None:
    allocator = Allocator()
    for _ in range(3):
        allocator.malloc(123_000, LOSSES)
        train(allocator, 1)
    assert triage_of(allocator, tmp_path).leaks == ()


STEPS = np.arange(0, 2000, 10, dtype=np.int64)
NOISE = np.random.default_rng(3).normal(0, 300_000, len(STEPS))


def test_a_rising_line_in_noise_grows_by_its_slope() -> None:
    growth = growth_of("rank 0", "resident", STEPS, (1e9 + 40_000 * STEPS + NOISE).astype(np.int64))
    assert growth is not None
    assert growth.leaks
    assert growth.per_step.low < 40_000 < growth.per_step.high
    assert growth.per_step.high - growth.per_step.low < 2000


@pytest.mark.parametrize("period", [50, 170, 700])
def test_a_sawtooth_does_not_grow(period: int) -> None:
    growth = growth_of("rank 0", "resident", STEPS, (1e9 + 40_000 * (STEPS % period) + NOISE).astype(np.int64))
    assert growth is not None
    assert not growth.leaks


def test_memory_that_fills_up_at_first_does_not_grow() -> None:
    size = (1e9 + 400e6 * (1 - np.exp(-STEPS / 100)) + NOISE).astype(np.int64)
    growth = growth_of("rank 0", "resident", STEPS, size)
    assert growth is not None
    assert not growth.leaks


def test_memory_that_rises_once_does_not_grow() -> None:
    growth = growth_of("rank 0", "resident", STEPS, (1e9 + 1e8 * (STEPS > 900) + NOISE).astype(np.int64))
    assert growth is not None
    assert not growth.leaks


def test_what_memory_jumped_by_is_no_part_of_its_growth() -> None:
    jumped = (1e9 + 40_000 * STEPS + 1e8 * (STEPS > 900)).astype(np.int64)
    growth = growth_of("rank 0", "resident", STEPS, jumped)
    assert growth is not None
    assert growth.total <= growth.per_step.high * growth.steps
    little = growth_of("rank 0", "resident", STEPS, (1e9 + 10 * STEPS + 2e6 * (STEPS > 900)).astype(np.int64))
    assert little is not None
    assert not little.leaks


SECOND = 10**9


def steps_of(count: int, profiled: slice) -> Steps:
    """Steps of 0.1 s."""
    start = np.arange(count, dtype=np.int64) * (SECOND // 10)
    length, off = np.full(count, SECOND // 10), np.zeros(count, bool)
    marked = off.copy()
    marked[profiled] = True
    phases = np.zeros((count, len(Phase)), np.int64)
    return Steps(start, start + length, length, phases, length, off, marked, ~off, marked, off)


@pytest.mark.parametrize("leak", [0, 50_000])
def test_what_the_profiler_holds_is_no_growth_of_the_job(leak: int) -> None:
    steps = steps_of(200, slice(60, 65))
    ours = np.where(steps.end > steps.start[60], 3e8, 0)
    size = (1e9 + leak * np.arange(200) + ours + np.random.default_rng(5).normal(0, 1e5, 200)).astype(np.int64)
    times, values = without_profiler(steps.end, size, steps)
    growth = growth_of("rank 0", "resident", np.searchsorted(steps.end, times).astype(np.int64), values)
    assert growth is not None
    assert growth.leaks == bool(leak)
    assert growth.per_step.value == pytest.approx(leak, abs=2000)
    assert not np.any((times > steps.start[60]) & (times < steps.end[64]))


def test_noise_alone_hardly_ever_grows() -> None:
    random = np.random.default_rng(11)
    found = [
        growth_of("rank 0", "resident", STEPS, (1e9 + np.cumsum(random.normal(0, 1e4, len(STEPS)))).astype(np.int64))
        for _ in range(4)
    ] + [growth_of("rank 0", "resident", STEPS, (1e9 + random.normal(0, 3e6, len(STEPS))).astype(np.int64))] * 1
    assert sum(growth is not None and growth.leaks for growth in found) <= 1


def test_few_samples_say_nothing() -> None:
    assert growth_of("rank 0", "resident", STEPS[:8], STEPS[:8]) is None
