"""Which rank the others wait for, if they wait for one of them."""

from __future__ import annotations

from steptime.findings.case import RankUse

OFTEN = 0.5
"""Of the waiting: a rank that the others wait for half of the time, or more, is not last by chance (with two ranks,
chance alone makes a half: there it takes OFTEN_OF_TWO)."""
OFTEN_OF_TWO = 0.75
RATHER_LATE = 2.0
"""Times the late rank's own waiting: how much longer the others wait on average. Ranks that are late in turns wait
about equally."""


def late_of(ranks: tuple[RankUse, ...]) -> RankUse | None:
    """The late rank; None where there is no one rank that is late."""
    late = max(ranks, key=lambda rank: rank.last, default=None)
    others = [rank.waiting for rank in ranks if late is not None and rank.rank != late.rank]
    if late is None or not others or late.last < (OFTEN_OF_TWO if len(ranks) == 2 else OFTEN):
        return None
    return late if sum(others) / len(others) >= RATHER_LATE * late.waiting else None
