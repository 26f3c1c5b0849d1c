"""Operators summed over the steps: how often, how long, what bounds them, which line calls them.

Which function of the user's calls an operator, from a trace with Python stacks.

The line timeline of the recording is finer; this reaches deeper.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from steptime.analysis.device_activity import device_activities
from steptime.analysis.op_cost.call import OpCost
from steptime.analysis.op_cost.op_cost import Modelled, bound_of, model
from steptime.analysis.threads import autograd_lanes, input_time, training_lane
from steptime.analysis.timeline import Phase
from steptime.arrays import Bool, Float64, Int32, Int64
from steptime.intervals import EMPTY, Intervals, contains, subtract, union
from steptime.machine.machine import Machine
from steptime.quantities import SourceLine
from steptime.trace.cached_per_trace import once
from steptime.trace.call_tree import (
    ROOT,
    CallTree,
    ExclusiveSpans,
    ancestors,
    call_tree,
    has_descendant,
    innermost_at,
    nearest_ancestor,
    self_time,
    stretches,
)
from steptime.trace.links import UNKNOWN, Links, is_user_file, link, source_line
from steptime.trace.table import EventKind, Trace
from steptime.trace.vendors import (
    ANNOTATION,
    OPTIMIZER_STEP,
    is_compiled,
    is_engine,
    is_free,
    is_preparing,
    is_wrapper,
    matching,
)


def grouped(*keys: npt.NDArray[Any]) -> list[Int64]:
    """Positions by equal values in all of the columns, each group in its order."""
    if not len(keys[0]):
        return []
    order = np.lexsort(keys[::-1])
    differs = np.zeros(len(order) - 1, np.bool_)
    for key in keys:
        differs |= np.diff(key[order]) != 0
    return np.split(order, np.flatnonzero(differs) + 1)


def per_step(step: Int64, amount: Int64, steps: int) -> Int64:
    """(steps,) int64: the amounts by step; UNKNOWN steps do not count."""
    found = np.zeros(steps, np.int64)
    np.add.at(found, step[step != UNKNOWN], amount[step != UNKNOWN])
    return found


def step_at(windows: Int64, times: Int64) -> Int64:
    """The step in which each time lies, UNKNOWN outside all."""
    step = np.searchsorted(windows[:, 0], times, side="right") - 1
    inside = (step >= 0) & (times < np.append(windows[:, 1], 0)[step])
    return np.where(inside, step, UNKNOWN)


def time_inside(begin: Int64, end: Int64, windows: Int64) -> Int64:
    """(n,) ns of the intervals, each counted for itself, that lie in each window. begin <= end; windows: (n, 2) ns."""
    if not len(begin):
        return np.zeros(len(windows), np.int64)
    origin = begin.min()  # sums of absolute times would not fit
    found = _capped(end - origin, windows - origin) - _capped(begin - origin, windows - origin)
    spent: Int64 = found[:, 1] - found[:, 0]
    return spent


def _capped(sides: Int64, times: Int64) -> Int64:
    """For each time the sum of all sides, none counted beyond it."""
    ordered = np.sort(sides)
    at = np.searchsorted(ordered, times)
    found: Int64 = np.append(0, np.cumsum(ordered))[at] + times * (len(ordered) - at)
    return found


def source_of(trace: Trace, links: Links, rows: Int64, weight: Int64) -> SourceLine | None:
    """The user's function with most of the weight of these rows (UNKNOWN among them has none); None without one."""
    known = rows != UNKNOWN
    function = links.function[rows[known]]
    weight = weight[known][function != UNKNOWN]
    names = trace.events.name[function[function != UNKNOWN]]
    if not len(names):
        return None
    return source_line(trace.symbols[int(np.bincount(names, weight).argmax())])


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
    call_tree: CallTree
    stretches: ExclusiveSpans
    computing: Bool
    engine: Bool
    free: Bool

    @property
    def covered(self) -> Intervals:
        """All the time inside operators."""
        return union(self.call_tree.begin, self.call_tree.end)


@once
def operator_events(trace: Trace) -> Bool:
    """Which events are operators; files of 2021 list annotations among them, and compiled code is only annotated."""
    listed: Bool = (trace.events.event_kind == EventKind.OPERATOR) & ~matching(trace, ANNOTATION.match)
    compiled = (trace.events.event_kind == EventKind.ANNOTATION) & matching(trace, is_compiled)
    operators: Bool = listed | compiled
    return operators


@once
def operations_on(trace: Trace, lane: int, chosen: Bool) -> Operations:
    """The operators among `chosen` on one lane, nested."""
    rows = np.flatnonzero(chosen & (trace.events.lane == lane))
    made = call_tree(trace.events.begin[rows], trace.events.end[rows])
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


def _spent_before(found: ExclusiveSpans) -> Int64:
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


