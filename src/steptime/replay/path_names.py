"""What the pieces of a critical path are called: kernels by name, the host's work by operator."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steptime.arrays import Bool, Int64
from steptime.intervals import contains
from steptime.kineto.table import Category, Trace
from steptime.ledger.operations import operator_events
from steptime.nesting import ROOT, innermost_at, nearest_ancestor, nest, stretches
from steptime.replay.critical_path import Path, PathKind
from steptime.replay.graph import NONE, EdgeKind, Graph
from steptime.replay.run import Run
from steptime.replay.scope import Scope, host_time


@dataclass(frozen=True, slots=True, eq=False)
class NamedPath:
    """Pieces in time order. kind: `PathKind`; name: number of the trace's symbols, NONE for none; begin, end: ns since
    the first step's begin, replayed; step: index; on_device: where it lies."""

    kind: Int64
    name: Int64
    begin: Int64
    end: Int64
    step: Int64
    on_device: Int64

    def __len__(self) -> int:
        return len(self.kind)


def named(scope: Scope, graph: Graph, found: Run, path: Path) -> NamedPath:
    """The path with its names; the threads' own work cut where it changes its kind or its operator."""
    if not len(path):
        empty = np.empty(0, np.int64)
        return NamedPath(empty, empty, empty, empty, empty, empty)
    work = (path.kind == PathKind.HOST) & (path.edge != NONE)
    rest = np.flatnonzero(~work)
    row = graph.nodes.row[path.node[rest]]
    on_device = (path.edge[rest] == NONE) | ~np.isin(graph.edges.kind[path.edge[rest]], _ON_HOST)
    name = np.where(row == NONE, NONE, scope.trace.events.name[row])
    parts: list[tuple[Int64, ...]] = [
        (path.kind[rest], name, path.begin[rest], path.end[rest], path.step[rest], on_device.astype(np.int64))
    ]
    lanes = graph.nodes.lane[path.node]
    parts += [
        _cut(scope, graph, found, path, np.flatnonzero(work & (lanes == lane)), lane)
        for lane in np.unique(lanes[work]).tolist()
    ]
    columns = [np.concatenate(each) for each in zip(*parts, strict=True)]
    order = np.lexsort((columns[2], columns[4]))
    return NamedPath(*(column[order] for column in columns))


_ON_HOST = (EdgeKind.PROGRAM, EdgeKind.HAND_OVER, EdgeKind.WAIT, EdgeKind.QUEUE)


def _cut(scope: Scope, graph: Graph, found: Run, path: Path, pieces: Int64, lane: int) -> tuple[Int64, ...]:
    """A lane's own work, by what it was when it was observed."""
    node = path.node[pieces]
    shift = graph.nodes.observed[node] - found.finish[node]
    begin, end = path.begin[pieces] + shift, path.end[pieces] + shift
    times = host_time(scope, lane)
    operators, callers = _names_on(scope.trace, lane)
    borders = [operators.borders, callers.borders, *(each.begin for each in times), *(each.end for each in times)]
    cuts = np.unique(np.concatenate([begin, end, *borders]))
    low, high = np.searchsorted(cuts, begin), np.searchsorted(cuts, end)
    owner = np.repeat(np.arange(len(pieces)), high - low)
    at = np.arange(len(owner)) - np.repeat(np.cumsum(high - low) - (high - low), high - low) + low[owner]
    head, tail = cuts[at], cuts[at + 1]
    kinds = (PathKind.INPUT, PathKind.DISPATCH, PathKind.ALLOCATION)
    kind = np.full(len(head), int(PathKind.HOST))
    for each, during in zip(kinds, times, strict=True):
        kind[contains(during, head)] = each
    operator, caller = operators.at(head), callers.at(head)
    name = np.where((kind == PathKind.DISPATCH) & (operator != NONE), operator, caller)
    back = shift[owner]
    zero = np.zeros(len(head), np.int64)
    return kind, name, head - back, tail - back, path.step[pieces][owner], zero


@dataclass(frozen=True, slots=True, eq=False)
class _Names:
    """Which name holds at each time of a lane, from each border on."""

    borders: Int64
    names: Int64

    def at(self, times: Int64) -> Int64:
        if not len(self.borders):
            return np.full(len(times), NONE)
        index = np.searchsorted(self.borders, times, side="right") - 1
        return np.where(index >= 0, self.names[np.maximum(index, 0)], NONE)


def _names_on(trace: Trace, lane: int) -> tuple[_Names, _Names]:
    """By time: the innermost operator (else the runtime call), and the innermost Python function or annotation."""
    events = trace.events
    on_lane = events.lane == lane
    operator = operator_events(trace)
    runtime = events.category == Category.RUNTIME
    caller = np.isin(events.category, (Category.PYTHON, Category.ANNOTATION)) & ~operator
    return (
        _innermost(trace, np.flatnonzero(on_lane & (operator | runtime)), operator),
        _innermost(trace, np.flatnonzero(on_lane & caller), caller),
    )


def _innermost(trace: Trace, rows: Int64, preferred: Bool) -> _Names:
    events = trace.events
    made = nest(events.begin[rows], events.end[rows])
    rows = rows[made.order]
    better = nearest_ancestor(made, preferred[rows])
    owner = np.where(better == ROOT, np.arange(len(made)), better)
    borders = np.unique(np.concatenate((made.begin, made.end)))
    inner = innermost_at(stretches(made), borders)
    name = np.where(inner == ROOT, NONE, events.name[rows[owner[inner]]]) if len(rows) else borders
    return _Names(borders, name)
