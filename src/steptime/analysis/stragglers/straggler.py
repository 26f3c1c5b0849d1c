"""The straggler: the rank that the others wait for, the place and start of its excess, and the gain without it.

Ranks that train together end their steps together. Work that a rank does on its own in a step (input, host, forward) is
time that the others wait for behind it. A recording has it for all its steps (the series). Phases in which a rank waits
itself, usually backward, are excluded there: a delay inside backward shows only in the collectives of the profiled
steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import erfc, exp, lgamma, log, sqrt

import numpy as np

from steptime.analysis.categories import Category, CategoryName
from steptime.analysis.stragglers.comparison import CollectiveRow, RankComparison, RankRow, Straggler, StragglerSeries
from steptime.analysis.stragglers.matching import (
    Chain,
    Shared,
    blamed,
    chain,
    clocks,
    match,
    on_common_steps,
    saved_without,
)
from steptime.analysis.stragglers.summary import RankSummary, widened
from steptime.analysis.traffic import bus_factor
from steptime.arrays import Float64, Int64, unique
from steptime.intervals import EMPTY, join, total, union
from steptime.machine.machine import Machine
from steptime.quantities import Estimate, mean_of_series

MOST_ROWS = 32
LEAST_LATE = 50_000
"""Least difference of the ranks' own work in a step that shows who is late, ns."""


def aligned(summaries: Sequence[RankSummary]) -> tuple[int, Int64, Int64] | None:
    """(steps per column, number of each column's first step, own time (ranks, columns) in ns, -1 if unknown), over the
    columns that all ranks have; None if some rank has no series."""
    found = [summary.series for summary in summaries]
    series = [each for each in found if each is not None]
    if len(series) < len(found) or len(series) < 2:
        return None
    width = max(each.width for each in series)
    columns = [widened(each, width).own for each in series]
    count = min(map(len, columns))
    if not count:
        return None
    own = np.stack([each[:count] for each in columns])
    return width, width * np.arange(count), own


def straggler_series(summaries: Sequence[RankSummary]) -> tuple[StragglerSeries, Waiting | None] | None:
    """(delay of each rank behind the first one in each column, waiting that these delays cause or None if no column is
    complete); None if a rank has no series."""
    found = aligned(summaries)
    if found is None:
        return None
    width, steps, own = found
    whole = (own >= 0).all(axis=0)
    own, steps = own[:, whole], steps[whole]
    behind = own - own.min(axis=0)
    order = np.argsort(-behind.sum(axis=1), kind="stable")[:MOST_ROWS]
    ranks = tuple(summaries[index].rank for index in order.tolist())
    late = tuple(tuple(map(float, row)) for row in behind[order].tolist())
    series = StragglerSeries(width, tuple(steps.tolist()), ranks, late)
    if not len(steps):
        return series, None
    waits = own.max(axis=0) - own
    longest = np.where(waits.max(axis=0) >= LEAST_LATE, waits.max(axis=0), 0)
    last = np.bincount(own.argmax(axis=0), longest, len(summaries)) / max(1, int(longest.sum()))
    times = np.bincount(own.argmax(axis=0)[longest > 0], minlength=len(summaries))
    return series, Waiting(waits.mean(axis=1), last, times, int((longest > 0).sum()), waits.astype(np.float64))


