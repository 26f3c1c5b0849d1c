"""Memory by owner, where a profiler wrote down every allocation: in a window of a recording, in a trace."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from steptime.arrays import Int64
from steptime.errors import SteptimeError
from steptime.kineto.allocations import read_allocations
from steptime.kineto.reader import DEFAULT_MAX_SIZE
from steptime.kineto.table import Trace
from steptime.ledger.recorded import Window
from steptime.memory.from_snapshot import histories
from steptime.memory.from_trace import histories_of_trace
from steptime.memory.history import History
from steptime.memory.over_time import OverTime, over_time
from steptime.memory.owners import owners_of
from steptime.memory.signs import signs_of
from steptime.memory.steps import borders_of
from steptime.recording.recording import Process
from steptime.snapshots.read import read_snapshot

LARGEST_SNAPSHOT, LARGEST_TRACE = 8_000_000, 200_000_000
"""Bytes that are read for a picture: about a second. `steptime memory` reads any."""


def owned_in_process(process: Process, windows: Sequence[Window]) -> OverTime | None:
    """Of a recording: the allocator's snapshot of a profiled window, else the allocations in its trace. None where
    neither was recorded."""
    snapshots = sorted(process.folder.glob("memory-*.pickle"))
    for path in reversed(snapshots):
        found = _of_snapshot(path)
        if found is not None:
            return found
    if snapshots:
        return None
    known = {facts.path.removesuffix(".gz") for facts in process.traces if facts.memory}
    for window in reversed(windows):
        if window.trace.path.name.removesuffix(".gz") in known:
            found = owned_in_trace(window.trace, window.borders, "the watch")
            if found is not None:
                return found
    return None


def owned_in_trace(trace: Trace, borders: Int64, how: str) -> OverTime | None:
    """borders: (n, 2) ns of the steps on the host, found by how. Of several devices the one that held most; None
    without allocations, or without their addresses (before torch 1.12)."""
    if len(trace.parts) > 1 or trace.size > LARGEST_TRACE:
        return None
    try:
        found = read_allocations(trace.path, max_size=max(DEFAULT_MAX_SIZE, trace.size))
    except SteptimeError:
        return None  # it was there when the trace was read, and says nothing new of it
    return _of(histories_of_trace(trace, found, borders, how))


def _of_snapshot(path: Path) -> OverTime | None:
    try:
        return _of(histories(read_snapshot(path))) if path.stat().st_size <= LARGEST_SNAPSHOT else None
    except SteptimeError:
        return None  # `steptime memory` tells what is wrong with it


def _of(found: Sequence[History]) -> OverTime | None:
    if not found:
        return None
    history = max(found, key=lambda each: int(each.reserved.max()))
    signs = signs_of(history.stacks)
    borders, _ = borders_of(history, signs)
    return over_time(history, owners_of(history, signs, borders))
