"""Accelerator and memory of the process. Nothing here waits for the device, except `drained`. Memory counters are read,
never reset: the peak counters belong to the user."""

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
"""Time between two memory samples, ns. Reading /proc costs 10 µs, the allocator's statistics 30 µs."""
RESIDENT, ALLOCATED, RESERVED, RETRIES, DRIVER_ALLOCATIONS, ALLOCATED_PEAK, RESERVED_PEAK = range(1, 8)
MEMORY = int(Kind.MEMORY)


def in_use() -> bool:
    """True if the job has initialized CUDA. The driver is not asked, because that could initialize it."""
    return bool(torch.cuda.is_initialized())


def distinguished() -> dict[int, str]:
    """Returns the UUID of each device on which this process has a context, by device number; {} before torch 2.4 and
    during a graph capture. Initializes nothing and keeps the current device."""
    if not in_use() or torch.cuda.is_current_stream_capturing():
        return {}
    has_context = getattr(torch._C, "_cuda_hasPrimaryContext", torch.cuda.memory_reserved)
    numbers = [number for number in range(torch.cuda.device_count()) if has_context(number)]
    uuids = {number: getattr(torch.cuda.get_device_properties(number), "uuid", None) for number in numbers}
    return {number: str(uuid) for number, uuid in uuids.items() if uuid is not None}


def drained() -> None:
    """Waits until the current device, and every other device that holds tensors, is idle. Returns at once during a
    graph capture, which waiting would invalidate."""
    if torch.cuda.is_current_stream_capturing():
        return
    current = torch.cuda.current_device()
    for number in range(torch.cuda.device_count()):
        if number == current or torch.cuda.memory_reserved(number):
            torch.cuda.synchronize(number)


def memory_sampler(journal: Journal) -> Callable[[bool], None]:
    """Returns a function for every boundary: it samples memory, at most once per MEMORY_PERIOD; with True, always."""
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
    """Returns the allocator's nested counters of the current CUDA device, in one call; torch's public functions build
    all of them for each number read."""
    return dict(torch.cuda.memory_stats_as_nested_dict())


def memory_in_use() -> int:
    """Returns the bytes of tensors on the current CUDA device, or the resident bytes of this process without one."""
    if in_use():
        return int(statistics()["allocated_bytes"]["all"]["current"])
    return resident_bytes()


def resident_bytes() -> int:
    """Returns the resident bytes of this process; 0 if /proc does not report them."""
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
