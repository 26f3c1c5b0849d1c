"""Flame graph of a step: stacks of the user's functions, modules, operators and, on a device, kernels, each with its
own time. Equal stacks are merged, in order of their first appearance.

A thread's times sum to the step; time in no recorded call is the root's own. A stream's times are those of its kernels,
below the stack that launched them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from steptime.advice.kernels import short_kernel
from steptime.analysis.recorded_breakdown import RecordedBreakdown
from steptime.analysis.step_context import StepContext
from steptime.arrays import Int64
from steptime.quantities import SourceLine
from steptime.report.step_view import text, usual
from steptime.trace.call_tree import ROOT, CallTree, call_tree, exclusive_spans, innermost_at
from steptime.trace.links import DEVICE, function_name, launches_of, roles_of, source_line
from steptime.trace.table import EventKind, Trace
from steptime.trace.vendors import COMMUNICATION_KERNEL

MOST_STACKS = 3_000
"""Most stacks of a thread: the time of smaller ones counts for their callers."""
MOST_THREADS = 8


@dataclass(frozen=True, slots=True)
class FlameLabel:
    """Label of a stack's innermost call. kind: "python", "range", "operator", "call", "compute", "communication",
    "copy" or "thread" (a root)."""

    name: str
    kind: str
    source: SourceLine | None = None


@dataclass(frozen=True, slots=True)
class FlameThread:
    """Call stacks of a thread or stream. kind: "thread" or "stream". The columns are lists of numbers as text, callers
    before callees: position of the caller (-1 for the root), number of the label, own time in ns."""

    name: str
    kind: str
    parent_column: str
    label_column: str
    self_column: str

    def __post_init__(self) -> None:
        """Raises ValueError if a column holds anything but integers, or a stack has no caller before it: a report's
        file may come from anybody."""
        parent, label, own = stacks_of(self)
        if not len(parent) == len(label) == len(own):
            raise ValueError("the columns of a flame graph have different lengths")
        if any(not -1 <= caller < row for row, caller in enumerate(parent)):
            raise ValueError("a stack of a flame graph has no caller before it")


@dataclass(frozen=True, slots=True)
class FlameGraph:
    """Flame graph of one step. stacks: True if the user's functions were recorded, which slows a step."""

    stacks: bool
    labels: tuple[FlameLabel, ...]
    threads: tuple[FlameThread, ...]

    def __post_init__(self) -> None:
        """Raises ValueError if a stack's label does not exist."""
        for thread in self.threads:
            if any(not 0 <= label < len(self.labels) for label in stacks_of(thread)[1]):
                raise ValueError("a stack of a flame graph has no label")


def stacks_of(thread: FlameThread) -> tuple[list[int], list[int], list[int]]:
    """Decoded columns of a thread's stacks: (positions of callers, numbers of labels, own times in ns)."""
    parent, label, own = (
        [int(number) for number in column.split()]
        for column in (thread.parent_column, thread.label_column, thread.self_column)
    )
    return parent, label, own


def flame_of_process(recorded: RecordedBreakdown) -> FlameGraph | None:
    """Flame graph of a profiled step, of one with Python stacks if there is one; None if nothing was profiled."""
    stacked = [window for window in recorded.windows if window.stacks and len(window)]
    steps = stacked[-1] if stacked else recorded.profiled
    return flame_of(steps) if steps is not None else None


def flame_of(steps: StepContext) -> FlameGraph:
    """Flame graph of the step closest to the median. steps: at least one."""
    at = usual(steps.windows[:, 1] - steps.windows[:, 0])
    labels: dict[FlameLabel, int] = {}
    named = _numbered(steps.trace, labels)
    threads = []
    trees = {track: _tree(steps, at, track) for track in steps.tracks}
    for track, tree in trees.items():
        words = "Training thread" if track == steps.track else "Autograd's thread"
        merged = _Merged(labels, f"{words} {steps.trace.tracks[track].thread}")
        stack = _stacks(tree, named, merged)
        spans = exclusive_spans(tree)
        spent = np.bincount(spans.owner, spans.end - spans.start, len(tree)).astype(np.int64)
        for position, own in zip(stack, spent.tolist(), strict=True):
            merged.own[position] += own
        start, end = steps.boundaries[at].tolist()
        if track == steps.track:
            merged.own[0] = end - start - int(spent.sum())
        threads.append(merged.thread("thread"))
    threads += _streams(steps, at, trees, named, labels)
    kept = [each for each in threads if each.self_column.strip("0 ")][:MOST_THREADS]
    stacks = bool(np.any(steps.trace.events.event_kind == EventKind.PYTHON))
    return FlameGraph(stacks, tuple(labels), tuple(kept))


