"""ST803: the steps vary."""

from __future__ import annotations

from steptime.findings.case import Signal
from steptime.findings.finding import Finding, Weight
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.quantities import format_share

SPREAD = 0.3
"""Interquartile range over median: on a quiet machine steps of equal work stay within 0.05, of padded text within
0.2."""
DRIFT = 0.2
"""Change of the step from the first to the last part of the run, over the median: growth beyond noise."""


@rule("ST803", "unstable-steps", needs={Signal.STEP, Signal.CONTENTION}, weight=Weight.NOTE)
def unstable_steps(signals: Signals) -> Finding | None:
    """Steps vary more than equal work explains

    What it means
        Some steps take much longer than others, or they grow from the beginning of the run to its end. Averages hide
        both.

    How we know
        The spread is the interquartile range of the steady steps over their median; the drift compares the ends of
        the run.

    What helps
        For spread: look at the series of steps in the report; variable shapes, a loader that delivers in bursts, and
        other load on the machine are the usual causes. For drift: something grows (a list of losses that keeps its
        graphs, a log, a replay buffer).

    When to ignore it
        When batches differ in size by design.
    """
    contention = signals.contention
    if contention.drift > DRIFT:
        summary = f"Steps grew by {format_share(contention.drift)} during the run"
        return unstable_steps.finding(summary, "Look for what grows with each step: lists, graphs, logs, buffers.")
    if contention.spread > SPREAD:
        summary = f"Half of the steps differ by {format_share(contention.spread)} of the median or more"
        return unstable_steps.finding(summary, "Look at the series of steps in the report before trusting averages.")
    return None
