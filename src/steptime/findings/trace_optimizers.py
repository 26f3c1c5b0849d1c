"""The optimisers of a bare trace, by their annotation: what they are called, how they work, how long the device is busy
for them."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np

from steptime.arrays import Int64
from steptime.estimates import mean_of_series
from steptime.findings.case import OptimizerUse
from steptime.findings.kernel_kinds import elements, shapes_of
from steptime.intervals import Intervals, contains, measure, union
from steptime.kineto.table import ABSENT, Category, Trace
from steptime.links.links import UNKNOWN, Links
from steptime.links.names import OPTIMIZER_STEP, matching

ONE_BY_ONE = 20
"""Operators of one name in an update: fewer tensors, or a few batched operators, look alike."""
NAME = "Optimizer.step#"


def optimizer_uses(trace: Trace, links: Links, windows: Int64) -> tuple[OptimizerUse, ...]:
    """One for each kind of optimiser that stepped in the windows, (n, 2) ns; empty without annotations."""
    events = trace.events
    chosen = matching(trace, OPTIMIZER_STEP.match) & np.isin(events.category, (Category.ANNOTATION, Category.OPERATOR))
    chosen &= contains(union(windows[:, 0], windows[:, 1]), events.begin)
    names = np.unique(events.name[chosen]).tolist()
    return tuple(_use(trace, links, np.flatnonzero(chosen & (events.name == name)), windows) for name in names)


def _use(trace: Trace, links: Links, updates: Int64, windows: Int64) -> OptimizerUse:
    events = trace.events
    inside = union(events.begin[updates], events.end[updates])
    operators = (events.category == Category.OPERATOR) & contains(inside, events.begin)
    names = [trace.symbols[number] for number in np.unique(events.name[operators]).tolist()]
    fused, foreach = any("_fused_" in name for name in names), any("_foreach_" in name for name in names)
    tensors, numbers, alone = _tensors(trace, np.flatnonzero(operators), max(1, len(updates)))
    kernels, busy = _kernels(trace, links, inside)
    held = busy if kernels else inside
    return OptimizerUse(
        type=trace.symbols[int(events.name[updates[0]])].removeprefix(NAME).removesuffix(".step"),
        duration=mean_of_series(measure(held, windows[:, 0], windows[:, 1])),
        parameters=tensors,
        elements=numbers,
        foreach=True if foreach or fused else False if alone else None,
        fused=fused,
        operators=float(operators.sum()) / len(windows),
        kernels=kernels / len(windows) if kernels else None,
    )


def _tensors(trace: Trace, rows: Int64, updates: int) -> tuple[int, int, bool]:
    """(tensors, numbers in them, whether they are updated one by one); zeros where nothing is repeated or no shapes are
    recorded. Each tensor has its own call of most of the in-place operators, some are called twice for each (the step
    counts, casts): the number of calls that most of them share is the number of tensors."""
    events = trace.events
    calls: dict[int, list[int]] = defaultdict(list)
    for row, name in zip(rows.tolist(), events.name[rows].tolist(), strict=True):
        if trace.symbols[name].endswith("_") and "_foreach_" not in trace.symbols[name]:
            calls[name].append(row)
    shared = Counter(map(len, calls.values()))
    usual = min(shared, key=lambda count: (-shared[count], count), default=0)
    if usual < ONE_BY_ONE * updates:
        return 0, 0, False
    most = next(rows for rows in calls.values() if len(rows) == usual)
    shapes = [int(events.shapes[row]) for row in most]
    known = {shape: next(iter(shapes_of(trace.shapes[shape])), ()) for shape in set(shapes) if shape != ABSENT}
    return len(most) // updates, sum(elements(known[each]) for each in shapes if each in known) // updates, True


def _kernels(trace: Trace, links: Links, inside: Intervals) -> tuple[int, Intervals]:
    """How many kernels the updates launched, and from the first one of each update to the end of its last."""
    events = trace.events
    rows = np.flatnonzero((events.category == Category.KERNEL) & (links.launch != UNKNOWN))
    launched = events.begin[links.launch[rows]]
    kept = contains(inside, launched)
    rows, launched = rows[kept], launched[kept]
    number = np.searchsorted(inside.begin, launched, side="right") - 1
    begin = np.full(len(inside), np.iinfo(np.int64).max)
    end = np.zeros(len(inside), np.int64)
    np.minimum.at(begin, number, events.begin[rows])
    np.maximum.at(end, number, events.end[rows])
    some = np.bincount(number, minlength=len(inside)) > 0
    return len(rows), union(begin[some], end[some])
