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
from steptime.trace.table import ABSENT, SPARSE, EventKind, EventTable, Trace
from steptime.trace.vendors import (
    DETACH,
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
"""Longest dispatch, ns. Dispatching an operator and the Python of a module around it take a few to a few tens of
microseconds. A longer interval is work: the user's Python between operators, computing inside an operator."""
NEARLY_ALL = 0.8
"""Fraction of forward's sequence numbers that backward must contain. A branch that the loss does not use has some
too."""
FEWEST_DURING_A_STALL = 2
"""Steps: with so few, no step can be called the usual one."""
STALL, LONGEST_UNSTALLED = 10, 1_000_000
"""A call that takes ten times as long as the same work at its place in the other steps, and this many ns more, had no
CPU meanwhile: a scheduler gives other programs turns of milliseconds, and cold memory costs less."""
OWN = 2
"""Factor on the bytes of the calls inside: a call that moves more than this moves bytes itself. A division makes a
tensor of its scalar by calls, and a sum clears its result so; a composite operator moves only what its parts move."""


def grouped(*keys: npt.NDArray[Any]) -> list[Int64]:
    """Groups of positions with equal values in all columns, each in ascending order."""
    if not len(keys[0]):
        return []
    order = np.lexsort(keys[::-1])
    differs = np.zeros(len(order) - 1, np.bool_)
    for key in keys:
        differs |= np.diff(key[order]) != 0
    return np.split(order, np.flatnonzero(differs) + 1)


def per_step(step: Int32 | Int64, amount: Int64 | int, steps: int) -> Int64:
    """Sum of the amounts in each step, (steps,) int64. step: step of each amount; UNKNOWN is ignored."""
    known = step != UNKNOWN
    found = np.zeros(steps, np.int64)
    np.add.at(found, step[known], np.broadcast_to(amount, step.shape)[known])
    return found


def step_at(windows: Int64, times: Int64) -> Int64:
    """Index of the step that contains each time, UNKNOWN outside of all steps."""
    step = np.searchsorted(windows[:, 0], times, side="right") - 1
    inside = (step >= 0) & (times < np.append(windows[:, 1], 0)[step])
    return np.where(inside, step, UNKNOWN)


def time_inside(start: Int64, end: Int64, windows: Int64) -> Int64:
    """Time that the intervals share with each window, (n,), ns; overlaps count twice. windows: (n, 2), ns."""
    if not len(start):
        return np.zeros(len(windows), np.int64)
    origin = start.min()  # sums of absolute times would not fit
    found = _capped(end - origin, windows - origin) - _capped(start - origin, windows - origin)
    spent: Int64 = found[:, 1] - found[:, 0]
    return spent


def _capped(sides: Int64, times: Int64) -> Int64:
    """Sum of min(side, time) over all sides, for each time."""
    ordered = np.sort(sides)
    at = np.searchsorted(ordered, times)
    found: Int64 = np.append(0, np.cumsum(ordered))[at] + times * (len(ordered) - at)
    return found


def source_of(trace: Trace, links: Links, rows: Int64, weight: Int64) -> SourceLine | None:
    """User's function that most of the rows' weight comes from (UNKNOWN rows do not count); None without any."""
    known = rows != UNKNOWN
    function = links.function[rows[known]]
    weight = weight[known][function != UNKNOWN]
    names = trace.events.name[function[function != UNKNOWN]]
    if not len(names):
        return None
    return source_line(trace.symbols[int(np.bincount(names, weight).argmax())])


def rounds_of(steps: StepContext) -> Mapping[SourceLine, int]:
    """Number of rounds of the operators that each user function calls (`OperatorUse.rounds`); empty without stacks."""
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
    """Gaps between the intervals that are no longer than DISPATCH_GAP."""
    if len(busy) < 2:
        return EMPTY
    start, end = busy.end[:-1], busy.start[1:]
    short = end - start <= DISPATCH_GAP
    return union(start[short], end[short])


def bridged(busy: Intervals) -> Intervals:
    """The intervals joined across the gaps that `short_gaps` returns."""
    if len(busy) < 2:
        return busy
    long = busy.start[1:] - busy.end[:-1] > DISPATCH_GAP
    return Intervals(busy.start[np.append(True, long)], busy.end[np.append(long, True)])


@dataclass(frozen=True, slots=True, eq=False)
class Operations:
    """Nested operators of one thread, one row each in the order of the call tree. computing: the operator moves data
    and no operator inside it does ("leaf operator" here); allocations, views and preparation of an output (filling it,
    copying a bias into it) inside do not count. engine: the row is a frame of autograd. free: it is a view or an
    allocation."""

    events: EventTable
    rows: Int32
    parent: Int32
    duration: Numbers
    computing: Bool
    engine: Bool
    free: Bool

    @property
    def tree(self) -> CallTree:
        """Call tree of the operators. Built anew on each access, because its times would take 16 bytes per operator."""
        start = self.events.start[self.rows]
        return CallTree(self.rows, self.parent, start, start + self.duration)

    @property
    def moving(self) -> Bool:
        """Mask of the operators that are no view, allocation or frame of autograd."""
        return ~self.free & ~self.engine

    @property
    def covered(self) -> Intervals:
        """Instants at which the thread is inside an operator."""
        tree = self.tree
        return union(tree.start, tree.end)


@cached_per_trace
def operator_events(trace: Trace) -> Bool:
    """Mask of the operators. Files of 2021 list annotations among them; compiled code appears as annotations."""
    return roles_of(trace).operator


@cached_per_trace
def operations_on(trace: Trace, track: int) -> Operations:
    """Operators that ran on one track, nested."""
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
    """Exclusive time of the operators on one track. A function of its own, since an accelerator never needs it."""
    return exclusive_spans(operations_on(trace, track).tree)


@cached_per_trace
def without_backward(steps: StepContext) -> Bool:
    """Mask over the event table of the operators that backward does not go through although gradients are on. Such an
    operator, or one around it, has a sequence number. Nearly all sequence numbers must return in backward, unless each
    step leaves out the same forwards. Otherwise the trace holds the forward of one batch and the backward of another,
    as with pipelines, and the mask is all False."""
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


@cached_per_trace
def unreached(steps: StepContext) -> Bool:
    """Mask over the event table of operators whose result needs a gradient, but which no backward reaches. An operator
    made a node of the graph if the next one has a higher sequence number; other operators depend on nothing that is
    trained."""
    alone, number, events = without_backward(steps), steps.trace.events.sequence, steps.trace.events
    operators, forest = operator_events(steps.trace) & ~matching(steps.trace, is_engine), host_forest(steps.trace)
    rows = np.flatnonzero(operators & (number != ABSENT)) if alone.any() else np.zeros(0, np.int64)
    rows = rows[forest.outermost(rows, operators) == rows]
    rows = rows[np.lexsort((events.start[rows], events.track[rows]))]
    made = np.zeros(len(events), np.bool_)
    later, earlier = rows[1:], rows[:-1]
    made[earlier] = (events.track[later] == events.track[earlier]) & (number[later] > number[earlier])
    chosen = np.flatnonzero(alone)
    found = np.zeros(len(events), np.bool_)
    found[chosen] = made[forest.outermost(chosen, operators)]
    return found


def takes_values(steps: StepContext) -> bool:
    """True if the job detaches a tensor of several numbers from its graph, outside of backward and update; then even
    results that no backward reaches may be in use."""
    trace = steps.trace
    detaching = np.flatnonzero(matching(trace, DETACH.__eq__) & (steps.links.step != UNKNOWN))
    detaching = detaching[host_forest(trace).around(detaching, operator_events(trace), itself=False) == UNKNOWN]
    updating = steps.phases.get(Phase.OPTIMIZER, EMPTY)
    detaching = detaching[~contains(updating, trace.events.start[detaching])]
    scalar = [at >= 0 and trace.shapes[at].replace(" ", "").startswith("[[]") for at in trace.events.shapes[detaching]]
    return not all(scalar)


def _leaves_some_out_in_each_step(steps: StepContext, operators: Bool) -> bool:
    """True if backward belongs to forwards in this trace and each step, not only the last, has some without
    backward."""
    trace, number, found = steps.trace, steps.trace.events.sequence, steps.links.forward.found
    if not len(found) or (found != UNKNOWN).mean() < NEARLY_ALL:
        return False
    rows = np.flatnonzero(operators & (number != ABSENT))
    left_out = ~among(number[rows], number[matching(trace, is_engine)])
    step = step_at(steps.boundaries, trace.events.start[rows])
    return all(left_out[step == each].mean() >= left_out.mean() / 2 for each in unique(step[step != UNKNOWN]).tolist())


def in_recurrent_layers(steps: StepContext, rows: Numbers) -> Bool:
    """Mask of the rows whose event a recurrent operator of torch called, or runs in backward for such a call."""
    layers = operator_events(steps.trace) & matching(steps.trace, is_recurrent)
    if not layers.any():
        return np.zeros(len(rows), np.bool_)
    forward = steps.links.forward[rows]
    inside: Bool = host_forest(steps.trace).enclosing(layers)[np.where(forward == UNKNOWN, rows, forward)] != UNKNOWN
    return inside


@cached_per_trace
def sources_of(steps: StepContext) -> Sources:
    """User's function that calls each operator for most of the operator's time, by operator name and whether backward
    goes through the call; empty without stacks. Operators of backward are traced to their forward operators."""
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
    """Calls of operators, one row each. rows: row in the event table. duration: ns, on the device if there is one.
    phase: its `Phase`. parent: position in these columns of the innermost call around each, ROOT for none."""

    rows: Int32
    duration: Int64
    phase: Int8
    parent: Int32


def source_behind(trace: Trace, links: Links, row: int) -> SourceLine | None:
    """User's function that led to an event; None without stacks."""
    function = int(links.function[row]) if 0 <= row < len(links.function) else UNKNOWN
    return source_line(trace.symbols[int(trace.events.name[function])]) if function != UNKNOWN else None


def operator_calls(steps: StepContext) -> OperatorCalls:
    """Calls of operators that start inside the steps: on an accelerator the calls that launched something, on a CPU the
    calls that compute."""
    inside, known = union(steps.boundaries[:, 0], steps.boundaries[:, 1]), 0
    parts: list[tuple[npt.NDArray[Any], ...]] = [(np.empty(0, np.int8),) * 4]
    for track in steps.tracks:
        parts.append(_calls_on(steps, track, inside, known))
        known += len(parts[-1][0])
        give_back(len(steps.trace.events))
    return OperatorCalls(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _calls_on(steps: StepContext, track: int, inside: Intervals, known: int) -> tuple[npt.NDArray[Any], ...]:
    """Columns of `OperatorCalls` for one track. known: number of calls on earlier tracks."""
    trace, operations = steps.trace, operations_on(steps.trace, track)
    duration = _device_time(trace, operations, track) if steps.on_device else _processor_time(trace, operations, track)
    kept = (duration > 0) & contains(inside, trace.events.start[operations.rows])
    rows, duration, phase = operations.rows[kept], duration[kept], _phases(steps, operations)[kept]
    position = np.append(np.cumsum(kept, dtype=np.int32) + np.int32(known - 1), np.int32(ROOT))  # the last is ROOT's
    around = np.append(nearest_ancestor(operations.parent, kept), np.int32(ROOT))[operations.parent[kept]]
    return rows, duration, phase, position[around]


def _processor_time(trace: Trace, operations: Operations, track: int) -> Int64:
    """Time of each operator on the CPU, ns: all of a computing operator's, with its views and allocations; of other
    operators only intervals in which they compute themselves."""
    spans, moving, count = spans_on(trace, track), operations.moving, len(operations.rows)
    lengths = spans.end - spans.start
    owner = nearest_ancestor(operations.parent, moving)[spans.owner]
    owned, long = owner != ROOT, lengths > DISPATCH_GAP
    inside = np.bincount(owner[owned], lengths[owned], count).astype(np.int64)
    alone = np.bincount(spans.owner[long], lengths[long], count).astype(np.int64)
    return np.where(operations.computing, inside, np.where(moving, alone, 0))


def _device_time(trace: Trace, operations: Operations, track: int) -> Int64:
    """Device time of the kernels and copies that each operator launched itself, ns."""
    events, activities = trace.events, device_activities(trace)
    mine = (activities.launch != UNKNOWN) & (events.track[activities.launch] == track)
    owner = np.append(nearest_ancestor(operations.parent, operations.moving), np.int32(ROOT))
    owner = owner[innermost_at(operations.tree, events.start[activities.launch[mine]])]
    spent = events.duration[activities.rows[mine]]
    return np.bincount(owner[owner != ROOT], spent[owner != ROOT], len(operations.rows)).astype(np.int64)


def _phases(steps: StepContext, operations: Operations) -> Int8:
    """Phase of each operator, from the recording if there is one. Otherwise from annotations, and backward is what
    autograd's engine runs."""
    start = steps.trace.events.start[operations.rows]
    if steps.phases:
        return phases_at(steps, start)
    events = steps.trace.events
    updates = matching(steps.trace, OPTIMIZER_STEP.match)
    found = np.full(len(start), int(Phase.FORWARD), np.int8)
    found[nearest_ancestor(operations.parent, operations.engine) != ROOT] = Phase.BACKWARD
    found[contains(union(events.start[updates], events.ends(updates)), start)] = Phase.OPTIMIZER
    found[contains(input_time(steps.trace, steps.tracks[0]), start)] = Phase.INPUT
    return found


def phases_at(steps: StepContext, times: Int64) -> Int8:
    """Phase of the step at each of these times, from a recording."""
    found = np.full(len(times), int(Phase.REST), np.int8)
    for phase, ranges in steps.phases.items():
        found[contains(ranges, times)] = phase
    return found


def worked(trace: Trace, links: Links, calls: OperatorCalls) -> Modelled:
    """Cost of each operator call; calls with equal arguments are modelled once. A call around others gets a cost only
    if it multiplies matrices and no inner call does, or if inner calls move almost none of its bytes; otherwise work
    would count twice. If an inner call has no model (sums of sparse tensors), neither has the outer one; products of
    sparse matrices have none either."""
    modelled = complete(trace, links, calls.rows, model(trace, calls.rows))
    multiplies = modelled.flops > 0
    everything = np.ones(len(calls.rows), np.bool_)
    outer, repeated = has_descendant(calls.parent, everything), has_descendant(calls.parent, multiplies)
    own = ~outer | (multiplies & ~repeated)
    inside = _moved_inside(modelled.bytes, calls.parent, own)
    own |= ~multiplies & (modelled.bytes > OWN * inside)
    unknown = ~multiplies & np.isnan(inside) & ~np.isnan(modelled.bytes)
    sparse = np.array([SPARSE in kinds for kinds in (*trace.dtypes, "")])
    unknown |= sparse[np.maximum(trace.events.dtypes[calls.rows], -1)]
    kind = np.where(own, modelled.kind, len(modelled.works) + unknown)
    return Modelled((*modelled.works, OpCost(0.0, 0.0), None), kind)


def _moved_inside(moved: Float64, parent: Int32, own: Bool) -> Float64:
    """Bytes that the calls inside each call move, nan if one of them has no model. A call moves bytes itself if it is
    `own`, or if its bytes exceed OWN times those inside. The loop goes level by level from the innermost."""
    inside, depth = np.zeros(len(moved)), depths(parent)
    order = np.argsort(depth, kind="stable")[::-1]
    for calls in np.split(order, np.flatnonzero(np.diff(depth[order])) + 1):
        itself = own[calls] | (moved[calls] > OWN * inside[calls])
        amount, around = np.where(itself, moved[calls], inside[calls]), parent[calls]
        np.add.at(inside, around[around != ROOT], amount[around != ROOT])
    return inside


@dataclass(frozen=True, slots=True)
class OperatorUse:
    """Calls of one operator in one phase. calls: number per step. duration: ns per step (on an accelerator, of its
    kernels; on a CPU, without inner operators). bound: "compute", "memory", "latency" (its work takes less time at the
    machine's peaks than dispatching it) or "unmodelled"; on an accelerator, the bound of most of its kernels' time.
    flops, bytes: per step, None if a call has no model. source: user's function that calls it; line: line in it, if
    known. usual: duration in ns if each call took the median of those with equal arguments, None if only the sum is
    known. rounds: largest number of repetitions of one call in one run of the source's function, or of that function in
    one run of its caller; None if unknown. differentiated: False if backward does not go through these calls although
    gradients are on. unreached: ns of the calls whose result needs a gradient but that no backward reaches. recurrent:
    number of calls inside torch's recurrent layers (in backward, for them), whose loop is no line of the job's.
    intensity: FLOP per byte, pointwise operations included."""

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
    unreached: float = 0.0
    recurrent: float = 0.0
    intensity: float | None = None

    @property
    def place(self) -> SourceLine | None:
        """Line that calls the operator; if unknown, the function that calls it."""
        return self.line or self.source


Sources = Mapping[tuple[str, bool], SourceLine]
"""Source lines by (name of an operator, whether backward goes through it)."""


def operator_totals(steps: StepContext, sources: Sources, usual: bool = False) -> tuple[OperatorUse, ...]:
    """Time and work of the operators in the steps, the longest first. sources: as `sources_of` returns them for a trace
    with stacks. usual: True if the totals represent other steps, so that a stall in one step is left out."""
    if not len(steps):
        return ()
    give_back(len(steps.trace.events))
    calls = operator_calls(steps)
    modelled = worked(steps.trace, steps.links, calls)
    left = unreached(steps)[calls.rows]
    differentiated = ~without_backward(steps)[calls.rows] | (calls.phase != Phase.FORWARD)
    if left.any() and takes_values(steps):
        differentiated |= left
    recurrent = in_recurrent_layers(steps, calls.rows)
    groups = grouped(steps.trace.events.name[calls.rows], calls.phase, differentiated)
    if usual and not steps.on_device:
        calls = replace(calls, duration=_without_stalled_calls(steps, calls, modelled, groups))
    totals = [
        replace(
            _operator_total(steps, calls, modelled, chosen, sources, bool(differentiated[chosen[0]]), usual),
            recurrent=float(recurrent[chosen].sum()) / len(steps),
            unreached=float(calls.duration[chosen][left[chosen] & ~differentiated[chosen]].sum()) / len(steps),
        )
        for chosen in groups
    ]
    return tuple(sorted(totals, key=lambda each: (-each.duration, each.name, each.phase)))


def _without_stalled_calls(steps: StepContext, calls: OperatorCalls, modelled: Modelled, groups: list[Int64]) -> Int64:
    """Time of each call, ns; a stalled one takes as long for its work as the call at the same position in the median
    step. Groups with other numbers of calls from step to step are left as they are: their calls have no position."""
    start, duration = steps.trace.events.start[calls.rows], calls.duration.copy()
    step = step_at(steps.boundaries, start)
    work = np.array([1.0 + ((each.flops or 0.0) + each.bytes if each else 0.0) for each in modelled.works])[
        modelled.kind
    ]
    for chosen in groups:
        counts = np.bincount(step[chosen], minlength=len(steps))
        if len(steps) > 1 and counts.min() == counts.max():
            order = chosen[np.argsort(start[chosen], kind="stable")]
            spent, amount = (each[order].reshape(len(steps), -1) for each in (duration, work))
            usual = np.sort(spent / amount, axis=0)[(len(steps) - 1) // 2] * amount
            stalled = (spent > STALL * usual) & (spent > usual + LONGEST_UNSTALLED)
            duration[order] = np.where(stalled, usual, spent).ravel()
    return duration


def _without_a_stall(steps: StepContext, rows: Numbers, duration: Int64) -> float:
    """Time of these calls in all steps, ns. On a CPU the longest step is capped at the second longest, because another
    program may hold up any one step."""
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
    """Totals of one operator in one phase. chosen: positions in `calls`."""
    name = steps.trace.symbols[steps.trace.events.name[calls.rows[chosen[0]]]]
    duration = calls.duration[chosen]
    first, kind = distinct(modelled.kind[chosen])
    kinds, counts = modelled.kind[chosen][first], np.bincount(kind)
    middle = np.cumsum(counts) - counts // 2 - 1
    by_median = (duration[np.lexsort((duration, kind))][middle] * counts).sum()
    works = [modelled.works[each] for each in kinds.tolist()]
    bounds: dict[Bound, float] = defaultdict(float)
    for work, spent in zip(works, np.bincount(kind, duration, len(kinds)).tolist(), strict=True):
        bounds[bound_of(work, steps.machine)] += spent

    def mean(amounts: list[float | None]) -> float | None:
        known = [amount * count for amount, count in zip(amounts, counts.tolist(), strict=True) if amount is not None]
        return sum(known) / len(steps) if len(known) == len(amounts) else None

    moved = mean([work.bytes if work else None for work in works])
    operations = mean([(work.flops or float(work.operations)) if work else None for work in works])
    return OperatorUse(
        name=name,
        calls=len(chosen) / len(steps),
        duration=(_without_a_stall(steps, calls.rows[chosen], duration) if usual else float(duration.sum()))
        / len(steps),
        bound=max(bounds, key=lambda bound: bounds[bound]),
        phase=Phase(int(calls.phase[chosen[0]])).title,
        flops=mean([work.flops if work else None for work in works]),
        bytes=moved,
        intensity=operations / moved if operations and moved else None,
        source=sources.get((name, differentiated)) or sources.get((name, True)),
        usual=float(by_median) / len(steps),
        differentiated=differentiated,
    )
