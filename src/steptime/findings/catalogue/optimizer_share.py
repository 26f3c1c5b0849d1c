"""ST501: the optimiser takes a large part of the step."""

from __future__ import annotations

from steptime.findings.case import OptimizerUse, Signal
from steptime.findings.finding import Finding
from steptime.findings.optimizer_model import FUSABLE, ITERATIVE, floor
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import ratio, scaled, total
from steptime.quantities import format_duration, format_share

LEAST_SHARE = 0.15
"""Of the step: an update reads and writes every parameter; up to here that is usual for small batches."""


@rule("ST501", "optimizer-share", needs={Signal.STEP, Signal.OPTIMIZERS}, uses={Signal.MACHINE})
def optimizer_share(signals: Signals) -> Finding | None:
    """The optimiser takes a large part of the step

    What it means
        Updating the parameters takes long in comparison with forward and backward: the batch is small for the number of
        parameters, or the update is done tensor by tensor.

    How we know
        The optimiser's step() is timed in every step. What remains at best is reading and writing parameters,
        gradients and state once at the measured bandwidth, and on a CPU what Python spends on each tensor; the rest is
        at stake.

    What helps
        fused=True (one pass over memory), foreach=True (fewer dispatches); stepping less often by accumulating
        gradients; a larger batch; freezing what does not train; an optimiser with less state.

    When to ignore it
        When the batch size is fixed by the method and the optimiser is fused already: then this is its price. LBFGS,
        which iterates over its history, is left out: no floor of it is known.
    """
    duration = total(use.duration for use in signals.optimizers)
    share = ratio(duration.value, signals.step.duration.value)
    if share < LEAST_SHARE or not all(use.elements for use in signals.optimizers):
        return None
    if any(use.type in ITERATIVE for use in signals.optimizers):
        return None
    best = sum(floor(use, signals.machine if signals.has(Signal.MACHINE) else None) for use in signals.optimizers)
    stake = scaled(duration, 1 - min(1.0, ratio(best, duration.value)))
    top = max(signals.optimizers, key=lambda use: use.duration.value)
    tensors = sum(use.parameters for use in signals.optimizers)
    summary = f"{top.type} takes {format_duration(duration.value)} a step ({format_share(share)}) for {tensors} tensors"
    return optimizer_share.finding(summary, _advice(signals.optimizers), stake, source=top.site)


def _advice(optimizers: tuple[OptimizerUse, ...]) -> str:
    rarely = "step less often (accumulate gradients), enlarge the batch, or train fewer parameters"
    if any(use.type in FUSABLE and not use.fused for use in optimizers):
        return f"Use fused=True, or {rarely}."
    return f"No faster implementation is left to switch on: {rarely}."
