"""Drawing the roofline of a trace: groups of kernels, their work, what bounds them, the split of the compute account.

An operator's work belongs to the kernels that it launched, never twice: FLOPs and bytes of a product go to the kernels
that multiply (in proportion to their time, where there are several), not to those that lay out its inputs; the bytes of
other operators to all their kernels by time.
"""

from __future__ import annotations

import numpy as np

from steptime.arrays import Float64, Int8, Int64
from steptime.hardware.machine import Machine
from steptime.intervals import claim, contains, union
from steptime.kineto.table import Category, Trace
from steptime.links.links import UNKNOWN, Links
from steptime.links.names import COMMUNICATION_KERNEL, matching
from steptime.roofline.convolutions import complete
from steptime.roofline.groups import BOUNDS, Members, bound_of_kernel, group_at_peaks, totals
from steptime.roofline.kernel_names import list_item, multiplies
from steptime.roofline.processor import draw_on_processor
from steptime.roofline.roofline import Roofline
from steptime.work.calls import Modelled, model


def draw(trace: Trace, links: Links, windows: Int64, machine: Machine | None, step: float | None = None) -> Roofline:
    """The roofline of the steps. windows: (n, 2) ns, the steps as the ledger has them (on an accelerator where the
    device ends each). Groups hold the kernels that the steps launched, and those without a launch in the trace that
    begin in a window; the split is about time, as the ledger is: whatever ran in a window. Without a device, groups
    hold operators. step: ns of the step that it is told of, which the profiler did not slow; None: of these.

    The roofline's machine has peaks that are no lower than what was reached."""
    if not (trace.events.category == Category.KERNEL).any():
        return draw_on_processor(trace, windows, machine, step)
    members = _members(trace, links, windows)
    groups, bounds, machine = group_at_peaks(trace, members, windows, machine, step, bound_of_kernel)
    split = _split(trace, windows, members, bounds)
    return totals(groups, split, windows, machine)


def _members(trace: Trace, links: Links, windows: Int64) -> Members:
    """Each kernel with its operator and its part of the operator's work."""
    rows = np.flatnonzero(trace.events.category == Category.KERNEL)
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


def _split(trace: Trace, windows: Int64, members: Members, bounds: Int8) -> Int64:
    """(n, len(BOUNDS)) ns of computing by what bounds it."""
    begin, end = trace.events.begin[members.rows], trace.events.end[members.rows]
    sets = []
    for number in range(len(BOUNDS)):
        chosen = (bounds == number) & ~members.communicates
        sets.append(union(begin[chosen], end[chosen]))
    return claim(windows[:, 0], windows[:, 1], sets)[:, :-1]
