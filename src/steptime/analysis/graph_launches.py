"""Graphs of work that a job records once (captures) and launches as one, as CUDA graphs and HIP graphs are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steptime.analysis.device_activity import device_activities
from steptime.analysis.step_context import StepContext
from steptime.arrays import Int64, unique
from steptime.intervals import EMPTY, Intervals, contains, join, measure, union
from steptime.trace.links import UNKNOWN
from steptime.trace.table import EventKind, Trace
from steptime.trace.vendors import CAPTURE_BEGIN, CAPTURE_END, GRAPH_LAUNCH, matching


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
    captures, capturing = _captures(trace)
    captured = contains(union(windows[:, 0], windows[:, 1]), captures)
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


def _captures(trace: Trace) -> tuple[Int64, Intervals]:
    """When recordings of graphs began, ns, and the time in them: to the next end on the same thread."""
    events, found, begun = trace.events, [EMPTY], [np.empty(0, np.int64)]
    calls = events.event_kind == EventKind.RUNTIME
    begins = np.flatnonzero(calls & matching(trace, CAPTURE_BEGIN.match))
    ends = np.flatnonzero(calls & matching(trace, CAPTURE_END.match))
    for lane in unique(events.lane[begins]).tolist():
        since = np.sort(events.ends(begins[events.lane[begins] == lane]))
        until = np.sort(events.begin[ends[events.lane[ends] == lane]])
        place = np.searchsorted(until, since)
        known = place < len(until)
        found.append(union(since[known], until[place[known]]))
        begun.append(since[known])
    return np.concatenate(begun), join(*found)
