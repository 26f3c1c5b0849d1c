"""ST704: the peak of memory is close to what there is."""

from __future__ import annotations

from steptime.findings.case import Signal
from steptime.findings.finding import Finding, Weight
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.quantities import format_bytes, format_share

NEAR = 0.92
"""Of the capacity: libraries and fragmentation take a few percent more at times."""


@rule("ST704", "memory-near-capacity", needs={Signal.STEP, Signal.MEMORY}, weight=Weight.NOTE)
def memory_near_capacity(signals: Signals) -> Finding | None:
    """The peak of memory is close to what there is

    What it means
        A longer sequence, a larger batch or a fragment more ends the job with "out of memory".

    How we know
        The most that the process held (reserved on a device, resident on a CPU) is compared with what it may have: the
        device's memory, its container's limit, or the machine's memory. The rule fires from 92 % on.

    What helps
        Activation checkpointing, bfloat16, a smaller micro-batch with accumulation, an optimiser with less state.
        `steptime memory` says how much each would free.

    When to ignore it
        When all steps are of one size and the job has run for long: then it fits.
    """
    use = signals.memory
    if not use.capacity or use.peak < NEAR * use.capacity:
        return None
    summary = (
        f"The peak of {format_bytes(use.peak)} is {format_share(use.peak / use.capacity)} of the "
        f"{format_bytes(use.capacity)} that there are"
    )
    return memory_near_capacity.finding(summary, "See with steptime memory what would free how much.")
