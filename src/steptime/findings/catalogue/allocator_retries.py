"""ST705: the allocator empties its cache to serve a request."""

from __future__ import annotations

from steptime.findings.case import Signal
from steptime.findings.finding import Finding, Weight
from steptime.findings.rule import rule
from steptime.findings.signals import Signals

LEAST = 0.01
"""Retries a step: one in a hundred steps is no accident of the first ones."""


@rule("ST705", "allocator-retries", needs={Signal.STEP, Signal.MEMORY}, weight=Weight.NOTE)
def allocator_retries(signals: Signals) -> Finding | None:
    """The device's allocator gives its cache back to serve requests

    What it means
        A request did not fit: the allocator waited for the device, gave everything that was cached back to the driver,
        and asked again. That takes milliseconds, and the next failure is one that ends the job.

    How we know
        The allocator counts its retries (num_alloc_retries); those of the steps behind the warm-up are divided by the
        steps.

    What helps
        Less memory at the peak, or PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.

    When to ignore it
        When they come from the evaluation or a checkpoint between the steps.
    """
    use = signals.memory
    if use.retries is None or use.retries < LEAST:
        return None
    summary = f"The allocator emptied its cache {use.retries:.3g} times a step to serve a request"
    return allocator_retries.finding(summary, "Use less memory at the peak, or set expandable_segments:True.")
