"""Replaying the steps of a trace: the graph as it was, what-if, and the critical path."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from steptime.arrays import Int64
from steptime.estimates import mean_of_series
from steptime.intervals import EMPTY, Intervals, contains, measure, union
from steptime.kineto.table import Category, Trace
from steptime.ledger.ledger import Account, Ledger
from steptime.ledger.threads import training_lane
from steptime.links.links import Links
from steptime.links.names import OPTIMIZER_STEP, matching
from steptime.quantities import Estimate
from steptime.replay import changes
from steptime.replay.build import build
from steptime.replay.critical_path import path_of
from steptime.replay.graph import NONE, Graph, NodeKind
from steptime.replay.path_names import named
from steptime.replay.replay import Prediction, Replay
from steptime.replay.run import Run, run
from steptime.replay.scope import ALLOCATION, Scope, scope_of
from steptime.replay.window import Window, window_of


def rerun(
    trace: Trace,
    borders: Int64,
    links: Links,
    ledger: Ledger,
    *,
    input_ranges: Intervals = EMPTY,
    training_thread: int | None = None,
    at_roofline: Mapping[str, Mapping[int, int]] | None = None,
) -> Replay | None:
    """Replays up to five steady steps from the middle; None where nothing ran on a host, or without steps.

    borders: (n, 2) ns as the host sees the steps, `ledger` theirs. input_ranges: batch preparation that the caller
    knows of. training_thread: the system's id. at_roofline: by the name of a group of kernels, what each of them (rows
    of the table) would last at the machine's ceilings, ns: a prediction for each group.
    """
    lane = training_lane(trace, training_thread)
    if lane is None or not len(borders):
        return None
    window = window_of(trace, borders, links.launch.astype(np.int64))
    measured = ledger.wall[window.steps]
    scope = scope_of(window.trace, borders[window.steps], window.launch, lane, input_ranges, wall=int(measured[0]))
    graph = build(scope)
    found = run(graph)
    path = named(scope, graph, found, path_of(graph, found))
    base = Replay(
        steps=window.steps,
        measured=measured,
        replayed=found.duration,
        modelled=run(graph, weight=graph.edges.weight - graph.edges.unexplained).duration,
        path=path,
        origin=scope.begin,
        symbols=trace.symbols,
    )
    return _with_predictions(base, scope, graph, found, ledger, _groups(window, at_roofline or {}))


def _groups(window: Window, given: Mapping[str, Mapping[int, int]]) -> dict[str, dict[int, int]]:
    """The groups in the rows of the window."""
    place = {row: index for index, row in enumerate(window.rows.tolist())} if given else {}
    return {name: {place[row]: length for row, length in rows.items() if row in place} for name, rows in given.items()}


def _with_predictions(
    base: Replay, scope: Scope, graph: Graph, found: Run, ledger: Ledger, groups: dict[str, dict[int, int]]
) -> Replay:
    accounts = ledger.entries[base.steps].mean(axis=0)
    one_launch = partial(changes.as_one_launch, launch=_launch_cost(scope))
    overlap = partial(changes.with_overlap, updates=_updates(scope, graph))
    device: tuple[tuple[str, Account, Callable[[Graph], Run]], ...] = (
        ("syncs free", Account.SYNC, changes.without_waits),
        ("one launch", Account.LAUNCH, one_launch),
        ("communication overlapped", Account.COMMUNICATION, overlap),
    )
    changed: list[tuple[str, float, Callable[[Graph], Run]]] = [
        ("input free", float(accounts[Account.INPUT]), changes.without_input)
    ]
    if len(scope.activities):
        changed += [(name, float(accounts[account]), change) for name, account, change in device]
        changed.append(("allocation free", _allocating(scope), changes.without_allocation))
    for name, durations in groups.items():
        cap = min(float(accounts[Account.COMPUTE]), _shorter(graph, durations, len(base.steps)))
        changed.append((f"roofline: {name}", cap, partial(changes.at_durations, durations=durations)))
    predictions = [_prediction(base, name, cap, found, change(graph)) for name, cap, change in changed if cap > 0]
    return replace(base, predictions=tuple(predictions))


def _prediction(base: Replay, change: str, cap: float, found: Run, changed: Run) -> Prediction:
    """Saved per step with its interval over the steps, wider by the replay's own error, and never above the cap.

    The first of several steps is left out: it fills the device's queue, which no later step has to do again.
    """
    saved = np.clip(found.duration - changed.duration, 0, None)[int(len(found.duration) > 2) :]
    plain = mean_of_series(saved)
    doubt = base.error * float(base.measured.mean())
    value, low, high = (min(each, cap) for each in (plain.value, max(0.0, plain.low - doubt), plain.high + doubt))
    return Prediction(change, Estimate(value, low, high, plain.samples), cap)


def _launch_cost(scope: Scope) -> int:
    """ns of a launching call, median."""
    call = scope.activities.call
    call = call[call != NONE]
    return int(np.median(scope.trace.events.duration[call])) if len(call) else 0


def _updates(scope: Scope, graph: Graph) -> Int64:
    """The first activity of each step that was launched inside the optimiser's step()."""
    events, nodes = scope.trace.events, graph.nodes
    listed = np.isin(events.category, (Category.ANNOTATION, Category.OPERATOR))
    chosen = listed & matching(scope.trace, OPTIMIZER_STEP.match) & (events.lane == scope.training)
    during = union(events.begin[chosen], events.end[chosen])
    called = np.full(len(events), np.iinfo(np.int64).min)
    launched = scope.activities.call != NONE
    called[scope.activities.row[launched]] = events.begin[scope.activities.call[launched]]
    updating = np.flatnonzero((nodes.kind != NodeKind.HOST) & (nodes.step >= 0))
    updating = updating[contains(during, called[nodes.row[updating]])]
    first = np.full(len(graph.begin), NONE)
    first[nodes.step[updating[::-1]]] = updating[::-1]
    return first


def _allocating(scope: Scope) -> float:
    """ns per step in calls that ask the driver for memory or give it back, waits inside them included."""
    events = scope.trace.events
    chosen = (events.category == Category.RUNTIME) & matching(scope.trace, ALLOCATION.match)
    chosen &= np.isin(events.lane, scope.lanes)
    during = union(events.begin[chosen], events.end[chosen])
    return float(measure(during, scope.borders[:, 0], scope.borders[:, 1]).mean())


def _shorter(graph: Graph, durations: dict[int, int], steps: int) -> float:
    """ns per step by which the activities would be shorter."""
    nodes = graph.nodes
    device = np.flatnonzero(nodes.kind != NodeKind.HOST)
    saved: int = sum(
        max(0, length - durations[row])
        for row, length in zip(nodes.row[device].tolist(), nodes.duration[device].tolist(), strict=True)
        if row in durations
    )
    return saved / max(1, steps)
