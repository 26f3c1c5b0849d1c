"""The critical path: what the end of a step waited for, back to its start, piece by piece.

It is the path of the replayed step on the replay's clock, so its pieces join without overlap and sum to the step.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from steptime.analysis.operators import operator_events
from steptime.analysis.what_if.graph import NONE, EdgeKind, Graph, GraphRun, NodeKind
from steptime.analysis.what_if.scope import Scope, cpu_time
from steptime.arrays import Bool, Int64, unique
from steptime.intervals import contains
from steptime.trace.call_tree import ROOT, call_tree, innermost_at, nearest_ancestor
from steptime.trace.table import EventKind, Trace

STAGING = 50_000
"""Delay of a copy after its call from which on the CPU must have staged it, ns: its data came from pageable memory."""


class PathKind(IntEnum):
    KERNEL = 0
    COMMUNICATION = 1
    COPY = 2
    INPUT = 3
    SYNC = 4
    """A wait returns, including the waiting call's own cost."""
    DISPATCH = 5
    LAUNCH_DELAY = 6
    """Delay from the launching call to the device."""
    KERNEL_GAP = 7
    """Gap between activities of the device, within a stream or across streams."""
    ALLOCATION = 8
    HOST = 9
    UNEXPLAINED = 10
    """The device waited for something that is not in the trace."""

    @property
    def title(self) -> str:
        """Name of the kind for a person, such as "launch delay"."""
        return self.name.lower().replace("_", " ")


@dataclass(frozen=True, slots=True, eq=False)
class Path:
    """Critical path of the replayed steps, in pieces in time order. kind: `PathKind` of each. start, end: ns since the
    first step's start. step: index of the step. edge: edge of the graph, NONE for the time of a device activity. node:
    node that ends the piece. All of a thread's own work has the kind HOST here; `named` refines it."""

    kind: Int64
    start: Int64
    end: Int64
    step: Int64
    edge: Int64
    node: Int64


def path_of(graph: Graph, found: GraphRun) -> Path:
    """Critical path of each step. Its pieces cover the step from start to end."""
    source = np.where(found.through == NONE, NONE, graph.edges.source[found.through])
    nodes, counts = [], []
    for last, lowest in zip(found.last.tolist(), found.start.tolist(), strict=True):
        walked = []
        while last != NONE and found.finish[last] > lowest:
            walked.append(last)
            last = int(source[last])
        nodes += walked[::-1]
        counts.append(len(walked))
    node = np.array(nodes, np.int64)
    step = np.repeat(np.arange(len(counts)), counts)
    return _pieces(graph, found, node, source[node], found.start[step], step)


def _pieces(graph: Graph, found: GraphRun, node: Int64, source: Int64, lowest: Int64, step: Int64) -> Path:
    """Pieces of each node: the edge that led there, its unexplained part, and the node's own time."""
    through = found.through[node]
    known = through != NONE
    end = found.finish[node]
    ready = np.where(known, np.maximum(found.finish[source], lowest), lowest)
    on_host = graph.nodes.kind[node] == NodeKind.HOST
    start = np.where(on_host, end, np.maximum(end - graph.nodes.duration[node], ready))
    explained = np.where(known, np.maximum(start - graph.edges.unexplained[through], ready), start)
    kinds = np.where(known, edge_kinds(graph)[through], PathKind.HOST)
    none = np.full(len(node), NONE)
    own = np.array([KIND_OF_NODE.get(kind, PathKind.HOST) for kind in NodeKind])[graph.nodes.kind[node]]
    starts = np.stack((ready, explained, start), axis=1)
    ends = np.stack((explained, start, end), axis=1)
    kind = np.stack((kinds, np.full(len(node), PathKind.UNEXPLAINED), own), axis=1)
    edge = np.stack((through, through, none), axis=1)
    lasting = ends > starts
    nodes, steps = (np.repeat(column[:, None], 3, axis=1)[lasting] for column in (node, step))
    return Path(kind[lasting], starts[lasting], ends[lasting], steps, edge[lasting], nodes)


def edge_kinds(graph: Graph) -> Int64:
    """`PathKind` of each edge of a graph; HOST for all of a thread's own work."""
    edges = graph.edges
    kind = np.array([_OF_EDGE[kind] for kind in EdgeKind])[edges.kind]
    of_call = (edges.kind == EdgeKind.PROGRAM) & edges.blocking
    kind[of_call] = np.where(edges.allocation[of_call] > 0, PathKind.ALLOCATION, PathKind.SYNC)
    kind[(edges.kind == EdgeKind.WAIT) & edges.blocking] = PathKind.ALLOCATION
    copied = graph.nodes.kind[edges.target] == NodeKind.COPY
    kind[(edges.kind == EdgeKind.LAUNCH) & copied & (edges.weight > STAGING)] = PathKind.COPY
    return kind.astype(np.int64)


KIND_OF_NODE = {
    NodeKind.KERNEL: PathKind.KERNEL,
    NodeKind.COMMUNICATION: PathKind.COMMUNICATION,
    NodeKind.COPY: PathKind.COPY,
}
_OF_EDGE: dict[int, PathKind] = {
    EdgeKind.PROGRAM: PathKind.HOST,
    EdgeKind.HAND_OVER: PathKind.DISPATCH,
    EdgeKind.LAUNCH: PathKind.LAUNCH_DELAY,
    EdgeKind.STREAM: PathKind.KERNEL_GAP,
    EdgeKind.EVENT: PathKind.KERNEL_GAP,
    EdgeKind.WAIT: PathKind.SYNC,
    EdgeKind.QUEUE: PathKind.SYNC,
}


