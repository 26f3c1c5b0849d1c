"""Collectives matched across their ranks: the k-th of a kind in a group is the same one wherever it was called.

A collective ends on all ranks within its transfer. So differences of its ends between hosts are the offset of their
clocks plus scatter: the median is the offset, and the scatter gives its uncertainty.

The chain of all collectives replays the job with one rank like the others. Between two collectives a rank does its own
work, and a collective ends when its last rank has arrived, plus the transfer. Each rank keeps its times from a
collective's end to its next start, except that the straggler's are replaced by the others' median, and the ends follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from steptime.analysis.stragglers.comparison import HostClock
from steptime.analysis.stragglers.summary import Exchange, RankSummary
from steptime.arrays import Bool, Int64, unique
from steptime.quantities import median_of


@dataclass(frozen=True, slots=True, eq=False)
class Shared:
    """Collectives of one kind and group over the ranks that have them all. ranks: indices of the summaries, (m,).
    start, duration: (m, k), ns, each on its rank's own clock; bytes: bytes of each call, (k,), -1 if unknown; step:
    index of its step, (k,). calls: number of all calls, of which k were kept. exposed: time in all calls with nothing
    but communication, (m,), ns."""

    name: str
    group: str
    size: int
    calls: int
    ranks: Int64
    start: Int64
    duration: Int64
    bytes: Int64
    step: Int64
    exposed: Int64

    @property
    def transfer(self) -> Int64:
        """Time in which all ranks were present, (collectives,), ns: the duration on the last rank to arrive."""
        return np.asarray(self.duration.min(axis=0))

    @property
    def waits(self) -> Int64:
        """Time that each rank waited for the last one to arrive, (ranks, collectives), ns."""
        return self.duration - self.transfer

    @property
    def end(self) -> Int64:
        """End of each collective on each rank, (ranks, collectives), ns."""
        return self.start + self.duration


def on_common_steps(summaries: Sequence[RankSummary]) -> tuple[list[RankSummary], tuple[str, ...]]:
    """(summaries with only the collectives of steps that all ranks profiled, a sentence if steps were left out). This
    applies if the recordings number the steps: a rank that was ready too late profiled other steps."""
    known = [set(summary.numbers) for summary in summaries if summary.exchanges and summary.numbers]
    if len(known) < 2 or all(each == known[0] for each in known):
        return list(summaries), ()
    common = np.array(sorted(set.intersection(*known)), np.int64)
    trimmed = list(summaries)
    for index, summary in enumerate(summaries):
        if summary.numbers:
            numbers, whole = np.array(summary.numbers), [e for e in summary.exchanges if e.calls == len(e.step)]
            kept = tuple(found for each in whole if (found := _of_steps(each, numbers, common)).calls)
            steps = max(1, len(common))
            trimmed[index] = replace(summary, exchanges=kept, steps=steps, numbers=tuple(common.tolist()))
    return trimmed, (f"Not all ranks profiled the same steps; {len(common)} common steps are compared.",)


def _of_steps(exchange: Exchange, numbers: Int64, common: Int64) -> Exchange:
    mine = np.isin(numbers[exchange.step], common)
    return replace(
        exchange,
        calls=int(mine.sum()),
        step=np.searchsorted(common, numbers[exchange.step[mine]]),
        start=exchange.start[mine],
        duration=exchange.duration[mine],
        bytes=exchange.bytes[mine],
    )


def match(summaries: Sequence[RankSummary]) -> tuple[tuple[Shared, ...], tuple[str, ...]]:
    """(collectives that at least two ranks called equally often, a sentence if others were left out)."""
    found: dict[tuple[str, str, int, str], list[tuple[int, Exchange]]] = {}
    for index, summary in enumerate(summaries):
        for exchange in summary.exchanges:
            found.setdefault(exchange.key, []).append((index, exchange))
    shared: list[Shared] = []
    uneven: list[str] = []
    for (name, group, size, _), held in found.items():
        if len(held) < 2:
            continue
        if len({each.calls for _, each in held}) > 1 or 0 < size < len(held):
            uneven.append(f"{name} in group {group}" if group else name)
        else:
            first = held[0][1]
            shared.append(
                Shared(
                    name=name,
                    group=group,
                    size=size,
                    calls=first.calls,
                    ranks=np.array([index for index, _ in held], np.int64),
                    start=np.stack([each.start for _, each in held]),
                    duration=np.stack([each.duration for _, each in held]),
                    bytes=np.max([each.bytes for _, each in held], axis=0),
                    step=first.step,
                    exposed=np.array([each.exposed for _, each in held], np.int64),
                )
            )
    shared.sort(key=lambda each: -int(each.duration.sum()))
    if not uneven:
        return tuple(shared), ()
    more = f" and {len(uneven) - 1} more" if len(uneven) > 1 else ""
    message = f"{uneven[0]}{more}: not called equally often by all ranks, so excluded from the comparison."
    return tuple(shared), (message,)


LEAST_ENDS = 3
"""Fewest collective ends for an offset."""
MOST_ENDS = 2000


def clocks(summaries: Sequence[RankSummary], shared: Sequence[Shared]) -> tuple[HostClock, ...]:
    """Offsets of further hosts' clocks against the first host's; one per host. Empty if no host is named. The
    uncertainty is half of the interval of the offsets' median. It cannot reveal a link that always ends later."""
    hosts = list(dict.fromkeys(summary.host for summary in summaries))
    if len(hosts) < 2 or not all(hosts):
        return ()
    differences: dict[str, list[Int64]] = {host: [] for host in hosts[1:]}
    for each in shared:
        named = [summaries[index].host for index in each.ranks.tolist()]
        if hosts[0] not in named:
            continue
        base = each.end[named.index(hosts[0])]
        for host in hosts[1:]:
            if host in named:
                differences[host].append(base - each.end[named.index(host)])
    found = []
    for host, parts in differences.items():
        if sum(map(len, parts)) >= LEAST_ENDS:
            median = median_of(np.concatenate(parts)[:MOST_ENDS])
            found.append(HostClock(host, round(median.value), round((median.high - median.low) / 2), median.samples))
    return tuple(found)


