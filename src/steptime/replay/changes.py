"""What-if: the same graph with one kind of delay taken away.

Each change is a lower bound on the change of the program: it assumes that nothing else becomes slower. How much it can
save at most is the business of the ledger, whose account caps it (`replay.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from steptime.arrays import Bool, Int64
from steptime.replay.graph import NONE, EdgeKind, Graph, NodeKind, chosen, edges_of, joined
from steptime.replay.run import Run, run


def without_input(graph: Graph) -> Run:
    """The next batch is always there."""
    return run(replace(graph, edges=replace(graph.edges, weight=graph.edges.weight - graph.edges.input)))


def without_waits(graph: Graph) -> Run:
    """The host never waits for the device: it runs ahead."""
    edges = graph.edges
    return run(graph, kept=(edges.kind != EdgeKind.WAIT) | edges.blocking)


def as_one_launch(graph: Graph, launch: int) -> Run:
    """Each step is launched as one graph: nothing is dispatched, one launch (ns) is paid for."""
    edges = graph.edges
    weight = edges.weight - edges.dispatch
    engine = edges.kind == EdgeKind.HAND_OVER
    weight = np.where(engine, 0, weight)
    first = np.isin(edges.source, graph.begin) & (edges.kind == EdgeKind.PROGRAM)
    return run(replace(graph, edges=replace(edges, weight=weight + launch * first)))


def at_durations(graph: Graph, durations: Mapping[int, int]) -> Run:
    """Some device activities (rows of the event table) last as long (ns) as given; no longer than they did."""
    nodes = graph.nodes
    given = np.array([durations.get(row, -1) for row in nodes.row.tolist()], np.int64)
    changed = (nodes.kind != NodeKind.HOST) & (given >= 0)
    duration = np.where(changed, np.minimum(given, nodes.duration), nodes.duration)
    return run(replace(graph, nodes=replace(nodes, duration=duration)))


def with_overlap(graph: Graph, updates: Int64) -> Run:
    """Computing never waits for communication, but what updates the parameters does. Computing on the stream of a
    collective stays in its order, around it.

    updates: (n,) the node that first updates in each step, NONE where none is known: then nothing waits.
    """
    nodes, edges = graph.nodes, graph.edges
    collective = nodes.kind == NodeKind.COMMUNICATION
    dropped = collective[edges.source] & ~collective[edges.target] & (nodes.kind[edges.target] != NodeKind.HOST)
    around = chosen(edges, dropped & (edges.kind == EdgeKind.STREAM))
    around = replace(around, source=_before_collectives(graph, collective, around.source))
    held = chosen(edges, edges.kind == EdgeKind.WAIT)
    held = replace(held, source=_last_collective(graph, collective)[held.source])
    source, target = _before_updates(graph, updates)
    parts = [chosen(edges, ~dropped), *(chosen(each, each.source != NONE) for each in (around, held))]
    together = joined((*parts, edges_of(EdgeKind.EVENT, source, target, 0)))
    return run(replace(graph, edges=chosen(together, np.argsort(together.target, kind="stable"))))


def _before_collectives(graph: Graph, collective: Bool, nodes: Int64) -> Int64:
    """What precedes collectives on their streams and is none, NONE where nothing does."""
    before = np.full(len(collective) + 1, NONE)
    ordered = graph.edges.kind == EdgeKind.STREAM
    before[graph.edges.target[ordered]] = graph.edges.source[ordered]
    passing = np.append(collective, False)
    while passing[nodes].any():
        nodes = np.where(passing[nodes], before[nodes], nodes)
    return nodes


def _last_collective(graph: Graph, collective: Bool) -> Int64:
    """Of each node the last collective before it on its stream, NONE without one: who waits for the node waits for it
    too, beside which it now runs."""
    last = [NONE] * len(collective)
    is_one, ordered = collective.tolist(), graph.edges.kind == EdgeKind.STREAM
    pairs = zip(graph.edges.source[ordered].tolist(), graph.edges.target[ordered].tolist(), strict=True)
    for source, target in pairs:  # by target: the source's own is known
        last[target] = source if is_one[source] else last[source]
    return np.array(last, np.int64)


def without_allocation(graph: Graph) -> Run:
    """Device memory is never asked of the driver, nor given back to it."""
    edges = graph.edges
    kept = (edges.kind != EdgeKind.WAIT) | ~edges.blocking
    return run(replace(graph, edges=replace(edges, weight=edges.weight - edges.allocation)), kept=kept)


def _before_updates(graph: Graph, updates: Int64) -> tuple[Int64, Int64]:
    """Pairs: the communication of each step before its first update."""
    nodes = graph.nodes
    sources = np.flatnonzero((nodes.kind == NodeKind.COMMUNICATION) & (nodes.step >= 0))
    targets = updates[nodes.step[sources]]
    before = (targets != NONE) & (sources < targets)
    return sources[before], targets[before]
