"""Graphs of work that a job records once (captures) and launches as one, as CUDA graphs and HIP graphs are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steptime.analysis.device_activity import captures, device_activities
from steptime.analysis.step_context import StepContext
from steptime.arrays import unique
from steptime.intervals import contains, measure, union
from steptime.trace.links import UNKNOWN
from steptime.trace.table import EventKind
from steptime.trace.vendors import GRAPH_LAUNCH, matching


@dataclass(frozen=True, slots=True)
class GraphUse:
    """All per step. launches: calls that launch a graph; empty: of them, those none of whose kernels was recorded;
    kernels: that the others ran; share: of the kernels' time, 0 to 1. captures: graphs that were recorded; capturing:
    ns between the begin and the end of these recordings, in which calls launch nothing."""

    launches: float
    empty: float
    kernels: float
    share: float
    captures: float
    capturing: float


def graph_use(steps: StepContext) -> GraphUse | None:
    """The graphs of the steps; None where none was launched or captured in them."""
    trace, windows = steps.trace, steps.windows
    inside = contains(union(windows[:, 0], windows[:, 1]), trace.events.begin)
    calls = np.flatnonzero(
        (trace.events.event_kind == EventKind.RUNTIME) & matching(trace, GRAPH_LAUNCH.match) & inside
    )
    begun, capturing = captures(trace)
    captured = contains(union(windows[:, 0], windows[:, 1]), begun)
    if not len(calls) and not captured.any():
        return None
    activities, number = device_activities(trace), len(windows)
    ran = np.isin(activities.launch, calls) & (activities.launch != UNKNOWN)
    kernel = trace.events.event_kind[activities.rows] == EventKind.KERNEL
    spent = trace.events.duration[activities.rows]
    whole = float(
        spent[kernel & contains(union(windows[:, 0], windows[:, 1]), trace.events.begin[activities.rows])].sum()
    )
    return GraphUse(
        launches=len(calls) / number,
        empty=(len(calls) - len(unique(activities.launch[ran & kernel]))) / number,
        kernels=float((ran & kernel).sum()) / number,
        share=min(float(spent[ran & kernel].sum()) / whole, 1.0) if whole else 0.0,
        captures=float(captured.sum()) / number,
        capturing=float(measure(capturing, windows[:, 0], windows[:, 1]).mean()),
    )
