"""ST109: much of a batch is padding."""

from __future__ import annotations

from steptime.findings.case import Signal
from steptime.findings.finding import Finding
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import modelled, named, ratio
from steptime.quantities import format_share

LEAST_SHARE = 0.25
"""Of the tokens: what remains after sorting by length, as a rule."""
LIKELY, SURE = 0.8, 0.4
"""Of the padding: what shorter batches leave out of it; at most all."""
SCALING = ("forward", "backward")
"""Phases whose work grows with the tokens."""


@rule("ST109", "padding", needs={Signal.STEP, Signal.PADDING, Signal.ACCOUNTS, Signal.PHASES}, uses={Signal.LOADER})
def padding(signals: Signals) -> Finding | None:
    """Much of a batch is padding

    What it means
        Rows of tokens are filled up to one length. The filler is embedded, multiplied and attended to like words, and
        its gradients are computed: all for nothing.

    How we know
        The first steps' batches are looked at: the share of the numbers at the ends (or fronts) of rows that stand
        nowhere else in them. The rule fires from a quarter on. At stake is that share of the computing in forward and
        backward; an update costs the same. Sorting by length leaves some of the padding, and attention grows with the
        square of the length, so the interval is wide.

    What helps
        Pad to the longest row of the batch, not to a fixed length; draw rows of like length together
        (group_by_length=True in Hugging Face's Trainer, a bucketing sampler); or pack rows end to end, with a mask or
        position ids that keep them apart, or nested tensors (torch.nested with the jagged layout).

    When to ignore it
        When shapes must stay fixed: for a compiler without dynamic shapes, or CUDA graphs. A few fixed lengths keep
        most of the gain then.
    """
    use = signals.padding
    compute = named(signals.accounts, "compute")
    if use.share < LEAST_SHARE or compute is None:
        return None
    spent = {each.name: each.duration.value for each in signals.phases}
    scaling = sum(spent.get(name, 0.0) for name in SCALING)
    growing = compute.duration.value * ratio(scaling, scaling + spent.get("optimizer", 0.0))
    ceiling = use.share * growing
    stake = modelled(LIKELY * ceiling, SURE * ceiling, ceiling, compute.duration.samples)
    batches = "one batch" if use.batches == 1 else f"{use.batches} batches"
    summary = f"{format_share(use.share)} of the tokens are padding (of {batches} that were looked at)"
    loader = signals.loader if signals.has(Signal.LOADER) else None
    advice = "Pad to the longest row of each batch, and draw rows of like length together."
    return padding.finding(summary, advice, stake, account="compute", source=loader.site if loader else None)
