"""The training thread's track in a trace, and the instants of its annotations."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from steptime.arrays import PIECE, Bool, Int32, Int64, unique
from steptime.intervals import Intervals, join, union
from steptime.trace.cached_per_trace import cached_per_trace
from steptime.trace.links import host_events
from steptime.trace.table import EventKind, Trace
from steptime.trace.vendors import COMPILING, LOADER, OPTIMIZER_STEP, STEP, is_engine, matching


@cached_per_trace
def training_track(trace: Trace, thread: int | None = None) -> int | None:
    """Track of the training thread, None if nothing ran on a CPU. thread: the system's id, 0 or None if unknown.

    Without an id: the track with most annotations of steps, optimizers and loaders, or else with most operators outside
    autograd's engine."""
    if thread:
        known = [number for number, track in enumerate(trace.tracks) if str(track.thread) == str(thread)]
        counts = _counts(trace, host_events(trace))
        if known and counts[known].any():
            return max(known, key=lambda number: int(counts[number]))
    informative = re.compile("|".join(each.pattern for each in (STEP, OPTIMIZER_STEP, LOADER)))
    host = host_events(trace)
    operators = trace.events.event_kind == EventKind.OPERATOR
    for chosen in (host & matching(trace, informative.match), operators & ~matching(trace, is_engine), host):
        counts = _counts(trace, chosen)
        if counts.any():
            return int(counts.argmax())
    return None


def autograd_tracks(trace: Trace, training: int) -> list[int]:
    """Other tracks on which autograd's engine ran operators."""
    engine = (trace.events.event_kind == EventKind.OPERATOR) & matching(trace, is_engine)
    return [track for track in unique(trace.events.track[engine]).tolist() if track != training]


def during(
    trace: Trace, chosen: Bool | Int64 | Int32, closing: Callable[[Intervals], Intervals] = lambda found: found
) -> Intervals:
    """Instants at which some events ran. chosen: mask or rows of the events. closing: function that is applied to the
    instants of each batch of events and at last to all of them; applying it twice must change nothing."""
    events, rows = trace.events, np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen
    parts = (rows[first : first + PIECE] for first in range(0, len(rows), PIECE))
    return closing(join(*[closing(union(events.start[part], events.ends(part))) for part in parts]))


def input_time(trace: Trace, track: int) -> Intervals:
    """Instants inside the next() of a DataLoader, as annotated on a track."""
    return _annotated(trace, track, matching(trace, LOADER.match))


def compile_time(trace: Trace, track: int) -> Intervals:
    """Instants inside TorchDynamo and Inductor, as annotated on a track."""
    return _annotated(trace, track, matching(trace, COMPILING.search))


def recorded_time(trace: Trace) -> Intervals:
    """Interval from the first event of a trace to the last one."""
    if not len(trace.events):
        return union([], [])
    return union([trace.events.start.min()], [trace.events.end.max()])


def _annotated(trace: Trace, track: int, named: Bool) -> Intervals:
    events = trace.events
    chosen = np.flatnonzero(named & (events.track == track))
    chosen = chosen[np.isin(events.event_kind[chosen], (EventKind.ANNOTATION, EventKind.OPERATOR))]
    return during(trace, chosen)


def _counts(trace: Trace, chosen: Bool) -> Int64:
    return np.bincount(trace.events.track[chosen], minlength=len(trace.tracks))
