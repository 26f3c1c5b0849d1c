"""ST811: gradients are exchanged in every micro-batch of an accumulated step."""

from __future__ import annotations

from steptime.findings.case import Signal
from steptime.findings.finding import Finding
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import named, ratio, scaled
from steptime.quantities import SourceLine, format_duration, format_share

ACCUMULATES = 1.5
"""Forwards per step from which on a step has micro-batches, and exchanges from which on there is more than one."""
MOST = 0.5
"""Of the micro-batches must exchange: a few more than one may be of another model."""


@rule(
    "ST811",
    "missing-no-sync",
    needs={Signal.STEP, Signal.ACCOUNTS, Signal.GRADIENTS},
    uses={Signal.LINES},
    instead_of=("exposed-communication",),
)
def missing_no_sync(signals: Signals) -> Finding | None:
    """Accumulation exchanges the gradients in every micro-batch

    What it means
        The step adds up the gradients of several micro-batches, and only their sum is needed on the other ranks. But
        each backward exchanges them, so the same gradients travel once for each micro-batch.

    How we know
        The trace marks each forward of the model in DistributedDataParallel, and behind most of them gradients are
        all-reduced before the next one. With no_sync() only the last of a step would be.

    What helps
        Run all but the last micro-batch in model.no_sync() (Accelerate: accelerator.accumulate(model); Lightning:
        accumulate_grad_batches does it).

    When to ignore it
        When memory forbids to keep unreduced gradients (sharded strategies reduce in every micro-batch by design).
    """
    use, account = signals.gradients, named(signals.accounts, "communication")
    if account is None or min(use.micro_batches, use.synchronised) < ACCUMULATES:
        return None
    if use.synchronised < MOST * use.micro_batches:
        return None
    saved = scaled(account.duration, 1 - 1 / use.synchronised)
    share = format_share(ratio(account.duration.value, signals.step.duration.value))
    summary = (
        f"Gradients are exchanged {use.synchronised:.3g} times a step, for {use.micro_batches:.3g} micro-batches: "
        f"{format_duration(account.duration.value)} ({share})"
    )
    advice = "Run all micro-batches of a step but the last in model.no_sync()."
    return missing_no_sync.finding(summary, advice, saved, account="communication", source=_backward_line(signals))


def _backward_line(signals: Signals) -> SourceLine | None:
    """The only line of the training loop that calls backward: what no_sync() has to surround."""
    lines = signals.lines if signals.has(Signal.LINES) else ()
    backwards = [use.source for use in lines if use.role == "backward" or "backward(" in use.source.text]
    return backwards[0] if len(backwards) == 1 else None
