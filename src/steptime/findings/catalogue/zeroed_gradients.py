"""ST504: gradients are filled with zeros instead of dropped."""

from __future__ import annotations

from steptime.findings.case import Signal
from steptime.findings.finding import Finding
from steptime.findings.gradient_zeroing import zeroing
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import modelled, ratio
from steptime.quantities import SourceLine, format_duration, format_share

LEAST_SHARE = 0.03
"""Of the step: below it nobody would notice the difference."""


@rule(
    "ST504",
    "zeroed-gradients",
    needs={Signal.STEP, Signal.OPERATORS, Signal.OPTIMIZERS},
    uses={Signal.ACCOUNTS, Signal.LINES, Signal.SETTINGS},
)
def zeroed_gradients(signals: Signals) -> Finding | None:
    """Gradients are filled with zeros and then added to

    What it means
        zero_grad(set_to_none=False) writes zeros into every gradient, and backward then reads them, adds its result and
        writes the sum. Dropped gradients (the default since torch 2.0) are simply put in place.

    How we know
        Outside of forward and backward, operators fill as many bytes with zeros as the gradients have. They are timed
        in the profiled steps, and so are as many additions in backward, which dropped gradients would not need, unless
        an update has several backwards.

    What helps
        optimizer.zero_grad() without set_to_none=False; model.zero_grad() likewise.

    When to ignore it
        When the loop reads gradients of parameters that the loss does not reach, or relies on momentum and weight decay
        moving parameters without a gradient.
    """
    settings = signals.settings if signals.has(Signal.SETTINGS) else None
    if settings is not None and settings.deterministic:
        return None  # it fills new memory, too
    elements = sum(use.elements for use in signals.optimizers)
    filling, adding = zeroing(signals.operators, signals.accounts, elements, signals.step.micro_batches)
    step = signals.step.duration.value
    if ratio(filling + adding, step) < LEAST_SHARE:
        return None
    summary = (
        f"Filling {elements:,} gradients with zeros takes {format_duration(filling)} a step, adding to them "
        f"{format_duration(adding)} ({format_share(ratio(filling + adding, step))} together)"
    )
    stake = modelled(filling + adding, filling, filling + adding, signals.step.steady)
    advice = "Call zero_grad() without set_to_none=False: gradients are then dropped."
    return zeroed_gradients.finding(summary, advice, stake, account="compute", source=_source(signals))


def _source(signals: Signals) -> SourceLine | None:
    return next((use.source for use in signals.lines if "zero_grad(" in use.source.text), None)
