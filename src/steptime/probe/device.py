"""The accelerator's side of the watch: events at the boundaries, read steps later without a synchronisation, and
memory.

Memory is read, never reset: the user's peak counters stay the user's.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from steptime.journal import Journal, Kind

LAG = 24
"""Events left in flight before the oldest is asked: about six steps at four events each, so that asking never waits."""
RENEWAL = 1_000_000_000
"""ns after which the reference event is renewed: elapsed_time is a float32 of milliseconds, exact to 0.1 us only
below a second."""
PAGE = os.sysconf("SC_PAGE_SIZE")
MEMORY_PERIOD = 100_000_000
"""ns between two looks at memory: reading /proc costs 10 us, the allocator's statistics 30 us."""
RESIDENT, ALLOCATED, RESERVED, RETRIES, DRIVER_ALLOCATIONS, ALLOCATED_PEAK, RESERVED_PEAK = range(1, 8)
DEVICE_MARK, MEMORY, BOUNDARY = int(Kind.DEVICE_MARK), int(Kind.MEMORY), int(Kind.BOUNDARY)


class Marks:
    """CUDA events on the current stream: what the device had reached when the host passed a boundary."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._pool: list[Any] = []
        self._flying: deque[tuple[int, int, Any]] = deque()
        self._reference = torch.cuda.Event(enable_timing=True)
        self._reference.record()
        self._reference.synchronize()  # once, before the first watched step
        self._reference_time = time.perf_counter_ns()

    def mark(self, identity: int) -> None:
        """Records one event; nothing while a graph is being captured (an event would become part of it)."""
        if torch.cuda.is_current_stream_capturing():
            return
        event = self._pool.pop() if self._pool else torch.cuda.Event(enable_timing=True)
        event.record()
        self._flying.append((time.perf_counter_ns(), identity, event))

    def boundary(self) -> None:
        """Marks a step's boundary and reads what the device has passed by now."""
        self.mark(BOUNDARY)
        while len(self._flying) > LAG and self._flying[0][2].query():
            host, identity, event = self._flying.popleft()
            elapsed = int(self._reference.elapsed_time(event) * 1e6)
            self._journal.sample(DEVICE_MARK, identity, host, self._reference_time + elapsed)
            if elapsed < RENEWAL:
                self._pool.append(event)
            else:
                self._reference, self._reference_time = event, self._reference_time + elapsed


def make_marks(journal: Journal) -> Marks | None:
    """Marks when CUDA is in use already: asking never initialises it."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    return Marks(journal)


def memory_sampler(journal: Journal) -> Callable[[], None]:
    """A function to call at every boundary; it looks at most every MEMORY_PERIOD."""
    due = 0

    def sample() -> None:
        nonlocal due
        now = time.perf_counter_ns()
        if now < due:
            return
        due = now + MEMORY_PERIOD
        resident = resident_bytes()
        if resident:
            journal.sample(MEMORY, RESIDENT, now, resident)
        if torch.cuda.is_initialized():
            statistics = torch.cuda.memory_stats_as_nested_dict()
            allocated, reserved = statistics["allocated_bytes"]["all"], statistics["reserved_bytes"]["all"]
            for identity, value in (
                (ALLOCATED, allocated["current"]),
                (RESERVED, reserved["current"]),
                (ALLOCATED_PEAK, allocated["peak"]),  # between steps, what backward needed is free again
                (RESERVED_PEAK, reserved["peak"]),
                (RETRIES, statistics.get("num_alloc_retries", 0)),
                (DRIVER_ALLOCATIONS, statistics.get("num_device_alloc", 0)),
            ):
                journal.sample(MEMORY, identity, now, value)

    return sample


def memory_in_use() -> int:
    """Bytes that tensors hold on the CUDA device in use, where one is; else of this process."""
    if torch.cuda.is_initialized():
        return int(torch.cuda.memory_allocated())
    return resident_bytes()


def resident_bytes() -> int:
    """Of this process; 0 where the system does not tell."""
    try:
        # Half as dear as a file object.
        statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return int(os.read(statm, 256).split()[1]) * PAGE
        finally:
            os.close(statm)
    except (OSError, ValueError, IndexError):
        return 0
