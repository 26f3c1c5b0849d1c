"""Memory over time as the watch sampled it: what a recording knows without any history of allocations."""

from __future__ import annotations

import numpy as np

from steptime.arrays import Int64
from steptime.journal import Kind
from steptime.memory.over_time import OverTime
from steptime.recording.recording import Process

RESIDENT, ALLOCATED, RESERVED = 1, 2, 3
"""Identities of MEMORY records (see `journal.Kind.MEMORY`)."""
MOST_POINTS = 240
LEAST_POINTS = 3


def sampled_memory(process: Process, begin: int) -> OverTime | None:
    """Of the device where it was sampled, else the resident set. begin: monotonic ns, the first step's. None with too
    few samples."""
    allocated, reserved = _samples(process, ALLOCATED), _samples(process, RESERVED)
    if allocated[1].any() and len(allocated[0]) == len(reserved[0]):
        times, tensors, held = allocated[0], allocated[1], reserved[1]
        rows = [("tensors", tensors), ("free in the allocator", np.maximum(held - tensors, 0))]
    else:
        times, resident = _samples(process, RESIDENT)
        rows = [("resident in memory", resident)]
    if len(times) < LEAST_POINTS:
        return None
    edges = np.unique(np.linspace(0, len(times), min(MOST_POINTS, len(times)) + 1).astype(np.int64))
    top = rows[0][1]
    pairs = zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    chosen = np.array([first + int(np.argmax(top[first:last])) for first, last in pairs], np.int64)
    place = process.facts.device_name or process.facts.device if len(rows) > 1 else "the process"
    return OverTime(
        place=place,
        clock="ns",
        times=tuple(np.maximum(times[chosen] - begin, 0).tolist()),
        owners=tuple(name for name, _ in rows),
        bytes=tuple(tuple(row[chosen].tolist()) for _, row in rows),
        peak=int(np.argmax(top[chosen])),
    )


def _samples(process: Process, identity: int) -> tuple[Int64, Int64]:
    table = process.intervals
    rows = np.flatnonzero((table.kind == int(Kind.MEMORY)) & (table.identity == identity))
    return table.begin[rows], table.end[rows]
