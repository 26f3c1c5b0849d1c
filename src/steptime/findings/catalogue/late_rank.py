"""ST806: the ranks wait for one of them."""

from __future__ import annotations

from steptime.findings.case import RankUse, Signal
from steptime.findings.finding import Finding
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import modelled, ratio
from steptime.quantities import format_duration, format_share

OFTEN = 0.5
"""Of the waiting: a rank that the others wait for half of the time, or more, is not last by chance (with two ranks,
chance alone makes a half: there it takes OFTEN_OF_TWO)."""
OFTEN_OF_TWO = 0.75
RATHER_LATE = 2.0
"""Times the late rank's own waiting: how much longer the others wait on average. Ranks that are late in turns wait
about equally."""
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
    late = _late(signals.ranks)
    if late is None:
        return None
    others = [rank for rank in signals.ranks if rank.rank != late.rank]
    waiting = sum(rank.waiting for rank in others) / len(others)
    share = format_share(ratio(waiting, signals.step.duration.value))
    summary = (
        f"The other ranks wait {format_duration(waiting)} a step ({share}) in collectives, {format_share(late.last)} "
        f"of it for rank {late.rank}"
    )
    stake = modelled(waiting, SURE * waiting, max(rank.waiting for rank in others), signals.step.steady)
    evidence = tuple(
        f"rank {rank.rank}: waits {format_duration(rank.waiting)}, computes {format_duration(rank.compute)}"
        for rank in sorted(signals.ranks, key=lambda rank: rank.waiting)[:4]
    )
    return late_rank.finding(
        summary, f"Diagnose the trace of rank {late.rank} by itself for what takes it longer.", stake, evidence=evidence
    )


def _late(ranks: tuple[RankUse, ...]) -> RankUse | None:
    late = max(ranks, key=lambda rank: rank.last)
    others = [rank.waiting for rank in ranks if rank.rank != late.rank]
    if not others or late.last < (OFTEN_OF_TWO if len(ranks) == 2 else OFTEN):
        return None
    return late if sum(others) / len(others) >= RATHER_LATE * late.waiting else None
