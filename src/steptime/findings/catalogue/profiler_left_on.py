"""ST602: a profiler of the job's own is on."""

from __future__ import annotations

from steptime.findings.case import Signal
from steptime.findings.finding import Finding
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import modelled
from steptime.quantities import format_duration

SLOWDOWN = (1.05, 1.2, 1.9)
"""Least, usual and greatest factor: torch.profiler made steps 1.05 to 1.9 times as long on four models on a CPU with
torch 2.13, the more the smaller their operators are and the more is recorded (shapes, stacks, memory)."""


@rule("ST602", "profiler-left-on", needs={Signal.STEP, Signal.SETTINGS}, instead_of=("launch-bound",))
def profiler_left_on(signals: Signals) -> Finding | None:
    """The job's own profiler records every step

    What it means
        The script runs torch.profiler (or autograd.profiler) around its training without a schedule that ends it.
        Each operator is recorded, and memory grows until the recording is written.

    How we know
        A profiler that is not ours is active while backward runs, in most of the steps. The cost is estimated from
        measured slow-downs of other models.

    What helps
        Take it out, or give it a schedule (wait, warmup, active, repeat=1) so that it stops after a few steps.

    When to ignore it
        When this run is the one that is being profiled.
    """
    if not signals.settings.profiler:
        return None
    step = signals.step.duration.value
    low, usual, high = (step * (1 - 1 / factor) for factor in SLOWDOWN)
    summary = f"The job profiles itself: some {format_duration(usual)} of a step of {format_duration(step)}"
    advice = "Take the profiler out of the job, or give it a schedule with repeat=1."
    return profiler_left_on.finding(summary, advice, modelled(usual, low, high, signals.step.steady))
