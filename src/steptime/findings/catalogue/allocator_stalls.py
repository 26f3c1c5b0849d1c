"""ST306: the allocator goes to the driver in the middle of a step."""

from __future__ import annotations

from steptime.findings.case import AllocationUse, Signal
from steptime.findings.finding import Finding
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import ratio, total
from steptime.quantities import format_duration, format_share

UNCACHED = 100.0
"""Calls a step: the caching allocator asks for large blocks, a few at a time; this many are one for each tensor."""


@rule("ST306", "allocator-stalls", needs={Signal.STEP, Signal.ALLOCATIONS}, instead_of=("launch-bound", "host-sync"))
def allocator_stalls(signals: Signals) -> Finding:
    """The device's memory is asked for and given back in the middle of steps

    What it means
        PyTorch keeps the memory that it once got from the driver. When a steady step still calls cudaMalloc or
        cudaFree (hipMalloc, hipFree), the cache does not fit the job: shapes that change, fragmentation, memory that is
        nearly full (it frees everything and tries again), or a call of empty_cache(). Freeing waits for the
        device to finish.

    How we know
        The calls are in the trace, with the time that the host spent in them. At stake is the time that the
        device idled meanwhile, not the duration of the calls.

    What helps
        Take torch.cuda.empty_cache() out of the loop; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True against
        fragmentation; a few shapes instead of many (padding, bucketing); less memory, so that no retry is needed.

    When to ignore it
        In the first steps, and when the trace covers nothing else.
    """
    calls = signals.allocations
    idle = total(use.idle for use in calls)
    top = max(calls, key=_stake)
    host = sum(use.duration.value for use in calls)
    share = format_share(ratio(idle.value, signals.step.duration.value))
    summary = (
        f"{sum(use.calls for use in calls):.3g} calls of {top.name} and its like a step leave the device idle for "
        f"{format_duration(idle.value)} ({share})"
    )
    evidence = (f"The host spends {format_duration(host)} a step in them.", *map(_told, calls[:3]))
    return allocator_stalls.finding(summary, _advice(calls), idle, source=top.source, evidence=evidence)


def _stake(use: AllocationUse) -> float:
    return use.idle.value


def _told(use: AllocationUse) -> str:
    return f"{use.name}: {use.calls:.3g} calls a step, {format_duration(use.duration.value)}"


def _advice(calls: tuple[AllocationUse, ...]) -> str:
    if sum(use.calls for use in calls) >= UNCACHED:
        return (
            "So many mean that nothing is kept: look for PYTORCH_NO_CUDA_MEMORY_CACHING, or empty_cache() in the loop."
        )
    if any("Free" in use.name for use in calls):
        return "Take empty_cache() out of the loop; if there is none, memory is nearly full or fragmented: use less."
    return "Keep to a few shapes, or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
