"""What-if: the steps of a trace replayed from their dependency graph, unchanged and with one kind of delay removed.

Each change assumes that nothing else becomes slower, so it is a lower bound on the step. It saves at most the
breakdown's time in the category that it relieves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial

import numpy as np

from steptime.analysis.categories import Breakdown, Category
from steptime.analysis.step_context import StepContext
from steptime.analysis.what_if.build import build
from steptime.analysis.what_if.calibrated import Calibration, calibrated, calibration_of, cheaper_runs
from steptime.analysis.what_if.critical_path import NamedPath, PathKind, named, path_of
from steptime.analysis.what_if.graph import NONE, EdgeKind, Graph, GraphRun, NodeKind, chosen, edges_of, joined, run
from steptime.analysis.what_if.scope import Scope, scope_of
from steptime.arrays import Bool, Few, Int64, distinct, few, median
from steptime.intervals import contains, measure, union
from steptime.quantities import Estimate, mean_of_series
from steptime.trace.links import origins_of
from steptime.trace.table import EventKind, EventTable, Launched, Trace
from steptime.trace.vendors import ALLOCATION, OPTIMIZER_STEP, matching


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted savings of a change. change: "input free", "syncs free", "one graph launch", "communication
    overlapped", "allocation free", "roofline: <kernel>", "kernels free", "kernels halved" and so on for copies,
    communication, device and host. saved: ns per step, at most `cap`; cap: the breakdown's ns per step in the category
    that the change relieves."""

    change: str
    saved: Estimate
    cap: float


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """Replay of consecutive steps. steps: indices of the steps among the given boundaries. measured: durations of the
    steps in the breakdown, or of the steady step that they are calibrated to; replayed: durations by the graph;
    modelled: the same without unexplained delays (PathKind.UNEXPLAINED); all (n,), ns. path: critical path of each step
    on the replay's clock; origin: start of that clock, ns on the trace's clock. symbols: symbols of the trace.
    calibration: None without device work."""

    steps: Int64
    measured: Int64
    replayed: Int64
    modelled: Int64
    path: NamedPath
    origin: int
    symbols: tuple[str, ...]
    predictions: tuple[Prediction, ...] = ()
    calibration: Calibration | None = None

    @property
    def error(self) -> float:
        """Error of the replay without unexplained delays: median of |modelled / measured - 1|. If calibrated to
        unprofiled steps, the first of several steps is left out, because it fills the device's queue."""
        filling = self.calibration is not None and not self.calibration.profiled and len(self.measured) > 2
        return median(np.abs(self.modelled / np.maximum(self.measured, 1) - 1)[int(filling) :])

    @property
    def entries(self) -> Int64:
        """Time of each step on the critical path by kind, (n, len(PathKind)), ns; rows sum to `replayed`."""
        table = np.zeros((len(self.replayed), len(PathKind)), np.int64)
        np.add.at(table, (self.path.step, self.path.kind), self.path.end - self.path.start)
        return table

    @property
    def critical_path(self) -> tuple[tuple[str, float], ...]:
        """(kind, ns per step) of the critical path, longest first; the times sum to the mean replayed step."""
        means = self.entries.mean(axis=0)
        pairs = [(kind.title, float(means[kind])) for kind in PathKind if means[kind]]
        return tuple(sorted(pairs, key=lambda pair: -pair[1]))

    def longest(self) -> tuple[tuple[str, str, float], ...]:
        """(kind, name, ns per step) of the longest parts of the critical path. name: name of a kernel, an operator or a
        function, "" for none."""
        first, number = distinct(self.path.kind, self.path.name)
        keys = np.stack((self.path.kind[first], self.path.name[first]), axis=1)
        spent = np.zeros(len(keys), np.int64)
        np.add.at(spent, number, self.path.end - self.path.start)
        order = np.argsort(-spent, kind="stable")[:LONGEST_DISPLAYED].tolist()
        steps = len(self.replayed)
        found = ((*keys[at].tolist(), float(spent[at]) / steps) for at in order)
        return tuple(
            (PathKind(kind).title, self.symbols[name] if name != NONE else "", each) for kind, name, each in found
        )


def _as_one_launch(graph: Graph, launch: int) -> GraphRun:
    """Run with each step launched as one graph: no dispatching, one launch of `launch` ns."""
    edges = graph.edges
    weight = np.where(edges.kind == EdgeKind.HAND_OVER, 0, edges.weight - edges.dispatch)
    first = np.isin(edges.source, graph.start) & (edges.kind == EdgeKind.PROGRAM)
    return run(graph, weight=weight + launch * first)


def _shortened(graph: Graph, durations: Mapping[int, int]) -> Int64:
    """Durations of the nodes, with the device activities in `durations` (ns by row) capped at the given values."""
    nodes = graph.nodes
    given = np.array([durations.get(row, -1) for row in nodes.row.tolist()], np.int64)
    changed = (nodes.kind != NodeKind.HOST) & (given >= 0)
    return np.where(changed, np.minimum(given, nodes.duration), nodes.duration)


