"""ST804: too few steps to say anything."""

from __future__ import annotations

from steptime.findings.case import Signal
from steptime.findings.finding import Finding, Weight
from steptime.findings.rule import rule
from steptime.findings.signals import Signals

FEWEST = 8
"""Steady steps: the interval of a median from fewer spans nearly their whole range (binomial 95 % needs six at
least)."""
FEWEST_IN_TRACE = 2
"""In a bare trace: somebody chose its steps, a few of a job that ran steadily, and there are no more to come; two have
an interval, as wide as two steps deserve (12.7 standard errors)."""


@rule("ST804", "few-steps", needs={Signal.STEP}, weight=Weight.DOUBT)
def few_steps(signals: Signals) -> Finding | None:
    """Too few steady steps were measured

    What it means
        The run ended before enough undisturbed steps were seen. Numbers are shown, the verdict is not.

    How we know
        Steps of the warm-up, and those that the profiler or another measurement slowed, are left out; the rest is
        counted.

    What helps
        Let the job run longer, or give it more batches. Thirty steps after the warm-up are enough as a rule.

    When to ignore it
        Never; but the findings with a source line may still be worth a look.
    """
    step = signals.step
    if step.steady >= (FEWEST_IN_TRACE if step.mode == "trace" else FEWEST):
        return None
    if step.mode == "trace":
        return few_steps.finding(
            "The trace holds one step: how much steps differ is not known",
            "Trace more steps: torch.profiler.schedule(wait=5, warmup=2, active=5), and step() after each.",
        )
    summary = f"Only {step.steady} of {step.total} steps were steady ({step.warm_up} warm-up): too few to decide"
    return few_steps.finding(summary, "Let the job run for at least 30 steps after the warm-up.")
