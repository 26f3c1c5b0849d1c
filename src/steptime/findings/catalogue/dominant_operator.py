"""ST407: one operator takes most of the device's time."""

from __future__ import annotations

from collections import defaultdict

from steptime.findings.case import KernelUse, Signal
from steptime.findings.finding import Finding, Weight
from steptime.findings.kernel_kinds import REACHABLE, above_ceilings, first_source, longest, spent, told
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import modelled, ratio
from steptime.quantities import format_duration, format_share

LEAST_PART = 0.4
"""Of the kernels' time: below it no single operator decides how long the step is."""
LEAST_STEP = 0.2
"""Of the step: a device that idles has other troubles."""


@rule("ST407", "dominant-operator", needs={Signal.STEP, Signal.KERNELS}, weight=Weight.NOTE)
def dominant_operator(signals: Signals) -> Finding | None:
    """One operator takes most of the time

    What it means
        Whatever else is made faster, this operator decides how long the step is.

    How we know
        The kernels' times are added by the operator that launched them. Where its arithmetic and bytes are known, what
        lies above the machine's ceilings is at stake, as far as good kernels come near them; else nothing is
        promised and this is a note.

    What helps
        Another implementation of this one operator: another layout (channels_last), another number format, a fused
        form, another algorithm (torch.backends.cudnn.benchmark for convolutions of fixed size), a smaller size.

    When to ignore it
        When it is the matrix product that the model is made of, near its ceiling: then it is the work itself.
    """
    groups: dict[str, list[KernelUse]] = defaultdict(list)
    for use in signals.kernels:
        if use.operator and use.bound != "communication":
            groups[use.operator].append(use)
    name, uses = max(groups.items(), key=lambda item: spent(item[1]), default=("", []))
    time = spent(uses)
    part, share = ratio(time, spent(signals.kernels)), ratio(time, signals.step.duration.value)
    if part < LEAST_PART or share < LEAST_STEP:
        return None
    summary = f"{name} takes {format_duration(time)} a step ({format_share(share)}), more than any other operator"
    evidence = tuple(map(told, longest(uses)))
    source = first_source(uses)
    if any(use.at_roofline is None for use in uses):
        return dominant_operator.finding(summary, "Look at this operator first.", source=source, evidence=evidence)
    lost = above_ceilings(uses)
    if ratio(lost, time) < 1 - REACHABLE:
        advice = "It runs near its ceiling: only less work, or a cheaper number format, makes it faster."
        return dominant_operator.finding(summary, advice, source=source, evidence=evidence)
    stake = modelled(lost, 0.3 * lost, lost, signals.step.steady)
    advice = "It stays far below its ceiling: try another layout, number format or implementation of it."
    return dominant_operator.finding(
        summary, advice, stake, account="compute", source=source, evidence=evidence, weight=Weight.FINDING
    )