NONE = -1


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """All collectives in one order that fits all ranks. For each collective: members: its ranks, (m,); start, end:
    (m,), ns, on each rank's own clock since its origin. before: number of the last collective that ended on the rank
    before this one started, (m,), -1 for none. step: index of its step."""

    members: tuple[Int64, ...]
    start: tuple[Int64, ...]
    end: tuple[Int64, ...]
    before: tuple[Int64, ...]
    step: Int64


def chain(shared: Sequence[Shared], origins: Int64) -> Chain:
    """Chain of all collectives. origins: one moment of the job on each rank's own clock, (ranks,), ns."""
    calls = [
        (int(np.median(each.end[:, k] - origins[each.ranks])), each, k)
        for each in shared
        for k in range(each.duration.shape[1])
    ]
    calls.sort(key=lambda call: call[0])
    members = tuple(each.ranks for _, each, _ in calls)
    start = tuple(each.start[:, k] - origins[each.ranks] for _, each, k in calls)
    end = tuple(each.end[:, k] - origins[each.ranks] for _, each, k in calls)
    step = np.array([each.step[k] for _, each, k in calls], np.int64)
    return Chain(members, start, end, _before(members, start, end, len(origins)), step)


def _before(members: Sequence[Int64], start: Sequence[Int64], end: Sequence[Int64], ranks: int) -> tuple[Int64, ...]:
    """Latest earlier call of the chain that had ended on the rank when this call started, for each call and rank."""
    before = tuple(np.full(len(each), NONE, np.int64) for each in members)
    whole = np.concatenate(members) if members else np.zeros(0, np.int64)
    number = np.repeat(np.arange(len(members)), [len(each) for each in members])
    place = np.concatenate([np.arange(len(each)) for each in members]) if members else whole
    starts, ends = (np.concatenate(each) if members else whole for each in (start, end))
    order = np.lexsort((ends, whole))
    bounds = np.searchsorted(whole[order], np.arange(ranks + 1))
    for rank in range(ranks):
        mine = order[bounds[rank] : bounds[rank + 1]]
        found = np.searchsorted(ends[mine], starts[mine], side="right") - 1
        # A call of no length ends where it starts, and is not its own predecessor.
        found = np.where((found >= 0) & (mine[np.maximum(found, 0)] == mine), found - 1, found)
        earlier = np.where(found >= 0, number[mine[np.maximum(found, 0)]], NONE)
        for at, which in zip(mine.tolist(), earlier.tolist(), strict=True):
            if which < number[at]:
                before[number[at]][place[at]] = which
    return before


def blamed(found: Chain) -> tuple[Int64, Int64, Bool]:
    """(index of the rank that each collective waited for, its longest wait in ns, whether that rank was late anew). A
    rank that is last because it waited elsewhere is not to blame: the rank that it waited for is, and both delays count
    as one."""
    culprit = np.zeros(len(found.members), np.int64)
    anew = np.ones(len(found.members), np.bool_)
    longest = np.zeros(len(found.members), np.int64)
    waited: list[dict[int, int]] = []
    for number, (ranks, start, end) in enumerate(zip(found.members, found.start, found.end, strict=True)):
        duration = end - start
        waits = duration - duration.min()
        last = int(duration.argmin())
        longest[number] = waits.max()
        culprit[number] = ranks[last]
        before = int(found.before[number][last])
        if before != NONE and 2 * waited[before].get(int(ranks[last]), 0) >= longest[number]:
            culprit[number], anew[number] = culprit[before], False
        waited.append(dict(zip(ranks.tolist(), waits.tolist(), strict=True)))
    return culprit, longest, anew


def saved_without(found: Chain, late: Int64) -> Int64:
    """Savings in each step, (steps,), ns, if the stragglers `late` were at the others' median."""
    unchanged, changed = _ends(found, np.zeros(0, np.int64)), _ends(found, late)
    steps = unique(found.step)
    last = [np.flatnonzero(found.step == step)[-1] for step in steps.tolist()]
    gained = np.maximum(0, unchanged - changed)[last] if len(last) else np.zeros(0, np.int64)
    saved: Int64 = np.diff(np.maximum.accumulate(gained), prepend=0)
    return saved


def _ends(found: Chain, late: Int64) -> Int64:
    """End of each collective, (calls,), ns; the ranks in `late` start like the median of the other members."""
    ends = np.zeros(len(found.members), np.int64)
    for number, (ranks, start, end) in enumerate(zip(found.members, found.start, found.end, strict=True)):
        before = found.before[number]
        held = before != NONE
        since = start.copy()
        for at in np.flatnonzero(held).tolist():  # the end of the one before, on the rank's own clock
            since[at] -= found.end[before[at]][np.searchsorted(found.members[before[at]], ranks[at])]
        odd = np.isin(ranks, late)
        if odd.any() and not odd.all():
            since = np.where(odd, np.minimum(since, int(np.median(since[~odd]))), since)
        starts = np.where(held, ends[np.maximum(before, 0)], 0) + since
        ends[number] = starts.max() + (end - start).min()
    return ends
