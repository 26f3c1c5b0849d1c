"""The accelerator's side of the watch: whether one is in use, and memory. Nothing that the watch calls waits for the
device.

Memory is read, never reset: the user's peak counters stay the user's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch

from steptime.journal import Journal, Kind
from steptime.probe.ours import pass_on

PAGE = os.sysconf("SC_PAGE_SIZE")
MEMORY_PERIOD = 100_000_000
"""ns between two looks at memory: reading /proc costs 10 us, the allocator's statistics 30 us."""
RESIDENT, ALLOCATED, RESERVED, RETRIES, DRIVER_ALLOCATIONS, ALLOCATED_PEAK, RESERVED_PEAK = range(1, 8)
MEMORY = int(Kind.MEMORY)


def in_use() -> bool:
    """True if the job works on a CUDA device by now. The driver is not asked: that could initialise it."""
    return bool(torch.cuda.is_initialized())


def distinguished() -> dict[int, str]:
    """UUIDs of the devices on which this process has a context, by number; {} where torch tells none (before 2.4), and
    while a graph is captured. Nothing is initialised by asking, and the current device stays the one that it is."""
    if not in_use() or torch.cuda.is_current_stream_capturing():
        return {}
    has_context = getattr(torch._C, "_cuda_hasPrimaryContext", torch.cuda.memory_reserved)
    numbers = [number for number in range(torch.cuda.device_count()) if has_context(number)]
    uuids = {number: getattr(torch.cuda.get_device_properties(number), "uuid", None) for number in numbers}
    return {number: str(uuid) for number, uuid in uuids.items() if uuid is not None}


def drained() -> None:
    """Returns when the current device has done what was launched on it, and every other that holds tensors; at once
    while a graph is captured, which waiting would spoil."""
    if torch.cuda.is_current_stream_capturing():
        return
    current = torch.cuda.current_device()
    for number in range(torch.cuda.device_count()):
        if number == current or torch.cuda.memory_reserved(number):
            torch.cuda.synchronize(number)


def memory_sampler(journal: Journal) -> Callable[[bool], None]:
    """A function to call at every boundary; it looks at most every MEMORY_PERIOD, unless it is to look now."""
    due = 0

    def sample(at_once: bool) -> None:
        nonlocal due
        now = time.perf_counter_ns()
        if now < due and not at_once:
            return
        due = now + MEMORY_PERIOD
        resident = resident_bytes()
        if resident:
            journal.sample(MEMORY, RESIDENT, now, resident)
        if in_use():
            found = statistics()
            allocated, reserved = found["allocated_bytes"]["all"], found["reserved_bytes"]["all"]
            for identity, value in (
                (ALLOCATED, allocated["current"]),
                (RESERVED, reserved["current"]),
                (ALLOCATED_PEAK, allocated["peak"]),  # between steps, what backward needed is free again
                (RESERVED_PEAK, reserved["peak"]),
                (RETRIES, found.get("num_alloc_retries", 0)),
                (DRIVER_ALLOCATIONS, found.get("num_device_alloc", 0)),
            ):
                journal.sample(MEMORY, identity, now, value)

    return sample


def statistics() -> dict[str, Any]:
    """Counters of the allocator of the CUDA device in use, as it keeps them: torch's own functions flatten all of it
    for each figure."""
    return dict(torch.cuda.memory_stats_as_nested_dict())


def memory_in_use() -> int:
    """Bytes that tensors hold on the CUDA device in use, where one is; else of this process."""
    if in_use():
        return int(statistics()["allocated_bytes"]["all"]["current"])
    return resident_bytes()


def resident_bytes() -> int:
    """Bytes of this process; 0 where the system does not tell."""
    try:
        # Half as dear as a file object.
        statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return int(os.read(statm, 256).split()[1]) * PAGE
        finally:
            os.close(statm)
    except (OSError, ValueError, IndexError) as error:
        pass_on(error)
        return 0
