"""The late rank: who it is, where its excess lies, since when, and what the job would gain without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import erfc, exp, lgamma, log, sqrt

import numpy as np

from steptime.arrays import Float64, Int64
from steptime.estimates import mean_of_series
from steptime.ledger.ledger import Account
from steptime.quantities import Estimate
from steptime.ranks.comparison import LateRank, LateSeries
from steptime.ranks.replaying import Chain, saved_without
from steptime.ranks.summary import RankSummary

OFTEN = 0.5
"""Of the waiting: a rank that the others wait for half of the time, or more, is not last by chance (with two ranks,
chance alone makes a half: there it takes OFTEN_OF_TWO)."""
OFTEN_OF_TWO = 0.75
RATHER_LATE = 2.0
"""Times the late rank's own waiting: how much longer the others wait on average. Ranks that are late in turns wait
about equally."""
MOST_CHANCE = 0.003
"""Chance of a false name that each of three tests takes: together below a hundredth."""
LEAST_STEPS = 3
"""Steps whose spread is known."""
LARGE = 0.2
"""Of the step: one or two steps cannot tell lateness from chance, and so much waiting is told all the same."""
LEAST_OTHERS, FAR = 7, 2.0
"""Ranks whose spread is known, and how many times their interquartile range a rank must stand apart: of equal ranks
whose work varies normally, the last of a thousand does in less than one of a thousand cases."""
LEAST_WAITING = 0.03
"""Of the step: less is within what equal ranks differ by, and worth nobody's time."""
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
    """By rank: ns per step that it waits for others; share of all waiting that is for it; times: collectives (or steps)
    in which it was waited for. trials: of all ranks together. by_step: (ranks, steps) ns waited."""

    waiting: Float64
    last: Float64
    times: Int64
    trials: int
    by_step: Float64


def find_late(
    summaries: Sequence[RankSummary],
    waiting: Waiting,
    links: Chain,
    series: LateSeries | None,
    watched: Waiting | None = None,
) -> LateRank | None:
    """The late rank, or the late node; None where there is no one that is late. watched: the same from the table of
    steps, where there is one: it has more of them."""
    late = _node(summaries, waiting)
    late = late if late is not None else _one(waiting, len(summaries))
    if late is None:
        return None
    large = waiting.by_step.shape[1] < LEAST_STEPS and _waited(waiting, late) >= LARGE * _step(summaries)
    if not large and not any(_sure(each, late) for each in (waiting, watched) if each is not None):
        return None
    others = np.setdiff1d(np.arange(len(summaries)), late)
    waited = _waited(waiting, late)
    if waited < LEAST_WAITING * _step(summaries):
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


def _waited(waiting: Waiting, late: Int64) -> float:
    """What the others wait on average."""
    return float(np.delete(waiting.waiting, late).mean())


def _step(summaries: Sequence[RankSummary]) -> float:
    return float(np.mean([summary.step for summary in summaries]))


def _one(waiting: Waiting, ranks: int) -> Int64 | None:
    """The rank that most of the waiting is for, unless it waits as long itself."""
    most = int(waiting.last.argmax())
    if waiting.last[most] < (OFTEN_OF_TWO if ranks == 2 else OFTEN):
        return None
    others = np.delete(waiting.waiting, most)
    return np.array([most]) if others.mean() >= RATHER_LATE * waiting.waiting[most] else None


def _node(summaries: Sequence[RankSummary], waiting: Waiting) -> Int64 | None:
    """All ranks of a host, when the others wait for them together and none of them for the others."""
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
    least = waiting.waiting[others].mean() / RATHER_LATE
    return mine if (waiting.waiting[mine] <= least).all() else None


def _sure(waiting: Waiting, late: Int64) -> bool:
    """Whether it is no chance that just these wait so little: by how often, by how much, or by how far apart."""
    ranks = len(waiting.waiting)
    if by_chance(int(waiting.times[late].sum()), waiting.trials, len(late) / ranks) * ranks <= MOST_CHANCE:
        return True
    others = np.setdiff1d(np.arange(ranks), late)
    ahead = waiting.by_step[others].mean(axis=0) - waiting.by_step[late].mean(axis=0)
    if len(ahead) >= LEAST_STEPS and tail_of_student(ahead) * ranks <= MOST_CHANCE:
        return True
    return _stands_out(float(waiting.waiting[late].max()), waiting.waiting[others])


def by_chance(times: int, trials: int, share: float) -> float:
    """How likely something of this chance happens so often: the tail of the binomial distribution."""
    if not trials:
        return 1.0
    ways = lgamma(trials + 1)
    return min(
        1.0,
        sum(
            exp(ways - lgamma(k + 1) - lgamma(trials - k + 1) + k * log(share) + (trials - k) * log(1 - share))
            for k in range(times, trials + 1)
        ),
    )


def tail_of_student(values: Float64) -> float:
    """How likely a mean as high as that of the values is where the true one is 0, by Student's t; the normal value of
    which is Wallace's (Annals of Mathematical Statistics 30, 1959): a quarter too high for three values, exact to some
    percent from ten on."""
    count = len(values)
    mean, deviation = float(values.mean()), float(values.std(ddof=1))
    if mean <= 0 or deviation <= 0:
        return 0.0 if mean > 0 else 1.0
    freedom = count - 1
    t = mean / deviation * sqrt(count)
    normal = (8 * freedom + 1) / (8 * freedom + 3) * sqrt(freedom * log(1 + t * t / freedom))
    return erfc(normal / sqrt(2)) / 2


def _stands_out(waiting: float, others: Float64) -> bool:
    """Whether the late rank waits less than the next one by more than what the others differ by among themselves: in a
    single step nothing else can show that it is no chance."""
    if len(others) < LEAST_OTHERS:
        return False
    lower, upper = np.percentile(others, (25, 75))
    return bool(others.min() - waiting >= FAR * (upper - lower))


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
