"""Bringing a graph into an order in which every node comes after all that it waits for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from steptime.arrays import Int64
from steptime.replay.graph import NONE, Edges, Graph, NodeKind, Nodes, chosen

UNEXPLAINED = 1_000_000
"""ns. No launch and no event takes as long; what a device waits beyond is none of its delays."""
ROUNDS = 200
"""Of untying nodes of one time; longer chains at one instant do not occur."""


def in_order(nodes: Nodes, edges: Edges, begin: Int64, end: Int64, borders: Int64, before: int) -> Graph:
    """The graph with its nodes sorted by time, and at one time by their edges. Edges that point back in time (clocks of
    host and device that disagree) say nothing and are left out, as are those that close a circle at one instant."""
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
    return Graph(Nodes(**columns), edges, place[begin], place[end], borders, first)


def _levels(nodes: Nodes, edges: Edges) -> Int64:
    """How many edges lead to each node from others of the same time."""
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
    """The graph with a delay where an activity started long after all that it is known to have waited for: it waited
    for something that the trace does not hold (another rank, a stream or a graph that was not recorded)."""
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
