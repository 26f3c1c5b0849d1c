"""The roofline of a trace without a device: groups of operators, against what the processor can."""

from __future__ import annotations

from functools import reduce

import numpy as np

from steptime.arrays import Int8, Int64
from steptime.hardware.machine import Machine
from steptime.intervals import EMPTY, Intervals, claim, intersect, join, subtract, union
from steptime.kineto.table import Trace
from steptime.ledger.account import claims_of
from steptime.ledger.ledger import Account
from steptime.ledger.operator_calls import OperatorCalls, operator_calls
from steptime.ledger.operator_work import worked
from steptime.nesting import nest, stretches
from steptime.roofline.groups import BOUNDS, Members, bounds_of_operator, group_at_peaks, totals
from steptime.roofline.roofline import Roofline


def draw_on_processor(trace: Trace, windows: Int64, machine: Machine | None, step: float | None) -> Roofline:
    """A group holds the calls of an operator with arguments of one kind; what the caller knows beside the trace (batch
    preparation, phases) is not in it, as in the ledger of a bare trace."""
    calls = operator_calls(trace, windows, {}, None)
    members, bound_by = _members(trace, calls), bounds_of_operator(machine)
    groups, bounds, machine = group_at_peaks(trace, members, windows, machine, step, bound_by)
    return totals(groups, _split(trace, calls, bounds, windows, machine), windows, machine)


def _members(trace: Trace, calls: OperatorCalls) -> Members:
    """Each call is its own kernel."""
    every = np.ones(len(calls.rows), np.bool_)
    return Members(
        rows=calls.rows,
        operator=calls.rows,
        duration=calls.duration,
        modelled=worked(trace, calls),
        share=np.ones(len(calls.rows)),
        filling=np.full(len(calls.rows), np.nan),
        counted=every,
        communicates=~every,
    )


def _split(trace: Trace, calls: OperatorCalls, bounds: Int8, windows: Int64, machine: Machine | None) -> Int64:
    """(n, len(BOUNDS)) ns: the compute account by what bounds the innermost operator; of an operator around others only
    what lies outside those is its own."""
    pieces = [_pieces(trace, calls, bounds, lane) for lane in np.unique(trace.events.lane[calls.rows])]
    sets = [join(*(each[number] for each in pieces)) for number in range(len(BOUNDS) - 1)]
    sets.append(union(windows[:, 0], windows[:, 1]))  # unmodelled: whatever is left
    earlier, compute = _compute(trace, machine)
    return claim(windows[:, 0], windows[:, 1], [earlier, *(intersect(compute, each) for each in sets)])[:, 1:-1]


def _pieces(trace: Trace, calls: OperatorCalls, bounds: Int8, lane: int) -> list[Intervals]:
    """On one thread, the time of the calls outside each other, by bound."""
    mine = np.flatnonzero(trace.events.lane[calls.rows] == lane)
    made = nest(trace.events.begin[calls.rows[mine]], trace.events.end[calls.rows[mine]])
    found = stretches(made)
    bound = bounds[mine[made.order]][found.owner]
    return [union(found.begin[bound == number], found.end[bound == number]) for number in range(len(BOUNDS))]


def _compute(trace: Trace, machine: Machine | None) -> tuple[Intervals, Intervals]:
    """What the accounts before the compute account claim, and what that one does."""
    claims = claims_of(trace, machine=machine)
    accounts = [account for account, _ in claims]
    if Account.COMPUTE not in accounts:
        return EMPTY, EMPTY
    at = accounts.index(Account.COMPUTE)
    earlier = reduce(join, (held for _, held in claims[:at]), EMPTY)
    return earlier, subtract(claims[at][1], earlier)
