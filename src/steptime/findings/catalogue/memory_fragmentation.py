"""ST703: the allocator holds much more than tensors need."""

from __future__ import annotations

from steptime.findings.case import Signal
from steptime.findings.finding import Finding, Weight
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.quantities import format_bytes, format_share

LEAST_SHARE = 0.3
"""Of what is reserved at the peak: below it the cache of a healthy job moves about."""
LEAST_BYTES = 1 << 30


@rule("ST703", "memory-fragmentation", needs={Signal.STEP, Signal.MEMORY}, weight=Weight.NOTE)
def memory_fragmentation(signals: Signals) -> Finding | None:
    """The device's allocator holds much more than tensors ever needed

    What it means
        What was freed lies in pieces that new requests do not fit into, so that more is asked of the driver. The job
        runs out of memory although much of it is free.

    How we know
        The most that was reserved is compared with the most that tensors held at once. The rule fires when at least
        30 % of it, and a gigabyte, was never needed. On a CPU there is no such allocator.

    What helps
        PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; a few shapes instead of many (padding, bucketing).

    When to ignore it
        When memory is plentiful: a cache costs nothing.
    """
    use = signals.memory
    if use.allocated_peak is None or not use.peak:
        return None
    unused = use.peak - use.allocated_peak
    if unused < LEAST_BYTES or unused < LEAST_SHARE * use.peak:
        return None
    summary = (
        f"{format_bytes(use.peak)} are reserved, and tensors never held more than {format_bytes(use.allocated_peak)}: "
        f"{format_share(unused / use.peak)} lies in pieces"
    )
    return memory_fragmentation.finding(summary, "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.")
