"""Operators summed over the steps: how often, how long, what bounds them, which line calls them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from steptime.analysis.device_activity import device_activities
from steptime.analysis.kernel_names import complete
from steptime.analysis.op_cost.call import OpCost
from steptime.analysis.op_cost.op_cost import Bound, Modelled, bound_of, model
from steptime.analysis.step_context import StepContext
from steptime.analysis.threads import input_time
from steptime.analysis.timeline import Phase, PhaseName
from steptime.arrays import PIECE, Bool, Float64, Int8, Int32, Int64, Numbers, among, distinct, give_back, unique
from steptime.intervals import EMPTY, Intervals, contains, union
from steptime.quantities import SourceLine
from steptime.trace.cached_per_trace import cached_per_trace
from steptime.trace.call_tree import (
    ROOT,
    CallTree,
    ExclusiveSpans,
    depths,
    exclusive_spans,
    has_descendant,
    innermost_at,
    nearest_ancestor,
    nested,
    nesting_order,
)
from steptime.trace.links import UNKNOWN, Links, host_forest, none_of, roles_of, source_line
from steptime.trace.table import ABSENT, EventKind, EventTable, Trace
from steptime.trace.vendors import (
    OPTIMIZER_STEP,
    is_engine,
    is_free,
    is_preparing,
    is_recurrent,
    is_wrapper,
    matching,
    of_symbols,
)

DISPATCH_GAP = 50_000
"""ns. Dispatching one operator and the Python of a module around it take a few to a few tens of microseconds; a longer
interval is work of its own: the user's Python between operators, computing inside one."""
NEARLY_ALL = 0.8
"""Fraction of the sequence numbers of forward, for backward to be there: a branch that the loss does not use has
some."""
FEWEST_DURING_A_STALL = 2
"""Steps: of two nobody can tell which one is the usual."""
OWN = 2
"""Times the bytes of the calls inside: a call that moves more than that moves them itself. A division makes a tensor of
its number with calls of their own, a sum clears its result so; a composite operator moves what its parts move."""


def grouped(*keys: npt.NDArray[Any]) -> list[Int64]:
    """Positions by equal values in all of the columns, each group in its order."""
    if not len(keys[0]):
        return []
    order = np.lexsort(keys[::-1])
    differs = np.zeros(len(order) - 1, np.bool_)
    for key in keys:
        differs |= np.diff(key[order]) != 0
    return np.split(order, np.flatnonzero(differs) + 1)


def per_step(step: Int32 | Int64, amount: Int64 | int, steps: int) -> Int64:
    """(steps,) int64: the amounts by step; UNKNOWN steps do not count."""
    known = step != UNKNOWN
    found = np.zeros(steps, np.int64)
    np.add.at(found, step[known], np.broadcast_to(amount, step.shape)[known])
    return found


def step_at(windows: Int64, times: Int64) -> Int64:
    """The step in which each time lies, UNKNOWN outside all."""
    step = np.searchsorted(windows[:, 0], times, side="right") - 1
    inside = (step >= 0) & (times < np.append(windows[:, 1], 0)[step])
    return np.where(inside, step, UNKNOWN)


def time_inside(start: Int64, end: Int64, windows: Int64) -> Int64:
    """(n,) ns of the intervals, each counted for itself, that lie in each window. start <= end; windows: (n, 2) ns."""
    if not len(start):
        return np.zeros(len(windows), np.int64)
    origin = start.min()  # sums of absolute times would not fit
    found = _capped(end - origin, windows - origin) - _capped(start - origin, windows - origin)
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


def rounds_of(steps: StepContext) -> Mapping[SourceLine, int]:
    """By function of the user's, `OperatorUse.rounds` of the operators that it calls; empty without stacks."""
    trace, links = steps.trace, steps.links
    if not np.any(links.function != UNKNOWN):
        return {}
    name = trace.events.name.astype(np.int64)
    rows = np.flatnonzero(operator_events(trace) & np.isin(trace.events.track, steps.tracks))
    forward = links.forward[rows]
    rows = unique(np.where(forward == UNKNOWN, rows, forward)).astype(np.int64)
    rows = rows[links.function[rows] != UNKNOWN]
    forest = host_forest(trace)
    parent = forest.enclosing(np.ones(len(trace.events), np.bool_))
    above = forest.enclosing(roles_of(trace).function)
    called = links.function[rows].astype(np.int64)
    found: dict[int, int] = defaultdict(int)
    for within, at in ((called, rows), (above[called].astype(np.int64), called)):
        known = within != UNKNOWN
        own, frame, child = name[called[known]], within[known], at[known]
        while len(higher := np.flatnonzero((parent[child] != frame) & (parent[child] != UNKNOWN))):
            child[higher] = parent[child[higher]]
        step = step_at(steps.boundaries, trace.events.start[child])
        once_each = distinct(own, frame, name[child], step, child)[0]
        own = own[once_each]
        first, turn = distinct(own, frame[once_each], name[child[once_each]], step[once_each])
        for function, count in zip(own[first].tolist(), np.bincount(turn).tolist(), strict=True):
            found[function] = max(found[function], count)
    lines = ((source_line(trace.symbols[function]), count) for function, count in found.items())
    return {line: count for line, count in lines if line is not None}


