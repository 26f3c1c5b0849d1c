"""ST901: evaluation takes a large part of the run."""

from __future__ import annotations

from steptime.findings.case import Signal
from steptime.findings.finding import Finding, Weight
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.quantities import format_duration, format_share

LEAST_SHARE = 0.1
"""Of the run after the warm-up."""


@rule("ST901", "slow-evaluation", needs={Signal.STEP, Signal.SEGMENTS}, weight=Weight.NOTE)
def slow_evaluation(signals: Signals) -> Finding | None:
    """Evaluation takes a large part of the run

    What it means
        The run spends its time on validation between training steps. The steps themselves may be healthy: this is
        never charged to them.

    How we know
        Forward calls without gradients, and the loaders that feed them, are their own segments of the run; their
        total is compared with the run after the warm-up.

    What helps
        Evaluate less often or on a fixed part of the data; a larger batch without gradients (torch.inference_mode);
        workers for the validation loader; evaluate checkpoints in another process.

    When to ignore it
        When the measured piece of the run is too short to hold the usual number of training steps per evaluation.
    """
    use = next((use for use in signals.segments if use.kind == "evaluation"), None)
    if use is None or use.share < LEAST_SHARE:
        return None
    times = "once" if use.count == 1 else f"{use.count} times"
    summary = f"Evaluation ran {times} and took {format_share(use.share)} of the run ({format_duration(use.duration)})"
    return slow_evaluation.finding(summary, "Evaluate less often, on less data, or with larger batches.")
