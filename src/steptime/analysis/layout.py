"""Conversion of a process's records to its timeline."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from steptime.analysis.activity import (
    Activity,
    SegmentClaims,
    TrainingWork,
    find_activity,
    find_segments,
    find_work,
    split,
)
from steptime.analysis.lines import LineRoles, estimate, find_gaps, find_lines
from steptime.analysis.steps import UPDATES, Boundaries, find_boundaries, find_warm_up, full_backwards
from steptime.analysis.timeline import (
    Mode,
    Phase,
    RecordTable,
    SegmentKind,
    Steps,
    Timeline,
    counted,
    records_of,
    training_thread,
)
from steptime.arrays import Bool, Int64
from steptime.intervals import EMPTY, Intervals, measure, subtract
from steptime.journal import Flag, Kind
from steptime.recording.recording import Process

OF_THE_PROBE = [Kind.UNTIMED, Kind.PAUSE, Kind.PROFILED, Kind.DISCOVERY, Kind.LINES, Kind.BOUNDARY, Kind.THINNED]
"""Kinds of records that concern the whole process, whichever thread wrote them."""
PART = 0.05
"""Fraction of a step that a window (profiler, discovery …) must overlap to touch it: windows start and end a few
microseconds after a boundary."""
SHORT_PAUSE = 0.01
"""Fraction of a step: a shorter pause of the probe (a look at gradients on the CPU) does not disturb it. The pause
itself is subtracted. If such steps were excluded, every second step of a slow job would be missing from the mean."""
LEAST_STEADY = 5
"""Fewest untouched steps. With fewer, steady steps include those that line timing slows by 1 to 19 %, and those after a
pause of the probe, which is subtracted."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A timeline with all that it was made from, for summaries of lines and loaders. traced: time from which on a
    device's tracer is attached (`analysis.tracer`), ns, None for never."""

    timeline: Timeline
    records: RecordTable
    activity: Activity
    work: TrainingWork
    lines: LineRoles
    claims: SegmentClaims
    traced: int | None = None


def lay_out(process: Process) -> Timeline:
    """Timeline of a process: its steps, phases and segments. Never raises; at worst no step is found."""
    return lay_out_whole(process).timeline


def lay_out_whole(process: Process) -> Layout:
    """Timeline of a process with all that it was made from."""
    table = process.intervals
    probe = records_of(table, np.isin(table.kind, OF_THE_PROBE))
    records = _with_unseen_starts(
        records_of(table, table.thread == training_thread(table)), probe.of(Kind.BOUNDARY).start
    )
    boundaries = find_boundaries(records, probe.of(Kind.UNTIMED, Kind.THINNED), probe.of(Kind.BOUNDARY).start)
    acts = process.settings is not None and process.settings.environments
    activity = find_activity(records, boundaries, process.loaders, acts=acts)
    claims = find_segments(records, probe, activity, boundaries.ends)
    work = find_work(records, activity, claims.loader_starts)
    lines = find_lines(process, records, activity, work)
    steps, reason = _steps(boundaries, records, probe, activity, claims, work, lines)
    thinned = probe.of(Kind.THINNED)
    gaps = tuple(zip(thinned.end.tolist(), thinned.identity.tolist(), strict=True))
    timeline = Timeline(boundaries.mode, steps, claims.segments, activity.training_loaders, reason, gaps)
    profiled = probe.of(Kind.PROFILED).start
    traced = int(profiled[0]) if len(profiled) and process.facts.device not in ("", "cpu") else None
    return Layout(timeline, records, activity, work, lines, claims, traced)


def _with_unseen_starts(records: RecordTable, untimed: Int64) -> RecordTable:
    """The records, with the length of a loader's start set to 0 where its end is unknown. A start ends when the first
    batch is asked for. In a step without the always-on timers nobody records that, and the start would last until a
    batch of a later step. untimed: ends of the steps without timers, ns."""
    passed = np.searchsorted(untimed, records.end) > np.searchsorted(untimed, records.start)
    unseen = passed & (records.kind == int(Kind.LOADER_START))
    return replace(records, end=np.where(unseen, records.start, records.end)) if unseen.any() else records


