"""State of a running job: the last minute of each rank, the machine, and stragglers. The room's central type.

One law: the parts of the last minute sum to its wall clock, to the nanosecond, as those of a step do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from steptime.advice.loader_evidence import input_use
from steptime.analysis.categories import Category
from steptime.analysis.layout import Layout, lay_out_whole
from steptime.analysis.stragglers.straggler import compare
from steptime.analysis.stragglers.summary import RankSummary, blocks
from steptime.analysis.timeline import Mode, Phase, SegmentKind, Steps
from steptime.answer.answer import Item
from steptime.arrays import Bool, Int64
from steptime.intervals import measure, union
from steptime.journal import Flag, Kind
from steptime.quantities import Estimate, format_duration, mean_of_series
from steptime.recording.load import name_of
from steptime.recording.recording import Process, TelemetrySample

POINTS = 30
"""Points of the curve of step times over the last minute."""
QUEUE_TIME = 10_000_000_000
"""Time over which the loader's queue is averaged, ns."""
RESIDENT, ALLOCATED, ALLOCATED_PEAK = 1, 2, 6
"""Quantities of MEMORY samples (docs/recording-format.md)."""
PHASES = {phase: phase.name.lower() for phase in Phase} | {Phase.REST: "other"}
BETWEEN = {
    SegmentKind.EVALUATION: "evaluation",
    SegmentKind.CHECKPOINT: "checkpoint",
    SegmentKind.ROLLOUT: "rollout",
    SegmentKind.COMPILATION: "compilation",
    SegmentKind.PAUSE: "steptime's own pauses",
    SegmentKind.LOADER_START: "loader start",
    SegmentKind.THINNED: "left out of the recording",
}
"""Names of segments between steps, which belong to no step."""


@dataclass(frozen=True, slots=True)
class Part:
    """Part of a rank's last minute: a phase of the steps, or a kind of time between steps. total: ns in the last
    minute; share: fraction of the minute's wall clock."""

    name: str
    total: int
    share: float


@dataclass(frozen=True, slots=True)
class Queue:
    """Batches that were ready when the job asked. ready: mean number over the last ten seconds; most: largest possible
    one."""

    ready: float
    most: int


@dataclass(frozen=True, slots=True)
class RankView:
    """Last minute of a rank. total: number of steps since the job started; steps: number in the last minute, `wall` ns
    together. step: mean of the undisturbed steps, None if there are none. rate: samples per second over the minute.
    phases, between: parts of the minute, whose totals sum to `wall`. curve: mean step in each of POINTS equal parts of
    the minute, 0 if none ended. collections, collecting: number of Python's garbage collections, and ns in them. bytes:
    memory; on a device its peak so far. own: time of a step in which the rank does not wait for others, ns. doing:
    activity since the last step, "" for training. late: True if the others wait for it."""

    name: str
    rank: int | None
    host: str
    device: str
    total: int
    steps: int = 0
    wall: int = 0
    step: Estimate | None = None
    rate: float | None = None
    phases: tuple[Part, ...] = ()
    between: tuple[Part, ...] = ()
    curve: tuple[float, ...] = ()
    queue: Queue | None = None
    collections: int = 0
    collecting: int = 0
    bytes: int | None = None
    own: float = 0.0
    doing: str = ""
    late: bool = False

    def __post_init__(self) -> None:
        """Raises ValueError if the parts do not sum to the whole."""
        if sum(part.total for part in (*self.phases, *self.between)) != self.wall:
            raise ValueError("the parts of the last minute do not sum to its wall clock")

    def note(self, waiting: float) -> str:
        """Text on who waits for the rank, else on its activity. waiting: time lost to the straggler, ns per step."""
        if self.late:
            return f"straggler: the other ranks wait {format_duration(waiting)}/step for it"
        return f"now: {self.doing}" if self.doing else ""


@dataclass(frozen=True, slots=True)
class Diagnosed:
    """Diagnosis of the recording so far. reason: why its confidence is what it is."""

    headline: str
    reason: str
    findings: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class LiveView:
    """State of the job. state: "running", "ended" or "silent"; silent: seconds without new data. exit_status: status of
    an ended job, None if unknown. change: change of the front rank's step, relative to the first watched minute.
    waiting: time that the ranks wait for the straggler, ns per step. left_out: number of ranks that are not read.
    notice: outcome of the last request. samples: of the machine in the last minute."""

    source: str
    command: str
    state: str
    elapsed: float
    silent: float
    ranks: tuple[RankView, ...]
    exit_status: int | None = None
    change: float | None = None
    waiting: float = 0.0
    left_out: int = 0
    diagnosed: Diagnosed | None = None
    notice: str = ""
    samples: tuple[TelemetrySample, ...] = ()

    @property
    def machine(self) -> TelemetrySample | None:
        return self.samples[-1] if self.samples else None

    @property
    def front(self) -> RankView | None:
        """Rank that is shown in full: the straggler, else the first one; None without ranks."""
        late = next((rank for rank in self.ranks if rank.late), None)
        return late or (self.ranks[0] if self.ranks else None)


