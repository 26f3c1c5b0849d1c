"""The late rank: who it is, where its excess lies, since when, and what the job would gain without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from steptime.estimates import mean_of_series
from steptime.ledger.ledger import Account
from steptime.quantities import Estimate
from steptime.ranks.comparison import LateRank, LateSeries
from steptime.ranks.replaying import Chain, saved_without
from steptime.ranks.summary import RankSummary

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]
OFTEN = 0.5
"""Of the waiting: a rank that the others wait for half of the time, or more, is not last by chance (with two ranks,
chance alone makes a half: there it takes OFTEN_OF_TWO)."""
OFTEN_OF_TWO = 0.75
RATHER_LATE = 2.0
"""Times the late rank's own waiting: how much longer the others wait on average. Ranks that are late in turns wait
about equally."""
LEAST_WAITING = 0.01
"""Of the step: what the others wait less is within what equal ranks differ by."""
EXPLAINS = 0.25
"""Of the waiting: a smaller excess is not why the others wait (a short trace may begin with the ranks apart)."""
WAITING_ACCOUNTS = (Account.COMMUNICATION,)
"""Where waiting itself lies: never the excess of a late rank."""
LATE_STEP = 0.5
"""Of the usual lateness: a step in which the rank was at least so much behind counts as late."""
WINDOW = 5
"""Columns: the lateness begins with the first of so many of which most are late."""


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """By rank: ns per step that it waits for others; share of all waiting that is for it."""

    waiting: Float64
    last: Float64


def find_late(
    summaries: Sequence[RankSummary], waiting: Waiting, links: Chain, series: LateSeries | None
) -> LateRank | None:
    """The late rank, or the late node; None where there is no one that is late."""
    late = _one(waiting, len(summaries))
    late = late if late is not None else _node(summaries, waiting)
    if late is None:
        return None
    others = np.setdiff1d(np.arange(len(summaries)), late)
    waited = float(waiting.waiting[others].mean())
    step = float(np.mean([summary.step for summary in summaries]))
    if waited < LEAST_WAITING * step:
        return None
    excesses = _excesses(summaries, late, others)
    explained = bool(excesses) and excesses[0][1] >= EXPLAINS * waited
    since, steadiness = _since(summaries, late, series)
    first = summaries[int(late[0])]
    return LateRank(
        ranks=tuple(summaries[index].rank for index in late.tolist()),
        host=first.host,
        waiting=waited,
        share=float(waiting.last[late].sum()),
        account=excesses[0][0] if explained else "",
        excess=excesses[0][1] if explained else 0.0,
        excesses=excesses,
        gain=_gain(summaries, links, late, others, series, waited),
        arithmetic=_arithmetic(summaries, late, others),
        since=since,
        steadiness=steadiness,
    )


def _one(waiting: Waiting, ranks: int) -> Int64 | None:
    """The rank that most of the waiting is for, unless it waits as long itself."""
    most = int(waiting.last.argmax())
    if waiting.last[most] < (OFTEN_OF_TWO if ranks == 2 else OFTEN):
        return None
    others = np.delete(waiting.waiting, most)
    return np.array([most]) if others.mean() >= RATHER_LATE * waiting.waiting[most] else None


def _node(summaries: Sequence[RankSummary], waiting: Waiting) -> Int64 | None:
    """All ranks of a host, when they are late together and none of them alone."""
    hosts: dict[str, list[int]] = {}
    for index, summary in enumerate(summaries):
        hosts.setdefault(summary.host, []).append(index)
    if len(hosts) < 2 or "" in hosts:
        return None
    shares = {host: float(waiting.last[held].sum()) for host, held in hosts.items()}
    host = max(shares, key=lambda each: shares[each])
    mine = np.array(hosts[host])
    others = np.setdiff1d(np.arange(len(summaries)), mine)
    if len(mine) < 2 or shares[host] < (OFTEN_OF_TWO if len(hosts) == 2 else OFTEN):
        return None
    return mine if waiting.waiting[others].mean() >= RATHER_LATE * waiting.waiting[mine].mean() else None


def _excesses(summaries: Sequence[RankSummary], late: Int64, others: Int64) -> tuple[tuple[str, float], ...]:
    """Accounts of the late ranks beyond the median of the others', the largest excess first."""
    table = np.array([summary.accounts for summary in summaries])
    beyond = np.median(table[late], axis=0) - np.median(table[others], axis=0)
    found = [
        (account.name.lower(), float(beyond[account]))
        for account in Account
        if account not in WAITING_ACCOUNTS and beyond[account] > 0
    ]
    return tuple(sorted(found, key=lambda each: -each[1]))


def _arithmetic(summaries: Sequence[RankSummary], late: Int64, others: Int64) -> float | None:
    flops = np.array([summary.flops for summary in summaries])
    usual = float(np.median(flops[others]))
    return float(np.median(flops[late])) / usual if usual > 0 and (flops[late] > 0).all() else None


def _since(summaries: Sequence[RankSummary], late: Int64, series: LateSeries | None) -> tuple[int | None, float | None]:
    """The first step from which on the ranks are late, and the share of the steps since then in which they are."""
    behind = _behind(summaries, late, series)
    if series is None or behind is None or not len(behind):
        return None, None
    usual = float(np.median(behind[behind >= np.median(behind)]))
    is_late = behind >= LATE_STEP * usual if usual > 0 else np.zeros(len(behind), np.bool_)
    if not is_late.any():
        return None, None
    window = min(WINDOW, len(is_late))
    dense = np.convolve(is_late, np.ones(window), "valid") > window / 2
    starts = np.flatnonzero(dense & is_late[: len(dense)])
    start = int(starts[0]) if len(starts) else int(np.flatnonzero(is_late)[0])
    return series.steps[start], float(is_late[start:].mean())


def _behind(summaries: Sequence[RankSummary], late: Int64, series: LateSeries | None) -> Float64 | None:
    """(columns,) ns that the late ranks are behind the first; None where the series does not have them."""
    if series is None:
        return None
    wanted = {summaries[index].rank for index in late.tolist()}
    rows = [row for rank, row in zip(series.ranks, series.late, strict=True) if rank in wanted]
    return np.median(np.array(rows), axis=0) if rows else None


def _gain(
    summaries: Sequence[RankSummary],
    links: Chain,
    late: Int64,
    others: Int64,
    series: LateSeries | None,
    waited: float,
) -> Estimate:
    """By replay of the collectives; of a recording, where the watch sees the lateness too, by its steps, of which there
    are more and which nothing slowed."""
    behind = _behind(summaries, late, series)
    if behind is not None and len(behind) >= WINDOW and series is not None:
        saved = np.maximum(0.0, behind - _next(summaries, late, series))
        if float(saved.mean()) >= LATE_STEP * waited:
            return mean_of_series(saved)
    saved_steps = saved_without(links, late)
    if len(saved_steps):
        return mean_of_series(saved_steps)
    return Estimate(waited, 0.0, 2 * waited, 1)


def _next(summaries: Sequence[RankSummary], late: Int64, series: LateSeries) -> Float64:
    """(columns,) ns that the last of the other ranks is behind the first."""
    mine = {summaries[index].rank for index in late.tolist()}
    rows = [row for rank, row in zip(series.ranks, series.late, strict=True) if rank not in mine]
    return np.max(np.array(rows), axis=0) if rows else np.zeros(len(series.steps))