def _steps(
    boundaries: Boundaries,
    records: RecordTable,
    probe: RecordTable,
    activity: Activity,
    claims: SegmentClaims,
    work: TrainingWork,
    lines: LineRoles,
) -> tuple[Steps, str]:
    end = boundaries.ends
    start = np.concatenate(([boundaries.start], end[:-1])) if len(end) else end
    duration, phases = split(start, end, claims, work)

    def inside(kind: Kind, left_out: Intervals = EMPTY) -> Int64:
        return measure(subtract(probe.of(kind).intervals, left_out), start, end)

    length, slack = end - start, PART * (end - start)
    lined = (inside(Kind.LINES) >= length - slack) & (end - slack <= lines.times.end.max(initial=0))
    _name_gaps(phases, start, end, lined, claims.all, work, lines)
    # What starts and ends a window holds the job, for longer than a short step takes: it is no part of either.
    pauses, touching = probe.of(Kind.PAUSE).intervals, PART * duration
    profiled = inside(Kind.PROFILED, pauses) > touching
    forwards = activity.forwards.start
    untimed = end <= forwards[0] if len(forwards) else np.zeros(len(end), np.bool_)  # before the first timed forward
    looked = (inside(Kind.DISCOVERY, pauses) > touching) | untimed
    excluded = profiled | looked | (measure(claims.excluding, start, end) > 0) | _kept_for_slowness(probe, start)
    paused = measure(claims.sets[SegmentKind.PAUSE], start, end) > SHORT_PAUSE * length
    timed = inside(Kind.UNTIMED) * 2 <= length
    compiled = measure(records.of(Kind.COMPILE).intervals, start, end) > 0
    touched = excluded | paused | (inside(Kind.LINES) > slack)
    warm, reason = find_warm_up(duration - phases[:, Phase.INPUT], ~touched & timed, compiled)
    warm_up = np.arange(len(end)) < warm
    if (~(warm_up | touched) & timed).sum() >= LEAST_STEADY:
        excluded = touched
    signs = activity.forwards if boundaries.mode is Mode.FORWARD else full_backwards(records)
    evaluations = signs.inside(records.of(*UPDATES))  # of a closure, on one batch
    batches = counted(signs.where(~evaluations).start, start, end)
    turns = counted(_after_passes(records.of(*UPDATES).start, signs.start), start, end)  # of models that take turns
    batches = np.maximum(batches // np.maximum(1, turns), np.minimum(1, counted(signs.start, start, end)))
    columns = (start, end, duration, phases, batches, warm_up, excluded, timed, profiled, lined)
    for column in columns:
        column.flags.writeable = False
    return Steps(*columns), reason


def _after_passes(updates: Int64, passes: Int64) -> Int64:
    """Starts of the updates that come right after a backward pass, and not after another update. In time order."""
    return updates[np.diff(np.searchsorted(passes, updates), prepend=0) > 0]


def _kept_for_slowness(probe: RecordTable, start: Int64) -> Bool:
    """Mask of the steps that a thinned recording kept because they are slow."""
    gaps = probe.of(Kind.THINNED)
    before = np.searchsorted(gaps.end, start, side="right")
    slow: Bool = np.append(np.False_, gaps.flagged(Flag.SLOW))[before]
    return slow


def _name_gaps(
    phases: Int64, start: Int64, end: Int64, lined: Bool, segments: Intervals, work: TrainingWork, lines: LineRoles
) -> None:
    """Moves the user's own batch preparation and transfers from REST to INPUT and TRANSFER, in place."""
    if not len(lines.times.identity):
        return
    gaps = find_gaps(work.top, start, end)
    prepared, moved = estimate(gaps, segments, lines, lined)
    prepared = np.minimum(prepared, phases[:, Phase.REST])
    moved = np.minimum(moved, phases[:, Phase.REST] - prepared)
    phases[:, Phase.INPUT] += prepared
    phases[:, Phase.TRANSFER] += moved
    phases[:, Phase.REST] -= prepared + moved
