"""ST814: the ranks wait for one another in turns."""

from __future__ import annotations

from steptime.findings.case import Signal
from steptime.findings.finding import Finding
from steptime.findings.lateness import late_of
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import modelled, ratio
from steptime.quantities import format_duration, format_share

LEAST_SHARE = 0.15
"""Of the step: equal ranks wait some percent for one another, as the last of many is a little late."""
SURE = 0.5


@rule(
    "ST814",
    "rank-imbalance",
    needs={Signal.STEP, Signal.RANKS},
    uses={Signal.LATENESS},
    instead_of=("exposed-communication",),
)
def rank_imbalance(signals: Signals) -> Finding | None:
    """The ranks wait for one another in turns

    What it means
        All ranks wait much in collectives, and each of them is now and then the last: their shares of the work differ
        from step to step. Batches of texts or images of different sizes do that, and so does work that depends on the
        data.

    How we know
        The waiting of each rank in each collective is known, and no single rank or node is behind most of it.

    What helps
        Batches of one cost on all ranks: sort by length and deal out, fill batches by tokens instead of samples, pad to
        few sizes. Let ranks differ less often: accumulate over several micro-batches.

    When to ignore it
        When other jobs on the same machines make the ranks uneven.
    """
    if signals.has(Signal.LATENESS) or late_of(signals.ranks) is not None:
        return None
    waiting = sum(rank.waiting for rank in signals.ranks) / len(signals.ranks)
    step = sum(rank.step for rank in signals.ranks) / len(signals.ranks)
    if ratio(waiting, step) < LEAST_SHARE:
        return None
    summary = f"The ranks wait {format_duration(waiting)} a step ({format_share(ratio(waiting, step))}) in turns"
    advice = "Give all ranks batches of one cost: sort by length, or fill them by tokens."
    stake = modelled(waiting, SURE * waiting, max(rank.waiting for rank in signals.ranks), signals.step.steady)
    return rank_imbalance.finding(summary, advice, stake)
