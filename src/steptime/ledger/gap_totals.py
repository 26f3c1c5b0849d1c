"""Device-idle time by cause, and the calls that wait for the device with the idle time that they caused."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steptime.arrays import Int64
from steptime.kineto.table import Category, Trace
from steptime.ledger.causes import outermost_operator
from steptime.ledger.gaps import Gaps
from steptime.ledger.grouping import grouped, per_step, source_of
from steptime.ledger.ledger import Account
from steptime.links.links import UNKNOWN, Links
from steptime.links.names import SYNCHRONISATION, matching
from steptime.quantities import SourceLine

BY_LINE = (Account.SYNC, Account.HOST)


@dataclass(frozen=True, slots=True, eq=False)
class GapTotal:
    """Idle time of one account with one cause ("" where the trace shows none). duration: (n,) ns of each step; count:
    (n,) pieces; longest: ns. source: where the user's function begins that has most of it; of input, the one in the
    loader, if the trace shows one there. inside: of input, what the loader was at for most of it ("" if not known)."""

    account: Account
    cause: str
    duration: Int64
    count: Int64
    longest: int
    source: SourceLine | None
    inside: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class WaitTotal:
    """One kind of wait for the device from one place. call: of the runtime. operator: the outermost one around it
    (aten::item, aten::to), "" for none. calls: (n,) in each step; idle: (n,) ns of the device that they caused."""

    call: str
    operator: str
    calls: Int64
    idle: Int64
    source: SourceLine | None


def gap_totals(trace: Trace, links: Links, gaps: Gaps, steps: int) -> tuple[GapTotal, ...]:
    """The longest first. By account they sum to the ledger's entries of each step. steps: how many there are.

    Waits and Python of one name are told apart by the user's functions around them, because each is a line to change.
    """
    names = np.where(gaps.cause == UNKNOWN, UNKNOWN, trace.events.name[gaps.cause])
    function = np.where(gaps.cause == UNKNOWN, UNKNOWN, links.function[gaps.cause])
    line = np.where(function == UNKNOWN, UNKNOWN, trace.events.name[function])
    behind = np.where(gaps.account == Account.INPUT, gaps.inside, gaps.cause)
    totals = []
    for chosen in grouped(gaps.account, names, np.where(np.isin(gaps.account, BY_LINE), line, UNKNOWN)):
        first, step, duration = chosen[0], gaps.step[chosen], gaps.duration[chosen]
        totals.append(
            GapTotal(
                account=Account(int(gaps.account[first])),
                cause="" if names[first] == UNKNOWN else trace.symbols[names[first]],
                duration=per_step(step, duration, steps),
                count=per_step(step, np.ones(len(step), np.int64), steps),
                longest=int(duration.max()),
                source=source_of(trace, links, behind[chosen], duration),
                inside=_inside(trace, gaps, chosen) if gaps.account[first] == Account.INPUT else "",
            )
        )
    return tuple(sorted(totals, key=lambda each: (-int(each.duration.sum()), each.account, each.cause)))


def wait_totals(trace: Trace, links: Links, gaps: Gaps, steps: int) -> tuple[WaitTotal, ...]:
    """Those that cost the device most first. Calls that begin in a step count, and what held the host beside them."""
    events = trace.events
    calls = (events.category == Category.RUNTIME) & matching(trace, SYNCHRONISATION.search)
    rows = np.union1d(np.flatnonzero(calls), gaps.wait[gaps.wait != UNKNOWN])
    idle = np.zeros((len(rows), steps), np.int64)
    waited = gaps.wait != UNKNOWN
    np.add.at(idle, (np.searchsorted(rows, gaps.wait[waited]), gaps.step[waited]), gaps.duration[waited])
    kept = (links.step[rows] != UNKNOWN) | idle.any(axis=1)
    rows, idle = rows[kept], idle[kept]
    around = outermost_operator(trace, links, rows)
    totals = []
    for chosen in grouped(events.name[rows], events.name[around], links.function[rows]):
        first, ones = chosen[0], np.ones(len(chosen), np.int64)
        totals.append(
            WaitTotal(
                call=trace.symbols[events.name[rows[first]]],
                operator="" if around[first] == rows[first] else trace.symbols[events.name[around[first]]],
                calls=per_step(links.step[rows[chosen]], ones, steps),
                idle=idle[chosen].sum(axis=0),
                source=source_of(trace, links, rows[chosen], ones),
            )
        )
    return tuple(sorted(totals, key=lambda each: (-int(each.idle.sum()), -int(each.calls.sum()), each.call)))


def _inside(trace: Trace, gaps: Gaps, chosen: Int64) -> str:
    """The name of the event that held most of these pieces, "" where it is what they are called after anyway."""
    known = chosen[(gaps.inside[chosen] != UNKNOWN) & (gaps.inside[chosen] != gaps.cause[chosen])]
    if not len(known):
        return ""
    names = trace.events.name[gaps.inside[known]]
    spent = np.bincount(names, gaps.duration[known])
    return trace.symbols[int(spent.argmax())] if spent.max() > gaps.duration[chosen].sum() / 2 else ""