OFTEN = 0.5
"""Fraction of the waiting: a rank that causes at least this much is not last by chance (with two ranks, chance alone
causes half: OFTEN_OF_TWO applies there)."""
OFTEN_OF_TWO = 0.75
RATHER_LATE = 2.0
"""Factor on the straggler's own waiting: the others must wait this much longer on average. Ranks that are late in turns
wait about equally."""
MOST_CHANCE = 0.003
"""Probability of a false name that each of three tests accepts: together below 1 %."""
LEAST_STEPS = 3
"""Fewest steps whose spread is known."""
LARGE = 0.2
"""Fraction of the step: this much waiting is reported even if one or two steps cannot rule out chance."""
LEAST_OTHERS, FAR = 7, 2.0
"""LEAST_OTHERS: fewest other ranks for a known spread. FAR: interquartile ranges by which a straggler must be apart.
Of a thousand equal ranks with normal variation, the last one does so in less than 0.1 % of cases."""
LEAST_WAITING = 0.03
"""Fraction of the step: less waiting is within the variation of equal ranks and not worth a report."""
EXPLAINS = 0.25
"""Fraction of the waiting: a smaller excess is not why the others wait (a short trace may start with the ranks
apart)."""
LATE_STEP = 0.5
"""Fraction of the usual delay: a step in which the rank was at least this far behind counts as late."""
WINDOW = 5
"""Columns: the delay starts with the first of this many of which most are late."""


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """Waiting of the ranks for each other, by rank. waiting: time that the rank waits, ns per step; last: fraction of
    all waiting that is for the rank; times: number of collectives (or steps) in which others waited for it. trials:
    number of collectives (or steps). by_step: waiting of each rank in each step, (ranks, steps), ns."""

    waiting: Float64
    last: Float64
    times: Int64
    trials: int
    by_step: Float64


def find_stragglers(
    summaries: Sequence[RankSummary],
    waiting: Waiting,
    links: Chain,
    series: StragglerSeries | None,
    by_series: Waiting | None = None,
) -> Straggler | None:
    """The slow rank or node that the others wait for; None if no rank is late. by_series: waiting by the series of
    steps, which covers more steps, if there is one."""
    late = _node(summaries, waiting)
    late = late if late is not None else _one(waiting, len(summaries))
    if late is None:
        return None
    waited = float(np.delete(waiting.waiting, late).mean())
    step = float(np.mean([summary.step for summary in summaries]))
    others = np.setdiff1d(np.arange(len(summaries)), late)
    lasting = by_series is None or _lasts(summaries, late, others, by_series, waited)
    large = waiting.by_step.shape[1] < LEAST_STEPS and waited >= LARGE * step
    known = (waiting, by_series) if lasting else (by_series,)
    sure = (large and lasting) or any(_sure(each, late) for each in known if each is not None)
    if not sure or waited < LEAST_WAITING * step:
        return None
    excesses = _excesses(summaries, late, others)
    explained = bool(excesses) and excesses[0][1] >= EXPLAINS * waited
    flops = np.array([summary.flops for summary in summaries])
    usual = float(np.median(flops[others]))
    counted = usual > 0 and bool((flops[late] > 0).all())
    behind, next_ = _behind(summaries, late, series)
    since, steadiness = _since(behind, series)
    gain = _gain(behind - next_, links, late, waited) if behind is not None else _gain(None, links, late, waited)
    return Straggler(
        ranks=tuple(summaries[index].rank for index in late.tolist()),
        host=summaries[int(late[0])].host,
        waiting=waited,
        share=float(waiting.last[late].sum()),
        category=excesses[0][0] if explained else "",
        excess=excesses[0][1] if explained else 0.0,
        excesses=excesses,
        gain=replace(gain, value=min(gain.value, step), low=min(gain.low, step), high=min(gain.high, step)),
        arithmetic=float(np.median(flops[late])) / usual if counted else None,
        since=since,
        steadiness=steadiness,
    )


def _lasts(summaries: Sequence[RankSummary], late: Int64, others: Int64, by_series: Waiting, waited: float) -> bool:
    """True unless the delay is limited to the profiled steps. These are few and in a row, and a CPU may have been slow
    for a while. If the always-on timers saw the delay in the profiled steps, they must see it in the others too. A
    delay that they cannot see, inside backward, is accepted."""
    known = [summary.in_profiled for summary in summaries]
    if any(each is None for each in known):
        return True
    own = np.array(known, np.float64)
    seen = float(np.median(own[late]) - np.median(own[others]))
    if seen < EXPLAINS * waited:
        return True
    ahead = by_series.by_step[others].mean(axis=0) - by_series.by_step[late].mean(axis=0)
    return bool(ahead.mean() >= LATE_STEP * seen)


def _one(waiting: Waiting, ranks: int) -> Int64 | None:
    """Rank that most of the waiting is for, None if it waits nearly as long itself."""
    most = int(waiting.last.argmax())
    if waiting.last[most] < (OFTEN_OF_TWO if ranks == 2 else OFTEN):
        return None
    others = np.delete(waiting.waiting, most)
    return np.array([most]) if others.mean() >= RATHER_LATE * waiting.waiting[most] else None


