"""ST406: copies inside the device, or from it, that nothing hides."""

from __future__ import annotations

from steptime.findings.case import CopyUse, Signal
from steptime.findings.finding import Finding
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import ratio, total
from steptime.quantities import format_bytes, format_duration, format_share

WORDS = {
    "DtoH": "from the device",
    "DtoD": "within the device",
    "PtoP": "between devices",
    "memset": "that fill memory",
}
"""Kinds of copies that are examined here; those to the device are the batch's, ST107."""
ADVICE = {
    "DtoH": "Read less often, and with non_blocking=True into pinned memory.",
    "DtoD": "Avoid contiguous() and clone(), or compile the model, so that the next kernel reads the original.",
    "PtoP": "Place what works together on one device, or copy on a stream of its own while kernels run.",
    "memset": "Allocate with empty() what is overwritten anyhow, and zero_grad(set_to_none=True).",
}


@rule("ST406", "exposed-copies", needs={Signal.STEP, Signal.COPIES})
def exposed_copies(signals: Signals) -> Finding | None:
    """Copies run while nothing else does

    What it means
        The device's copy engines move data while its arithmetic units idle: results on their way to the host, tensors
        that are laid out anew, memory that is filled.

    How we know
        The copies are in the trace with their direction and size; exposed is the time in which nothing but copies ran
        on any stream.

    What helps
        For copies to the host: fewer of them, pinned memory and non_blocking=True, a stream of their own. For copies
        within the device: one layout through the model, views, a compiled model. For fills:
        zero_grad(set_to_none=True), which is the default since torch 2.0.

    When to ignore it
        When it is a checkpoint or an evaluation that happened to fall into the trace.
    """
    shown = [use for use in signals.copies if use.kind in WORDS and use.exposed.value > 0]
    if not shown:
        return None
    top = max(shown, key=_exposed)
    same = [use for use in shown if use.kind == top.kind]
    stake = total(use.exposed for use in same)
    moved = sum(use.bytes for use in same)
    share = format_share(ratio(stake.value, signals.step.duration.value))
    summary = (
        f"{sum(use.calls for use in same):.4g} copies {WORDS[top.kind]} ({format_bytes(moved)}) run alone for "
        f"{format_duration(stake.value)} a step ({share})"
    )
    evidence = tuple(f"{use.operator or use.kind}: {format_duration(use.exposed.value)} exposed" for use in same[:3])
    return exposed_copies.finding(
        summary, ADVICE[top.kind], stake, account="copy", source=top.source, evidence=evidence
    )


def _exposed(use: CopyUse) -> float:
    return use.exposed.value
