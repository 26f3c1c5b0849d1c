"""Device-idle time, piece by piece: when, in which step, to which account it is posted, and what caused it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steptime.arrays import Int64
from steptime.intervals import EMPTY, Intervals, contains, instants, subtract, union
from steptime.kineto.once import once
from steptime.kineto.table import Trace
from steptime.ledger.activities import device_time
from steptime.ledger.causes import (
    causes_of_input,
    causes_while_compiling,
    causes_while_launching,
    heaviest,
    held_by,
    outermost_operator,
    thread_on,
)
from steptime.ledger.idle import Idle, idle_claims, idle_of, waiting_calls
from steptime.ledger.ledger import Account
from steptime.ledger.processor import Claims
from steptime.ledger.threads import training_lane
from steptime.links.links import UNKNOWN, Links

STANDING_FOR = {
    Account.INPUT: causes_of_input,
    Account.COMPILE: causes_while_compiling,
    Account.LAUNCH: causes_while_launching,
}
"""By account, what is said in place of the event that held the thread; of the host's own time it is that event."""


@dataclass(frozen=True, slots=True, eq=False)
class Gaps:
    """Pieces of device-idle time of one account each, in time order; all columns int64 of one length, read-only.

    begin, end: ns. gap: number of the idle stretch that the piece is of. step: index of the window. account: an
    `Account` from INPUT on. launch: row of the call that ends the stretch. lane: of the thread that made it. wait: of
    a piece of SYNC, row of the call that waited. cause: row of the event that held that thread for most of the piece:
    an operator, a runtime call, an annotation or a Python function. inside: row of the innermost event alike, whatever
    the account: what the loader was at. Rows are UNKNOWN where there is none.
    """

    begin: Int64
    end: Int64
    gap: Int64
    step: Int64
    account: Int64
    launch: Int64
    lane: Int64
    wait: Int64
    cause: Int64
    inside: Int64

    def __len__(self) -> int:
        return len(self.begin)

    @property
    def duration(self) -> Int64:
        """end - begin, ns."""
        return self.end - self.begin


@once
def gaps_of(
    trace: Trace,
    links: Links,
    windows: Int64,
    *,
    input_ranges: Intervals = EMPTY,
    compile_ranges: Intervals = EMPTY,
    training_thread: int | None = None,
) -> Gaps:
    """The idle time of the steps. windows: (n, 2) ns, the steps as the ledger has them (`trace_steps.reach`); the rest
    as for `account.account_for`, whose entries from INPUT on these pieces sum to, step by step and to the nanosecond.
    """
    busy = device_time(trace).busy
    idle = idle_of(trace, busy, training_lane(trace, training_thread))
    claims = idle_claims(trace, idle, input_ranges, compile_ranges)
    begin, end, step, account = pieces_of(windows, busy, claims)
    gap = np.searchsorted(idle.begin, begin, side="right") - 1
    gap[(gap < 0) | (begin >= np.append(idle.end, 0)[gap])] = UNKNOWN
    lane, launch = (np.append(column, UNKNOWN)[gap] for column in (idle.lane, idle.launch))
    wait = _waits(trace, idle, np.append(idle.begin, 0)[gap], begin, lane)
    wait = np.where((wait == UNKNOWN) & np.append(idle.staged, False)[gap], launch, wait)
    wait = np.where(account == Account.SYNC, wait, UNKNOWN)
    nothing = np.full(len(gap), UNKNOWN)
    found = Gaps(begin, end, gap, step, account, launch, lane, wait, nothing, nothing.copy())
    _find_causes(trace, links, idle, found)
    return found


def pieces_of(windows: Int64, busy: Intervals, claims: Claims) -> tuple[Int64, Int64, Int64, Int64]:
    """begin, end, step and account of the windows' time outside `busy`: each instant to the first claim that holds it.
    windows: (n, 2) ns, disjoint."""
    idle = subtract(union(windows[:, 0], windows[:, 1]), busy)
    sides = [side for each in (idle, *(held for _, held in claims)) for side in (each.begin, each.end)]
    borders = instants(windows.ravel(), *sides)
    heads, tails = borders[:-1], borders[1:]
    inside = contains(idle, heads)
    heads, tails = heads[inside], tails[inside]
    account = np.full(len(heads), Account.UNEXPLAINED, np.int64)
    for name, each in reversed(claims):
        account[contains(each, heads)] = name
    step = np.searchsorted(windows[:, 0], heads, side="right") - 1
    whole = np.append(True, (heads[1:] != tails[:-1]) | (np.diff(account) != 0) | (np.diff(step) != 0))[: len(heads)]
    first = np.flatnonzero(whole)
    last = np.flatnonzero(np.append(whole[1:], len(whole) > 0))
    return heads[first], tails[last], step[first], account[first]


def _waits(trace: Trace, idle: Idle, drained: Int64, begin: Int64, lane: Int64) -> Int64:
    """By piece: the call in which the host waited when the device ran dry, else when the piece begins; UNKNOWN where it
    did not. drained: when the stretch of each piece began, ns."""
    events = trace.events
    found = np.full(len(begin), UNKNOWN)
    for ending, threads in idle.threads.items():
        for thread in threads if ending != UNKNOWN else ():
            calls = waiting_calls(trace, thread)
            for times in (begin, drained):
                call = np.append(calls, UNKNOWN)[np.searchsorted(events.begin[calls], times, side="right") - 1]
                waited = (lane == ending) & (call != UNKNOWN) & (times < events.end[call])
                found = np.where(waited, call, found)
    return found


def _find_causes(trace: Trace, links: Links, idle: Idle, pieces: Gaps) -> None:
    """Writes the event behind each piece; what the cause is looked for among depends on the account."""
    waited = pieces.wait != UNKNOWN
    pieces.cause[waited] = outermost_operator(trace, links, pieces.wait[waited])
    looked_for = np.isin(pieces.account, [*STANDING_FOR, Account.HOST])
    for lanes in sorted(set(idle.threads.values())):
        ending = [lane for lane, explaining in idle.threads.items() if explaining == lanes and lane != UNKNOWN]
        chosen = np.flatnonzero(looked_for & np.isin(pieces.lane, ending))
        if not len(chosen):
            continue
        held = held_by(pieces.begin[chosen], pieces.end[chosen], tuple(thread_on(trace, each) for each in lanes))
        account, behind = pieces.account[chosen][held.piece], held.owner.copy()
        for each, standing_for in STANDING_FOR.items():
            behind[account == each] = standing_for(trace, links, held.owner[account == each])
        pieces.cause[chosen] = heaviest(held.piece, behind, held.duration, len(chosen))
        pieces.inside[chosen] = heaviest(held.piece, held.owner, held.duration, len(chosen))
