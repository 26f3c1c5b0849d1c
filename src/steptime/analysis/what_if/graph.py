"""Dependency graph of consecutive steps: points in time and what each of them has to wait for.

One law: the graph holds durations and delays, never times of day. Only the order of the nodes comes from the trace's
clock. So running it again is a prediction, and a deviation from the measured step is reported as its error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np

from steptime.arrays import Bool, Int64

NONE = -1
"""No such row, track, node or edge."""


class NodeKind(IntEnum):
    HOST = 0
    """A thread reaches a point of its program: a launch, the end of a wait, a boundary of a step."""
    KERNEL = 1
    """A compute kernel ends."""
    COMMUNICATION = 2
    COPY = 3


class EdgeKind(IntEnum):
    """Reason why a node waits for another."""

    PROGRAM = 0
    """Work of the thread between two of its points."""
    HAND_OVER = 1
    """Transfer of control between threads: into autograd's engine and back."""
    LAUNCH = 2
    """Delay from the launching call to the device."""
    STREAM = 3
    """Order of the activities on one stream."""
    EVENT = 4
    """Wait of a stream for an event that another stream recorded."""
    WAIT = 5
    """Wait of the CPU for the device."""
    QUEUE = 6
    """Wait of a launch for room in the driver's queue."""


@dataclass(frozen=True, slots=True, eq=False)
class Nodes:
    """Nodes in an order in which each comes after all that it waits for. kind: `NodeKind`. time: ns on the trace's
    clock, which defines the order. observed: time at which the node was reached, ns on the trace's clock, only for
    comparisons and display. duration: time at the node after all that it waits for, ns; 0 for the CPU. row: row in the
    event table of a device activity, or of a CPU node's runtime call; else NONE. track: track of a CPU node, else NONE.
    step: index of the step that launched a device activity, NONE outside steps and for the CPU."""

    kind: Int64
    time: Int64
    observed: Int64
    duration: Int64
    row: Int64
    track: Int64
    step: Int64

    def __len__(self) -> int:
        return len(self.kind)


@dataclass(frozen=True, slots=True, eq=False)
class Edges:
    """Edges by target. weight: from the source's end to the target's start, ns; negative where activities of one stream
    overlap. input, dispatch, allocation: disjoint parts of a PROGRAM edge's weight: waiting for input, dispatching
    (operators, runtime calls and short gaps between them), and allocating or freeing in the driver; the rest is other
    Python. blocking: a PROGRAM edge through a call that waited (the weight is its cost without waiting), or a WAIT edge
    of a call that frees memory. unexplained: part of the weight in which the device waited for something that is not in
    the trace, ns."""

    kind: Int64
    source: Int64
    target: Int64
    weight: Int64
    input: Int64
    dispatch: Int64
    allocation: Int64
    unexplained: Int64
    blocking: Bool

    def __len__(self) -> int:
        return len(self.kind)


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """Dependency graph of some steps. start, end: nodes at which the CPU starts and ends each step, (n,). before:
    activity that ended the step before the first one, which starts no earlier; NONE if the CPU starts it. host: factor
    on the observed CPU work (`calibrated`)."""

    nodes: Nodes
    edges: Edges
    start: Int64
    end: Int64
    before: int = NONE
    host: float = 1.0


def chosen(edges: Edges, which: Int64 | Bool) -> Edges:
    """Edges selected by a mask, or by their numbers in a new order."""
    columns: dict[str, Any] = {name: getattr(edges, name)[which] for name in Edges.__slots__}
    return Edges(**columns)


def joined(parts: Sequence[Edges]) -> Edges:
    """One set of the edges of all parts, one part after the other."""
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in Edges.__slots__
    }
    return Edges(**columns)


def edges_of(kind: EdgeKind, source: Int64, target: Int64, weight: Int64 | int, **parts: Int64) -> Edges:
    """Edges of one kind. weight: ns of each. parts: further columns of `Edges`, 0 by default."""
    zero = np.zeros(len(source), np.int64)
    names = ("input", "dispatch", "allocation", "unexplained")
    return Edges(
        kind=np.full(len(source), int(kind)),
        source=source,
        target=target,
        weight=np.broadcast_to(weight, source.shape).astype(np.int64),
        blocking=parts.get("blocking", zero).astype(np.bool_),
        **{name: parts.get(name, zero) for name in names},
    )


UNEXPLAINED = 1_000_000
"""Delay beyond which a device waits for something that is not in the trace, ns; longer than any launch or event."""
ROUNDS = 200
"""Most rounds for ordering nodes of equal time; longer chains at one instant do not occur."""


