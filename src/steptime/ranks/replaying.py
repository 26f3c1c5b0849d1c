"""The job run again from its collectives: what it would gain if one rank were like the others.

Between two collectives a rank does its own work (input, host, computing); a collective ends when its last rank is
there, plus the transfer. So the times between a collective's end and the next begin of each rank are kept, those of the
late rank are replaced by the median of the others', and the ends follow anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from steptime.arrays import Bool, Int64
from steptime.ranks.matching import Shared

NONE = -1


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """All collectives in one order that suits all ranks. members: (m,) ranks of each; begin, end: (m,) ns, on each
    rank's own clock since its origin. before: (m,) number of the collective that was the last to end on the
    rank before this one began, -1 for none. step: of each."""

    members: tuple[Int64, ...]
    begin: tuple[Int64, ...]
    end: tuple[Int64, ...]
    before: tuple[Int64, ...]
    step: Int64
    ranks: int


def chain(shared: Sequence[Shared], origins: Int64) -> Chain:
    """origins: (ranks,) ns, one moment of the job on each rank's own clock."""
    calls = [
        (int(np.median(each.end[:, k] - origins[each.ranks])), each, k)
        for each in shared
        for k in range(each.duration.shape[1])
    ]
    calls.sort(key=lambda call: call[0])
    members = tuple(each.ranks for _, each, _ in calls)
    begin = tuple(each.begin[:, k] - origins[each.ranks] for _, each, k in calls)
    end = tuple(each.end[:, k] - origins[each.ranks] for _, each, k in calls)
    step = np.array([each.step[k] for _, each, k in calls], np.int64)
    return Chain(members, begin, end, _before(members, begin, end, len(origins)), step, len(origins))


def _before(members: Sequence[Int64], begin: Sequence[Int64], end: Sequence[Int64], ranks: int) -> tuple[Int64, ...]:
    """For each call and rank, the latest call of the chain that had ended on that rank when this one began."""
    before = tuple(np.full(len(each), NONE, np.int64) for each in members)
    whole = np.concatenate(members) if members else np.zeros(0, np.int64)
    number = np.repeat(np.arange(len(members)), [len(each) for each in members])
    place = np.concatenate([np.arange(len(each)) for each in members]) if members else whole
    begins, ends = (np.concatenate(each) if members else whole for each in (begin, end))
    order = np.lexsort((ends, whole))
    bounds = np.searchsorted(whole[order], np.arange(ranks + 1))
    for rank in range(ranks):
        mine = order[bounds[rank] : bounds[rank + 1]]
        found = np.searchsorted(ends[mine], begins[mine], side="right") - 1
        # A call of no length ends where it begins, and is not its own predecessor.
        found = np.where((found >= 0) & (mine[np.maximum(found, 0)] == mine), found - 1, found)
        earlier = np.where(found >= 0, number[mine[np.maximum(found, 0)]], NONE)
        for at, which in zip(mine.tolist(), earlier.tolist(), strict=True):
            if which < number[at]:
                before[number[at]][place[at]] = which
    return before


def blamed(found: Chain) -> tuple[Int64, Int64, Bool]:
    """(index of the rank that each collective waited for, ns of its longest wait, whether the rank was late anew).

    A rank that came last because it had itself waited elsewhere is not to blame: the one it had waited for is, and it
    is the same lateness.
    """
    culprit = np.zeros(len(found.members), np.int64)
    anew = np.ones(len(found.members), np.bool_)
    longest = np.zeros(len(found.members), np.int64)
    waited: list[dict[int, int]] = []
    for number, (ranks, begin, end) in enumerate(zip(found.members, found.begin, found.end, strict=True)):
        duration = end - begin
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
    """(steps,) ns that each step would be shorter with the late ranks at the median of the others."""
    unchanged, changed = _ends(found, np.zeros(0, np.int64)), _ends(found, late)
    steps = np.unique(found.step)
    last = [np.flatnonzero(found.step == step)[-1] for step in steps.tolist()]
    gained = np.maximum(0, unchanged - changed)[last] if len(last) else np.zeros(0, np.int64)
    saved: Int64 = np.diff(np.maximum.accumulate(gained), prepend=0)
    return saved


def _ends(found: Chain, late: Int64) -> Int64:
    """(calls,) ns: when each collective ends; those of `late` begin as the median of the other members does."""
    ends = np.zeros(len(found.members), np.int64)
    for number, (ranks, begin, end) in enumerate(zip(found.members, found.begin, found.end, strict=True)):
        before = found.before[number]
        held = before != NONE
        since = np.where(held, begin - _own_ends(found, before, ranks), begin)
        odd = np.isin(ranks, late)
        if odd.any() and not odd.all():
            since = np.where(odd, np.minimum(since, int(np.median(since[~odd]))), since)
        starts = np.where(held, ends[np.maximum(before, 0)], 0) + since
        ends[number] = starts.max() + (end - begin).min()
    return ends


def _own_ends(found: Chain, before: Int64, ranks: Int64) -> Int64:
    """When the collective before ended, on each rank's own clock."""
    own = np.zeros(len(ranks), np.int64)
    for at, (which, rank) in enumerate(zip(before.tolist(), ranks.tolist(), strict=True)):
        if which != NONE:
            own[at] = found.end[which][np.searchsorted(found.members[which], rank)]
    return own
