"""From a process's records to its timeline."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steptime.analysis.activity import Activity, Claims, TrainingWork, find_activity, find_segments, find_work, split
from steptime.analysis.lines import LineRoles, estimate, find_gaps, find_lines
from steptime.analysis.steps import Boundaries, find_boundaries, find_warm_up, full_backwards
from steptime.analysis.timeline import (
    Mode,
    Phase,
    RecordTable,
    SegmentKind,
    Steps,
    Timeline,
    lane_of,
    training_thread,
)
from steptime.arrays import Bool, Int64
from steptime.intervals import Intervals, measure
from steptime.journal import Kind
from steptime.recording.recording import IntervalTable, Process

PART = 0.05
"""A step counts as touched by a window (profiler, discovery …) that holds this share of it: windows begin and end a few
microseconds after a boundary."""
LEAST_STEADY = 5
"""With fewer untouched steps those count as steady too that the line timeline slows by 1 to 19 %, and those behind a
pause of the probe, which is no part of them."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A timeline with what it was made from, for those who sum up lines and loaders."""

    timeline: Timeline
    lane: RecordTable
    activity: Activity
    work: TrainingWork
    lines: LineRoles


def lay_out(process: Process) -> Timeline:
    """Steps, phases and segments of a process. Raises nothing, whatever it holds: at worst no step is found."""
    return lay_out_whole(process).timeline


def lay_out_whole(process: Process) -> Layout:
    """The timeline and its parts."""
    table = process.intervals
    thread = training_thread(table)
    lane = lane_of(table, table.thread == thread)
    windows = _Windows(table)
    boundaries = find_boundaries(lane, windows.unwatched, windows.stamps)
    activity = find_activity(lane, boundaries, process.loaders)
    claims = find_segments(lane, windows.pauses, activity, boundaries.ends)
    work = find_work(lane, activity, claims.loader_starts)
    lines = find_lines(process, lane, activity, work)
    steps, reason = _steps(boundaries, lane, windows, activity, claims, work, lines)
    timeline = Timeline(boundaries.mode, steps, claims.segments, thread, activity.training_loaders, reason)
    return Layout(timeline, lane, activity, work, lines)


class _Windows:
    """Windows and stamps of the probe; they concern the process, whatever thread wrote them."""

    def __init__(self, table: IntervalTable) -> None:
        kinds = (Kind.UNWATCHED, Kind.PAUSE, Kind.PROFILED, Kind.DISCOVERY, Kind.LINES, Kind.BOUNDARY)
        lane = lane_of(table, np.isin(table.kind, [int(kind) for kind in kinds]))
        self.unwatched = lane.of(Kind.UNWATCHED).outermost()
        self.pauses = lane.of(Kind.PAUSE)
        self.profiled = lane.of(Kind.PROFILED).intervals
        self.discovery = lane.of(Kind.DISCOVERY).intervals
        self.lines = lane.of(Kind.LINES).intervals
        self.stamps = lane.of(Kind.BOUNDARY).begin


def _steps(
    boundaries: Boundaries,
    lane: RecordTable,
    windows: _Windows,
    activity: Activity,
    claims: Claims,
    work: TrainingWork,
    lines: LineRoles,
) -> tuple[Steps, str]:
    end = boundaries.ends
    begin = np.concatenate(([boundaries.begin], end[:-1])) if len(end) else end
    duration, phases = split(begin, end, claims, work)
    lined = _lined(windows.lines, lines.times.end, begin, end)
    traced = _touched(windows.lines, begin, end)
    _name_gaps(phases, begin, end, lined, claims.all, work, lines)
    profiled = _touched(windows.profiled, begin, end)
    looked = _touched(windows.discovery, begin, end) | _before_roots(activity.forwards, end)
    disturbed = profiled | looked | (measure(claims.disturbing, begin, end) > 0)
    paused = measure(claims.sets[SegmentKind.PAUSE], begin, end) > 0
    watched = ~(measure(windows.unwatched.intervals, begin, end) * 2 > end - begin)
    compiled = measure(lane.of(Kind.COMPILE).intervals, begin, end) > 0
    touched = disturbed | paused | traced
    warm, reason = find_warm_up(duration - phases[:, Phase.INPUT], ~touched & watched, compiled)
    warm_up = np.arange(len(end)) < warm
    if (~(warm_up | touched) & watched).sum() >= LEAST_STEADY:
        disturbed = touched
    batches = _micro_batches(boundaries, lane, activity, begin, end)
    columns = (begin, end, duration, phases, batches, warm_up, disturbed, watched, profiled, lined)
    for column in columns:
        column.flags.writeable = False
    return Steps(*columns), reason


def _touched(window: Intervals, begin: Int64, end: Int64) -> Bool:
    touched: Bool = measure(window, begin, end) > PART * (end - begin)
    return touched


def _lined(window: Intervals, recorded: Int64, begin: Int64, end: Int64) -> Bool:
    """Steps that the line timeline covers, which may have given up before its window ended (too many lines)."""
    last = recorded.max(initial=0)
    slack = PART * (end - begin)
    covered: Bool = (measure(window, begin, end) >= end - begin - slack) & (end - slack <= last)
    return covered


def _before_roots(forwards: RecordTable, end: Int64) -> Bool:
    """Steps from before the first timed forward: theirs is not known, so that their phases are not comparable."""
    first = forwards.begin[0] if len(forwards) else np.iinfo(np.int64).min
    before: Bool = end <= first
    return before


def _name_gaps(
    phases: Int64, begin: Int64, end: Int64, lined: Bool, segments: Intervals, work: TrainingWork, lines: LineRoles
) -> None:
    """Moves the user's own batch preparation and transfers from REST to their phases."""
    if not len(lines.times.identity):
        return
    gaps = find_gaps(work.top, begin, end)
    prepared, moved = estimate(gaps, segments, lines, np.flatnonzero(lined), len(begin))
    prepared = np.minimum(prepared, phases[:, Phase.REST])
    moved = np.minimum(moved, phases[:, Phase.REST] - prepared)
    phases[:, Phase.INPUT] += prepared
    phases[:, Phase.TRANSFER] += moved
    phases[:, Phase.REST] -= prepared + moved


def _micro_batches(boundaries: Boundaries, lane: RecordTable, activity: Activity, begin: Int64, end: Int64) -> Int64:
    signs = activity.forwards if boundaries.mode is Mode.FORWARD else full_backwards(lane)
    counts: Int64 = np.searchsorted(signs.begin, end) - np.searchsorted(signs.begin, begin)
    return counts
