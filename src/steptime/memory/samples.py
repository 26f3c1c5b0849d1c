"""What was sampled of a process's memory while it ran."""

from __future__ import annotations

import numpy as np

from steptime.arrays import Int64
from steptime.journal import Kind
from steptime.memory.growth import Growth, growth_of
from steptime.recording.recording import Process
from steptime.timeline.timeline import Steps, Timeline

RESIDENT, ALLOCATED, RESERVED, RETRIES = 1, 2, 3, 4
"""Identities of MEMORY records of the journal."""
SETTLING = 1_000_000_000
"""ns: what the profiler holds after a window, while its trace is put together and written; seen: up to 1 s."""
LEVEL = 3
"""Samples on either side of a window whose medians are laid at one level."""
NAMES = {RESIDENT: "resident", ALLOCATED: "allocated", RESERVED: "reserved"}


def samples_of(process: Process, identity: int) -> tuple[Int64, Int64]:
    """(times in ns, values) of one identity."""
    table = process.intervals
    rows = np.flatnonzero((table.kind == Kind.MEMORY) & (table.identity == identity))
    return table.begin[rows], table.end[rows]


def growths(process: Process, timeline: Timeline, name: str = "") -> tuple[Growth, ...]:
    """The growth of each kind of memory over the steps of the process, where there are samples enough."""
    found = []
    for identity, memory in NAMES.items():
        times, values = samples_of(process, identity)
        times, values = without_profiler(times, values, timeline.steps)
        step = np.searchsorted(timeline.steps.end, times).astype(np.int64)
        growth = growth_of(name, memory, step, values)
        if growth is not None:
            found.append(growth)
    return tuple(found)


def without_profiler(times: Int64, values: Int64, steps: Steps) -> tuple[Int64, Int64]:
    """The samples outside of the profiler's windows. What came later is lowered by what each window left behind: that
    is the profiler's memory, hundreds of megabytes at times, and no growth of the job."""
    profiled = np.concatenate(([False], steps.profiled, [False])).astype(np.int8)
    begins = steps.begin[np.flatnonzero(np.diff(profiled) == 1)]
    ends = steps.end[np.flatnonzero(np.diff(profiled) == -1) - 1] + SETTLING
    values, kept = values.copy(), np.ones(len(times), bool)
    for begin, end in zip(begins, ends, strict=True):
        before, after = kept & (times < begin), times > end
        kept &= before | after
        if before.any() and after.any():
            values[after] -= int(np.median(values[after][:LEVEL]) - np.median(values[before][-LEVEL:]))
    return times[kept], values[kept]