def view_of(process: Process, total: int) -> tuple[RankView, Int64]:
    """State of a rank: (its last minute, its own time per step in ns, -1 if noisy). total: number of its steps."""
    facts, layout = process.facts, lay_out_whole(process)
    steps = layout.timeline.steps
    view = RankView(name_of(process), facts.rank, facts.host, facts.device_name or facts.device, total)
    view = replace(view, bytes=_memory(process), doing=_doing(layout))
    if len(steps.end) < 2:
        return view, np.zeros(0, np.int64)
    start, end = int(steps.start[0]), int(steps.end[-1])
    usable = steps.steady if steps.steady.any() else ~steps.excluded & steps.timed & (np.arange(len(steps.end)) > 0)
    own = _own(steps, facts.device)
    garbage = process.intervals.kind == Kind.GARBAGE
    garbage &= (process.intervals.start >= start) & (process.intervals.end <= end)
    lasted = process.intervals.end[garbage] - process.intervals.start[garbage]
    phases, between = _parts(layout, start, end)
    return replace(
        view,
        steps=len(steps.end),
        wall=end - start,
        step=mean_of_series(steps.duration[usable]) if usable.any() else None,
        rate=_rate(process, layout, usable, end - start),
        phases=phases,
        between=between,
        curve=_curve(steps, usable, start, end),
        queue=_queue(process, layout.timeline.training_loaders, end),
        collections=len(lasted),
        collecting=int(lasted.sum()),
        own=float(own[usable].mean()) if usable.any() else 0.0,
    ), np.where(usable, own, -1)


def _parts(layout: Layout, start: int, end: int) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    steps, segments = layout.timeline.steps, layout.timeline.segments
    wall, sums = end - start, steps.phases.sum(axis=0).tolist()
    phases = tuple(Part(PHASES[phase], sums[phase], sums[phase] / wall) for phase in Phase)
    between = []
    for kind, name in BETWEEN.items():
        held = union(
            [each.start for each in segments if each.kind is kind], [e.end for e in segments if e.kind is kind]
        )
        if total := int(measure(held, [start], [end])[0]):
            between.append(Part(name, total, total / wall))
    return phases, tuple(between)


def _own(steps: Steps, device: str) -> Int64:
    """Own time in each step, ns, as in `stragglers.summary`: on a device INPUT and TRANSFER, else all but BACKWARD."""
    if device != "cpu":
        return steps.phases[:, Phase.INPUT] + steps.phases[:, Phase.TRANSFER]
    return steps.duration - steps.phases[:, Phase.BACKWARD]


def _curve(steps: Steps, usable: Bool, start: int, end: int) -> tuple[float, ...]:
    place = np.minimum((steps.end - start) * POINTS // (end - start), POINTS - 1)[usable]
    count = np.bincount(place, minlength=POINTS)
    total = np.bincount(place, steps.duration[usable], minlength=POINTS)
    return tuple((total / np.maximum(count, 1)).tolist())


def _rate(process: Process, layout: Layout, usable: Bool, wall: int) -> float | None:
    """Samples per second by the training loaders' batch sizes (last ones as full), else the model's inputs, or None."""
    wanted = set(layout.timeline.training_loaders)
    if layout.timeline.mode is Mode.FORWARD:
        wanted = {loader.identity for loader in process.loaders}
    sizes = {loader.identity: loader.batch_size for loader in process.loaders if loader.identity in wanted}
    asked = layout.records.of(Kind.LOADER_NEXT)
    asked = asked.where(~asked.flagged(Flag.EXHAUSTED) & np.isin(asked.identity, list(wanted)))
    steps = layout.timeline.steps
    asked = asked.where((asked.end > steps.start[0]) & (asked.end <= steps.end[-1]))
    found = [sizes.get(identity) for identity in asked.identity.tolist()]
    if found and all(found):
        return sum(size or 0 for size in found) * 1e9 / wall
    inputs = input_use(process, layout, np.flatnonzero(usable))
    return inputs.samples * len(steps.end) * 1e9 / wall if inputs is not None else None


def _queue(process: Process, training: Sequence[int], end: int) -> Queue | None:
    table = process.intervals
    chosen = (table.kind == Kind.QUEUE) & np.isin(table.identity, training) & (table.start > end - QUEUE_TIME)
    if not chosen.any():
        return None
    latest = int(table.identity[chosen][-1])
    most = [each.workers * (each.prefetch_factor or 2) for each in process.loaders if each.identity == latest]
    return Queue(float(table.end[chosen].mean()), max(most, default=0)) if most and most[0] else None


def _memory(process: Process) -> int | None:
    table = process.intervals
    for quantity in (ALLOCATED_PEAK, ALLOCATED, RESIDENT):
        rows = np.flatnonzero((table.kind == Kind.MEMORY) & (table.identity == quantity))
        if len(rows):
            return int(table.end[rows[-1]])
    return None


def _doing(layout: Layout) -> str:
    steps, segments = layout.timeline.steps, layout.timeline.segments
    last = int(steps.end[-1]) if len(steps.end) else 0
    behind = [segment for segment in segments if segment.start >= last and segment.kind is not SegmentKind.PAUSE]
    return BETWEEN[behind[-1].kind] if behind else ""


def with_stragglers(views: Sequence[tuple[RankView, Int64]]) -> tuple[tuple[RankView, ...], float]:
    """Marks the straggler among ranks: (the marked ranks, time that the others wait for it in ns per step). Only steps
    that all ranks have taken are compared, because ranks that train together number them alike."""
    ranks = tuple(view for view, _ in views)
    known = [(view, own) for view, own in views if view.rank is not None and len(own) and view.step is not None]
    if len(known) < 2:
        return ranks, 0.0
    first = max(view.total - len(own) for view, own in known)
    last = min(view.total for view, _ in known)
    if last - first < 2:
        return ranks, 0.0
    summaries = []
    for view, own in known:
        start = view.total - len(own)
        mine = own[first - start : last - start]
        series = blocks(mine, mine >= 0)
        step = view.step.value if view.step is not None else 0.0
        summaries.append(
            RankSummary(view.rank or 0, view.name, view.host, len(mine), step, (0.0,) * len(Category), series=series)
        )
    found = compare(summaries)
    late = found.late if found is not None else None
    if late is None:
        return ranks, 0.0
    return tuple(replace(rank, late=rank.rank in late.ranks) for rank in ranks), late.waiting