def short_gaps(busy: Intervals) -> Intervals:
    """The gaps between the intervals of a set that are no longer than dispatching takes."""
    if len(busy) < 2:
        return EMPTY
    start, end = busy.end[:-1], busy.start[1:]
    short = end - start <= DISPATCH_GAP
    return union(start[short], end[short])


def bridged(busy: Intervals) -> Intervals:
    """The set with its `short_gaps`."""
    if len(busy) < 2:
        return busy
    long = busy.start[1:] - busy.end[:-1] > DISPATCH_GAP
    return Intervals(busy.start[np.append(True, long)], busy.end[np.append(long, True)])


@dataclass(frozen=True, slots=True, eq=False)
class Operations:
    """Operators of one thread, nested; the columns follow the tree's order.

    computing: moves data, and no operator inside it does: what "leaf operator" means here, where allocations, views and
    the preparing of an output (filling it, copying a bias into it) inside do not count. engine: a frame of autograd.
    free: a view or an allocation.
    """

    events: EventTable
    rows: Int32
    parent: Int32
    duration: Numbers
    computing: Bool
    engine: Bool
    free: Bool

    @property
    def tree(self) -> CallTree:
        """Made anew each time: nobody keeps 16 bytes of times for each operator."""
        start = self.events.start[self.rows]
        return CallTree(self.rows, self.parent, start, start + self.duration)

    @property
    def moving(self) -> Bool:
        """Neither a view, an allocation nor a frame of autograd."""
        return ~self.free & ~self.engine

    @property
    def covered(self) -> Intervals:
        """All the time inside operators."""
        tree = self.tree
        return union(tree.start, tree.end)


@cached_per_trace
def operator_events(trace: Trace) -> Bool:
    """Which events are operators; files of 2021 list annotations among them, and compiled code is only annotated."""
    return roles_of(trace).operator


@cached_per_trace
def operations_on(trace: Trace, track: int) -> Operations:
    """The operators of one track."""
    events = trace.events
    rows = np.flatnonzero(operator_events(trace) & (events.track == track)).astype(np.int32)
    rows = rows[nesting_order(events.start[rows], events.duration[rows])]
    parent, duration = nested(events.start[rows], events.duration[rows])
    names = events.name[rows]
    free, engine, preparing, wrapping = (
        of_symbols(trace, test)[names] for test in (is_free, is_engine, is_preparing, is_wrapper)
    )
    moving = ~free & ~engine
    around = has_descendant(parent, moving & ~preparing) | (wrapping & has_descendant(parent, moving))
    return Operations(events, rows, parent, duration, moving & ~around, engine, free)


@cached_per_trace
def spans_on(trace: Trace, track: int) -> ExclusiveSpans:
    """The time of each of its operators outside those within it: on an accelerator nobody asks for it."""
    return exclusive_spans(operations_on(trace, track).tree)


@cached_per_trace
def without_backward(steps: StepContext) -> Bool:
    """By row of the event table: operators that backward has nothing to do with although gradients are on, as they have
    a sequence number then. Operators that an operator calls count with it. Each number is that of an operator that
    records something for backward, so nearly all of them must come back there, unless it is the same forward that is
    left out in each step: else the trace holds the forward of one batch and the backward of another, as with pipelines,
    and nothing is told."""
    trace, forward, number = steps.trace, steps.links.forward.found, steps.trace.events.sequence
    engine = matching(trace, is_engine)
    operators = operator_events(trace) & ~engine
    numbers = unique(number[operators & (number != ABSENT)])
    if not len(numbers):
        return none_of(len(trace.events))
    if among(numbers, number[engine]).mean() < NEARLY_ALL and not _leaves_some_out_in_each_step(steps, operators):
        return none_of(len(trace.events))
    forest = host_forest(trace)
    owned, alone = np.zeros(len(trace.events), np.bool_), np.zeros(len(trace.events), np.bool_)
    owned[forest.outermost(unique(forward[forward != UNKNOWN]), operators)] = True
    for first in range(0, len(operators), PIECE):
        part = np.flatnonzero(operators[first : first + PIECE]) + first
        outermost = forest.outermost(part, operators)
        alone[part] = (number[outermost] != ABSENT) & ~owned[outermost]
    return alone


