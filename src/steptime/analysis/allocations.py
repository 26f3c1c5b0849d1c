"""Calls in steps that go to the device's driver for memory: PyTorch's allocator asks only when its pool ends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steptime.analysis.device_activity import device_time
from steptime.analysis.operators import grouped, per_step, source_of, step_at, time_inside
from steptime.arrays import Int64
from steptime.intervals import intersect, measure, subtract, union
from steptime.quantities import SourceLine
from steptime.trace.links import Links
from steptime.trace.table import EventKind, Trace
from steptime.trace.vendors import ALLOCATION, matching


@dataclass(frozen=True, slots=True, eq=False)
class AllocationTotal:
    """Calls of one name (cudaMalloc, cudaFree, hipMalloc, …). All columns (n,), by step: calls begun in it, ns of the
    host inside them, ns that the device idled meanwhile."""

    name: str
    calls: Int64
    duration: Int64
    idle: Int64
    source: SourceLine | None


def allocations_of(trace: Trace, links: Links, windows: Int64) -> tuple[AllocationTotal, ...]:
    """The calls of the steps, those first that cost the device most. windows: (n, 2) ns."""
    events = trace.events
    rows = np.flatnonzero((events.event_kind == EventKind.RUNTIME) & matching(trace, ALLOCATION.match))
    step = step_at(windows, events.begin[rows])
    busy = device_time(trace).busy
    idle = subtract(union(windows[:, 0], windows[:, 1]), busy)
    totals = []
    for chosen in grouped(events.name[rows]):
        mine = rows[chosen]
        begin, end = events.begin[mine], events.end[mine]
        meanwhile = intersect(idle, union(begin, end))
        totals.append(
            AllocationTotal(
                name=trace.symbols[events.name[mine[0]]],
                calls=per_step(step[chosen], np.ones(len(mine), np.int64), len(windows)),
                duration=time_inside(begin, end, windows),
                idle=measure(meanwhile, windows[:, 0], windows[:, 1]),
                source=source_of(trace, links, mine, end - begin),
            )
        )
    kept = (each for each in totals if each.calls.any())
    return tuple(sorted(kept, key=lambda each: (-int(each.idle.sum()), -int(each.duration.sum()), each.name)))
