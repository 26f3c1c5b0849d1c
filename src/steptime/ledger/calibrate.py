"""The accounts of steps that were watched but not profiled.

The profiler slows what it records, dispatching above all (about half a microsecond per event), so its steps are not the
steps that the user waits for. The watch measures the phases of every steady step at next to no cost, but does not see
inside them. So each has what the other lacks:

- what a phase *is* is measured, not estimated: the input phase is the account input, the transfer phase is copy;
- the other phases keep their watched duration, split as the profiled steps were split inside the same phase, after the
  profiler's own time (profiled phase minus watched phase, where that is positive, and no more than its events can
  cost) was taken off launch first, and off the rest in proportion where launch is not enough.

This is an estimate: it holds as far as profiled and steady steps do the same work, and errs towards compute, because
the events of long operators cost the profiler time too. On an accelerator the phases of the host say little about the
device, which runs behind it; there the whole step is split as the profiled steps were.
"""

from __future__ import annotations

import numpy as np

from steptime.arrays import Int64
from steptime.ledger.ledger import Account, Ledger
from steptime.timeline.timeline import Phase

MEASURED = {Phase.INPUT: Account.INPUT, Phase.TRANSFER: Account.COPY}
"""Phases that are an account."""
UNSEEN = {Phase.REST: Account.HOST}
"""Where a phase goes that the profiled steps did not have: outside the model it is the user's Python; inside,
unexplained."""


PROFILER_COST = 1_000
"""ns per recorded event, at most: 0.45 measured without shapes, 0.7 with. A profiled phase that is longer by more than
that was slowed by something else, such as a busy machine, which slows computing as much as dispatching."""


def calibrate(
    profiled: Int64, steps: int, phases: Int64, device: str = "cpu", *, events: Int64 | None = None
) -> Ledger:
    """The ledger of the steady steps.

    profiled: (len(Phase), len(Account)) ns of all profiled steps together (`account_phases`), zeros when there are
    none. steps: how many they are. phases: (n, len(Phase)) ns, the watched phases of the steady steps
    (`Steps.phases`). device: "cpu" keeps the phases apart, anything else splits whole steps. events: (len(Phase),)
    recorded in the profiled steps, which bounds what the profiler cost; without it all that is longer is laid to it.
    Rows sum to the steps exactly.
    """
    entries = np.zeros((len(phases), len(Account)), np.int64)
    if device != "cpu" and profiled.any():
        cost = None if events is None else int(events.sum()) * PROFILER_COST
        shares = _without_overhead(profiled.sum(axis=0), steps, phases.sum(axis=1), cost)
        return Ledger(device, phases.sum(axis=1), split(phases.sum(axis=1), shares))
    for phase in Phase:
        watched = phases[:, phase]
        if phase in MEASURED:
            entries[:, MEASURED[phase]] += watched
            continue
        cost = None if events is None else int(events[phase]) * PROFILER_COST
        shares = _without_overhead(profiled[phase], steps, watched, cost)
        if not shares.any():
            entries[:, UNSEEN.get(phase, Account.UNEXPLAINED)] += watched
            continue
        entries += split(watched, shares)
    return Ledger(device, phases.sum(axis=1), entries)


def split(totals: Int64, shares: Int64) -> Int64:
    """(n, k) integers: each total divided in the proportion of the k shares, rows summing to the totals exactly.

    shares: non-negative, not all zero. Rounding goes by the running sum, so no part is off by a whole unit.
    """
    reached = np.concatenate(([0.0], np.cumsum(shares) / shares.sum()))
    borders = np.rint(totals[:, None] * reached[None, :]).astype(np.int64)
    borders[:, -1] = totals
    parts: Int64 = np.diff(borders, axis=1)
    return parts


def _without_overhead(profiled: Int64, steps: int, watched: Int64, most: int | None) -> Int64:
    """What would have been profiled at no cost: launch gives first, then all in proportion (which changes no share).

    most: ns that the profiler can have cost, None when that is not known.
    """
    if not steps or not len(watched):
        return profiled
    overhead = max(0, int(profiled.sum()) - round(float(watched.mean()) * steps))
    overhead = overhead if most is None else min(overhead, most)
    shares = profiled.copy()
    shares[Account.LAUNCH] -= min(overhead, int(shares[Account.LAUNCH]))
    return shares
