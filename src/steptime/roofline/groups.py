"""Groups of kernels: one name, one operator, arguments of one kind; their sums, and what bounds them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from steptime.arrays import Bool, Float64, Int8, Int64
from steptime.hardware.machine import Machine
from steptime.kineto.table import ABSENT, Trace
from steptime.roofline.dimensions import missed
from steptime.roofline.kernel_names import matrix_unit, number_format
from steptime.roofline.roofline import COMMUNICATION, KernelGroup, Roofline
from steptime.work.bounds import COMPUTE, LATENCY, MEMORY, UNMODELLED, bound_of_times, time_at_ceilings
from steptime.work.calls import Modelled, distinct
from steptime.work.model import Work

BOUNDS = (COMPUTE, MEMORY, LATENCY, UNMODELLED)
"""In the order in which they claim time that kernels share."""
SHORTEST_KERNEL = 2_000
"""ns from the first block of the smallest kernel to the end of its last: 1.1 to 1.6 microseconds on H100 and V100, 2.0
on B200, 1.6 to 1.9 on MI300X and MI210 (the shortest kernels of published traces that have nanoseconds). A kernel whose
work would be done in less, at the ceilings, is too small for either to bind."""
NEAR_SHORTEST = 2
"""A kernel without a model that lasts no longer than this many times the shortest is bound by latency all the same."""
LONG_ENOUGH = 100_000
"""ns: a shorter call's time is too uncertain (a profiler's clock, work that the call leaves behind) to say that a peak
was measured too low."""
LEAST_FILLING = 0.5
"""Blocks for each multiprocessor. With fewer, most of the device has nothing to do: neither its arithmetic nor its
bandwidth binds. Between a half and one a good product still reaches most of its ceiling (the published H100 traces have
them at 0.85 and 53 to 68 % of the peak)."""


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
"""ns of arithmetic and of movement at the ceilings, None without a model or ceilings."""
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
    sums = _Sums.of(members, kind, members.counted)
    whole = _Sums.of(members, kind, np.ones(len(rows), np.bool_))
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
class _Sums:
    """Of each group: kernels, ns, FLOPs and bytes (nan where a kernel has no model), filling (nan where unknown)."""

    calls: Float64
    duration: Float64
    flops: Float64
    bytes: Float64
    filling: Float64

    @staticmethod
    def of(members: Members, kind: Int64, chosen: Bool) -> _Sums:
        count = int(kind.max()) + 1
        working = np.where(members.share > 0, members.share, np.nan)

        def total(values: Float64 | Int64) -> Float64:
            return np.bincount(kind[chosen], values[chosen], count).astype(np.float64)

        modelled = members.modelled
        return _Sums(
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
    number_format: str
    dimensions: tuple[str, ...]
    times: Times
    bound: str

    @staticmethod
    def of(
        trace: Trace,
        members: Members,
        sums: _Sums,
        number: int,
        longest: int,
        machine: Machine | None,
        bound_by: BoundBy,
    ) -> _Group:
        calls, name = sums.calls[number], trace.symbols[trace.events.name[members.rows[longest]]]
        work = members.modelled.works[members.modelled.kind[longest]] if not np.isnan(sums.bytes[number]) else None
        format_ = number_format(name, work.number_format) if work is not None else ""
        flops = _known(sums.flops[number] / calls)
        one = Work(flops, sums.bytes[number] / calls, format_) if work is not None else None
        times = time_at_ceilings(one, machine)
        bound = bound_by(times, sums.duration[number] / calls, sums.filling[number] / calls)
        return _Group(
            example=int(members.rows[longest]),
            operator=int(members.operator[longest]),
            number_format=format_,
            dimensions=missed(work.dimensions, format_) if work is not None and flops else (),
            times=times,
            bound=COMMUNICATION if members.communicates[longest] else bound,
        )


def _group(trace: Trace, made: _Group, sums: _Sums, number: int, steps: int) -> KernelGroup:
    events, operator = trace.events, made.operator
    name, flops = trace.symbols[events.name[made.example]], _known(sums.flops[number])
    duration, calls = float(sums.duration[number]), float(sums.calls[number])
    moved = _known(sums.bytes[number])
    return KernelGroup(
        name=name,
        operator=trace.symbols[events.name[operator]] if operator >= 0 else "",
        shapes=_text(trace.shapes, events.shapes[operator]) if operator >= 0 else "",
        types=_text(trace.dtypes, events.dtypes[operator]) if operator >= 0 else "",
        number_format=made.number_format,
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
    """By the ns that its arithmetic and its bytes take at the ceilings, the ns that it took, and how far its blocks
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
    """FLOP/s of the quickest product by number format. Convolutions are no products: a fast algorithm needs fewer
    operations than are counted."""
    found: dict[str, float] = {}
    for each in groups:
        timed = each.flops and each.calls and each.duration / each.calls >= LONG_ENOUGH
        if timed and each.bound != COMMUNICATION and "conv" not in each.operator.lower():
            rate = (each.flops or 0.0) / each.duration * 1e9
            found[each.number_format] = max(found.get(each.number_format, 0.0), rate)
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
        number_format=most,
        peak=machine.matrix_rate(most) if machine is not None and most else None,
        utilization=_utilization(formats, wall, machine),
        modelled=modelled / spent if spent else 0.0,
    )


def _formats(groups: tuple[KernelGroup, ...]) -> dict[str, float]:
    """FLOPs per step by number format."""
    found: dict[str, float] = {}
    for each in groups:
        if each.flops:
            found[each.number_format] = found.get(each.number_format, 0.0) + each.flops
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
