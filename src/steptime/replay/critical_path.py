"""The critical path: what a step's end waited for, back to its begin, piece by piece.

It is the path of the replayed step, on the replay's clock, so that its pieces join without overlap and sum to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from steptime.replay.graph import NONE, EdgeKind, Graph, Int64, NodeKind
from steptime.replay.run import Run

STAGING = 50_000
"""ns. A copy that starts this long after its call was staged by the host first: the data came from pageable memory."""


class PathKind(IntEnum):
    """What a piece of the path is."""

    KERNEL = 0
    COMMUNICATION = 1
    COPY = 2
    INPUT = 3
    SYNC = 4
    """Returning from a wait, and what the waiting call costs itself."""
    DISPATCH = 5
    LAUNCH_DELAY = 6
    """From the launching call to the device."""
    KERNEL_GAP = 7
    """Between activities of the device, within a stream or across."""
    ALLOCATION = 8
    HOST = 9
    UNEXPLAINED = 10
    """The device waited for something that the trace does not hold."""

    @property
    def title(self) -> str:
        """As a person reads it: "launch delay"."""
        return self.name.lower().replace("_", " ")


@dataclass(frozen=True, slots=True, eq=False)
class Path:
    """Pieces in time order. kind: `PathKind`. begin, end: ns since the first step's begin, replayed. step: index. edge:
    NONE for the time of a device activity. node: at which the piece ends. A thread's own work, which is still to be
    told apart (`path_names.py`), has the kind HOST so far."""

    kind: Int64
    begin: Int64
    end: Int64
    step: Int64
    edge: Int64
    node: Int64

    def __len__(self) -> int:
        return len(self.kind)


def path_of(graph: Graph, found: Run) -> Path:
    """The paths of all steps; each one's pieces reach from the step's begin to its end."""
    walked = [_walk(graph, found, step) for step in range(len(found.end))]
    pieces = np.array([piece for step in walked for piece in reversed(step)], np.int64).reshape(-1, 6)
    return Path(*pieces.T)


def _walk(graph: Graph, found: Run, step: int) -> list[tuple[int, ...]]:
    """Pieces of one step, last first."""
    nodes, edges = graph.nodes, graph.edges
    lowest, node = int(found.begin[step]), int(found.last[step])
    pieces: list[tuple[int, ...]] = []
    until = int(found.finish[node])

    def add(kind: int, begin: int, edge: int) -> int:
        begin = max(begin, lowest)
        if begin < until:
            pieces.append((kind, begin, until, step, edge, node))
        return min(begin, until)

    while until > lowest:
        edge = int(found.through[node])
        source = int(edges.source[edge]) if edge != NONE else NONE
        ready = int(found.finish[source]) if edge != NONE else lowest
        if nodes.kind[node] != NodeKind.HOST:
            start = int(found.finish[node] - nodes.duration[node])
            until = add(_OF_NODE[int(nodes.kind[node])], max(start, ready), NONE)
        if edge != NONE:
            waited = int(edges.unexplained[edge])
            until = add(PathKind.UNEXPLAINED, until - waited, edge) if waited else until
            until = add(_kind_of(graph, edge), ready, edge)
        elif until > lowest:
            until = add(PathKind.HOST, lowest, NONE)
        node = source if edge != NONE else node
    return pieces


def _kind_of(graph: Graph, edge: int) -> int:
    edges = graph.edges
    kind = int(edges.kind[edge])
    if kind == EdgeKind.PROGRAM and edges.blocking[edge]:
        return PathKind.ALLOCATION if edges.allocation[edge] else PathKind.SYNC
    if kind == EdgeKind.WAIT and edges.blocking[edge]:
        return PathKind.ALLOCATION
    if kind == EdgeKind.LAUNCH and edges.weight[edge] > STAGING:
        return PathKind.COPY if graph.nodes.kind[edges.target[edge]] == NodeKind.COPY else PathKind.LAUNCH_DELAY
    return _OF_EDGE[kind]


_OF_NODE: dict[int, PathKind] = {
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
}
