"""Times of a batch's copy to a device, with the user's own torch.

Imported by its neighbour, which times loaders, in the user's interpreter: no part of steptime is imported here.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

COPIES = 20
"""Copies of each kind, of which the median counts."""
SECONDS = 2.0
"""Most seconds for each kind."""
WAYS = (("pageable", False, False), ("pinned", True, False), ("pinned, non_blocking=True", True, True))
"""(name, whether the batch is in pinned memory, whether the CPU continues during the copy)."""


class CudaCopies:
    """Timer of copies to CUDA's current device."""

    def there(self) -> bool:
        return bool(torch.cuda.is_available())

    def pin(self, tensors: list[Any]) -> list[Any]:
        return [each.pin_memory() for each in tensors]

    def copy(self, tensors: list[Any], *, non_blocking: bool) -> list[Any]:
        return [each.to("cuda", non_blocking=non_blocking) for each in tensors]

    def timed(self, work: Callable[[], object]) -> tuple[float, float]:
        """(ns until the CPU continues, ns between two events around the work)."""
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        before.record()
        start = time.perf_counter_ns()
        work()
        host = time.perf_counter_ns() - start
        after.record()
        after.synchronize()
        return float(host), 1e6 * float(before.elapsed_time(after))


def transfers_of(batch: list[Any], device: CudaCopies) -> list[dict[str, Any]]:
    """Times of each way to copy a batch's tensors to the device: "host_ns" (until the CPU continues), "device_ns" (of
    the copies), "pin_ns" (of pinning the batch first, which a loader's thread does), and "bytes". [] without a device,
    and for a batch without CPU tensors. Raises RuntimeError without enough memory."""
    tensors = [each for each in batch if each.device.type == "cpu"]
    if not tensors or not device.there():
        return []
    pinned, pinning = device.pin(tensors), list[float]()
    for _ in range(COPIES // 4):  # into memory that is pinned already, as from a loader's second epoch on
        start = time.perf_counter_ns()
        pinned = device.pin(tensors)
        pinning.append(float(time.perf_counter_ns() - start))
    size = sum(each.numel() * each.element_size() for each in tensors)
    found = []
    for name, in_pinned, non_blocking in WAYS:
        host, on_device = copied(device, pinned if in_pinned else tensors, non_blocking)
        own = {"name": name, "bytes": size, "host_ns": host, "device_ns": on_device}
        found.append(own | ({"pin_ns": statistics.median_high(pinning)} if in_pinned else {}))
    return found


def copied(device: CudaCopies, tensors: list[Any], non_blocking: bool) -> tuple[float, float]:
    """Medians of `CudaCopies.timed`, without the first copy, which allocates memory."""

    def copy() -> object:
        return device.copy(tensors, non_blocking=non_blocking)

    device.timed(copy)
    times, end = [device.timed(copy)], time.perf_counter() + SECONDS
    while len(times) < COPIES and time.perf_counter() < end:
        times.append(device.timed(copy))
    hosts, devices = zip(*times, strict=True)
    return statistics.median_high(hosts), statistics.median_high(devices)