def in_order(nodes: Nodes, edges: Edges, start: Int64, end: Int64, before: int) -> Graph:
    """Graph with nodes sorted by time, and at equal times by their edges. Edges that point back in time (CPU and device
    clocks that disagree) are dropped, as are those that close a cycle at one instant."""
    edges = chosen(edges, nodes.time[edges.source] <= nodes.time[edges.target])
    level = _levels(nodes, edges)
    order = np.lexsort((np.arange(len(nodes)), level, nodes.time))
    place = np.empty(len(nodes), np.int64)
    place[order] = np.arange(len(nodes))
    edges = chosen(edges, place[edges.source] < place[edges.target])
    edges = replace(edges, source=place[edges.source], target=place[edges.target])
    columns = {name: getattr(nodes, name)[order] for name in Nodes.__slots__}
    edges = chosen(edges, np.argsort(edges.target, kind="stable"))
    first = int(place[before]) if before != NONE else NONE
    return Graph(Nodes(**columns), edges, place[start], place[end], first)


def _levels(nodes: Nodes, edges: Edges) -> Int64:
    """Length of the longest chain of equal-time edges that ends at each node."""
    level = np.zeros(len(nodes), np.int64)
    tied = nodes.time[edges.source] == nodes.time[edges.target]
    source, target = edges.source[tied], edges.target[tied]
    for _ in range(ROUNDS):
        late = level[target] <= level[source]
        if not late.any():
            break
        np.maximum.at(level, target[late], level[source[late]] + 1)
    return level


def with_unexplained(graph: Graph) -> Graph:
    """The graph with an unexplained delay before each activity that started long after everything it is known to have
    waited for. It waited for something that is not in the trace (another rank, an unrecorded stream or graph)."""
    nodes, edges = graph.nodes, graph.edges
    target = edges.target
    to_device = nodes.kind[target] != NodeKind.HOST
    ready = nodes.observed[edges.source] + edges.weight
    latest = np.full(len(nodes), np.iinfo(np.int64).min)
    np.maximum.at(latest, target, ready)
    late = (nodes.observed - nodes.duration)[target] - latest[target]
    unexplained = np.where(to_device & (ready == latest[target]) & (late > UNEXPLAINED), late, 0)
    changed = replace(edges, weight=edges.weight + unexplained, unexplained=edges.unexplained + unexplained)
    return replace(graph, edges=changed)


NO_SOURCE = -(2**62)


@dataclass(frozen=True, slots=True, eq=False)
class GraphRun:
    """Result of running a graph. finish: ns since the first step's start, by node. through: the edge that determined
    it, NONE if no edge leads there. start, end: start and end of each step, (n,), ns. A step ends when the CPU and all
    that it launched have ended. It starts when the CPU starts it and the previous step has ended (as
    `trace_steps.device_step_bounds` defines it for measured steps). last: node that ends each step, (n,)."""

    finish: Int64
    through: Int64
    start: Int64
    end: Int64
    last: Int64

    @property
    def duration(self) -> Int64:
        """Duration of each step, (n,), ns."""
        return self.end - self.start


def run(
    graph: Graph, *, weight: Int64 | None = None, duration: Int64 | None = None, kept: Bool | None = None
) -> GraphRun:
    """Result of running the graph: each node finishes when all that it waits for has. weight, duration: values that
    replace the graph's own. kept: edges to use, all by default."""
    edges = graph.edges
    weights = edges.weight if weight is None else weight
    durations = graph.nodes.duration if duration is None else duration
    numbers = np.arange(len(edges)) if kept is None else np.flatnonzero(kept)
    bounds = np.searchsorted(edges.target[numbers], np.arange(len(graph.nodes) + 1))
    finish, through = _passed(edges.source[numbers], weights[numbers], durations, bounds)
    decided = np.where(through == NONE, NONE, numbers[through]) if len(numbers) else through
    return _steps(graph, finish, decided)


def _passed(source: Int64, weight: Int64, duration: Int64, bounds: Int64) -> tuple[Int64, Int64]:
    """(finish, decisive edge) of each node, in one pass over plain lists, which are twice as fast as arrays here."""
    sources, weights, durations, heads = source.tolist(), weight.tolist(), duration.tolist(), bounds.tolist()
    finish, through = [0] * len(durations), [NONE] * len(durations)
    for node, own in enumerate(durations):
        latest, decisive = NO_SOURCE, NONE
        for edge in range(heads[node], heads[node + 1]):
            ready = finish[sources[edge]] + weights[edge]
            if ready > latest:
                latest, decisive = ready, edge
        finish[node] = (latest if decisive != NONE else 0) + own
        through[node] = decisive
    return np.array(finish, np.int64), np.array(through, np.int64)


def _steps(graph: Graph, finish: Int64, through: Int64) -> GraphRun:
    order = np.argsort(finish, kind="stable")
    step = graph.nodes.step[order]
    inside = step >= 0
    last = graph.end.copy()
    of_device = np.full(len(last), NONE)
    of_device[step[inside]] = order[inside]  # the last assignment of a step wins: its latest node
    later = (of_device != NONE) & (finish[of_device] > finish[last])
    last = np.where(later, of_device, last)
    for index in range(1, len(last)):
        if finish[last[index]] < finish[last[index - 1]]:
            last[index] = last[index - 1]
    end = finish[last]
    before = finish[graph.before] if graph.before != NONE else finish[graph.start[0]]
    start = np.maximum(finish[graph.start], np.concatenate(([before], end[:-1])))
    return GraphRun(finish, through, start, end, last)
