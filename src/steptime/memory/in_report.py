"""Memory in a report: over time by owner, and what the forward of each module leaves allocated."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path

import numpy as np

from steptime.analysis.memory_samples import MOST_POINTS, OverTime, highest_points
from steptime.analysis.modules import module_calls, within
from steptime.analysis.step_context import StepContext
from steptime.arrays import Int64
from steptime.errors import SteptimeError
from steptime.memory.lives import AllocationHistory, allocated, histories, histories_of_trace
from steptime.memory.owners import LABELS, Codes, Owner, owners_of
from steptime.memory.signs import signs_of
from steptime.memory.snapshot import read_snapshot
from steptime.memory.steps import boundaries_of
from steptime.recording.recording import Process
from steptime.trace.links import UNKNOWN
from steptime.trace.table import Trace

FREE = "free in the allocator"
LARGEST_SNAPSHOT, LARGEST_TRACE = 8_000_000, 200_000_000
"""Most bytes that are read for a chart: about a second. `steptime memory` reads files of any size."""


def over_time(history: AllocationHistory, owners: Codes, most: int = MOST_POINTS) -> OverTime | None:
    """Chart of a history's memory by owner; the allocator's free memory is the top layer. None for an empty history."""
    live = allocated(history)
    chosen = highest_points(live, most)
    if not len(chosen):
        return None
    rows = [(LABELS[owner], allocated(history, owners == owner)[chosen]) for owner in Owner]
    held = sum(row for _, row in rows)
    rows.append((FREE, np.maximum(history.reserved[chosen] - held, 0)))
    displayed = [(name, row) for name, row in rows if row.any()]
    timed = bool(history.time.any())
    events = np.maximum(chosen - 1, 0)
    times = history.time[events] - history.time[0] if timed else events
    return OverTime(
        place=history.device,
        clock="ns" if timed else "event",
        times=tuple(np.maximum(times, 0).tolist()),
        owners=tuple(name for name, _ in displayed),
        bytes=tuple(tuple(row.tolist()) for _, row in displayed),
        peak=int(np.argmax(live[chosen])),
    )


def owned_in_process(process: Process, windows: Sequence[StepContext]) -> OverTime | None:
    """Chart of a recording's memory by owner, from the allocator's snapshot of a profiled window or from the
    allocations in its trace; None if it has neither."""
    snapshots = sorted(process.folder.glob("memory-*.pickle"), reverse=True)
    found: Iterable[OverTime | None] = map(_of_snapshot, snapshots)
    if not snapshots:
        windows = _with_allocations(process, windows)
        found = (owned_in_trace(each.trace, each.boundaries, "the always-on timers") for each in windows)
    return next((each for each in found if each is not None), None)


def _with_allocations(process: Process, windows: Sequence[StepContext]) -> list[StepContext]:
    """Windows whose traces have allocations, the last first."""
    known = {facts.path.removesuffix(".gz") for facts in process.traces if facts.memory}
    return [window for window in reversed(windows) if window.trace.path.name.removesuffix(".gz") in known]


def owned_in_trace(trace: Trace, boundaries: Int64, how: str) -> OverTime | None:
    """Chart of a trace's memory by owner, on the device that held the most. None if the trace has no allocations, or
    without their addresses (before torch 1.12). boundaries: steps on the CPU, (n, 2), ns; how: source of the
    boundaries, in words."""
    return _of(histories_of_trace(trace, boundaries, how)) if not is_too_large(trace) else None


def is_too_large(trace: Trace) -> bool:
    """True if a trace is too large for a chart of its memory."""
    return len(trace.parts) > 1 or trace.size > LARGEST_TRACE


def _of_snapshot(path: Path) -> OverTime | None:
    try:
        return _of(histories(read_snapshot(path))) if path.stat().st_size <= LARGEST_SNAPSHOT else None
    except SteptimeError:
        return None  # `steptime memory` shows what is wrong with it


def _of(found: Sequence[AllocationHistory]) -> OverTime | None:
    if not found:
        return None
    history = max(found, key=lambda each: int(each.reserved.max()))
    signs = signs_of(history.stacks)
    boundaries, _ = boundaries_of(history, signs)
    return over_time(history, owners_of(history, signs, boundaries))


def kept_in_process(process: Process, windows: Sequence[StepContext]) -> Mapping[str, float] | None:
    """Result of `kept_by_module` for the last profiled window that recorded allocations; None without such a window."""
    return next((kept_by_module(window) for window in _with_allocations(process, windows) if len(window)), None)


def kept_by_module(steps: StepContext) -> Mapping[str, float] | None:
    """Bytes per step that the forward calls of each module allocate and leave allocated when they return (what backward
    needs, and outputs), by module path, on any device. None without allocations."""
    trace = steps.trace
    histories = () if is_too_large(trace) else histories_of_trace(trace, steps.boundaries, "")
    if not histories:
        return None
    spans = _spans(steps)
    kept: defaultdict[str, float] = defaultdict(float)
    for history in histories:
        lives, time = history.lives, np.append(history.time, np.iinfo(np.int64).max)
        inside = lives.born >= 0
        born = time[lives.born[inside]]
        order = np.argsort(born, kind="stable")
        born, died, size = born[order], time[lives.died[inside][order]], lives.size[inside][order]
        for path, called in spans.items():
            counted = np.zeros(len(born), np.bool_)
            for start, end in called:
                low, high = np.searchsorted(born, (start, end))
                counted[low:high] |= died[low:high] > end
            kept[path] += float(size[counted].sum())
    return {path: size / len(steps) for path, size in kept.items()}


def _spans(steps: StepContext) -> Mapping[str, list[tuple[int, int]]]:
    """(start, end) of each module's forward calls, ns. For a container that is never called, those of its children."""
    calls, events, links = module_calls(steps), steps.trace.events, steps.links
    first = (links.forward[calls.rows] == UNKNOWN) & (links.step[calls.rows] != UNKNOWN)
    found: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for row, number in zip(calls.rows[first].tolist(), calls.path[first].tolist(), strict=True):
        span = int(events.start[row]), int(events.ends(row))
        own, *around = within(calls.paths[number])
        for path in (own, *takewhile(lambda each: each not in calls.paths, around)):
            found[path].append(span)
    return found