def _tree(steps: StepContext, at: int, track: int) -> CallTree:
    """Call tree of a thread in the step, cut to it."""
    trace, roles = steps.trace, roles_of(steps.trace)
    events = trace.events
    start, end = steps.boundaries[at].tolist()
    reported = (
        roles.operator | roles.function | roles.module | (roles.annotation & (events.event_kind != EventKind.PYTHON))
    )
    reported |= events.event_kind == EventKind.RUNTIME
    rows = np.flatnonzero(reported & (events.track == track) & (events.start < end) & (events.end > start))
    tree = call_tree(np.maximum(events.start[rows], start), np.minimum(events.ends(rows), end))
    return CallTree(rows[tree.rows].astype(np.int32), tree.parent, tree.start, tree.end)


_KINDS = {EventKind.OPERATOR: "operator", EventKind.RUNTIME: "call", EventKind.MEMCPY: "copy", EventKind.MEMSET: "copy"}


Numbered = Callable[[int], int]


def _numbered(trace: Trace, labels: dict[FlameLabel, int]) -> Numbered:
    """Function that returns the number of an event's label, by the event's row. labels: pool, which grows."""

    @cache
    def number(name: int, event_kind: int) -> int:
        return labels.setdefault(_label(trace.symbols[name], event_kind), len(labels))

    return lambda row: number(int(trace.events.name[row]), int(trace.events.event_kind[row]))


def _label(symbol: str, event_kind: int) -> FlameLabel:
    if event_kind == EventKind.KERNEL:
        kind = "communication" if COMMUNICATION_KERNEL.search(symbol) else "compute"
        return FlameLabel(text(short_kernel(symbol.removeprefix("void "))), kind)
    source = source_line(symbol)
    if event_kind == EventKind.PYTHON and source is not None:
        return FlameLabel(text(function_name(symbol)), "python", source)
    return FlameLabel(text(symbol.removeprefix("nn.Module: ")), _KINDS.get(EventKind(event_kind), "range"))


class _Merged:
    """Merged stacks. own: own time of each, ns."""

    def __init__(self, labels: dict[FlameLabel, int], name: str) -> None:
        self.name = name
        self.parent, self.label, self.own = [ROOT], [labels.setdefault(FlameLabel(name, "thread"), len(labels))], [0]
        self._known: dict[tuple[int, int], int] = {}

    def below(self, parent: int, label: int) -> int:
        """Position of the stack with a label below another stack, added if new."""
        found = self._known.setdefault((parent, label), len(self.own))
        if found == len(self.own):
            self.parent.append(parent)
            self.label.append(label)
            self.own.append(0)
        return found

    def thread(self, kind: str) -> FlameThread:
        """Thread with the largest stacks; each of them has its callers."""
        total = self.own.copy()
        for stack in range(len(total) - 1, 0, -1):
            total[self.parent[stack]] += total[stack]
        taking = (stack for stack, spent in enumerate(total) if spent or not stack)
        largest = sorted(taking, key=lambda stack: (-total[stack], stack))[:MOST_STACKS]
        number = {stack: at for at, stack in enumerate(sorted(largest))}
        own = [0] * len(number)
        for stack in range(len(total)):
            holder = stack
            while holder not in number:
                holder = self.parent[holder]
            own[number[holder]] += self.own[stack]
        kept = list(number)
        parents = [number[self.parent[stack]] if stack else ROOT for stack in kept]
        columns = (parents, [self.label[stack] for stack in kept], own)
        return FlameThread(self.name, kind, *(" ".join(map(str, column)) for column in columns))


def _stacks(tree: CallTree, named: Numbered, merged: _Merged) -> list[int]:
    """Position of the stack of each member of a tree."""
    found: list[int] = []
    for row, parent in zip(tree.rows.tolist(), tree.parent.tolist(), strict=True):
        found.append(merged.below(found[parent] if parent != ROOT else 0, named(row)))
    return found


def _streams(
    steps: StepContext, at: int, trees: dict[int, CallTree], named: Numbered, labels: dict[FlameLabel, int]
) -> Iterator[FlameThread]:
    """Threads of the flame graph for the device activities that the step launched, one per stream."""
    trace = steps.trace
    events, launch = trace.events, launches_of(trace)
    rows = np.flatnonzero(np.isin(events.event_kind, DEVICE) & (steps.links.step == at))
    for track in np.unique(events.track[rows]).tolist():
        mine: Int64 = rows[events.track[rows] == track]
        stream = str(trace.tracks[track].thread)
        merged = _Merged(labels, stream if stream.startswith("stream") else f"stream {stream}")
        called = launch[mine]
        stacks = {thread: _stacks(tree, named, merged) for thread, tree in trees.items()}
        caller = {
            thread: innermost_at(tree, np.where(called >= 0, events.start[called], 0)).tolist()
            for thread, tree in trees.items()
        }
        for position, row in enumerate(mine.tolist()):
            thread = int(events.track[called[position]]) if called[position] >= 0 else -1
            around = caller[thread][position] if thread in trees else ROOT
            if around != ROOT and events.event_kind[trees[thread].rows[around]] == EventKind.RUNTIME:
                around = int(trees[thread].parent[around])  # the launch itself says nothing
            stack = merged.below(stacks[thread][around] if around != ROOT else 0, named(row))
            merged.own[stack] += int(events.duration[row])
        yield merged.thread("stream")
