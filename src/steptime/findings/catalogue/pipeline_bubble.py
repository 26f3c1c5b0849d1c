"""ST815: pipeline stages wait for one another."""

from __future__ import annotations

import re

from steptime.findings.case import Signal
from steptime.findings.finding import Finding
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import ratio, total
from steptime.quantities import format_duration, format_share

BETWEEN_STAGES = re.compile(r"^(i?send|i?recv|coalesced|SendRecv)( |$)", re.IGNORECASE)
LEAST_SHARE = 0.05


@rule(
    "ST815",
    "pipeline-bubble",
    needs={Signal.STEP, Signal.COLLECTIVES},
    instead_of=("exposed-communication",),
)
def pipeline_bubble(signals: Signals) -> Finding | None:
    """A pipeline stage waits for the activations of another

    What it means
        The model's layers lie on several ranks, and this one waits in a receive while it has nothing to compute: at the
        begin and the end of each step (the bubble), or for a slower stage.

    How we know
        Sends and receives between two ranks are in the trace; exposed is the time in which nothing but them ran.

    What helps
        More micro-batches per step: with p equal stages and m micro-batches the bubble is (p - 1) / (m + p - 1) of the
        step. Interleaved or zero-bubble schedules; stages of equal time, where one waits longer than the bubble.

    When to ignore it
        When memory allows no more micro-batches.
    """
    between = [use for use in signals.collectives if BETWEEN_STAGES.match(use.name)]
    exposed = total(use.exposed for use in between)
    share = ratio(exposed.value, signals.step.duration.value)
    if not between or share < LEAST_SHARE:
        return None
    summary = (
        f"This stage waits {format_duration(exposed.value)} a step ({format_share(share)}) in "
        f"{sum(use.calls for use in between):.4g} sends and receives"
    )
    advice = "Raise the number of micro-batches, or balance the stages: diagnosed together, they show which is slow."
    return pipeline_bubble.finding(summary, advice, exposed, account="communication")
