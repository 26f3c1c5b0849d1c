"""ST706: the optimiser's state is most of the memory."""

from __future__ import annotations

from steptime.findings.case import Signal
from steptime.findings.finding import Finding, Weight
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.quantities import format_bytes, format_share

LEAST_SHARE = 0.35
"""Of the peak: more than parameters and gradients together."""
LEAST_BYTES = 256 << 20


@rule("ST706", "optimizer-memory", needs={Signal.STEP, Signal.MEMORY}, weight=Weight.NOTE)
def optimizer_memory(signals: Signals) -> Finding | None:
    """The optimiser's state is a large part of the memory

    What it means
        Adam keeps two numbers for each parameter. With small activations they are most of the memory, and what a
        smaller batch would save is little.

    How we know
        The elements of the optimisers' parameters times the tensors that their type keeps, in float32, against the
        peak. The rule fires from 35 % and a quarter of a gigabyte on.

    What helps
        An 8-bit optimiser, one without second moments per parameter (Adafactor, Lion, SGD), or sharding over ranks
        (ZeroRedundancyOptimizer, FSDP).

    When to ignore it
        When memory is plentiful.
    """
    use = signals.memory
    if use.optimizer_state < LEAST_BYTES or use.optimizer_state < LEAST_SHARE * use.peak:
        return None
    share = format_share(min(1.0, use.optimizer_state / use.peak))
    summary = f"The optimiser's state takes {format_bytes(use.optimizer_state)}, {share} of the memory at the peak"
    return optimizer_memory.finding(summary, "Try an 8-bit optimiser, or shard its state over the ranks.")
