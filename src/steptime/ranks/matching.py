"""The same collective on all its ranks: the k-th of a kind in a group is one and the same wherever it was called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from steptime.arrays import Int64
from steptime.ranks.summary import Exchange, RankSummary


@dataclass(frozen=True, slots=True, eq=False)
class Shared:
    """Collectives of one kind and group, over the ranks that have them all. ranks: (m,) indices of the summaries.

    begin, duration: (m, k) ns, each on its rank's own clock; bytes: (k,), -1 where not known; step: (k,). calls: of
    all, of which k were kept. exposed: (m,) ns of all calls.
    """

    name: str
    group: str
    size: int
    members: str
    calls: int
    ranks: Int64
    begin: Int64
    duration: Int64
    bytes: Int64
    step: Int64
    exposed: Int64

    @property
    def transfer(self) -> Int64:
        """(k,) ns in which all ranks were there: the duration on the last one."""
        shortest: Int64 = self.duration.min(axis=0)
        return shortest

    @property
    def waits(self) -> Int64:
        """(m, k) ns that each rank waited for the last one."""
        waits: Int64 = self.duration - self.transfer
        return waits

    @property
    def end(self) -> Int64:
        """(m, k) ns."""
        end: Int64 = self.begin + self.duration
        return end


def on_common_steps(summaries: Sequence[RankSummary]) -> tuple[list[RankSummary], tuple[str, ...]]:
    """The same with the collectives of those steps only that all ranks profiled, where their recordings number them: a
    rank that was ready too late profiled others. A sentence where some were left out."""
    known = [set(summary.numbers) for summary in summaries if summary.exchanges and summary.numbers]
    if len(known) < 2 or all(each == known[0] for each in known):
        return list(summaries), ()
    common = np.array(sorted(set.intersection(*known)), np.int64)
    trimmed = [_trimmed(summary, common) if summary.numbers else summary for summary in summaries]
    return trimmed, (f"The ranks did not all profile the same steps: {len(common)} of them are compared.",)


def _trimmed(summary: RankSummary, common: Int64) -> RankSummary:
    numbers = np.array(summary.numbers, np.int64)
    exchanges = tuple(_of_steps(each, numbers, common) for each in summary.exchanges if each.calls == len(each.step))
    kept = tuple(each for each in exchanges if each.calls)
    return replace(summary, exchanges=kept, steps=max(1, len(common)), numbers=tuple(common.tolist()))


def _of_steps(exchange: Exchange, numbers: Int64, common: Int64) -> Exchange:
    mine = np.isin(numbers[exchange.step], common)
    return replace(
        exchange,
        calls=int(mine.sum()),
        step=np.searchsorted(common, numbers[exchange.step[mine]]),
        begin=exchange.begin[mine],
        duration=exchange.duration[mine],
        bytes=exchange.bytes[mine],
    )


def match(summaries: Sequence[RankSummary]) -> tuple[tuple[Shared, ...], tuple[str, ...]]:
    """What at least two ranks have called equally often, and a sentence for what was left out."""
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
            shared.append(_shared(held))
    shared.sort(key=lambda each: -int(each.duration.sum()))
    return tuple(shared), (_told(uneven),) if uneven else ()


def _shared(held: Sequence[tuple[int, Exchange]]) -> Shared:
    first = held[0][1]
    return Shared(
        name=first.name,
        group=first.group,
        size=first.size,
        members=first.members,
        calls=first.calls,
        ranks=np.array([index for index, _ in held], np.int64),
        begin=np.stack([each.begin for _, each in held]),
        duration=np.stack([each.duration for _, each in held]),
        bytes=np.max([each.bytes for _, each in held], axis=0),
        step=first.step,
        exposed=np.array([each.exposed for _, each in held], np.int64),
    )


def _told(uneven: Sequence[str]) -> str:
    more = f" and {len(uneven) - 1} more" if len(uneven) > 1 else ""
    return f"{uneven[0]}{more}: not called equally often by all its ranks, and left out of their comparison."