def with_overlap(graph: Graph, updates: Int64) -> GraphRun:
    """Run of the graph in which only parameter updates wait for communication, and no other computing does. Computing
    on a collective's stream keeps its order. updates: node of the first update in each step, (n,), NONE if unknown:
    then nothing waits."""
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
    """The nodes, each collective among them replaced by the last activity before it on its stream that is none; NONE if
    there is none."""
    before = np.full(len(collective) + 1, NONE)
    ordered = graph.edges.kind == EdgeKind.STREAM
    before[graph.edges.target[ordered]] = graph.edges.source[ordered]
    passing = np.append(collective, False)
    while passing[nodes].any():
        nodes = np.where(passing[nodes], before[nodes], nodes)
    return nodes


def _last_collective(graph: Graph, collective: Bool) -> Int64:
    """Last collective before each node on its stream, NONE without one. The node now runs next to it, so whatever waits
    for the node must wait for this collective too."""
    last = [NONE] * len(collective)
    is_one, ordered = collective.tolist(), graph.edges.kind == EdgeKind.STREAM
    pairs = zip(graph.edges.source[ordered].tolist(), graph.edges.target[ordered].tolist(), strict=True)
    for source, target in pairs:  # by target: the source's own is known
        last[target] = source if is_one[source] else last[source]
    return np.array(last, np.int64)


def _before_updates(graph: Graph, updates: Int64) -> tuple[Int64, Int64]:
    """Pairs of (communication node, first update) for the communication before each step's first update."""
    nodes = graph.nodes
    sources = np.flatnonzero((nodes.kind == NodeKind.COMMUNICATION) & (nodes.step >= 0))
    targets = updates[nodes.step[sources]]
    before = (targets != NONE) & (sources < targets)
    return sources[before], targets[before]


MOST_STEPS = 5
LONGEST_DISPLAYED = 10
MOST_EVENTS = 1_500_000
"""Most events of all replayed steps together: one to two seconds of work. One step is always replayed."""


@dataclass(frozen=True, slots=True, eq=False)
class ReplayWindow:
    """Part of a trace with the rows that some steps need. rows: row in the whole trace of each row of the part. launch:
    row of the launch in the part, as in `Links`. steps: indices of the boundaries."""

    trace: Trace
    rows: Int64
    launch: Int64
    steps: Int64


def window_of(trace: Trace, boundaries: Int64, launch: Few) -> ReplayWindow:
    """Window with at most `MOST_STEPS` steps in the middle and all that they launched or that still ran in them."""
    events = trace.events
    for count in range(min(len(boundaries), MOST_STEPS), 0, -1):
        first = (len(boundaries) - count) // 2
        since, until = int(boundaries[first, 0]), int(boundaries[first + count - 1, 1])
        chosen = (events.end > since) & (events.start < until)
        if chosen.sum() <= MOST_EVENTS:
            break
    called = (events.start[launch.values] < until) & (events.ends(launch.rows) > since)
    chosen[launch.rows[called]] = True
    chosen[launch.values[chosen[launch.rows]]] = True
    rows = np.flatnonzero(chosen)
    place = np.full(len(events) + 1, NONE, np.int32)
    place[rows] = np.arange(len(rows))
    columns = {field.name: getattr(events, field.name)[rows] for field in fields(EventTable)}
    calls, origins = (place[column[rows]] for column in (launch, origins_of(trace)))
    part = replace(trace, events=EventTable(**columns), launched=Launched(few(calls, NONE), few(origins, NONE)))
    return ReplayWindow(part, rows, calls.astype(np.int64), np.arange(first, first + count))


def rerun(
    steps: StepContext,
    breakdown: Breakdown,
    at_roofline: Mapping[str, Mapping[int, int]] | None = None,
    *,
    steady: float | None = None,
    shortest: float = 0.0,
) -> Replay | None:
    """Replay of up to five steps from the middle; None without steps or if nothing ran on a CPU thread. breakdown:
    breakdown of the steps. at_roofline: duration of each kernel (by row) at the machine's peaks, ns, by the name of its
    group; each group gets a prediction. steady, shortest: mean and shortest unprofiled step, ns, to which the CPU's
    work is calibrated; None if the steps themselves are unprofiled."""
    if steps.track is None or not len(steps):
        return None
    boundaries = steps.boundaries
    window = window_of(steps.trace, boundaries, steps.links.launch)
    if not len(window.rows):
        return None
    measured = breakdown.wall[window.steps]
    scope = scope_of(
        window.trace, boundaries[window.steps], window.launch, steps.track, steps.input, wall=int(measured[0])
    )
    graph = build(scope)
    if steady is not None and len(scope.activities):
        graph, measured = calibrated(graph, steady, shortest), np.full(len(measured), round(steady))
    found = run(graph)
    path = named(scope, graph, found, path_of(graph, found))
    cheaper = cheaper_runs(graph) if len(scope.activities) else {}
    step = float(measured[int(len(measured) > 2) :].mean())
    base = Replay(
        steps=window.steps,
        measured=measured,
        replayed=found.duration,
        modelled=run(graph, weight=graph.edges.weight - graph.edges.unexplained).duration,
        path=path,
        origin=scope.start,
        symbols=steps.trace.symbols,
        calibration=calibration_of(graph, found, cheaper.values(), step, profiled=steady is None) if cheaper else None,
    )
    place = {row: index for index, row in enumerate(window.rows.tolist())} if at_roofline else {}
    groups = {
        name: {place[row]: length for row, length in rows.items() if row in place}
        for name, rows in (at_roofline or {}).items()
    }
    return replace(base, predictions=tuple(_predictions(base, scope, graph, found, breakdown, groups, cheaper)))


