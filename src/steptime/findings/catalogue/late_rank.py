"""ST806: the ranks wait for one of them."""

from __future__ import annotations

from steptime.findings.case import RankUse, Signal
from steptime.findings.finding import Finding
from steptime.findings.lateness import late_name, late_of, late_reason, uneven
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import capped, modelled, ratio
from steptime.quantities import Estimate, format_duration, format_share, format_source
from steptime.ranks.comparison import LateRank

MORE_WORK = 1.1
"""Times the computing of the others on average: a tenth more is beyond what equal devices differ by."""
SURE = 0.5
"""Of the waiting: other ranks may be the next late ones when this one is in time."""


@rule(
    "ST806",
    "late-rank",
    needs={Signal.STEP, Signal.RANKS},
    uses={Signal.LATENESS},
    instead_of=("exposed-communication",),
)
def late_rank(signals: Signals) -> Finding | None:
    """One rank arrives last and all others wait for it

    What it means
        Collectives end together. Ranks that are there first wait inside the collective's kernel, which looks like
        slow communication; the rank that waits least is the one that is late. Where all ranks of one host are late
        together, it is the node.

    How we know
        The collectives are matched across all ranks, one by one within each process group. In each collective a rank
        waits as much longer as it lasts there than on the last rank to come; clocks of different hosts need not agree
        for that. A rank that came last because it had waited elsewhere itself is not counted: the one that it waited
        for is. The excess is the late rank's account beyond the median of the others'. The gain is a replay of
        the job from its collectives, with the late rank's own times at the median of the others'.

    What helps
        What helps the late rank alone: the line that is named, its input, its share of the work (uneven batches, an
        embedding table), its own host or device (thermal limits, another job).

    When to ignore it
        When the work is uneven by design (pipeline stages) and balanced elsewhere.
    """
    if signals.has(Signal.LATENESS):
        return _known(signals, signals.lateness)
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
    return late_rank.finding(summary, _advice(signals, late), stake, evidence=_rows(signals))


def _known(signals: Signals, late: LateRank) -> Finding:
    step = signals.step.duration  # of all steps; where the profiled ones were slower, no more than a step is at stake
    share = format_share(min(1.0, ratio(late.waiting, step.value)))
    wait = f"The others wait {format_duration(late.waiting)} a step ({share}) for {late_name(late)}"
    reason = late_reason(late).partition(", at ")[0]
    summary = f"{wait}: {reason}" if reason and len(f"{wait}: {reason}") <= 110 else wait
    gain = capped(late.gain, step)
    return late_rank.finding(
        summary, _remedy(late, gain), gain, source=late.source, evidence=(*_evidence(late), *_rows(signals))
    )


def _remedy(late: LateRank, gained: Estimate) -> str:
    gain = f"then the job's step is {format_duration(gained.value)} shorter"
    if uneven(late):
        return (
            f"It does {late.arithmetic:.2g} times the others' arithmetic: give all ranks batches of one size; {gain}."
        )
    if late.source is not None:
        return f"Make {format_source(late.source)} as fast there as on the other ranks; {gain}."
    if late.node:
        return f"Look at that node (its load, its clocks, its storage), or leave it out; {gain}."
    if late.account:
        return f"Look at its {late.account} first, and at its host; {gain}."
    return f"No account of it exceeds the others': look at its host and its link; {gain}."


def _evidence(late: LateRank) -> tuple[str, ...]:
    found = []
    if late.excesses:
        parts = ", ".join(f"{name} {format_duration(excess)}" for name, excess in late.excesses[:4])
        found.append(f"beyond the median of the others: {parts}")
    if late.since is not None and late.steadiness is not None:
        begin = f"since step {late.since}" if late.since else "from the first measured step on"
        found.append(f"late {begin}, in {format_share(late.steadiness)} of the steps")
    return tuple(found)


def _rows(signals: Signals) -> tuple[str, ...]:
    return tuple(
        f"rank {rank.rank}: waits {format_duration(rank.waiting)}, computes {format_duration(rank.compute)}"
        for rank in sorted(signals.ranks, key=lambda rank: rank.waiting)[:4]
    )


def _advice(signals: Signals, late: RankUse) -> str:
    """What most differs: more computing than the others' is more work, else its host is late."""
    others = [rank.compute for rank in signals.ranks if rank.rank != late.rank]
    if others and late.compute > MORE_WORK * sum(others) / len(others):
        return f"Rank {late.rank} computes longer than the others: balance the work, or look at its device."
    return f"Rank {late.rank} computes no longer than the others: look at its input and its host."
