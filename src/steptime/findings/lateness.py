"""Which rank the others wait for, if they wait for one of them, and how that is told."""

from __future__ import annotations

from steptime.findings.case import RankUse
from steptime.quantities import format_duration, format_source
from steptime.ranks.comparison import LateRank
from steptime.ranks.late import LEAST_WAITING, OFTEN, OFTEN_OF_TWO, RATHER_LATE

ACCOUNTS = {
    "compute": "its computing takes",
    "copy": "its copies take",
    "input": "its input takes",
    "sync": "waiting for its device to be read takes",
    "compile": "its compiling takes",
    "launch": "dispatching its operators takes",
    "host": "its Python on the host takes",
    "unexplained": "time that nothing explains takes",
}
UNEVEN = 1.1
"""Times the others' arithmetic: a tenth more is another batch, not another device."""


def late_of(ranks: tuple[RankUse, ...]) -> RankUse | None:
    """The late rank; None where there is no one rank that is late, or nobody waits long for it."""
    late = max(ranks, key=lambda rank: rank.last, default=None)
    others = [rank for rank in ranks if late is not None and rank.rank != late.rank]
    if late is None or not others or late.last < (OFTEN_OF_TWO if len(ranks) == 2 else OFTEN):
        return None
    waiting = sum(rank.waiting for rank in others) / len(others)
    step = sum(rank.step for rank in ranks) / len(ranks)
    return late if waiting >= max(RATHER_LATE * late.waiting, LEAST_WAITING * step) else None


def late_name(late: LateRank) -> str:
    """ "rank 3", "rank 3 (node7)", "the 8 ranks of node7"."""
    if late.node:
        return f"the {len(late.ranks)} ranks of {late.host}" if late.host else f"ranks {late.ranks[0]} …"
    return f"rank {late.ranks[0]} ({late.host})" if late.host else f"rank {late.ranks[0]}"


def late_reason(late: LateRank) -> str:
    """Where its excess lies: "its input takes 21.0 ms longer, at train.py:43"; "" where nothing exceeds the others'."""
    if not late.account or late.excess <= 0:
        return ""
    longer = f"{ACCOUNTS.get(late.account, f'{late.account} takes')} {format_duration(late.excess)} longer"
    return f"{longer}, at {format_source(late.source)}" if late.source is not None else longer


def uneven(late: LateRank) -> bool:
    """Whether it is late because it has more to compute."""
    return late.arithmetic is not None and late.arithmetic >= UNEVEN and late.account in ("compute", "launch")