NO_STEPS = np.empty((0, 2), np.int64)


def sources_of(
    trace: Trace,
    links: Links | None = None,
    *,
    training_thread: int | None = None,
    is_user: Callable[[str], bool] | None = None,
) -> dict[str, SourceLine]:
    """By operator name, the user's function that most of its time was called from; empty without stacks.

    What backward runs is traced to its forward operator. links: of the trace, where the caller has them; else they are
    made with is_user, which tells the user's files (as the trace spells them) from libraries.
    """
    lane = training_lane(trace, training_thread)
    if lane is None or not np.any(trace.events.event_kind == EventKind.PYTHON):
        return {}
    known = links or link(trace, NO_STEPS, is_user=is_user or is_user_file)
    lanes = np.isin(trace.events.lane, (lane, *autograd_lanes(trace, lane)))
    rows = np.flatnonzero(operator_events(trace) & lanes & (known.function != UNKNOWN))
    return _heaviest_source_lines(trace, rows, trace.events.name[known.function[rows]])


def _heaviest_source_lines(trace: Trace, rows: Int64, functions: Int32) -> dict[str, SourceLine]:
    """For each operator the function with the most of its time."""
    symbols = len(trace.symbols)
    pairs, pair = np.unique(trace.events.name[rows].astype(np.int64) * symbols + functions, return_inverse=True)
    spent = np.bincount(pair, trace.events.duration[rows], len(pairs))
    found: dict[str, SourceLine] = {}
    for index in np.argsort(spent, kind="stable").tolist():
        name, function = divmod(int(pairs[index]), symbols)
        source = source_line(trace.symbols[function])
        if source is not None:
            found[trace.symbols[name]] = source
    return found


OWN = 2
"""Times the bytes of the calls inside: a call that moves more than that moves them itself. A division makes a tensor of
its number with calls of their own, a sum clears its result so; a composite operator moves what its parts move."""


def worked(trace: Trace, calls: OperatorCalls) -> Modelled:
    """Calls of equal arguments are modelled once. A call around others has work of its own only where it multiplies
    matrices and none of those inside does, or where those inside move next to nothing of its bytes: else theirs would
    count twice."""
    modelled = model(trace, calls.rows)
    multiplies = modelled.flops > 0
    outer, repeated = ancestors(calls.parent, np.ones(len(calls.rows), np.bool_)), ancestors(calls.parent, multiplies)
    own = ~outer | (multiplies & ~repeated)
    own |= ~multiplies & _moved_by_themselves(modelled.bytes, calls.parent, own)
    return Modelled((*modelled.works, OpCost(0.0, 0.0)), np.where(own, modelled.kind, len(modelled.works)))


