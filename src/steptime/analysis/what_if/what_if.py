"""What-if: the steps of a trace replayed from their dependency graph, as they were and with one kind of delay gone.

Each change assumes that nothing else becomes slower, so it is a lower bound on the step. The change saves at most the
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
    """Predicted saving of a change. change: "input free", "syncs free", "one graph launch", "communication overlapped",
    "allocation free", "roofline: <kernel>"; "kernels free", "kernels halved", and so on for copies, communication and
    the host. saved: ns per step, never above cap: what the breakdown has in the account that the change relieves, ns
    per step."""

    change: str
    saved: Estimate
    cap: float


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """Some consecutive steps. steps: their indices among the boundaries that were given. measured, replayed, modelled:
    (n,) ns, the steps as the breakdown has them (or the steady step that they are calibrated to), as the graph gives
    them again, and as it gives them when nothing is replayed that it cannot explain (PathKind.UNEXPLAINED). path: the
    critical path of each, on the replay's clock; origin: ns on the trace's clock where that starts. symbols: the
    trace's. calibration: None without kernels.
    """

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
        """Median of |modelled / measured - 1|: of the replay by durations and laws alone. Calibrated, the first of
        several steps is left out: it fills the device's queue, and no profiled step is compared with itself."""
        filling = self.calibration is not None and not self.calibration.profiled and len(self.measured) > 2
        return median(np.abs(self.modelled / np.maximum(self.measured, 1) - 1)[int(filling) :])

    @property
    def entries(self) -> Int64:
        """(n, len(PathKind)) ns: the critical path by kind; rows sum to `replayed`."""
        table = np.zeros((len(self.replayed), len(PathKind)), np.int64)
        np.add.at(table, (self.path.step, self.path.kind), self.path.end - self.path.start)
        return table

    @property
    def critical_path(self) -> tuple[tuple[str, float], ...]:
        """ns per step by kind, longest first; sums to the mean of the replayed steps."""
        means = self.entries.mean(axis=0)
        pairs = [(kind.title, float(means[kind])) for kind in PathKind if means[kind]]
        return tuple(sorted(pairs, key=lambda pair: -pair[1]))

    def longest(self) -> tuple[tuple[str, str, float], ...]:
        """(kind, name, ns per step) of what takes most of the critical path; name: of a kernel, an operator or a
        function, "" where there is none."""
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
    """Each step is launched as one graph: nothing is dispatched, one launch (ns) is paid for."""
    edges = graph.edges
    weight = np.where(edges.kind == EdgeKind.HAND_OVER, 0, edges.weight - edges.dispatch)
    first = np.isin(edges.source, graph.start) & (edges.kind == EdgeKind.PROGRAM)
    return run(graph, weight=weight + launch * first)


def _shortened(graph: Graph, durations: Mapping[int, int]) -> Int64:
    """The nodes' durations where some device activities (rows of the table) last at most as long (ns) as given."""
    nodes = graph.nodes
    given = np.array([durations.get(row, -1) for row in nodes.row.tolist()], np.int64)
    changed = (nodes.kind != NodeKind.HOST) & (given >= 0)
    return np.where(changed, np.minimum(given, nodes.duration), nodes.duration)


def with_overlap(graph: Graph, updates: Int64) -> GraphRun:
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
    """Activities before collectives on their streams that are no collectives, NONE where there is none."""
    before = np.full(len(collective) + 1, NONE)
    ordered = graph.edges.kind == EdgeKind.STREAM
    before[graph.edges.target[ordered]] = graph.edges.source[ordered]
    passing = np.append(collective, False)
    while passing[nodes].any():
        nodes = np.where(passing[nodes], before[nodes], nodes)
    return nodes


def _last_collective(graph: Graph, collective: Bool) -> Int64:
    """The last collective before each node on its stream, NONE without one: who waits for the node waits for it too,
    next to which it now runs."""
    last = [NONE] * len(collective)
    is_one, ordered = collective.tolist(), graph.edges.kind == EdgeKind.STREAM
    pairs = zip(graph.edges.source[ordered].tolist(), graph.edges.target[ordered].tolist(), strict=True)
    for source, target in pairs:  # by target: the source's own is known
        last[target] = source if is_one[source] else last[source]
    return np.array(last, np.int64)


def _before_updates(graph: Graph, updates: Int64) -> tuple[Int64, Int64]:
    """Pairs: the communication of each step before its first update."""
    nodes = graph.nodes
    sources = np.flatnonzero((nodes.kind == NodeKind.COMMUNICATION) & (nodes.step >= 0))
    targets = updates[nodes.step[sources]]
    before = (targets != NONE) & (sources < targets)
    return sources[before], targets[before]


MOST_STEPS = 5
LONGEST_DISPLAYED = 10
MOST_EVENTS = 1_500_000
"""Events of all replayed steps together: a second or two of work. One step is replayed, however long it is."""


@dataclass(frozen=True, slots=True, eq=False)
class ReplayWindow:
    """trace: the rows that the steps need, and no others. rows: where each is in the whole trace. launch: of each row,
    as in `Links`, in the part's rows. steps: indices of the boundaries."""

    trace: Trace
    rows: Int64
    launch: Int64
    steps: Int64


def window_of(trace: Trace, boundaries: Int64, launch: Few) -> ReplayWindow:
    """The steps in the middle, at most `MOST_STEPS` of them, with all that they launched or that still ran in them."""
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
    """Replays up to five steady steps from the middle; None where nothing ran on a host or took time, or without steps.

    breakdown: of the steps. at_roofline: by the name of a group of kernels, what each of them (rows of the table) would
    last at the machine's peaks, ns: a prediction for each group. steady, shortest: ns, the mean and the shortest of
    steps that nobody profiled, to which the host's work is calibrated; None: the steps are what they are.
    """
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
"""Categories of each kind of work in the breakdown."""


def _saved(base: Replay, cap: float, shorter: Int64) -> Estimate:
    """ns per step with the interval over the steps, wider by the replay's own error, and never above the cap.

    The first of several steps is left out: it fills the device's queue, which no later step has to do again.
    """
    plain = mean_of_series(np.clip(shorter, 0, None)[int(len(shorter) > 2) :])
    caveat = base.error * float(base.measured.mean())
    value, low, high = (min(each, cap) for each in (plain.value, max(0.0, plain.low - caveat), plain.high + caveat))
    return Estimate(value, low, high, plain.samples)


def _updates(scope: Scope, graph: Graph) -> Int64:
    """The first activity of each step that was launched inside the optimizer's step()."""
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
    """ns per step in calls that ask the driver for memory or give it back, waits inside them included."""
    events = scope.trace.events
    chosen = (events.event_kind == EventKind.RUNTIME) & matching(scope.trace, ALLOCATION.match)
    chosen &= np.isin(events.track, scope.tracks)
    during = union(events.start[chosen], events.ends(chosen))
    return float(measure(during, scope.boundaries[:, 0], scope.boundaries[:, 1]).mean())
