"""ST402: copies and casts between operators."""

from __future__ import annotations

from steptime.findings.case import OperatorUse, Signal
from steptime.findings.catalogue.memory_bound_pointwise import plain_name
from steptime.findings.finding import Finding
from steptime.findings.operator_time import profile_scale
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import modelled, ratio
from steptime.quantities import format_bytes, format_duration, format_share

LEAST_SHARE = 0.1
"""Of the step: some copies are part of every model (layouts, gradients); from a tenth on one of them can go."""
COPIES = frozenset({"copy", "_to_copy", "to", "clone", "contiguous"})
"""Operators of ATen that only move data to another layout or type. Joins and gathers (cat, index) are left out: models
need them."""
SHORTEST = 10_000.0
"""ns of a copy: a shorter one costs its dispatch, which is the matter of ST301 and ST302."""
AVOIDABLE = 0.5
"""Of their time: which copies are needed is not seen from here, so half is promised and a fifth is the lower bound."""


@rule("ST402", "copies-and-casts", needs={Signal.STEP, Signal.OPERATORS}, uses={Signal.ACCOUNTS})
def copies_and_casts(signals: Signals) -> Finding | None:
    """Copies and type conversions take part of the step

    What it means
        Tensors are copied to another layout or type between the operators that use them: contiguous() after a
        transpose, float64 from NumPy, half and single precision in turns.

    How we know
        The profile times the copying operators in forward and backward (not the optimiser, not the move to the device).

    What helps
        Convert once, at the input; keep one type and one layout through the model; use reshape and views; let autocast
        keep its cache; take data that is float32 already.

    When to ignore it
        When they belong to autocast on large matrix products: the products gain more than the copies cost.
    """
    copies = [use for use in signals.operators if plain_name(use.name) in COPIES and _counts(use)]
    spent = sum(use.duration for use in copies) * profile_scale(signals.operators, signals.accounts)
    share = ratio(spent, signals.step.duration.value)
    if share < LEAST_SHARE:
        return None
    top = max(copies, key=lambda use: use.duration)
    moved = sum(use.bytes or 0.0 for use in copies)
    summary = (
        f"{sum(use.calls for use in copies):.0f} copies take {format_duration(spent)} a step ({format_share(share)})"
        + (f", moving {format_bytes(moved)}" if moved else "")
        + f"; most of it {plain_name(top.name)}"
    )
    stake = modelled(AVOIDABLE * spent, 0.2 * spent, spent, signals.step.steady)
    advice = "Convert type and layout once, at the input, and keep them through the model."
    return copies_and_casts.finding(summary, advice, stake, account="compute", source=top.source)


def _counts(use: OperatorUse) -> bool:
    """In the model, and long enough on average that the bytes are the price, not the dispatch."""
    return use.phase in ("", "forward", "backward") and ratio(use.duration, use.calls) >= SHORTEST
