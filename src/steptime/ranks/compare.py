"""From summaries of ranks to their comparison: the reduce step, and the room's main function."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from steptime.arrays import Float64, Int64
from steptime.intervals import union
from steptime.ledger.ledger import Account
from steptime.ranks.bandwidth import algorithm_bandwidth, bus_factor
from steptime.ranks.clocks import clocks
from steptime.ranks.comparison import CollectiveRow, RankComparison, RankRow
from steptime.ranks.late import Waiting, find_late
from steptime.ranks.matching import Shared, match, on_common_steps
from steptime.ranks.replaying import Chain, blamed, chain
from steptime.ranks.series import late_series, waiting_in_series
from steptime.ranks.summary import RankSummary

NOTICEABLE = 10_000
"""ns: ranks that arrive within ten microseconds of one another arrive together (a network's round trip)."""
CONSIDERABLE = 0.1
"""Of the longest wait: who is last in a shorter one says nothing about who is late."""
ACCOUNTS = tuple(account.name.lower() for account in Account)


def compare(summaries: Sequence[RankSummary]) -> RankComparison | None:
    """The ranks beside one another, in their order; None for fewer than two."""
    ordered = sorted(summaries, key=lambda summary: summary.rank)
    if len(ordered) < 2:
        return None
    ordered, others = on_common_steps(ordered)
    shared, uneven = match(ordered)
    links = chain(shared, _origins(ordered, shared))
    watched = waiting_in_series(ordered)
    waiting = _waiting(ordered, shared, links, all_of_them=watched is None) or watched
    series = late_series(ordered)
    world = max((summary.world or 0 for summary in ordered), default=0)
    return RankComparison(
        accounts=ACCOUNTS,
        rows=tuple(_row(summary, waiting, index) for index, summary in enumerate(ordered)),
        collectives=_collectives(ordered, shared),
        late=find_late(ordered, waiting, links, series, watched) if waiting is not None else None,
        series=series,
        clocks=clocks(ordered, shared),
        notes=(*others, *uneven),
        world=world or None,
    )


def _row(summary: RankSummary, waiting: Waiting | None, index: int) -> RankRow:
    return RankRow(
        rank=summary.rank,
        name=summary.name,
        host=summary.host,
        steps=summary.steps,
        step=summary.step,
        accounts=summary.accounts,
        waiting=float(waiting.waiting[index]) if waiting is not None else 0.0,
        last=float(waiting.last[index]) if waiting is not None else 0.0,
    )


def _origins(summaries: Sequence[RankSummary], shared: Sequence[Shared]) -> Int64:
    """Where each rank's time is counted from: the end of its first collective, which is one moment on all that shared
    it. What came before that one is not in the replay."""
    origins = np.full(len(summaries), np.iinfo(np.int64).max)
    for each in shared:
        if each.begin.shape[1]:
            origins[each.ranks] = np.minimum(origins[each.ranks], each.end[:, 0])
    return origins


def _waiting(
    summaries: Sequence[RankSummary], shared: Sequence[Shared], links: Chain, *, all_of_them: bool
) -> Waiting | None:
    """From the collectives; None where the ranks have none in common, or not all of them have and there is something
    better (all_of_them is False)."""
    if not shared or not (
        all_of_them or len(np.unique(np.concatenate([each.ranks for each in shared]))) == len(summaries)
    ):
        return None
    spent = np.zeros(len(summaries))
    for index, summary in enumerate(summaries):
        begin, wait = _waits_of(index, shared)
        held = union(begin, begin + wait)
        kept, calls = sum(len(each.step) for each in shared), sum(each.calls for each in shared)
        spent[index] = float((held.end - held.begin).sum()) / max(1, summary.steps) * calls / max(1, kept)
    culprit, longest, anew = blamed(links)
    longest = np.where(longest >= NOTICEABLE, longest, 0)
    last = np.bincount(culprit, longest, len(summaries)) / max(1, int(longest.sum()))
    counted = anew & (longest > 0) & (longest >= CONSIDERABLE * longest.max(initial=0))
    times = np.bincount(culprit[counted], minlength=len(summaries))
    return Waiting(spent, last, times, int(counted.sum()), _waits_by_step(len(summaries), shared))


def _waits_by_step(ranks: int, shared: Sequence[Shared]) -> Float64:
    """(ranks, steps) ns."""
    steps = max((int(each.step.max(initial=-1)) for each in shared), default=-1) + 1
    table = np.zeros((ranks, steps))
    for each in shared:
        for step in np.unique(each.step).tolist():
            table[each.ranks, step] += each.waits[:, each.step == step].sum(axis=1)
    return table


def _waits_of(index: int, shared: Sequence[Shared]) -> tuple[Int64, Int64]:
    """Begins and waits of one rank in all collectives."""
    begins, waits = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for each in shared:
        at = int(np.searchsorted(each.ranks, index))
        if at < len(each.ranks) and each.ranks[at] == index:
            begins.append(each.begin[at])
            waits.append(each.waits[at])
    return np.concatenate(begins), np.concatenate(waits)


def _collectives(summaries: Sequence[RankSummary], shared: Sequence[Shared]) -> tuple[CollectiveRow, ...]:
    """Groups of one kind that differ in their members only are one row: thousands of ranks have hundreds of groups."""
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
    algorithm = algorithm_bandwidth(rate, 1.0) if rate is not None else None
    factor = bus_factor(first.name, first.size or _whole_job(summaries, members))
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
        late_share=share,
    )


def _whole_job(summaries: Sequence[RankSummary], members: Sequence[Shared]) -> int:
    """Ranks of a group whose size no trace says: all that are there, when those are the whole job; else not known."""
    world = max((summary.world or 0 for summary in summaries), default=0)
    there = max(len(each.ranks) for each in members)
    return there if world <= there else 0


def _last_of(summaries: Sequence[RankSummary], members: Sequence[Shared]) -> tuple[int | None, float]:
    """Who came last in most of the waiting."""
    weight: Float64 = np.zeros(len(summaries))
    for each in members:
        longest = each.waits.max(axis=0, initial=0)
        longest = np.where(longest >= NOTICEABLE, longest, 0)
        weight += np.bincount(each.ranks[each.duration.argmin(axis=0)], longest, len(summaries))
    if not weight.sum():
        return None, 0.0
    most = int(weight.argmax())
    return summaries[most].rank, float(weight[most] / weight.sum())


def telling(comparison: RankComparison) -> tuple[int, ...]:
    """The ranks of a large job that are worth a look each: the late one, the first, the slowest and a usual one."""
    rows = comparison.rows
    late = comparison.late.ranks[:1] if comparison.late is not None else ()
    by_step = sorted(rows, key=lambda row: row.step)
    usual = by_step[len(by_step) // 2]
    return tuple(dict.fromkeys((*late, rows[0].rank, by_step[-1].rank, usual.rank)))
