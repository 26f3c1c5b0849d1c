"""A roofline: what the kernels of a step reached, against what the machine could. The room's central type.

Sides of a matrix product that do not fill the matrix units' tiles.

NVIDIA's guide (Matrix Multiplication Background User's Guide, 2.2, tensor core requirements) asks for sides that are
multiples of 16 bytes: 8 numbers of 16 bits, 4 of TF32, 16 of 8 bits, 2 of float64; since cuBLAS 11 others run too, but
slower, and an A100 is at its best with multiples of 128 bytes. AMD's matrix cores read rows by 16 bytes alike.

Drawing the roofline of a trace: groups of kernels, their work, what bounds them, the split of the compute account.

An operator's work belongs to the kernels that it launched, never twice: FLOPs and bytes of a product go to the kernels
that multiply (in proportion to their time, where there are several), not to those that lay out its inputs; the bytes of
other operators to all their kernels by time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import numpy as np

from steptime.analysis.breakdown import claims_of
from steptime.analysis.categories import Category
from steptime.analysis.kernel_names import complete, dtype, list_item, matrix_unit, multiplies
from steptime.analysis.op_cost.call import OpCost
from steptime.analysis.op_cost.op_cost import (
    COMPUTE,
    LATENCY,
    MEMORY,
    UNMODELLED,
    Modelled,
    bound_of_times,
    distinct,
    model,
    time_at_peaks,
)
from steptime.analysis.operators import OperatorCalls, operator_calls, worked
from steptime.arrays import Bool, Float64, Int8, Int64
from steptime.intervals import EMPTY, Intervals, claim, contains, intersect, join, subtract, union
from steptime.machine.machine import Machine
from steptime.trace.call_tree import call_tree, stretches
from steptime.trace.links import UNKNOWN, Links
from steptime.trace.table import ABSENT, EventKind, Trace
from steptime.trace.vendors import COMMUNICATION_KERNEL, matching

COMMUNICATION = "communication"
"""The bound of a kernel that moves data between devices; the others are those of `work.bounds`."""


@dataclass(frozen=True, slots=True)
class KernelGroup:
    """Kernels of one name that one operator launched with arguments of one kind; on a CPU, calls of the operator.

    name: of the kernel (on a CPU, the operator's). shapes, types: raw JSON, "" where the trace has none.
    calls, duration: per step, ns. bound: "compute", "memory", "latency", "communication" or "unmodelled".
    flops, bytes: per step, None without a model. at_roofline: ns per step at the machine's peaks, never above the
    duration (what is faster had its data in a cache); None without a model or peaks. matrix_unit: None where the
    name does not say. dimensions: sides of a product that miss the matrix units' tile.
    example: the longest of them, a row of the event table.
    """

    name: str
    operator: str
    shapes: str
    types: str
    dtype: str
    calls: float
    duration: float
    bound: str
    flops: float | None
    bytes: float | None
    at_roofline: float | None
    matrix_unit: bool | None
    dimensions: tuple[str, ...]
    example: int


@dataclass(frozen=True, slots=True)
class Roofline:
    """All groups, the longest first, and what they add up to.

    bounds: names of the columns of split, (n steps, len(bounds)) ns: the compute account of each step by what bounds
    it; a row sums to that account of the breakdown, to the nanosecond. Where kernels overlap, the earlier column has
    the time.
    flops, bytes: per step, of what has a model. wall: ns of a step, mean. busy: ns of computing per step.
    number_format: the one with most of the FLOPs ("" without any); peak: the upper bound of a matrix product in it,
    FLOP/s. utilization: the time that the FLOPs would take at the peaks of their formats, over the wall clock (MFU).
    None without peaks or where a format has none.
    modelled: share of the computing time of kernels that have a model, 0 to 1.
    """

    machine: Machine | None
    groups: tuple[KernelGroup, ...]
    bounds: tuple[str, ...]
    split: Int64
    wall: float
    busy: float
    flops: float
    bytes: float
    dtype: str
    peak: float | None
    utilization: float | None
    modelled: float

    @property
    def matrix_unit(self) -> float | None:
        """Share of the time of matrix products on matrix units, of those whose names say; None where none does."""
        told = [group for group in self.groups if group.flops and group.matrix_unit is not None]
        spent = sum(group.duration for group in told)
        return sum(group.duration for group in told if group.matrix_unit) / spent if spent else None


TILE = {"float16": 8, "bfloat16": 8, "tf32": 4, "float32": 4, "float8": 16, "int8": 16, "float64": 2}
"""Numbers in 16 bytes."""


def missed(dimensions: tuple[tuple[str, int], ...], dtype: str) -> tuple[str, ...]:
    """The sides that are no multiple of the tile ("k = 1003"); none for a product with a vector, which fills no tile
    whatever its other sides are."""
    tile = TILE.get(dtype)
    if tile is None or any(size == 1 for _, size in dimensions):
        return ()
    return tuple(f"{name} = {size}" for name, size in dimensions if size % tile)


BOUNDS = (COMPUTE, MEMORY, LATENCY, UNMODELLED)
"""In the order in which they claim time that kernels share."""
SHORTEST_KERNEL = 2_000
"""ns from the first block of the smallest kernel to the end of its last: 1.1 to 1.6 microseconds on H100 and V100, 2.0
on B200, 1.6 to 1.9 on MI300X and MI210 (the shortest kernels of published traces that have nanoseconds). A kernel whose
work would be done in less, at the peaks, is too small for either to bind."""
NEAR_SHORTEST = 2
"""A kernel without a model that lasts no longer than this many times the shortest is bound by latency all the same."""
LONG_ENOUGH = 100_000
"""ns: a shorter call's time is too uncertain (a profiler's clock, work that the call leaves behind) to say that a peak
was measured too low."""
LEAST_FILLING = 0.5
"""Blocks for each multiprocessor. With fewer, most of the device has nothing to do: neither its arithmetic nor its
bandwidth binds. Between a half and one a good product still reaches most of its upper bound (the published H100 traces
have them at 0.85 and 53 to 68 % of the peak)."""


@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """All kernels, one by one. rows: of the event table; operator: rows of their operators, -1 for none. duration: ns.
    share: of the call's work, 0 to 1. filling: blocks of the grid for each multiprocessor of the device, nan where
    unknown. counted: those of the steps; the others, of other steps, run into their time."""

    rows: Int64
    operator: Int64
    duration: Int64
    modelled: Modelled
    share: Float64
    filling: Float64
    counted: Bool
    communicates: Bool


Times = tuple[float, float] | None
"""ns of arithmetic and of movement at the peaks, None without a model or peaks."""
BoundBy = Callable[[Times, float, float], str]
"""Tells the bound from a kernel's times, its duration in ns, and its filling (nan: unknown)."""


