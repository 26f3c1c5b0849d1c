"""A roofline: what the kernels of a step reached, against what the machine could. The room's central type.

An operator's work belongs to the kernels that it launched, never twice. FLOPs and bytes of a matmul go to the kernels
that multiply (in proportion to their time, if there are several), not to those that lay out its inputs. The bytes of
other operators go to all their kernels by time.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

import numpy as np

from steptime.analysis.breakdown import claims_of, device_of
from steptime.analysis.categories import Category
from steptime.analysis.device_activity import communication_kernels
from steptime.analysis.kernel_names import complete, dtype, list_item, multiplies, tensor_cores
from steptime.analysis.op_cost.call import OpCost
from steptime.analysis.op_cost.op_cost import (
    COMPUTE,
    LATENCY,
    MEMORY,
    UNMODELLED,
    Bound,
    Modelled,
    bound_of_times,
    model,
    time_at_peaks,
)
from steptime.analysis.operators import operator_calls, worked
from steptime.analysis.recompute import forward_again
from steptime.analysis.step_context import StepContext
from steptime.analysis.threads import during
from steptime.arrays import Bool, Float64, Int8, Int32, Int64, distinct, unique
from steptime.intervals import EMPTY, Intervals, claim, contains, intersect, join, union
from steptime.machine.datasheet import look_up
from steptime.machine.machine import Machine
from steptime.quantities import SourceLine
from steptime.trace.call_tree import call_tree, exclusive_spans
from steptime.trace.links import UNKNOWN
from steptime.trace.nsight_compute import KernelCounters
from steptime.trace.table import ABSENT, EventKind, Trace
from steptime.trace.vendors import matching

COMMUNICATION: Final = "communication"
"""Bound of a kernel that moves data between devices; `BOUNDS` has the other bounds."""


@dataclass(frozen=True, slots=True)
class KernelUse:
    """Kernels of one name that one operator launched with arguments of one kind; on a CPU, calls of the operator.

    name: name of the kernel (on a CPU, of the operator). calls: number per step; duration: ns per step. bound:
    "compute", "memory", "latency", "communication" or "unmodelled". shapes: shapes of the arguments, raw JSON, "" if
    not in the trace. flops, bytes: per step, None without a model. at_roofline: ns per step at the machine's peaks,
    capped at the duration (data in a cache is faster); None without a model or peaks. tensor_cores: True if it ran on
    Tensor Cores or matrix cores, None if its name does not say. dimensions: sides of a matmul that are no multiple of
    the tile ("k = 1003"). The last four are set later, from the examples: source: user's line behind the longest
    kernel; blocks: number of blocks in its grid, 0 if unknown; waves: number of times that a matmul's tiles fill the
    device, None if unknown; counters: counters of Nsight Compute."""

    name: str
    operator: str
    calls: float
    duration: float
    bound: Bound
    shapes: str = ""
    dtype: str = ""
    flops: float | None = None
    bytes: float | None = None
    at_roofline: float | None = None
    tensor_cores: bool | None = None
    dimensions: tuple[str, ...] = ()
    source: SourceLine | None = None
    blocks: int = 0
    waves: float | None = None
    counters: KernelCounters | None = None


@dataclass(frozen=True, slots=True)
class Roofline:
    """Roofline of the steps: all groups, the longest first, and their sums. examples: row of the longest kernel of each
    group.

    split: computing time of each step by what bounds it, (n steps, len(BOUNDS)), ns. A row sums to the breakdown's
    COMPUTE, to the nanosecond. Where kernels overlap, the earlier column gets the time. flops, bytes: per step, of work
    that has a model. wall: mean step, ns. dtype: dtype with most FLOPs ("" without any); peak: rate of a matmul in it,
    FLOP/s. utilization: time of the FLOPs at the peaks of their dtypes, divided by the wall clock; None if a peak is
    missing. modelled: fraction of the computing time that has a model. mfu, hfu: utilization by the device's datasheet,
    without and with what checkpointing recomputes ("PaLM: Scaling Language Modeling with Pathways", appendix B: model
    and hardware FLOPs utilization); None on a CPU, or if the datasheet is missing."""

    machine: Machine | None
    groups: tuple[KernelUse, ...]
    examples: tuple[int, ...]
    split: Int64
    wall: float
    flops: float
    bytes: float
    dtype: str
    peak: float | None
    utilization: float | None
    modelled: float
    mfu: float | None = None
    hfu: float | None = None

    @property
    def tensor_cores(self) -> float | None:
        """Fraction of matmul time on Tensor Cores, among kernels whose names say; None if no name does."""
        known = [group for group in self.groups if group.flops and group.tensor_cores is not None]
        spent = sum(group.duration for group in known)
        return sum(group.duration for group in known if group.tensor_cores) / spent if spent else None


BOUNDS: tuple[Bound, ...] = (COMPUTE, MEMORY, LATENCY, UNMODELLED)
"""Bounds in order of precedence for the time of overlapping kernels."""
TILE = {"float16": 8, "bfloat16": 8, "tf32": 4, "float32": 4, "float8": 16, "int8": 16, "float64": 2}
"""Multiples that the sides of a matmul need to fill the Tensor Cores' tiles, by dtype. NVIDIA's guide (Matrix
Multiplication Background User's Guide, 2.2, tensor core requirements) asks for multiples of 16 bytes; since cuBLAS 11
others run too, but slower. AMD's matrix cores read rows by 16 bytes as well."""


ALIGNED = re.compile(r"align_?(\d+)", re.IGNORECASE)
"""Number of values that a kernel loads at once, in its name (CUTLASS)."""
ROWS = "m"
"""Side that needs no alignment, because nothing is loaded along it: rows of a batch and a sequence need no padding."""


def missed(dimensions: tuple[tuple[str, int], ...], dtype: str, kernel: str = "") -> tuple[str, ...]:
    """Sides of a matmul that are no multiple of the tile ("k = 1003"). Empty for a product with a vector, which never
    fills a tile, and for a kernel whose name says that it loads whole tiles."""
    tile, loads = TILE.get(dtype), ALIGNED.search(kernel)
    if tile is None or any(size == 1 for _, size in dimensions) or (loads and int(loads[1]) >= tile):
        return ()
    return tuple(f"{name} = {size}" for name, size in dimensions if size % tile and name != ROWS)


SHORTEST_KERNEL = 2_000
"""Duration of the smallest kernel, ns: 1.1 to 1.6 µs on H100 and V100, 2.0 on B200, 1.6 to 1.9 on MI300X and MI210 (the
shortest kernels of published traces with ns). A kernel with less work at the peaks is bound by latency."""
NEAR_SHORTEST = 2
"""Factor on SHORTEST_KERNEL: a kernel without a model that lasts no longer than this is bound by latency."""
LONG_ENOUGH = 100_000
"""Shortest call that may raise a peak, ns. The time of a shorter call is too uncertain (the profiler's clock, work that
the call leaves behind)."""
LEAST_FILLING = 0.5
"""Blocks per multiprocessor. With fewer, most of the device is idle, and neither its arithmetic nor its bandwidth
limits. Between 0.5 and 1 a good matmul is still limited (published H100 traces have some at 0.85 and 53 to 68 % of the
peak)."""


@dataclass(frozen=True, slots=True, eq=False)
class _Members:
    """All kernels, one row each. rows: rows in the event table; operator: rows of their operators, -1 for none.
    duration: ns. share: fraction of the call's work, 0 to 1. filling: number of blocks of the grid per multiprocessor,
    nan if unknown. counted: True for kernels of these steps; others may overlap the steps' time."""

    rows: Int32
    operator: Int32
    duration: Int64
    modelled: Modelled
    share: Float64
    filling: Float64
    counted: Bool
    communicates: Bool

    def sums(self, kind: Int64, chosen: Bool) -> Float64:
        """Sums by kind, (kinds, 5): kernels, ns, FLOPs and bytes (nan without a model), filling (nan if unknown)."""
        working = np.where(self.share > 0, self.share, np.nan)
        columns = (
            np.ones(len(kind)),
            self.duration,
            self.modelled.flops * working,
            self.modelled.bytes * working,
            self.filling,
        )
        count = int(kind.max()) + 1
        return np.stack([np.bincount(kind[chosen], each[chosen], count) for each in columns], axis=1)


def draw(steps: StepContext, step: float | None = None) -> Roofline:
    """Roofline of the steps. Groups hold kernels that the steps launched, and kernels without a launch in the trace
    that start in a window. The split covers whatever ran in a window, as the breakdown does. On a CPU, groups hold the
    calls of an operator with arguments of one kind, and phases from a recording are ignored. step: duration of the
    reported, unprofiled step, ns; None to use these steps' own. The peaks of the roofline's machine are raised to what
    was reached."""
    windows = steps.windows
    bare = steps if steps.on_device else StepContext(steps.trace, windows, windows, machine=steps.machine)
    members = _kernels(bare) if steps.on_device else _calls(bare)
    groups, examples, bounds, machine = _group_at_peaks(bare, members, step)
    split = _split_of_kernels(bare, members, bounds) if steps.on_device else _split_of_calls(bare, members, bounds)
    wall, formats = _wall(windows), _formats(groups)
    sheet = look_up(device_of(steps.trace)) if steps.on_device else None
    again = _computed_again(bare, members) if sheet is not None else {}
    once = {each: flops - again.get(each, 0.0) for each, flops in formats.items()}
    most = max(formats, key=lambda each: formats[each], default="")
    computing = [each for each in groups if each.bound != COMMUNICATION]
    spent = sum(each.duration for each in computing)
    modelled = sum(each.duration for each in computing if each.bytes is not None)
    return Roofline(
        machine=machine,
        groups=groups,
        examples=examples,
        split=split,
        wall=wall,
        flops=sum(formats.values()),
        bytes=sum(each.bytes or 0.0 for each in groups),
        dtype=most,
        peak=machine.matrix_rate(most) if machine is not None and most else None,
        utilization=_utilization(formats, wall, machine),
        modelled=modelled / spent if spent else 0.0,
        mfu=_utilization(once, wall, sheet),
        hfu=_utilization(formats, wall, sheet),
    )


def _computed_again(steps: StepContext, members: _Members) -> dict[str, float]:
    """FLOPs per step of forward operators inside backward, by dtype."""
    events, rows = steps.trace.events, members.operator
    again = np.zeros(len(rows), np.bool_)
    place = np.maximum(rows, 0)
    for track, host in forward_again(steps):
        again |= (rows >= 0) & (events.track[place] == track) & contains(host, events.start[place])
    flops = members.modelled.flops * members.share
    found: dict[str, float] = defaultdict(float)
    for at in np.flatnonzero(again & members.counted & (flops > 0)).tolist():
        work = members.modelled.works[members.modelled.kind[at]]
        dtype_ = dtype(steps.trace.symbols[events.name[members.rows[at]]], work.dtype) if work is not None else ""
        found[dtype_] += float(flops[at]) / max(len(steps), 1)
    return found


def _group_at_peaks(
    steps: StepContext, members: _Members, step: float | None
) -> tuple[tuple[KernelUse, ...], tuple[int, ...], Int8, Machine | None]:
    """(groups, their examples, number in BOUNDS for each kernel, machine with peaks raised to what the groups reached).

    A peak is too low if it was measured under other load or with a worse kernel than the job's. A datasheet's peak is
    only raised to what the whole step reached. A single kernel above it does work that is not counted, or uses a dtype
    that its name does not show."""
    machine = steps.machine
    groups, examples, bounds = _grouped(steps, members, machine)
    if machine is None:
        return groups, examples, bounds, None
    raised = machine.at_least(_reached(groups)) if machine.measured else machine
    formats, wall = _formats(groups), _wall(steps.windows)
    used = _utilization(formats, min(wall, step or wall), raised) or 0.0
    if used > 1:
        raised = raised.at_least({each: used * (raised.matrix_rate(each) or 0.0) for each in formats})
    if raised == machine:
        return groups, examples, bounds, machine
    return *_grouped(steps, members, raised), raised


def _grouped(
    steps: StepContext, members: _Members, machine: Machine | None
) -> tuple[tuple[KernelUse, ...], tuple[int, ...], Int8]:
    """(groups of the steps, the longest first; their examples; number in BOUNDS for each kernel)."""
    made, kind = _every_group(steps, members, machine)
    bounds = np.array([BOUNDS.index(each.bound) if each.bound in BOUNDS else 0 for each, _ in made], np.int8)[kind]
    groups = [(each, row) for each, row in made if each.calls]
    groups.sort(key=lambda group: (-group[0].duration, group[0].name, group[1]))
    return tuple(each for each, _ in groups), tuple(row for _, row in groups), bounds


def _every_group(
    steps: StepContext, members: _Members, machine: Machine | None
) -> tuple[list[tuple[KernelUse, int]], Int64]:
    """(all groups with their examples, groups of no step included; number of the group for each kernel)."""
    events, rows, operator = steps.trace.events, members.rows, members.operator
    if not len(rows):
        return [], np.empty(0, np.int64)
    at = np.maximum(operator, 0)
    called, shapes, types = (
        np.where(operator < 0, ABSENT, column[at]) for column in (events.name, events.shapes, events.dtypes)
    )
    _, kind = distinct(events.name[rows], called, shapes, types)
    whole, counted = members.sums(kind, np.ones(len(rows), np.bool_)), members.sums(kind, members.counted)
    order = np.lexsort((members.duration, kind))
    longest = order[np.append(np.diff(kind[order]) != 0, True)]
    made = [
        (_group(steps, members, machine, *each), int(members.rows[each[0]]))
        for each in zip(longest.tolist(), whole.tolist(), counted.tolist(), strict=True)
    ]
    return made, kind


def groups_of_kernels(steps: StepContext) -> tuple[Int32, list[KernelUse], Int64]:
    """(rows of all kernels in the steps, groups of kernels, index of the group for each kernel)."""
    members = _kernels(steps)
    made, kind = _every_group(steps, members, steps.machine)
    return members.rows, [each for each, _ in made], kind


def _group(
    steps: StepContext,
    members: _Members,
    machine: Machine | None,
    longest: int,
    whole: list[float],
    counted: list[float],
) -> KernelUse:
    """Group with the bound of its average kernel. longest: index of its longest kernel; whole, counted: sums over all
    its kernels and over those of the steps, as in `_Members.sums`."""
    trace, number = steps.trace, max(len(steps), 1)
    events, example, operator = trace.events, int(members.rows[longest]), int(members.operator[longest])
    calls, duration, flops, moved, _ = counted
    usual, usual_flops, usual_bytes, filling = (each / whole[0] for each in whole[1:])
    name = trace.symbols[events.name[example]]
    work = None if math.isnan(usual_bytes) else members.modelled.works[members.modelled.kind[longest]]
    dtype_ = dtype(name, work.dtype) if work is not None else ""
    average = OpCost(_known(usual_flops), usual_bytes, dtype_) if work is not None else None
    times = time_at_peaks(average, machine)
    shapes = "" if operator < 0 or events.shapes[operator] == ABSENT else trace.shapes[events.shapes[operator]]
    shapes = re.sub(r"\s*\n\s*", "", shapes)  # some writers of traces put line breaks between numbers
    if members.communicates[longest]:
        bound: Bound = COMMUNICATION
    elif steps.on_device:
        bound = bound_of_kernel(times, usual, filling)
    else:
        bound = bound_of_times(times, machine.dispatch if machine is not None else None)
    return KernelUse(
        name=name,
        operator=trace.symbols[events.name[operator]] if operator >= 0 else "",
        shapes=shapes,
        dtype=dtype_,
        calls=calls / number,
        duration=duration / number,
        bound=bound,
        flops=None if math.isnan(flops) else flops / number,
        bytes=None if math.isnan(moved) else moved / number,
        at_roofline=float(min(max(times) * calls, duration) / number) if times is not None else None,
        tensor_cores=tensor_cores(name) if _known(flops) else None,
        dimensions=missed(work.dimensions, dtype_, name) if work is not None and _known(usual_flops) else (),
    )


def bound_of_kernel(times: tuple[float, float] | None, duration: float, filling: float) -> Bound:
    """Bound of a kernel's speed. times: ns of its arithmetic and of its bytes at the peaks; duration: ns; filling:
    number of blocks per multiprocessor."""
    if filling < LEAST_FILLING:
        return LATENCY
    if times is None:
        return LATENCY if duration <= NEAR_SHORTEST * SHORTEST_KERNEL else UNMODELLED
    if max(times) < SHORTEST_KERNEL:
        return LATENCY
    return COMPUTE if times[0] >= times[1] else MEMORY


def _reached(groups: tuple[KernelUse, ...]) -> dict[str, float]:
    """Highest FLOP/s of a matmul by dtype. Convolutions are left out, since fast algorithms need fewer operations than
    are counted."""
    found: dict[str, float] = defaultdict(float)
    for each in groups:
        timed = each.flops and each.calls and each.duration / each.calls >= LONG_ENOUGH
        if timed and each.bound != COMMUNICATION and "conv" not in each.operator.lower():
            found[each.dtype] = max(found[each.dtype], (each.flops or 0.0) / each.duration * 1e9)
    return found


def _wall(windows: Int64) -> float:
    """Mean step, ns."""
    return float((windows[:, 1] - windows[:, 0]).sum()) / max(len(windows), 1)


def _formats(groups: tuple[KernelUse, ...]) -> dict[str, float]:
    """FLOPs per step by dtype."""
    found: dict[str, float] = defaultdict(float)
    for each in groups:
        if each.flops:
            found[each.dtype] += each.flops
    return found


def _utilization(formats: dict[str, float], wall: float, machine: Machine | None) -> float | None:
    """Time of the FLOPs at the peaks of their dtypes, divided by the wall clock. A rounding error above 1 is cut."""
    rates = {each: machine.matrix_rate(each) if machine is not None else None for each in formats}
    if not formats or not wall or not all(rates.values()):
        return None
    used = sum(flops / (rates[each] or 1.0) for each, flops in formats.items()) * 1e9 / wall
    return min(used, 1.0) if math.isclose(used, 1.0) else used


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _calls(steps: StepContext) -> _Members:
    """Calls of operators as kernels, for a CPU."""
    calls = operator_calls(steps)
    every = np.ones(len(calls.rows), np.bool_)
    return _Members(
        rows=calls.rows,
        operator=calls.rows,
        duration=calls.duration,
        modelled=worked(steps.trace, steps.links, calls),
        share=np.ones(len(calls.rows)),
        filling=np.full(len(calls.rows), np.nan),
        counted=every,
        communicates=~every,
    )


def _split_of_calls(steps: StepContext, members: _Members, bounds: Int8) -> Int64:
    """Computing time by the bound of the innermost operator, (n, len(BOUNDS)), ns. An operator around others gets only
    the time outside of them."""
    claims = claims_of(steps)
    earlier = (held for _, held in takewhile(lambda each: each[0] is not Category.COMPUTE, claims))
    compute = dict(claims).get(Category.COMPUTE, EMPTY)
    tracks = unique(steps.trace.events.track[members.rows])
    pieces = [_pieces(steps.trace, members.rows, bounds, track) for track in tracks]
    sets = [join(*(each[number] for each in pieces)) for number in range(len(BOUNDS) - 1)]
    sets.append(union(steps.windows[:, 0], steps.windows[:, 1]))  # unmodelled: whatever is left
    start, end = steps.windows[:, 0], steps.windows[:, 1]
    return claim(start, end, [join(*earlier), *(intersect(compute, each) for each in sets)])[:, 1:-1]


def _pieces(trace: Trace, rows: Int32, bounds: Int8, track: int) -> list[Intervals]:
    """Exclusive time of the calls on one track, by bound."""
    mine = np.flatnonzero(trace.events.track[rows] == track)
    made = call_tree(trace.events.start[rows[mine]], trace.events.ends(rows[mine]))
    found = exclusive_spans(made)
    bound = bounds[mine[made.rows]][found.owner]
    return [union(found.start[bound == number], found.end[bound == number]) for number in range(len(BOUNDS))]


def _kernels(steps: StepContext) -> _Members:
    """All kernels with their operators and their shares of the operators' work."""
    trace, links, windows = steps.trace, steps.links, steps.windows
    rows = np.flatnonzero(trace.events.event_kind == EventKind.KERNEL).astype(np.int32)
    operator = links.operator[rows]
    items = np.fromiter(map(list_item, trace.symbols), np.int8, len(trace.symbols))[trace.events.name[rows]]
    modelled = complete(trace, links, operator, model(trace, operator, items))
    inside = contains(union(windows[:, 0], windows[:, 1]), trace.events.start[rows])
    return _Members(
        rows=rows,
        operator=operator,
        duration=trace.events.duration[rows].astype(np.int64),
        modelled=modelled,
        share=_shares(trace, rows, operator, modelled),
        filling=_filling(trace, rows),
        counted=(links.step[rows] != UNKNOWN) | ((links.launch[rows] == UNKNOWN) & inside),
        communicates=communication_kernels(trace)[rows],
    )


def _filling(trace: Trace, rows: Int32) -> Float64:
    """Blocks of each kernel's grid per multiprocessor of its device; nan if the trace does not say."""
    sizes = {device.number: device.multiprocessors for device in trace.devices if device.multiprocessors}
    alike = next(iter(sizes.values())) if len(set(sizes.values())) == 1 else 0
    number = trace.events.device[rows]
    first, which = distinct(number)
    held = np.array([sizes.get(each, alike) for each in number[first].tolist()], np.float64)[which]
    blocks = trace.events.blocks[rows].astype(np.float64)
    known = (held > 0) & (blocks > 0)
    return np.where(known, blocks / np.maximum(held, 1), np.nan)


def _shares(trace: Trace, rows: Int32, operator: Int32, modelled: Modelled) -> Float64:
    """Fraction of its call's work for each kernel; the fractions of a call sum to 1."""
    multiplying = matching(trace, multiplies)[rows]
    spent = np.maximum(trace.events.duration[rows], 1).astype(np.float64)
    call = distinct(operator)[1]
    leading = np.bincount(call, multiplying & (modelled.flops > 0), minlength=1) > 0
    spent[leading[call] & ~multiplying] = 0.0
    parts: Float64 = spent / np.bincount(call, spent, minlength=1)[call]
    return parts


def _split_of_kernels(steps: StepContext, members: _Members, bounds: Int8) -> Int64:
    """Computing time of kernels by bound, (n, len(BOUNDS)), ns."""
    computing = ~members.communicates
    sets = [during(steps.trace, members.rows[(bounds == number) & computing]) for number in range(len(BOUNDS))]
    return claim(steps.windows[:, 0], steps.windows[:, 1], sets)[:, :-1]
