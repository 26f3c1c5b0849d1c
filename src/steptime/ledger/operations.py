"""The operators of one thread: which of them compute, and what their time outside each other goes to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steptime.arrays import Bool, Int64
from steptime.intervals import EMPTY, Intervals, subtract, union
from steptime.kineto.once import once
from steptime.kineto.table import Category, Trace
from steptime.links.names import (
    ANNOTATION,
    is_compiled,
    is_engine,
    is_free,
    is_preparing,
    is_wrapper,
    matching,
)
from steptime.nesting import Nest, Stretches, has_descendant, nest, stretches

DISPATCH_GAP = 50_000
"""ns. Dispatching one operator and the Python of a module around it take a few to a few tens of microseconds; a longer
stretch is work of its own: the user's Python between operators, computing inside one."""


@dataclass(frozen=True, slots=True, eq=False)
class Operations:
    """Operators of one thread. rows: positions in the event table, in the nest's order; the masks follow it too.

    computing: moves data, and no operator inside it does: what "leaf operator" means here, where allocations, views and
    the preparing of an output (filling it, copying a bias into it) inside do not count. engine: a frame of autograd.
    free: a view or an allocation.
    """

    rows: Int64
    nest: Nest
    stretches: Stretches
    computing: Bool
    engine: Bool
    free: Bool

    @property
    def covered(self) -> Intervals:
        """All the time inside operators."""
        return union(self.nest.begin, self.nest.end)


@once
def operator_events(trace: Trace) -> Bool:
    """Which events are operators; files of 2021 list annotations among them, and compiled code is only annotated."""
    listed: Bool = (trace.events.category == Category.OPERATOR) & ~matching(trace, ANNOTATION.match)
    compiled = (trace.events.category == Category.ANNOTATION) & matching(trace, is_compiled)
    operators: Bool = listed | compiled
    return operators


@once
def operations_on(trace: Trace, lane: int, chosen: Bool) -> Operations:
    """The operators among `chosen` on one lane, nested."""
    rows = np.flatnonzero(chosen & (trace.events.lane == lane))
    made = nest(trace.events.begin[rows], trace.events.end[rows])
    rows = rows[made.order]
    free, engine = matching(trace, is_free)[rows], matching(trace, is_engine)[rows]
    moving = ~free & ~engine
    preparing, wrapping = matching(trace, is_preparing)[rows], matching(trace, is_wrapper)[rows]
    computing = moving & ~has_descendant(made, moving & ~preparing) & ~(wrapping & has_descendant(made, moving))
    return Operations(rows, made, stretches(made), computing, engine, free)


def compute_time(operations: Operations, dispatch: int) -> Intervals:
    """Where a CPU thread computes.

    In a computing operator all its own time but the first `dispatch` ns; in an operator around others only stretches
    too long for dispatching, because it computes between them; never in a view or a frame of autograd.
    """
    found = operations.stretches
    leaf = operations.computing[found.owner]
    spent = _spent_before(found)
    begin = np.where(leaf, found.begin + np.clip(dispatch - spent, 0, found.end - found.begin), found.begin)
    around = ~leaf & ~operations.engine[found.owner] & ~operations.free[found.owner]
    kept = leaf | (around & (found.end - found.begin > DISPATCH_GAP))
    return union(begin[kept], found.end[kept])


def dispatch_time(operations: Operations, compute: Intervals) -> Intervals:
    """Where a CPU thread dispatches: inside operators, but neither computing nor long in a frame of autograd.

    A long stretch in such a frame is Python: a hook, or the backward of a custom function.
    """
    found = operations.stretches
    python = operations.engine[found.owner] & (found.end - found.begin > DISPATCH_GAP)
    return subtract(union(found.begin[~python], found.end[~python]), compute)


def short_gaps(busy: Intervals, longest: int = DISPATCH_GAP) -> Intervals:
    """The gaps between the intervals of a set that last no longer than `longest` ns."""
    if len(busy) < 2:
        return EMPTY
    begin, end = busy.end[:-1], busy.begin[1:]
    short = end - begin <= longest
    return union(begin[short], end[short])


def _spent_before(found: Stretches) -> Int64:
    """For each stretch, how many ns its owner has had in earlier stretches."""
    order = np.argsort(found.owner, kind="stable")
    lengths = (found.end - found.begin)[order]
    before = np.cumsum(lengths) - lengths
    owners = found.owner[order]
    heads = np.flatnonzero(np.concatenate(([True], owners[1:] != owners[:-1]))) if len(owners) else owners
    counts = np.diff(np.append(heads, len(owners)))
    spent = np.empty(len(owners), np.int64)
    spent[order] = before - np.repeat(before[heads], counts)
    return spent