def group(
    trace: Trace,
    members: Members,
    machine: Machine | None,
    steps: int,
    bound_by: BoundBy,
) -> tuple[tuple[KernelGroup, ...], Int8]:
    """The groups, the longest first; and for each kernel the number of its bound in BOUNDS."""
    events, rows, operator = trace.events, members.rows, members.operator
    if not len(rows):
        return (), np.empty(0, np.int8)
    at = np.maximum(operator, 0)
    called = np.where(operator < 0, -1, events.name[at])
    shapes, types = (np.where(operator < 0, ABSENT, column[at]) for column in (events.shapes, events.dtypes))
    _, kind = distinct(events.name[rows], called, shapes, types)
    sums = _GroupSums.of(members, kind, members.counted)
    whole = _GroupSums.of(members, kind, np.ones(len(rows), np.bool_))
    longest = _longest(members.duration, kind)
    made = [_Group.of(trace, members, whole, number, int(one), machine, bound_by) for number, one in enumerate(longest)]
    bounds = np.array([BOUNDS.index(each.bound) if each.bound in BOUNDS else 0 for each in made], np.int8)[kind]
    groups = [_group(trace, each, sums, number, steps) for number, each in enumerate(made) if sums.calls[number]]
    return tuple(sorted(groups, key=lambda each: (-each.duration, each.name, each.example))), bounds