def _moved_by_themselves(moved: Float64, parent: Int64, own: Bool) -> Bool:
    """Which calls move more than OWN times what the calls inside them do. Nobody knows that where one inside has no
    model (its bytes are nan). Children stand behind their parents, so one pass from the end will do, however deep they
    are nested."""
    found, amount, around = own.copy(), moved.tolist(), parent.tolist()
    inside = [0.0] * len(amount)
    for call in reversed(np.flatnonzero(~own | (parent != ROOT)).tolist()):
        if not found[call]:
            found[call] = amount[call] > OWN * inside[call]
        if around[call] != ROOT:
            inside[around[call]] += amount[call] if found[call] else inside[call]
    return found


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
    trace: Trace, boundaries: Int64, phases: Mapping[Phase, Intervals], training_thread: int | None
) -> OperatorCalls:
    """Calls that began inside the steps. On an accelerator those that launched something; on a CPU those that
    compute."""
    lane = training_lane(trace, training_thread)
    if lane is None:
        return OperatorCalls(*(np.empty(0, np.int64) for _ in range(4)))
    on_device = bool(np.any(trace.events.event_kind == EventKind.KERNEL))
    chosen = operator_events(trace)
    parts, known = [], 0
    for each in (lane, *autograd_lanes(trace, lane)):
        operations = operations_on(trace, each, chosen)
        duration = _device_time(trace, operations, each) if on_device else _processor_time(operations)
        kept = (duration > 0) & contains(union(boundaries[:, 0], boundaries[:, 1]), operations.call_tree.begin)
        phase = _phases(trace, operations, lane, phases)
        parent = _parents(operations.call_tree, kept, known)
        parts.append((operations.rows[kept], duration[kept], phase[kept], parent))
        known += len(parent)
    return OperatorCalls(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _parents(made: CallTree, kept: Bool, offset: int) -> Int64:
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
    owner = nearest_ancestor(operations.call_tree, moving)
    owned = owner != ROOT
    inside = np.bincount(owner[owned], self_time(operations.call_tree)[owned], len(owner)).astype(np.int64)
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
    owner = nearest_ancestor(operations.call_tree, ~operations.free & ~operations.engine)[owner[known]]
    spent = events.duration[rows[mine][known]]
    return np.bincount(owner[owner != ROOT], spent[owner != ROOT], len(operations.rows)).astype(np.int64)


def _phases(trace: Trace, operations: Operations, lane: int, phases: Mapping[Phase, Intervals]) -> Int64:
    """By what the caller knows; else by what the trace annotates, and backward is what autograd's engine runs."""
    begin = operations.call_tree.begin
    if phases:
        found = np.full(len(begin), int(Phase.REST))
        for phase, ranges in phases.items():
            found[contains(ranges, begin)] = phase
        return found
    events = trace.events
    updates = matching(trace, OPTIMIZER_STEP.match)
    found = np.full(len(begin), int(Phase.FORWARD))
    found[nearest_ancestor(operations.call_tree, operations.engine) != ROOT] = Phase.BACKWARD
    found[contains(union(events.begin[updates], events.end[updates]), begin)] = Phase.OPTIMIZER
    found[contains(input_time(trace, lane), begin)] = Phase.INPUT
    return found


@dataclass(frozen=True, slots=True)
class OperatorTotal:
    """An operator over all steps, per step. duration: ns (on an accelerator, of the kernels that it launched; on a CPU,
    inside it, operators within it excluded). bound: "compute", "memory", "latency" (its work takes less time at the
    machine's peaks than dispatching it) or "unmodelled". flops, bytes: None where a call has no model."""

    name: str
    calls: float
    duration: float
    bound: str
    phase: str = ""
    flops: float | None = None
    bytes: float | None = None
    source: SourceLine | None = None


def total(
    trace: Trace,
    boundaries: Int64,
    machine: Machine | None = None,
    *,
    phase_ranges: Mapping[Phase, Intervals] | None = None,
    training_thread: int | None = None,
    sources: Mapping[str, SourceLine] | None = None,
) -> tuple[OperatorTotal, ...]:
    """The operators that did the work of the steps, the longest first.

    boundaries: (n, 2) ns on the trace's clock, as the host sees the steps. machine: whose peaks decide `bound`.
    sources: lines by operator name, as `source_lines.sources_of` finds them in a trace with stacks.
    """
    if not len(boundaries):
        return ()
    calls = operator_calls(trace, boundaries, phase_ranges or {}, training_thread)
    modelled = worked(trace, calls)
    totals = [
        _summed(trace, calls, modelled, rows, machine, len(boundaries), (sources or {}).get(trace.symbols[name]))
        for name, rows in _grouped(trace.events.name[calls.rows])
    ]
    return tuple(sorted(totals, key=lambda each: (-each.duration, each.name)))


def _summed(
    trace: Trace,
    calls: OperatorCalls,
    modelled: Modelled,
    chosen: Int64,
    machine: Machine | None,
    steps: int,
    source: SourceLine | None,
) -> OperatorTotal:
    """One operator; `chosen`: positions in `calls`."""
    rows, duration = calls.rows[chosen], calls.duration[chosen]
    kinds, kind, counts = np.unique(modelled.kind[chosen], return_inverse=True, return_counts=True)
    works = [modelled.works[each] for each in kinds.tolist()]
    spent = np.bincount(kind.reshape(-1), duration, len(kinds))
    return OperatorTotal(
        name=trace.symbols[trace.events.name[rows[0]]],
        calls=len(rows) / steps,
        duration=float(duration.sum()) / steps,
        bound=_heaviest_operators([bound_of(work, machine) for work in works], spent.tolist()),
        phase=Phase(int(np.bincount(calls.phase[chosen], duration).argmax())).name.lower(),
        flops=_per_step([work.flops if work else None for work in works], counts.tolist(), steps),
        bytes=_per_step([work.bytes if work else None for work in works], counts.tolist(), steps),
        source=source,
    )


def _per_step(amounts: list[float | None], counts: list[int], steps: int) -> float | None:
    """The sum over all calls; None when one of them is not known."""
    known = [amount * count for amount, count in zip(amounts, counts, strict=True) if amount is not None]
    return sum(known) / steps if len(known) == len(amounts) else None


def _heaviest_operators(labels: list[str], weights: list[float]) -> str:
    """The label with the largest sum of weights."""
    sums: dict[str, float] = {}
    for label, weight in zip(labels, weights, strict=True):
        sums[label] = sums.get(label, 0.0) + weight
    return max(sums, key=lambda label: sums[label])


def _grouped(keys: Int32) -> list[tuple[int, Int64]]:
    """(key, positions) for each distinct key."""
    order = np.argsort(keys, kind="stable")
    distinct, heads = np.unique(keys[order], return_index=True)
    return list(zip(distinct.tolist(), np.split(order, heads[1:]), strict=True)) if len(keys) else []
