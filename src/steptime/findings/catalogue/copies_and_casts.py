"""ST402: copies and casts between operators."""

from __future__ import annotations

import re

from steptime.findings.case import KernelUse, OperatorUse, Signal
from steptime.findings.finding import Finding
from steptime.findings.kernel_kinds import COPIES, first_source, longest, plain_name, spent, told
from steptime.findings.operator_time import profile_scale
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import modelled, ratio
from steptime.quantities import format_bytes, format_duration, format_share

LEAST_SHARE = 0.1
"""Of the step: some copies are part of every model (layouts, gradients); from a tenth on one of them can go."""
SHORTEST = 10_000.0
"""ns of a copy: a shorter one costs its dispatch, which is the matter of ST301 and ST302."""
AVOIDABLE = 0.5
"""Of their time: which copies are needed is not seen from here, so half is promised and a fifth is the lower bound."""


CAST = re.compile(
    r"(bfloat16|float16|half|float8|float|double)_?copy_kernel|load_with_cast|store_with_cast", re.IGNORECASE
)
"""Kernels of copy_ that convert on the way, as torch 1.13 to 2.13 name them."""


@rule("ST402", "copies-and-casts", needs={Signal.STEP, Signal.OPERATORS}, uses={Signal.ACCOUNTS, Signal.KERNELS})
def copies_and_casts(signals: Signals) -> Finding | None:
    """Copies and type conversions take part of the step

    What it means
        Tensors are copied to another layout or type between the operators that use them: contiguous() after a
        transpose, float64 from NumPy, half and single precision in turns.

    How we know
        The profile times the copying operators in forward and backward (not the optimiser, not the move to the device);
        on a device, their kernels.

    What helps
        Convert once, at the input; keep one type and one layout through the model; use reshape and views; let autocast
        keep its cache; take data that is float32 already.

    When to ignore it
        When they belong to autocast on large matrix products: the products gain more than the copies cost.
    """
    if signals.has(Signal.KERNELS):
        return _from_kernels(signals)
    copies = [use for use in signals.operators if plain_name(use.name) in COPIES and _counts(use)]
    time = sum(use.duration for use in copies) * profile_scale(signals.operators, signals.accounts)
    share = ratio(time, signals.step.duration.value)
    if share < LEAST_SHARE:
        return None
    top = max(copies, key=lambda use: use.duration)
    moved = sum(use.bytes or 0.0 for use in copies)
    summary = (
        f"{sum(use.calls for use in copies):.0f} copies take {format_duration(time)} a step ({format_share(share)})"
        + (f", moving {format_bytes(moved)}" if moved else "")
        + f"; most of it {plain_name(top.name)}"
    )
    stake = modelled(AVOIDABLE * time, 0.2 * time, time, signals.step.steady)
    advice = "Convert type and layout once, at the input, and keep them through the model."
    return copies_and_casts.finding(summary, advice, stake, account="compute", source=top.source)


def _from_kernels(signals: Signals) -> Finding | None:
    """By the kernels of copies, apart from copies between host and device."""
    copies = [use for use in signals.kernels if plain_name(use.operator) in COPIES]
    time = spent(copies)
    share = ratio(time, signals.step.duration.value)
    if share < LEAST_SHARE:
        return None
    casts = spent(use for use in copies if _casts(use))
    kind = "casts" if casts > time / 2 else "copies"
    moved = sum(use.bytes or 0.0 for use in copies)
    summary = (
        f"{sum(use.calls for use in copies):.0f} {kind} on the device take {format_duration(time)} a step "
        f"({format_share(share)})" + (f", moving {format_bytes(moved)}" if moved else "")
    )
    stake = modelled(AVOIDABLE * time, 0.2 * time, time, signals.step.steady)
    advice = (
        "Keep one number format through the model, or compile it, so that the cast is part of the next kernel."
        if kind == "casts"
        else "Keep one layout through the model (channels_last, views), or compile it."
    )
    return copies_and_casts.finding(
        summary,
        advice,
        stake,
        account="compute",
        source=first_source(copies),
        evidence=tuple(map(told, longest(copies))),
    )


def _casts(use: KernelUse) -> bool:
    return CAST.search(use.name) is not None or plain_name(use.operator) == "_to_copy"


def _counts(use: OperatorUse) -> bool:
    """In the model, and long enough on average that the bytes are the price, not the dispatch."""
    return use.phase in ("", "forward", "backward") and ratio(use.duration, use.calls) >= SHORTEST
