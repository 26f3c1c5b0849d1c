"""ST604: the gradient scaler leaves out updates, again and again."""

from __future__ import annotations

from steptime.findings.case import Signal
from steptime.findings.finding import Finding
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import ratio, scaled
from steptime.quantities import format_share

LEAST_SHARE = 0.02
"""Of the updates behind the first ones. GradScaler doubles its scale every 2000 updates and so loses 0.05 % by trying:
forty times that is no trying."""
FEWEST = 2
"""A single one may be a batch."""


@rule("ST604", "overflow-skipped", needs={Signal.STEP})
def overflow_skipped(signals: Signals) -> Finding | None:
    """The gradient scaler skips updates

    What it means
        torch.amp.GradScaler leaves an update out when a gradient has overflowed, and halves its scale. In the first
        steps that is how it finds its scale; later each skipped update is a step that was computed for nothing, and
        many of them mean that gradients overflow at any scale.

    How we know
        A scaler's step without an optimiser's step inside of it is one that was skipped; the first 24 do not count.
        Fused optimisers are called in any case and decide on the device: theirs are not seen.

    What helps
        Train in bfloat16, which needs no scaler, where the device has it. Otherwise steptime nan names the operator
        that overflows; keep it out of autocast (torch.autocast(…, enabled=False)), or clip what goes in.

    When to ignore it
        Where growth_interval was set to a few steps on purpose.
    """
    step = signals.step
    share = ratio(step.skipped, step.scaled)
    if share < LEAST_SHARE or step.skipped < FEWEST:
        return None
    summary = f"The gradient scaler skipped {step.skipped} of {step.scaled} updates ({format_share(share)})"
    return overflow_skipped.finding(
        summary,
        "Train in bfloat16 without a scaler, or find the operator that overflows with steptime nan.",
        scaled(step.duration, share),
    )