def _leaves_some_out_in_each_step(steps: StepContext, operators: Bool) -> bool:
    """True if what backward runs belongs to forwards of this trace, and not only the last step's are without one."""
    trace, number, found = steps.trace, steps.trace.events.sequence, steps.links.forward.found
    if not len(found) or (found != UNKNOWN).mean() < NEARLY_ALL:
        return False
    rows = np.flatnonzero(operators & (number != ABSENT))
    left_out = ~among(number[rows], number[matching(trace, is_engine)])
    step = step_at(steps.boundaries, trace.events.start[rows])
    return all(left_out[step == each].mean() >= left_out.mean() / 2 for each in unique(step[step != UNKNOWN]).tolist())


def in_recurrent_layers(steps: StepContext, rows: Numbers) -> Bool:
    """Which of these events one of torch's recurrent operators called, or backward runs for one that it called."""
    layers = operator_events(steps.trace) & matching(steps.trace, is_recurrent)
    if not layers.any():
        return np.zeros(len(rows), np.bool_)
    forward = steps.links.forward[rows]
    inside: Bool = host_forest(steps.trace).enclosing(layers)[np.where(forward == UNKNOWN, rows, forward)] != UNKNOWN
    return inside


@cached_per_trace
def sources_of(steps: StepContext) -> Sources:
    """By operator name and whether backward goes through it, the user's function that most of its time was called from;
    empty without stacks. Operators of backward are traced to their forward operators."""
    trace, tracks = steps.trace, steps.tracks
    if not tracks or not np.any(trace.events.event_kind == EventKind.PYTHON):
        return {}
    function = steps.links.function
    rows = np.flatnonzero(operator_events(trace) & np.isin(trace.events.track, tracks) & (function != UNKNOWN))
    symbols, alone = len(trace.symbols), without_backward(steps)[rows]
    pairs = (2 * trace.events.name[rows].astype(np.int64) + alone) * symbols + trace.events.name[function[rows]]
    first, pair = distinct(pairs)
    pairs, spent = pairs[first], np.bincount(pair, trace.events.duration[rows], len(first))
    found: dict[tuple[str, bool], SourceLine] = {}
    for index in np.argsort(spent, kind="stable").tolist():
        called, caller = divmod(int(pairs[index]), symbols)
        source = source_line(trace.symbols[caller])
        if source is not None:
            found[trace.symbols[called // 2], called % 2 == 0] = source
    return found


@dataclass(frozen=True, slots=True, eq=False)
class OperatorCalls:
    """rows: of the event table. duration: ns, on the device where there is one. phase: `Phase` of each. parent:
    position in these columns of the innermost call around each, ROOT for none."""

    rows: Int32
    duration: Int64
    phase: Int8
    parent: Int32


def operator_calls(steps: StepContext) -> OperatorCalls:
    """Calls that began inside the steps. On an accelerator those that launched something; on a CPU those that
    compute."""
    inside, known = union(steps.boundaries[:, 0], steps.boundaries[:, 1]), 0
    parts: list[tuple[npt.NDArray[Any], ...]] = [(np.empty(0, np.int8),) * 4]
    for track in steps.tracks:
        parts.append(_calls_on(steps, track, inside, known))
        known += len(parts[-1][0])
        give_back(len(steps.trace.events))
    return OperatorCalls(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _calls_on(steps: StepContext, track: int, inside: Intervals, known: int) -> tuple[npt.NDArray[Any], ...]:
    """The columns of `OperatorCalls` for one track. known: how many calls are before them."""
    trace, operations = steps.trace, operations_on(steps.trace, track)
    duration = _device_time(trace, operations, track) if steps.on_device else _processor_time(trace, operations, track)
    kept = (duration > 0) & contains(inside, trace.events.start[operations.rows])
    rows, duration, phase = operations.rows[kept], duration[kept], _phases(steps, operations)[kept]
    position = np.append(np.cumsum(kept, dtype=np.int32) + np.int32(known - 1), np.int32(ROOT))  # the last is ROOT's
    around = np.append(nearest_ancestor(operations.parent, kept), np.int32(ROOT))[operations.parent[kept]]
    return rows, duration, phase, position[around]


def _processor_time(trace: Trace, operations: Operations, track: int) -> Int64:
    """ns of each computing operator, its views and allocations included; of others only where they compute
    themselves."""
    spans, moving, count = spans_on(trace, track), operations.moving, len(operations.rows)
    lengths = spans.end - spans.start
    owner = nearest_ancestor(operations.parent, moving)[spans.owner]
    owned, long = owner != ROOT, lengths > DISPATCH_GAP
    inside = np.bincount(owner[owned], lengths[owned], count).astype(np.int64)
    alone = np.bincount(spans.owner[long], lengths[long], count).astype(np.int64)
    return np.where(operations.computing, inside, np.where(moving, alone, 0))


def _device_time(trace: Trace, operations: Operations, track: int) -> Int64:
    """ns on the device of what each operator launched itself."""
    events, activities = trace.events, device_activities(trace)
    mine = (activities.launch != UNKNOWN) & (events.track[activities.launch] == track)
    owner = np.append(nearest_ancestor(operations.parent, operations.moving), np.int32(ROOT))
    owner = owner[innermost_at(operations.tree, events.start[activities.launch[mine]])]
    spent = events.duration[activities.rows[mine]]
    return np.bincount(owner[owner != ROOT], spent[owner != ROOT], len(operations.rows)).astype(np.int64)


def _phases(steps: StepContext, operations: Operations) -> Int8:
    """By what the caller knows; else by what the trace annotates, and backward is what autograd's engine runs."""
    start = steps.trace.events.start[operations.rows]
    if steps.phases:
        found = np.full(len(start), int(Phase.REST), np.int8)
        for phase, ranges in steps.phases.items():
            found[contains(ranges, start)] = phase
        return found
    events = steps.trace.events
    updates = matching(steps.trace, OPTIMIZER_STEP.match)
    found = np.full(len(start), int(Phase.FORWARD), np.int8)
    found[nearest_ancestor(operations.parent, operations.engine) != ROOT] = Phase.BACKWARD
    found[contains(union(events.start[updates], events.ends(updates)), start)] = Phase.OPTIMIZER
    found[contains(input_time(steps.trace, steps.tracks[0]), start)] = Phase.INPUT
    return found


def worked(trace: Trace, links: Links, calls: OperatorCalls) -> Modelled:
    """Calls of equal arguments are modelled once. A call around others has work of its own only where it multiplies
    matrices and none of those inside does, or where those inside move next to nothing of its bytes: else theirs would
    count twice. Where one inside has no model (in sums of sparse tensors), nobody knows: neither has the call."""
    modelled = complete(trace, links, calls.rows, model(trace, calls.rows))
    multiplies = modelled.flops > 0
    everything = np.ones(len(calls.rows), np.bool_)
    outer, repeated = has_descendant(calls.parent, everything), has_descendant(calls.parent, multiplies)
    own = ~outer | (multiplies & ~repeated)
    inside = _moved_inside(modelled.bytes, calls.parent, own)
    own |= ~multiplies & (modelled.bytes > OWN * inside)
    unknown = ~multiplies & np.isnan(inside) & ~np.isnan(modelled.bytes)
    kind = np.where(own, modelled.kind, len(modelled.works) + unknown)
    return Modelled((*modelled.works, OpCost(0.0, 0.0), None), kind)


def _moved_inside(moved: Float64, parent: Int32, own: Bool) -> Float64:
    """Bytes that the calls inside each one move, nan where one of them has no model. A call moves bytes itself where it
    is `own`, or where they are more than OWN times those inside. The innermost first, level by level."""
    inside, depth = np.zeros(len(moved)), depths(parent)
    order = np.argsort(depth, kind="stable")[::-1]
    for calls in np.split(order, np.flatnonzero(np.diff(depth[order])) + 1):
        itself = own[calls] | (moved[calls] > OWN * inside[calls])
        amount, around = np.where(itself, moved[calls], inside[calls]), parent[calls]
        np.add.at(inside, around[around != ROOT], amount[around != ROOT])
    return inside


@dataclass(frozen=True, slots=True)
class OperatorUse:
    """An operator in one phase over all steps, per step. duration: ns (on an accelerator, of the kernels that it
    launched; on a CPU, inside it, operators within it excluded). bound: "compute", "memory", "latency" (its work takes
    less time at the machine's peaks than dispatching it) or "unmodelled"; on an accelerator, what bounds most of its
    kernels' time. flops, bytes: None where a call has no model. usual: ns, had every call taken what
    the median of those with its arguments did; None where only the sum is known. rounds: how often the source's
    function, while it runs once, calls the same thing, or is itself called by a function that runs once; None where
    that is not known. line: of the source's lines the one that was seen to call it, where that is known.
    differentiated: False where backward has nothing to do with these calls although gradients are on. recurrent: of the
    calls those inside torch's own recurrent layers, in backward those for them: no line of the job's is their loop."""

    name: str
    calls: float
    duration: float
    bound: Bound
    phase: PhaseName | Literal[""] = ""
    flops: float | None = None
    bytes: float | None = None
    source: SourceLine | None = None
    usual: float | None = None
    rounds: int | None = None
    line: SourceLine | None = None
    differentiated: bool = True
    recurrent: float = 0.0

    @property
    def place(self) -> SourceLine | None:
        """The line, else the function that calls it."""
        return self.line or self.source


Sources = Mapping[tuple[str, bool], SourceLine]
"""Lines by the name of an operator and whether backward goes through it."""


def operator_totals(steps: StepContext, sources: Sources, usual: bool = False) -> tuple[OperatorUse, ...]:
    """The operators that did the work of the steps, the longest first. sources: as `sources_of` finds them in a trace
    with stacks. usual: what stands for other steps than these, so that a stall is left out."""
    if not len(steps):
        return ()
    give_back(len(steps.trace.events))
    calls = operator_calls(steps)
    modelled = worked(steps.trace, steps.links, calls)
    differentiated = ~without_backward(steps)[calls.rows] | (calls.phase != Phase.FORWARD)
    recurrent = in_recurrent_layers(steps, calls.rows)
    groups = grouped(steps.trace.events.name[calls.rows], calls.phase, differentiated)
    totals = [
        replace(
            _operator_total(steps, calls, modelled, chosen, sources, bool(differentiated[chosen[0]]), usual),
            recurrent=float(recurrent[chosen].sum()) / len(steps),
        )
        for chosen in groups
    ]
    return tuple(sorted(totals, key=lambda each: (-each.duration, each.name, each.phase)))


def _without_a_stall(steps: StepContext, rows: Numbers, duration: Int64) -> float:
    """ns of these calls in all steps. On a CPU, where a program next to the job may hold up any of them, the step in
    which they took longest counts as much as the second."""
    if steps.on_device or len(steps) <= FEWEST_DURING_A_STALL:
        return float(duration.sum())
    spent = per_step(step_at(steps.boundaries, steps.trace.events.start[rows]), duration, len(steps))
    return float(np.minimum(spent, np.sort(spent)[-2]).sum()) if spent.all() else float(duration.sum())


def _operator_total(
    steps: StepContext,
    calls: OperatorCalls,
    modelled: Modelled,
    chosen: Int64,
    sources: Sources,
    differentiated: bool,
    usual: bool,
) -> OperatorUse:
    """One operator in one phase; `chosen`: positions in `calls`."""
    name = steps.trace.symbols[steps.trace.events.name[calls.rows[chosen[0]]]]
    duration = calls.duration[chosen]
    first, kind = distinct(modelled.kind[chosen])
    kinds, counts = modelled.kind[chosen][first], np.bincount(kind)
    middle = np.cumsum(counts) - counts // 2 - 1
    usual = (duration[np.lexsort((duration, kind))][middle] * counts).sum()
    works = [modelled.works[each] for each in kinds.tolist()]
    bounds: dict[Bound, float] = defaultdict(float)
    for work, spent in zip(works, np.bincount(kind, duration, len(kinds)).tolist(), strict=True):
        bounds[bound_of(work, steps.machine)] += spent

    def mean(amounts: list[float | None]) -> float | None:
        known = [amount * count for amount, count in zip(amounts, counts.tolist(), strict=True) if amount is not None]
        return sum(known) / len(steps) if len(known) == len(amounts) else None

    return OperatorUse(
        name=name,
        calls=len(chosen) / len(steps),
        duration=(_without_a_stall(steps, calls.rows[chosen], duration) if usual else float(duration.sum()))
        / len(steps),
        bound=max(bounds, key=lambda bound: bounds[bound]),
        phase=Phase(int(calls.phase[chosen[0]])).title,
        flops=mean([work.flops if work else None for work in works]),
        bytes=mean([work.bytes if work else None for work in works]),
        source=sources.get((name, differentiated)) or sources.get((name, True)),
        usual=float(usual) / len(steps),
        differentiated=differentiated,
    )
