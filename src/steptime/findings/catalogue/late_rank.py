"""ST806: the ranks wait for one of them."""

from __future__ import annotations

from steptime.findings.case import RankUse, Signal
from steptime.findings.finding import Finding
from steptime.findings.lateness import late_of
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import modelled, ratio
from steptime.quantities import format_duration, format_share

MORE_WORK = 1.1
"""Times the computing of the others on average: a tenth more is beyond what equal devices differ by."""
SURE = 0.5
"""Of the waiting: other ranks may be the next late ones when this one is in time."""


@rule("ST806", "late-rank", needs={Signal.STEP, Signal.RANKS}, instead_of=("exposed-communication",))
def late_rank(signals: Signals) -> Finding | None:
    """One rank arrives last and all others wait for it

    What it means
        Collectives end together. Ranks that are there first wait inside the collective's kernel, which looks like
        slow communication; the rank that waits least is the one that is late.

    How we know
        The collectives are matched across the traces of all ranks, one by one within each process group. In each
        collective a rank waits as much longer as its kernel runs than the shortest one; clocks of different hosts
        need not agree for that.

    What helps
        Diagnose the late rank's trace by itself: its input, its share of the work (uneven batches, an embedding table),
        its own host or device (thermal limits, another job).

    When to ignore it
        When the work is uneven by design (pipeline stages) and balanced elsewhere.
    """
    late = late_of(signals.ranks)
    if late is None:
        return None
    others = [rank for rank in signals.ranks if rank.rank != late.rank]
    waiting = sum(rank.waiting for rank in others) / len(others)
    share = format_share(ratio(waiting, sum(rank.step for rank in others) / len(others)))
    summary = (
        f"The other ranks wait {format_duration(waiting)} a step ({share}) in collectives, {format_share(late.last)} "
        f"of it for rank {late.rank}"
    )
    stake = modelled(waiting, SURE * waiting, max(rank.waiting for rank in others), signals.step.steady)
    evidence = tuple(
        f"rank {rank.rank}: waits {format_duration(rank.waiting)}, computes {format_duration(rank.compute)}"
        for rank in sorted(signals.ranks, key=lambda rank: rank.waiting)[:4]
    )
    return late_rank.finding(summary, _advice(signals, late), stake, evidence=evidence)


def _advice(signals: Signals, late: RankUse) -> str:
    """What most differs: more computing than the others' is more work, else its host is late."""
    others = [rank.compute for rank in signals.ranks if rank.rank != late.rank]
    if others and late.compute > MORE_WORK * sum(others) / len(others):
        return f"Rank {late.rank} computes longer than the others: balance the work, or look at its device."
    return f"Rank {late.rank} computes no longer than the others: look at its input and its host."