def _node(summaries: Sequence[RankSummary], waiting: Waiting) -> Int64 | None:
    """All ranks of a host, if the others wait for them together and none of them waits for the others; else None."""
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
    """True if these ranks wait so little by more than chance: by number of times, by amount, or by distance. In a
    single step only the last test works: their distance from the next rank exceeds the spread of the others."""
    ranks = len(waiting.waiting)
    if by_chance(int(waiting.times[late].sum()), waiting.trials, len(late) / ranks) * ranks <= MOST_CHANCE:
        return True
    others = np.setdiff1d(np.arange(ranks), late)
    ahead = waiting.by_step[others].mean(axis=0) - waiting.by_step[late].mean(axis=0)
    if len(ahead) >= LEAST_STEPS and tail_of_student(ahead) * ranks <= MOST_CHANCE:
        return True
    usual = waiting.waiting[others]
    lower, upper = np.percentile(usual, (25, 75))
    return len(others) >= LEAST_OTHERS and bool(usual.min() - waiting.waiting[late].max() >= FAR * (upper - lower))


def by_chance(times: int, trials: int, share: float) -> float:
    """Probability of at least `times` hits in `trials` with probability `share` each (binomial distribution)."""
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
    """Probability of a mean at least as high as that of the values if the true one is 0, by Student's t. The equivalent
    normal deviate is Wallace's (Annals of Mathematical Statistics 30, 1959): a quarter too high for three values,
    accurate to some percent from ten on."""
    count = len(values)
    mean, deviation = float(values.mean()), float(values.std(ddof=1))
    if mean <= 0 or deviation <= 0:
        return 0.0 if mean > 0 else 1.0
    freedom = count - 1
    t = mean / deviation * sqrt(count)
    normal = (8 * freedom + 1) / (8 * freedom + 3) * sqrt(freedom * log(1 + t * t / freedom))
    return erfc(normal / sqrt(2)) / 2


def _excesses(summaries: Sequence[RankSummary], late: Int64, others: Int64) -> tuple[tuple[CategoryName, float], ...]:
    """Excess of the stragglers over the others' median by category, ns per step, the largest first."""
    table = np.array([summary.categories for summary in summaries])
    beyond = np.median(table[late], axis=0) - np.median(table[others], axis=0)
    found = [
        (category.title, float(beyond[category]))
        for category in Category
        if category != Category.COMMUNICATION and beyond[category] > 0  # that is where waiting itself lies
    ]
    return tuple(sorted(found, key=lambda each: -each[1]))


def _since(behind: Float64 | None, series: StragglerSeries | None) -> tuple[int | None, float | None]:
    """(first step from which on the ranks are late, fraction of the steps since then in which they are)."""
    if series is None or behind is None or not len(behind):
        return None, None
    usual = float(np.median(behind[behind >= np.median(behind)]))
    is_straggler = behind >= LATE_STEP * usual if usual > 0 else np.zeros(len(behind), np.bool_)
    if not is_straggler.any():
        return None, None
    window = min(WINDOW, len(is_straggler))
    dense = np.convolve(is_straggler, np.ones(window), "valid") > window / 2
    starts = np.flatnonzero(dense & is_straggler[: len(dense)])
    start = int(starts[0]) if len(starts) else int(np.flatnonzero(is_straggler)[0])
    return series.steps[start], float(is_straggler[start:].mean())


def _behind(
    summaries: Sequence[RankSummary], late: Int64, series: StragglerSeries | None
) -> tuple[Float64 | None, Float64 | float]:
    """Delays of the stragglers, and of the last other rank, behind the first rank, (columns,), ns; None if the
    stragglers are not in the series."""
    if series is None:
        return None, 0.0
    wanted = {summaries[index].rank for index in late.tolist()}
    mine = np.isin(series.ranks, list(wanted))
    rows = np.array(series.late)
    return (
        np.median(rows[mine], axis=0) if mine.any() else None,
        np.max(rows[~mine], axis=0) if not mine.all() else 0.0,
    )