def group_at_peaks(
    trace: Trace,
    members: Members,
    windows: Int64,
    machine: Machine | None,
    step: float | None,
    bound_by: BoundBy,
) -> tuple[tuple[KernelGroup, ...], Int8, Machine | None]:
    """The same against peaks that are no lower than what the groups themselves reached; and the machine with these.

    What was measured beside other load, or with a worse kernel than the job's, is less than the peak. A datasheet's
    peak is only raised to what the whole step reached: a single kernel beyond it does other work than is counted, or
    in a format that its name does not say. step: ns of the step that is reported, None for that of the windows.
    """
    steps = max(len(windows), 1)
    groups, bounds = group(trace, members, machine, steps, bound_by)
    if machine is None:
        return groups, bounds, None
    raised = machine.at_least(_reached(groups)) if machine.measured else machine
    formats, wall = _formats(groups), _wall(windows)
    used = _utilization(formats, min(wall, step or wall), raised) or 0.0
    if used > 1:
        raised = raised.at_least({each: used * (raised.matrix_rate(each) or 0.0) for each in formats})
    if raised == machine:
        return groups, bounds, machine
    return *group(trace, members, raised, steps, bound_by), raised


@dataclass(frozen=True, slots=True, eq=False)
class _GroupSums:
    """Of each group: kernels, ns, FLOPs and bytes (nan where a kernel has no model), filling (nan where unknown)."""

    calls: Float64
    duration: Float64
    flops: Float64
    bytes: Float64
    filling: Float64

    @staticmethod
    def of(members: Members, kind: Int64, chosen: Bool) -> _GroupSums:
        count = int(kind.max()) + 1
        working = np.where(members.share > 0, members.share, np.nan)

        def total(values: Float64 | Int64) -> Float64:
            return np.bincount(kind[chosen], values[chosen], count).astype(np.float64)

        modelled = members.modelled
        return _GroupSums(
            total(np.ones(len(kind))),
            total(members.duration),
            total(modelled.flops * working),
            total(modelled.bytes * working),
            total(members.filling),
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """A group as its average kernel is. example: its longest kernel; operator: that one's, -1 for none."""

    example: int
    operator: int
    dtype: str
    dimensions: tuple[str, ...]
    times: Times
    bound: str

    @staticmethod
    def of(
        trace: Trace,
        members: Members,
        sums: _GroupSums,
        number: int,
        longest: int,
        machine: Machine | None,
        bound_by: BoundBy,
    ) -> _Group:
        calls, name = sums.calls[number], trace.symbols[trace.events.name[members.rows[longest]]]
        work = members.modelled.works[members.modelled.kind[longest]] if not np.isnan(sums.bytes[number]) else None
        format_ = dtype(name, work.dtype) if work is not None else ""
        flops = _known(sums.flops[number] / calls)
        one = OpCost(flops, sums.bytes[number] / calls, format_) if work is not None else None
        times = time_at_peaks(one, machine)
        bound = bound_by(times, sums.duration[number] / calls, sums.filling[number] / calls)
        return _Group(
            example=int(members.rows[longest]),
            operator=int(members.operator[longest]),
            dtype=format_,
            dimensions=missed(work.dimensions, format_) if work is not None and flops else (),
            times=times,
            bound=COMMUNICATION if members.communicates[longest] else bound,
        )


def _group(trace: Trace, made: _Group, sums: _GroupSums, number: int, steps: int) -> KernelGroup:
    events, operator = trace.events, made.operator
    name, flops = trace.symbols[events.name[made.example]], _known(sums.flops[number])
    duration, calls = float(sums.duration[number]), float(sums.calls[number])
    moved = _known(sums.bytes[number])
    return KernelGroup(
        name=name,
        operator=trace.symbols[events.name[operator]] if operator >= 0 else "",
        shapes=_text(trace.shapes, events.shapes[operator]) if operator >= 0 else "",
        types=_text(trace.dtypes, events.dtypes[operator]) if operator >= 0 else "",
        dtype=made.dtype,
        calls=calls / steps,
        duration=duration / steps,
        bound=made.bound,
        flops=flops / steps if flops is not None else None,
        bytes=moved / steps if moved is not None else None,
        at_roofline=min(max(made.times) * calls, duration) / steps if made.times is not None else None,
        matrix_unit=matrix_unit(name) if flops else None,
        dimensions=made.dimensions,
        example=made.example,
    )


def bound_of_kernel(times: Times, duration: float, filling: float) -> str:
    """By the ns that its arithmetic and its bytes take at the peaks, the ns that it took, and how far its blocks
    fill the device."""
    if filling < LEAST_FILLING:
        return LATENCY
    if times is None:
        return LATENCY if duration <= NEAR_SHORTEST * SHORTEST_KERNEL else UNMODELLED
    if max(times) < SHORTEST_KERNEL:
        return LATENCY
    return COMPUTE if times[0] >= times[1] else MEMORY


def bounds_of_operator(machine: Machine | None) -> BoundBy:
    """On a processor a call whose work takes less time than dispatching it is bound by latency."""

    def bound_by(times: Times, duration: float, filling: float) -> str:
        return bound_of_times(times, machine.dispatch if machine is not None else None)

    return bound_by


def _reached(groups: tuple[KernelGroup, ...]) -> dict[str, float]:
    """FLOP/s of the quickest product by dtype. Convolutions are no products: a fast algorithm needs fewer
    operations than are counted."""
    found: dict[str, float] = {}
    for each in groups:
        timed = each.flops and each.calls and each.duration / each.calls >= LONG_ENOUGH
        if timed and each.bound != COMMUNICATION and "conv" not in each.operator.lower():
            rate = (each.flops or 0.0) / each.duration * 1e9
            found[each.dtype] = max(found.get(each.dtype, 0.0), rate)
    return found


def _wall(windows: Int64) -> float:
    """ns of a step, mean."""
    return float((windows[:, 1] - windows[:, 0]).sum()) / max(len(windows), 1)


def totals(groups: tuple[KernelGroup, ...], split: Int64, windows: Int64, machine: Machine | None) -> Roofline:
    """What the groups add up to."""
    steps, wall = max(len(windows), 1), _wall(windows)
    formats = _formats(groups)
    most = max(formats, key=lambda each: formats[each], default="")
    computing = [each for each in groups if each.bound != COMMUNICATION]
    spent = sum(each.duration for each in computing)
    modelled = sum(each.duration for each in computing if each.bytes is not None)
    return Roofline(
        machine=machine,
        groups=groups,
        bounds=BOUNDS,
        split=split,
        wall=wall,
        busy=float(split.sum()) / steps,
        flops=sum(formats.values()),
        bytes=sum(each.bytes or 0.0 for each in groups),
        dtype=most,
        peak=machine.matrix_rate(most) if machine is not None and most else None,
        utilization=_utilization(formats, wall, machine),
        modelled=modelled / spent if spent else 0.0,
    )


def _formats(groups: tuple[KernelGroup, ...]) -> dict[str, float]:
    """FLOPs per step by dtype."""
    found: dict[str, float] = {}
    for each in groups:
        if each.flops:
            found[each.dtype] = found.get(each.dtype, 0.0) + each.flops
    return found


def _utilization(formats: dict[str, float], wall: float, machine: Machine | None) -> float | None:
    """The time of the FLOPs at the peaks of their formats, over the wall clock; what is above it by rounding is 1."""
    rates = {each: machine.matrix_rate(each) if machine is not None else None for each in formats}
    if not formats or not wall or not all(rates.values()):
        return None
    used = sum(flops / (rates[each] or 1.0) for each, flops in formats.items()) * 1e9 / wall
    return min(used, 1.0) if math.isclose(used, 1.0) else used


def _longest(spent: Int64, kind: Int64) -> Int64:
    """The position of the longest member of each kind."""
    order = np.lexsort((spent, kind))
    last: Int64 = order[np.append(np.diff(kind[order]) != 0, True)]
    return last


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _text(table: tuple[str, ...], number: int) -> str:
    """Without the line breaks that some writers of traces put between numbers."""
    return "" if number == ABSENT else re.sub(r"\s*\n\s*", "", table[number])


def draw_on_processor(trace: Trace, windows: Int64, machine: Machine | None, step: float | None) -> Roofline:
    """A group holds the calls of an operator with arguments of one kind; what the caller knows beside the trace (batch
    preparation, phases) is not in it, as in the breakdown of a bare trace."""
    calls = operator_calls(trace, windows, {}, None)
    members, bound_by = _members_processor(trace, calls), bounds_of_operator(machine)
    groups, bounds, machine = group_at_peaks(trace, members, windows, machine, step, bound_by)
    return totals(groups, _split_processor(trace, calls, bounds, windows, machine), windows, machine)


def _members_processor(trace: Trace, calls: OperatorCalls) -> Members:
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


def _split_processor(
    trace: Trace, calls: OperatorCalls, bounds: Int8, windows: Int64, machine: Machine | None
) -> Int64:
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
    made = call_tree(trace.events.begin[calls.rows[mine]], trace.events.end[calls.rows[mine]])
    found = stretches(made)
    bound = bounds[mine[made.order]][found.owner]
    return [union(found.begin[bound == number], found.end[bound == number]) for number in range(len(BOUNDS))]


def _compute(trace: Trace, machine: Machine | None) -> tuple[Intervals, Intervals]:
    """What the categories before the compute account claim, and what that one does."""
    claims = claims_of(trace, machine=machine)
    categories = [category for category, _ in claims]
    if Category.COMPUTE not in categories:
        return EMPTY, EMPTY
    at = categories.index(Category.COMPUTE)
    earlier = reduce(join, (held for _, held in claims[:at]), EMPTY)
    return earlier, subtract(claims[at][1], earlier)


def draw(trace: Trace, links: Links, windows: Int64, machine: Machine | None, step: float | None = None) -> Roofline:
    """The roofline of the steps. windows: (n, 2) ns, the steps as the breakdown has them (on an accelerator where the
    device ends each). Groups hold the kernels that the steps launched, and those without a launch in the trace that
    begin in a window; the split is about time, as the breakdown is: whatever ran in a window. Without a device, groups
    hold operators. step: ns of the step that it is told of, which the profiler did not slow; None: of these.

    The roofline's machine has peaks that are no lower than what was reached."""
    if not (trace.events.event_kind == EventKind.KERNEL).any():
        return draw_on_processor(trace, windows, machine, step)
    members = _members_draw(trace, links, windows)
    groups, bounds, machine = group_at_peaks(trace, members, windows, machine, step, bound_of_kernel)
    split = _split_draw(trace, windows, members, bounds)
    return totals(groups, split, windows, machine)


def _members_draw(trace: Trace, links: Links, windows: Int64) -> Members:
    """Each kernel with its operator and its part of the operator's work."""
    rows = np.flatnonzero(trace.events.event_kind == EventKind.KERNEL)
    operator = links.operator[rows].astype(np.int64)
    names = trace.events.name[rows]
    items = np.fromiter(map(list_item, trace.symbols), np.int64, len(trace.symbols))[names]
    modelled = complete(trace, links, operator, model(trace, operator, items))
    share = _shares(trace, rows, operator, modelled)
    inside = contains(union(windows[:, 0], windows[:, 1]), trace.events.begin[rows])
    counted = (links.step[rows] != UNKNOWN) | ((links.launch[rows] == UNKNOWN) & inside)
    communicates = matching(trace, COMMUNICATION_KERNEL.search)[rows]
    filling = _filling(trace, rows)
    return Members(rows, operator, trace.events.duration[rows], modelled, share, filling, counted, communicates)


def _filling(trace: Trace, rows: Int64) -> Float64:
    """Blocks of each kernel's grid for each multiprocessor of its device; nan where the trace does not say."""
    sizes = {device.number: device.multiprocessors for device in trace.devices if device.multiprocessors}
    alike = next(iter(sizes.values())) if len(set(sizes.values())) == 1 else 0
    numbers, which = np.unique(trace.events.device[rows], return_inverse=True)
    held = np.array([sizes.get(number, alike) for number in numbers.tolist()], np.float64)[which]
    blocks = trace.events.blocks[rows].astype(np.float64)
    known = (held > 0) & (blocks > 0)
    return np.where(known, blocks / np.maximum(held, 1), np.nan)


def _shares(trace: Trace, rows: Int64, operator: Int64, modelled: Modelled) -> Float64:
    """Each kernel's part of its call's work, 0 to 1; the parts of a call add up to one."""
    multiplying = matching(trace, multiplies)[rows]
    spent = np.maximum(trace.events.duration[rows], 1).astype(np.float64)
    call = np.unique(operator, return_inverse=True)[1]
    leading = np.bincount(call, multiplying & (modelled.flops > 0), minlength=1) > 0
    spent[leading[call] & ~multiplying] = 0.0
    parts: Float64 = spent / np.bincount(call, spent, minlength=1)[call]
    return parts


def _split_draw(trace: Trace, windows: Int64, members: Members, bounds: Int8) -> Int64:
    """(n, len(BOUNDS)) ns of computing by what bounds it."""
    begin, end = trace.events.begin[members.rows], trace.events.end[members.rows]
    sets = []
    for number in range(len(BOUNDS)):
        chosen = (bounds == number) & ~members.communicates
        sets.append(union(begin[chosen], end[chosen]))
    return claim(windows[:, 0], windows[:, 1], sets)[:, :-1]
