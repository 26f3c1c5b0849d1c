"""ST903: rollouts take most of the run."""

from __future__ import annotations

from steptime.findings.case import Signal
from steptime.findings.finding import Finding, Weight
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.quantities import format_duration, format_share

LEAST_SHARE = 0.5
"""Of the run after the warm-up: from half on, the training steps are not where the time is."""


@rule("ST903", "rollout-share", needs={Signal.STEP, Signal.SEGMENTS}, weight=Weight.NOTE)
def rollout_share(signals: Signals) -> Finding | None:
    """Collecting experience takes most of the run

    What it means
        In reinforcement learning the run alternates between rollouts (the model acts in an environment) and updates.
        Here the rollouts dominate, so faster training steps change little.

    How we know
        Runs of forward calls without gradients before updates are segments of their own; their total is compared with
        the run after the warm-up.

    What helps
        Vectorised environments with one batched forward for all; environments in processes of their own;
        inference_mode while acting.

    When to ignore it
        When the environment is the point (a real robot).
    """
    use = next((use for use in signals.segments if use.kind == "rollout"), None)
    if use is None or use.share < LEAST_SHARE:
        return None
    summary = f"Rollouts took {format_share(use.share)} of the run ({format_duration(use.duration)} in {use.count})"
    return rollout_share.finding(summary, "Act in many environments at once with one batched forward.")
