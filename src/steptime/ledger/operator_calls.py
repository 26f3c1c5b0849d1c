"""The calls of operators that did work in the steps, and how long that took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from steptime.arrays import Bool, Int64
from steptime.intervals import Intervals, contains, union
from steptime.kineto.table import Category, Trace
from steptime.ledger.activities import UNKNOWN, device_activities
from steptime.ledger.operations import DISPATCH_GAP, Operations, operations_on, operator_events
from steptime.ledger.threads import autograd_lanes, input_time, training_lane
from steptime.links.names import OPTIMIZER_STEP, matching
from steptime.nesting import ROOT, Nest, innermost_at, nearest_ancestor, self_time
from steptime.timeline.timeline import Phase


@dataclass(frozen=True, slots=True, eq=False)
class OperatorCalls:
    """rows: positions in the event table. duration: ns, on the device where there is one. phase: `Phase` of each.

    parent: position in these columns of the innermost call around each, ROOT for none. What a call with others inside
    spends itself may be no more than an interruption of its thread, so its arguments need not tell work of its own.
    """

    rows: Int64
    duration: Int64
    phase: Int64
    parent: Int64


def operator_calls(
    trace: Trace, borders: Int64, phases: Mapping[Phase, Intervals], training_thread: int | None
) -> OperatorCalls:
    """Calls that began inside the steps. On an accelerator those that launched something; on a CPU those that
    compute."""
    lane = training_lane(trace, training_thread)
    if lane is None:
        return OperatorCalls(*(np.empty(0, np.int64) for _ in range(4)))
    on_device = bool(np.any(trace.events.category == Category.KERNEL))
    chosen = operator_events(trace)
    parts, known = [], 0
    for each in (lane, *autograd_lanes(trace, lane)):
        operations = operations_on(trace, each, chosen)
        duration = _device_time(trace, operations, each) if on_device else _processor_time(operations)
        kept = (duration > 0) & contains(union(borders[:, 0], borders[:, 1]), operations.nest.begin)
        phase = _phases(trace, operations, lane, phases)
        parent = _parents(operations.nest, kept, known)
        parts.append((operations.rows[kept], duration[kept], phase[kept], parent))
        known += len(parent)
    return OperatorCalls(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _parents(made: Nest, kept: Bool, offset: int) -> Int64:
    """Of the kept intervals: where the kept one around it lies, counted from `offset`."""
    position = np.append(np.cumsum(kept) - 1 + offset, ROOT)  # ROOT is the last
    above = made.parent[kept]
    known = above != ROOT
    above[known] = nearest_ancestor(made, kept)[above[known]]
    return position[above]


def _processor_time(operations: Operations) -> Int64:
    """ns of each computing operator, its views and allocations included; of others only where they compute
    themselves."""
    moving = ~operations.free & ~operations.engine
    owner = nearest_ancestor(operations.nest, moving)
    owned = owner != ROOT
    inside = np.bincount(owner[owned], self_time(operations.nest)[owned], len(owner)).astype(np.int64)
    found = operations.stretches
    lengths = np.where(found.end - found.begin > DISPATCH_GAP, found.end - found.begin, 0)
    alone = np.bincount(found.owner, lengths, len(owner)).astype(np.int64)
    return np.where(operations.computing, inside, np.where(moving, alone, 0))


def _device_time(trace: Trace, operations: Operations, lane: int) -> Int64:
    """ns on the device of what each operator launched itself."""
    events, activities = trace.events, device_activities(trace)
    launched = activities.launch != UNKNOWN
    launch, rows = activities.launch[launched], activities.rows[launched]
    mine = events.lane[launch] == lane
    owner = innermost_at(operations.stretches, events.begin[launch[mine]])
    known = owner != ROOT
    owner = nearest_ancestor(operations.nest, ~operations.free & ~operations.engine)[owner[known]]
    spent = events.duration[rows[mine][known]]
    return np.bincount(owner[owner != ROOT], spent[owner != ROOT], len(operations.rows)).astype(np.int64)


def _phases(trace: Trace, operations: Operations, lane: int, phases: Mapping[Phase, Intervals]) -> Int64:
    """By what the caller knows; else by what the trace annotates, and backward is what autograd's engine runs."""
    begin = operations.nest.begin
    if phases:
        found = np.full(len(begin), int(Phase.REST))
        for phase, ranges in phases.items():
            found[contains(ranges, begin)] = phase
        return found
    events = trace.events
    updates = matching(trace, OPTIMIZER_STEP.match)
    found = np.full(len(begin), int(Phase.FORWARD))
    found[nearest_ancestor(operations.nest, operations.engine) != ROOT] = Phase.BACKWARD
    found[contains(union(events.begin[updates], events.end[updates]), begin)] = Phase.OPTIMIZER
    found[contains(input_time(trace, lane), begin)] = Phase.INPUT
    return found
