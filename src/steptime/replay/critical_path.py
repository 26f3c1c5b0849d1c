"""The critical path: what a step's end waited for, back to its begin, piece by piece.

It is the path of the replayed step, on the replay's clock, so that its pieces join without overlap and sum to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from steptime.arrays import Int64
from steptime.replay.graph import NONE, EdgeKind, Graph, NodeKind
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
    source = np.where(found.through == NONE, NONE, graph.edges.source[found.through])
    walked = [_walk(source, found, step) for step in range(len(found.end))]
    node = np.concatenate([np.empty(0, np.int64), *walked])
    step = np.repeat(np.arange(len(walked)), [len(each) for each in walked])
    return _pieces(graph, found, node, source[node], found.begin[step], step)


def _walk(source: Int64, found: Run, step: int) -> Int64:
    """The nodes of a step's path in time order: back from its last to the first that was reached after its begin."""
    lowest, node, nodes = int(found.begin[step]), int(found.last[step]), []
    while node != NONE and found.finish[node] > lowest:
        nodes.append(node)
        node = int(source[node])
    return np.array(nodes[::-1], np.int64)


def _pieces(graph: Graph, found: Run, node: Int64, source: Int64, lowest: Int64, step: Int64) -> Path:
    """Of each node: the edge that led there, what of it is unexplained, and the node's own time."""
    through = found.through[node]
    known = through != NONE
    end = found.finish[node]
    ready = np.where(known, np.maximum(found.finish[source], lowest), lowest)
    on_host = graph.nodes.kind[node] == NodeKind.HOST
    start = np.where(on_host, end, np.maximum(end - graph.nodes.duration[node], ready))
    explained = np.where(known, np.maximum(start - graph.edges.unexplained[through], ready), start)
    kinds = np.where(known, _edge_kinds(graph)[through], PathKind.HOST)
    none = np.full(len(node), NONE)
    own = np.array([_OF_NODE.get(kind, PathKind.HOST) for kind in NodeKind])[graph.nodes.kind[node]]
    begins = np.stack((ready, explained, start), axis=1)
    ends = np.stack((explained, start, end), axis=1)
    kind = np.stack((kinds, np.full(len(node), PathKind.UNEXPLAINED), own), axis=1)
    edge = np.stack((through, through, none), axis=1)
    lasting = ends > begins
    whole = np.repeat(node[:, None], 3, axis=1), np.repeat(step[:, None], 3, axis=1)
    return Path(kind[lasting], begins[lasting], ends[lasting], whole[1][lasting], edge[lasting], whole[0][lasting])


def _edge_kinds(graph: Graph) -> Int64:
    """What a piece is, by the edge that it passes along."""
    edges = graph.edges
    kind = np.array([_OF_EDGE[kind] for kind in EdgeKind])[edges.kind]
    of_call = (edges.kind == EdgeKind.PROGRAM) & edges.blocking
    kind[of_call] = np.where(edges.allocation[of_call] > 0, PathKind.ALLOCATION, PathKind.SYNC)
    kind[(edges.kind == EdgeKind.WAIT) & edges.blocking] = PathKind.ALLOCATION
    copied = graph.nodes.kind[edges.target] == NodeKind.COPY
    kind[(edges.kind == EdgeKind.LAUNCH) & copied & (edges.weight > STAGING)] = PathKind.COPY
    return kind.astype(np.int64)


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
    EdgeKind.QUEUE: PathKind.SYNC,
}
