"""ST902: checkpoints between steps take a good part of the run."""

from __future__ import annotations

from steptime.findings.case import Signal
from steptime.findings.catalogue.checkpoint_in_step import OFTEN
from steptime.findings.finding import Finding, Weight
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.quantities import format_duration, format_share

LEAST_SHARE = 0.05
"""Of the run after the warm-up: saving is idle time for every device of the job."""


@rule("ST902", "slow-checkpoint", needs={Signal.STEP, Signal.SEGMENTS}, weight=Weight.NOTE)
def slow_checkpoint(signals: Signals) -> Finding | None:
    """Writing checkpoints takes a good part of the run

    What it means
        Between training steps the job writes its state to disk and waits for it.

    How we know
        Each torch.save between steps is a segment of its own; their total is compared with the run after the warm-up.

    What helps
        Save less often; write from another thread or process (torch.distributed.checkpoint.async_save); keep fewer
        optimiser states.

    When to ignore it
        When this run is short and the interval between checkpoints will be longer in production.
    """
    use = next((use for use in signals.segments if use.kind == "checkpoint"), None)
    steps = max(1, signals.step.total - signals.step.warm_up)
    if use is None or use.share < LEAST_SHARE or use.count * OFTEN >= steps:
        return None
    times = "once" if use.count == 1 else f"{use.count} times"
    summary = (
        f"Checkpoints were written {times} and took {format_share(use.share)} of the run "
        f"({format_duration(use.duration)})"
    )
    return slow_checkpoint.finding(summary, "Save less often, or asynchronously.")