def _gain(ahead: Float64 | None, links: Chain, late: Int64, waited: float) -> Estimate:
    """Reduction of the job's step, by replay of the collectives. If a recording's timers see the delay too, their steps
    are used instead, which are more and not slowed. ahead: delay of the stragglers behind all others by column, ns."""
    if ahead is not None and len(ahead) >= WINDOW:
        saved = np.maximum(0.0, ahead)
        if float(saved.mean()) >= LATE_STEP * waited:
            return mean_of_series(saved)
    saved_steps = saved_without(links, late)
    if len(saved_steps):
        return mean_of_series(saved_steps)
    return Estimate(waited, 0.0, 2 * waited, 1)


def with_link(ranks: RankComparison | None, machine: Machine | None) -> RankComparison | None:
    """The comparison with each collective's fraction of the measured link. Unchanged if no link was measured, if other
    programs disturbed that measurement, or if the ranks are on several hosts with another link between them. The
    fastest collective is a lower bound of the link's rate."""
    link = machine.link if machine is not None else None
    if ranks is None or link is None or link.under_load or len({row.host for row in ranks.rows}) != 1:
        return ranks
    rate = max(link.rate.value, *(row.bus_bandwidth or 0.0 for row in ranks.collectives), 0.0)
    return replace(
        ranks,
        collectives=tuple(
            replace(row, link_share=row.bus_bandwidth / rate) if row.bus_bandwidth is not None and rate > 0 else row
            for row in ranks.collectives
        ),
    )


NOTICEABLE = 10_000
"""Differences of arrival below this are ignored, ns (a network's round trip)."""
CONSIDERABLE = 0.1
"""Fraction of the longest wait: the last rank in a shorter wait is not counted."""


def compare(summaries: Sequence[RankSummary]) -> RankComparison | None:
    """Comparison of the ranks, in their order; None for fewer than two."""
    ordered = sorted(summaries, key=lambda summary: summary.rank)
    if len(ordered) < 2:
        return None
    ordered, others = on_common_steps(ordered)
    shared, uneven = match(ordered)
    # Each rank's time is counted from the end of its first collective, which is one moment on all that shared it.
    origins = np.full(len(ordered), np.iinfo(np.int64).max)
    for each in shared:
        if each.start.shape[1]:
            origins[each.ranks] = np.minimum(origins[each.ranks], each.end[:, 0])
    links = chain(shared, origins)
    series, by_series = straggler_series(ordered) or (None, None)
    everywhere = bool(shared) and len(unique(np.concatenate([each.ranks for each in shared]))) == len(ordered)
    waiting = _waiting(ordered, shared, links) if everywhere or (shared and by_series is None) else by_series
    none = np.zeros(len(ordered))
    waits, lasts = (waiting.waiting, waiting.last) if waiting is not None else (none, none)
    rows = (
        RankRow(each.rank, each.name, each.host, each.steps, each.step, each.categories, float(wait), float(last))
        for each, wait, last in zip(ordered, waits, lasts, strict=True)
    )
    return RankComparison(
        categories=tuple(category.name.lower() for category in Category),
        rows=tuple(rows),
        collectives=_collectives(ordered, shared),
        late=find_stragglers(ordered, waiting, links, series, by_series) if waiting is not None else None,
        series=series,
        clocks=clocks(ordered, shared),
        notes=(*others, *uneven),
        world=max(summary.world or 0 for summary in ordered) or None,
    )