def _predictions(
    base: Replay,
    scope: Scope,
    graph: Graph,
    found: GraphRun,
    breakdown: Breakdown,
    groups: dict[str, dict[int, int]],
    cheaper: dict[str, GraphRun],
) -> Iterator[Prediction]:
    caps = breakdown.entries[base.steps].mean(axis=0)
    edges = graph.edges
    waits = edges.kind == EdgeKind.WAIT
    changes: list[tuple[str, float, Callable[[], GraphRun]]] = [
        ("input free", caps[Category.INPUT], lambda: run(graph, weight=edges.weight - edges.input))
    ]
    if len(scope.activities):
        call = scope.activities.call[scope.activities.call != NONE]
        launch = int(np.median(scope.trace.events.duration[call])) if len(call) else 0
        unallocated = edges.weight - edges.allocation
        changes += [
            ("syncs free", caps[Category.SYNC], lambda: run(graph, kept=~waits | edges.blocking)),
            ("one graph launch", caps[Category.OVERHEAD], lambda: _as_one_launch(graph, launch)),
            (
                "communication overlapped",
                caps[Category.COMMUNICATION],
                lambda: with_overlap(graph, _updates(scope, graph)),
            ),
            (
                "allocation free",
                _allocating(scope),
                lambda: run(graph, weight=unallocated, kept=~waits | ~edges.blocking),
            ),
        ]
    for name, durations in groups.items():
        shortened = _shortened(graph, durations)
        cap = min(caps[Category.COMPUTE], (graph.nodes.duration - shortened).sum() / len(base.steps))
        changes.append((f"roofline: {name}", cap, partial(run, graph, duration=shortened)))
    for name, cap, change in changes:
        if cap > 0:
            saved = _saved(base, float(cap), found.duration - change().duration)
            yield Prediction(name, saved, float(cap))
    for name, changed in cheaper.items():
        cap = sum(float(caps[each]) for each in RELIEVED[name.split()[0]])
        if cap > 0:
            yield Prediction(name, _saved(base, cap, found.duration - changed.duration), cap)


DEVICE = (Category.COMPUTE, Category.COMMUNICATION, Category.COPY)
RELIEVED = {
    "kernels": (Category.COMPUTE,),
    "communication": (Category.COMMUNICATION,),
    "copies": (Category.COPY,),
    "device": DEVICE,
    "host": tuple(each for each in Category if each not in (*DEVICE, Category.UNRECORDED)),
}
"""Categories of the breakdown that each kind of cheaper work relieves."""


def _saved(base: Replay, cap: float, shorter: Int64) -> Estimate:
    """Savings with an interval over the steps, widened by the replay's error and capped, ns per step.

    The first of several steps is left out: it fills the device's queue, which later steps find full."""
    plain = mean_of_series(np.clip(shorter, 0, None)[int(len(shorter) > 2) :])
    caveat = base.error * float(base.measured.mean())
    value, low, high = (min(each, cap) for each in (plain.value, max(0.0, plain.low - caveat), plain.high + caveat))
    return Estimate(value, low, high, plain.samples)


def _updates(scope: Scope, graph: Graph) -> Int64:
    """First node of each step that was launched inside the optimizer's step(), NONE for none."""
    events, nodes = scope.trace.events, graph.nodes
    listed = np.isin(events.event_kind, (EventKind.ANNOTATION, EventKind.OPERATOR))
    chosen = listed & matching(scope.trace, OPTIMIZER_STEP.match) & (events.track == scope.training)
    during = union(events.start[chosen], events.ends(chosen))
    called = np.full(len(events), np.iinfo(np.int64).min)
    launched = scope.activities.call != NONE
    called[scope.activities.row[launched]] = events.start[scope.activities.call[launched]]
    updating = np.flatnonzero((nodes.kind != NodeKind.HOST) & (nodes.step >= 0))
    updating = updating[contains(during, called[nodes.row[updating]])]
    first = np.full(len(graph.start), NONE)
    first[nodes.step[updating[::-1]]] = updating[::-1]
    return first


def _allocating(scope: Scope) -> float:
    """Time in calls that allocate or free memory in the driver, including waits inside them, ns per step."""
    events = scope.trace.events
    chosen = (events.event_kind == EventKind.RUNTIME) & matching(scope.trace, ALLOCATION.match)
    chosen &= np.isin(events.track, scope.tracks)
    during = union(events.start[chosen], events.ends(chosen))
    return float(measure(during, scope.boundaries[:, 0], scope.boundaries[:, 1]).mean())
