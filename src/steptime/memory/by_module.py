"""What the forward pass of each module leaves allocated, for the tree of modules of a report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import takewhile

import numpy as np

from steptime.analysis.modules import module_calls, within
from steptime.analysis.step_context import StepContext
from steptime.memory.by_owner import is_too_large
from steptime.memory.lives import histories_of_trace
from steptime.recording.recording import Process
from steptime.trace.links import UNKNOWN


def kept_in_process(process: Process, windows: Sequence[StepContext]) -> Mapping[str, float] | None:
    """By path, as `kept_by_module`, of the last window that recorded allocations; None without one."""
    known = {facts.path.removesuffix(".gz") for facts in process.traces if facts.memory}
    for window in reversed(windows):
        if window.trace.path.name.removesuffix(".gz") in known and len(window):
            return kept_by_module(window)
    return None


def kept_by_module(steps: StepContext) -> Mapping[str, float] | None:
    """By path, bytes per step that were allocated in the module's calls of the forward pass, on any device, and lived
    on when the call had ended: what backward needs, and outputs. None without allocations."""
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
            for begin, end in called:
                low, high = np.searchsorted(born, (begin, end))
                counted[low:high] |= died[low:high] > end
            kept[path] += float(size[counted].sum())
    return {path: size / len(steps) for path, size in kept.items()}


def _spans(steps: StepContext) -> Mapping[str, list[tuple[int, int]]]:
    """When each module was called in the forward pass, (begin, end) ns; a container that nobody calls (a ModuleList),
    when those in it were."""
    calls, events, links = module_calls(steps), steps.trace.events, steps.links
    first = (links.forward[calls.rows] == UNKNOWN) & (links.step[calls.rows] != UNKNOWN)
    found: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for row, number in zip(calls.rows[first].tolist(), calls.path[first].tolist(), strict=True):
        span = int(events.begin[row]), int(events.ends(row))
        own, *around = within(calls.paths[number])
        for path in (own, *takewhile(lambda each: each not in calls.paths, around)):
            found[path].append(span)
    return found