def _waiting(summaries: Sequence[RankSummary], shared: Sequence[Shared], links: Chain) -> Waiting:
    """Waiting from the collectives; there must be at least one."""
    ranks = len(summaries)
    steps = max(int(each.step.max(initial=-1)) for each in shared) + 1
    by_step, held = np.zeros((ranks, steps)), [EMPTY] * ranks
    for each in shared:
        for step in unique(each.step).tolist():
            by_step[each.ranks, step] += each.waits[:, each.step == step].sum(axis=1)
        for index, start, wait in zip(each.ranks.tolist(), each.start, each.waits, strict=True):
            held[index] = join(held[index], union(start, start + wait))
    kept, calls = sum(len(each.step) for each in shared), sum(each.calls for each in shared)
    spent = [
        total(held[index]) / max(1, summary.steps) * calls / max(1, kept) for index, summary in enumerate(summaries)
    ]
    culprit, longest, anew = blamed(links)
    longest = np.where(longest >= NOTICEABLE, longest, 0)
    last = np.bincount(culprit, longest, ranks) / max(1, int(longest.sum()))
    counted = anew & (longest > 0) & (longest >= CONSIDERABLE * longest.max(initial=0))
    times = np.bincount(culprit[counted], minlength=ranks)
    return Waiting(np.array(spent), last, times, int(counted.sum()), by_step)


def _collectives(summaries: Sequence[RankSummary], shared: Sequence[Shared]) -> tuple[CollectiveRow, ...]:
    """Rows of the collectives. Groups that differ only in members share one: thousands of ranks have hundreds."""
    alike: dict[tuple[str, str, int], list[Shared]] = {}
    for each in shared:
        alike.setdefault((each.name, each.group, each.size), []).append(each)
    rows = [_collective(summaries, members) for members in alike.values()]
    return tuple(sorted(rows, key=lambda row: -(row.transfer + row.waiting)))


def _collective(summaries: Sequence[RankSummary], members: Sequence[Shared]) -> CollectiveRow:
    first = members[0]
    ranks = np.concatenate([each.ranks for each in members])
    steps = np.array([max(1, summaries[index].steps) for index in ranks.tolist()])
    kept = max(1, first.duration.shape[1])
    scale = first.calls / kept / steps
    transfer = np.concatenate([np.full(len(each.ranks), each.transfer.sum()) for each in members])
    waiting = np.concatenate([each.waits.sum(axis=1) for each in members])
    exposed = np.concatenate([each.exposed for each in members])
    sizes = np.concatenate([each.bytes for each in members])
    shortest = np.concatenate([each.transfer for each in members])
    known = (sizes > 0) & (shortest > 0)
    rate = float(np.median(sizes[known] / shortest[known])) if known.any() else None
    algorithm = rate * 1e9 if rate is not None else None  # B/s
    # The size of a group that no trace says is that of all who are there, when those are the whole job.
    world, there = max(summary.world or 0 for summary in summaries), max(len(each.ranks) for each in members)
    factor = bus_factor(first.name, first.size or (there if world <= there else 0))
    late, share = _last_of(summaries, members)
    return CollectiveRow(
        name=first.name,
        group=first.group,
        size=first.size,
        ranks=len(ranks),
        calls=float(np.mean(first.calls / steps)),
        bytes=float(np.median(sizes[sizes > 0])) if (sizes > 0).any() else None,
        transfer=float(np.mean(transfer * scale)),
        waiting=float(np.mean(waiting * scale)),
        exposed=float(np.mean(exposed / steps)),
        algorithm_bandwidth=algorithm,
        bus_bandwidth=algorithm * factor if algorithm is not None and factor is not None else None,
        late=late,
        straggler_share=share,
    )


def _last_of(summaries: Sequence[RankSummary], members: Sequence[Shared]) -> tuple[int | None, float]:
    """(rank that came last in most of the waiting, its fraction of it)."""
    weight: Float64 = np.zeros(len(summaries))
    for each in members:
        longest = each.waits.max(axis=0, initial=0)
        longest = np.where(longest >= NOTICEABLE, longest, 0)
        weight += np.bincount(each.ranks[each.duration.argmin(axis=0)], longest, len(summaries))
    if not weight.sum():
        return None, 0.0
    most = int(weight.argmax())
    return summaries[most].rank, float(weight[most] / weight.sum())


def informative(comparison: RankComparison) -> tuple[int, ...]:
    """Ranks of a large job that represent it: the straggler, the first, the slowest and a usual one."""
    rows = comparison.rows
    late = comparison.late.ranks[:1] if comparison.late is not None else ()
    by_step = sorted(rows, key=lambda row: row.step)
    usual = by_step[len(by_step) // 2]
    return tuple(dict.fromkeys((*late, rows[0].rank, by_step[-1].rank, usual.rank)))