@dataclass(frozen=True, slots=True, eq=False)
class NamedPath:
    """Critical path with names, in pieces in time order. kind: `PathKind`; name: index in the trace's symbols, NONE for
    none; start, end: ns since the first step's start; step: index of the step; on_device: 1 if on the device."""

    kind: Int64
    name: Int64
    start: Int64
    end: Int64
    step: Int64
    on_device: Int64

    def __len__(self) -> int:
        return len(self.kind)


def named(scope: Scope, graph: Graph, found: GraphRun, path: Path) -> NamedPath:
    """The critical path with names; a thread's own work is split where its kind or its operator changes."""
    if not len(path.kind):
        empty = np.empty(0, np.int64)
        return NamedPath(empty, empty, empty, empty, empty, empty)
    work = (path.kind == PathKind.HOST) & (path.edge != NONE)
    rest = np.flatnonzero(~work)
    row = graph.nodes.row[path.node[rest]]
    on_device = (path.edge[rest] == NONE) | ~np.isin(graph.edges.kind[path.edge[rest]], _ON_HOST)
    name = np.where(row == NONE, NONE, scope.trace.events.name[row])
    parts: list[tuple[Int64, ...]] = [
        (path.kind[rest], name, path.start[rest], path.end[rest], path.step[rest], on_device.astype(np.int64))
    ]
    tracks = graph.nodes.track[path.node]
    parts += [
        _cut(scope, graph, found, path, np.flatnonzero(work & (tracks == track)), track)
        for track in unique(tracks[work]).tolist()
    ]
    columns = [np.concatenate(each) for each in zip(*parts, strict=True)]
    order = np.lexsort((columns[2], columns[4]))
    return NamedPath(*(column[order] for column in columns))


_ON_HOST = (EdgeKind.PROGRAM, EdgeKind.HAND_OVER, EdgeKind.WAIT, EdgeKind.QUEUE)


def _cut(scope: Scope, graph: Graph, found: GraphRun, path: Path, pieces: Int64, track: int) -> tuple[Int64, ...]:
    """Pieces of a track's own work by what it was when observed, stretched if the work is scaled (`Graph.host`)."""
    node = path.node[pieces]
    seen = graph.nodes.observed[node]
    start, end = path.start[pieces], path.end[pieces]
    ended = seen - found.finish[node] + end
    began = ended - _scaled(end - start, 1 / graph.host if graph.host else 0.0)
    times = cpu_time(scope, track)
    events, operator = scope.trace.events, operator_events(scope.trace)
    called = operator | (events.event_kind == EventKind.RUNTIME)
    calling = np.isin(events.event_kind, (EventKind.PYTHON, EventKind.ANNOTATION)) & ~operator
    names = [
        _innermost(scope.trace, np.flatnonzero((events.track == track) & listed), preferred)
        for listed, preferred in ((called, operator), (calling, calling))
    ]
    during = [boundary for each in times for boundary in (each.start, each.end)]
    cuts = unique(np.concatenate([began, ended, *(since for since, _ in names), *during]))
    low, high = np.searchsorted(cuts, began), np.searchsorted(cuts, ended)
    owner = np.repeat(np.arange(len(pieces)), high - low)
    at = np.arange(len(owner)) - np.repeat(np.cumsum(high - low) - (high - low), high - low) + low[owner]
    head, tail = cuts[at], cuts[at + 1]
    kind = np.full(len(head), int(PathKind.HOST))
    for each, spent in zip((PathKind.INPUT, PathKind.DISPATCH, PathKind.ALLOCATION), times, strict=True):
        kind[contains(spent, head)] = each
    operation, caller = (held[np.searchsorted(since, head, side="right")] for since, held in names)
    name = np.where((kind == PathKind.DISPATCH) & (operation != NONE), operation, caller)
    first = np.diff(owner, prepend=NONE) != 0
    since, until = (end[owner] - _scaled(ended[owner] - each, graph.host) for each in (head, tail))
    since = np.where(first, start[owner], np.maximum(since, start[owner]))
    until = np.maximum(until, since)
    return kind, name, since, until, path.step[pieces][owner], np.zeros(len(head), np.int64)


def _scaled(spent: Int64, factor: float) -> Int64:
    scaled: Int64 = np.rint(spent * factor).astype(np.int64)
    return scaled


def _innermost(trace: Trace, rows: Int64, preferred: Bool) -> tuple[Int64, Int64]:
    """(times, name before the first time and from each on): the innermost preferred event, else the innermost event."""
    events = trace.events
    made = call_tree(events.start[rows], events.ends(rows))
    rows = rows[made.rows]
    better = nearest_ancestor(made.parent, preferred[rows])
    owner = np.append(np.where(better == ROOT, np.arange(len(made)), better), ROOT)
    times = unique(np.concatenate((made.start, made.end)))
    names = np.append(events.name[rows], NONE)[owner[innermost_at(made, times)]]
    return times, np.append(NONE, names)
