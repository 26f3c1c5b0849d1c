"""Graphs of work that a job captures once and launches as one (CUDA graphs, HIP graphs), and the operators that the CPU
still launches one by one next to them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steptime.analysis.device_activity import captures, device_activities
from steptime.analysis.step_context import StepContext
from steptime.arrays import Bool, Numbers, unique
from steptime.intervals import contains, measure, union
from steptime.trace.call_tree import has_descendant
from steptime.trace.links import UNKNOWN, host_forest, roles_of
from steptime.trace.table import EventKind, Trace
from steptime.trace.vendors import EVALUATED, GRAPH_LAUNCH, LAUNCH, OPTIMIZER_STEP, ZERO_GRAD, is_compiled, matching

MOST_EAGER = 5
"""Most names of eager operators that are kept, by CPU time."""


@dataclass(frozen=True, slots=True)
class EagerUse:
    """Operators of one name that run outside of CUDA graphs. name: name of the outermost operator or annotation
    ("AdamW.step"). calls: number per step. duration: CPU time in the traced steps, ns per step."""

    name: str
    calls: float
    duration: float


@dataclass(frozen=True, slots=True)
class GraphUse:
    """Use of CUDA graphs, per step. launches: number of calls that launch a graph; empty: number of these of which no
    kernel was recorded; kernels: number of kernels that the others ran; share: fraction of all kernel time in graphs.
    captures: number of graphs captured; capturing: ns inside captures, in which calls launch nothing. single: number of
    calls that launch one kernel. eager: operators outside of graphs, the longest first."""

    launches: float
    empty: float
    kernels: float
    share: float
    captures: float
    capturing: float
    single: float = 0.0
    eager: tuple[EagerUse, ...] = ()


def graph_use(steps: StepContext) -> GraphUse | None:
    """Use of CUDA graphs in the steps; None if the steps neither launch nor capture one."""
    trace, windows = steps.trace, steps.windows
    inside = contains(union(windows[:, 0], windows[:, 1]), trace.events.start)
    launching = (trace.events.event_kind == EventKind.RUNTIME) & matching(trace, LAUNCH.match) & inside
    graphs = launching & matching(trace, GRAPH_LAUNCH.match)
    calls = np.flatnonzero(graphs)
    begun, capturing = captures(trace)
    captured = contains(union(windows[:, 0], windows[:, 1]), begun)
    if not len(calls) and not captured.any():
        return None
    activities, number = device_activities(trace), len(windows)
    ran = np.isin(activities.launch, calls) & (activities.launch != UNKNOWN)
    kernel = trace.events.event_kind[activities.rows] == EventKind.KERNEL
    spent = trace.events.duration[activities.rows]
    whole = float(
        spent[kernel & contains(union(windows[:, 0], windows[:, 1]), trace.events.start[activities.rows])].sum()
    )
    return GraphUse(
        launches=len(calls) / number,
        empty=(len(calls) - len(unique(activities.launch[ran & kernel]))) / number,
        kernels=float((ran & kernel).sum()) / number,
        share=min(float(spent[ran & kernel].sum()) / whole, 1.0) if whole else 0.0,
        captures=float(captured.sum()) / number,
        capturing=float(measure(capturing, windows[:, 0], windows[:, 1]).mean()),
        single=float(launching.sum() - len(calls)) / number,
        eager=_eager(steps, graphs, inside) if len(calls) else (),
    )


def _eager(steps: StepContext, graphs: Bool, inside: Bool) -> tuple[EagerUse, ...]:
    """Outermost operators and updates that launch no graph. Those inside compiled code that launches a graph are left
    out, because they belong to the graph's launch."""
    trace, roles = steps.trace, roles_of(steps.trace)
    forest = host_forest(trace)
    launching = has_descendant(forest.parent, graphs)
    updates = roles.annotation & (matching(trace, OPTIMIZER_STEP.match) | matching(trace, ZERO_GRAD.match))
    eager = (roles.operator | updates) & ~launching & inside & np.isin(trace.events.track, steps.tracks)
    replaying = launching & matching(trace, is_compiled)
    rows = np.flatnonzero(eager)
    outer = (forest.around(rows, eager, itself=False) == UNKNOWN) & (
        forest.around(rows, replaying, itself=False) == UNKNOWN
    )
    return _by_name(trace, rows[outer], len(steps))


def _by_name(trace: Trace, rows: Numbers, steps: int) -> tuple[EagerUse, ...]:
    calls: dict[str, int] = {}
    spent: dict[str, int] = {}
    for name, ns in zip(trace.events.name[rows].tolist(), trace.events.duration[rows].tolist(), strict=True):
        known = EVALUATED.sub("", trace.symbols[name])
        calls[known] = calls.get(known, 0) + 1
        spent[known] = spent.get(known, 0) + ns
    longest = sorted(spent, key=lambda name: -spent[name])[:MOST_EAGER]
    return tuple(EagerUse(name, calls[name] / steps, spent[name] / steps) for name in longest)
