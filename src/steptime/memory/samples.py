"""What was sampled of a process's memory while it ran."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from steptime.journal import Kind
from steptime.memory.growth import Growth, growth_of
from steptime.recording.recording import Process
from steptime.timeline.timeline import Timeline

Int64 = npt.NDArray[np.int64]
RESIDENT, ALLOCATED, RESERVED, RETRIES = 1, 2, 3, 4
"""Identities of MEMORY records of the journal."""
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
        step = np.searchsorted(timeline.steps.end, times).astype(np.int64)
        growth = growth_of(name, memory, step, values)
        if growth is not None:
            found.append(growth)
    return tuple(found)
