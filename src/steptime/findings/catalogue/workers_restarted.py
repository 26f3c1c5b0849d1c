"""ST104: workers are started again every epoch."""

from __future__ import annotations

from steptime.findings.case import Signal
from steptime.findings.finding import Finding
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import more, scaled
from steptime.quantities import format_duration


@rule("ST104", "workers-restarted", needs={Signal.STEP, Signal.LOADER}, instead_of=("input-wait",))
def workers_restarted(signals: Signals) -> Finding | None:
    """Workers are started again for every epoch

    What it means
        At the end of an epoch all workers of the DataLoader are ended. Its next iterator starts new ones, which import
        the program again or copy it, and the first batches come late. With short epochs that is a good part of the run.

    How we know
        The end of an iterator whose batches are used up is measured each time, and the time from the making of the next
        one to its first batch, and the number of steps between two; and how much longer than others the two steps
        behind a start train (forked workers share the memory of the training, which copies each page that it writes
        to next). The time at stake is all of these, divided by the steps between two starts.

    What helps
        persistent_workers=True keeps the workers for the next epoch. The order of a shuffled dataset changes from
        the second epoch on (one random number fewer is drawn), which is another seed, not another training.

    When to ignore it
        When an epoch takes minutes, or when the dataset must be made anew each epoch in the workers.
    """
    loader = signals.loader
    if not loader.workers or loader.persistent_workers or loader.start is None or not loader.steps_per_start:
        return None
    if not loader.starts:
        return None
    each, steps = format_duration(loader.start.value), loader.steps_per_start
    behind = f" and slows the steps behind by {format_duration(loader.settling)}" if loader.settling else ""
    summary = f"Ending and starting {loader.workers} workers takes {each}{behind}, again every {steps:.0f} steps"
    stake = scaled(more(loader.start, loader.settling), 1 / steps)
    return workers_restarted.finding(summary, "Set persistent_workers=True.", stake, source=loader.site)
