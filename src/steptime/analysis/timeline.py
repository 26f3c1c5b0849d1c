"""A timeline: one process's recording laid out as steps, phases and segments. The room's central type."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from steptime.arrays import Bool, Int64
from steptime.intervals import Intervals, union
from steptime.journal import Kind
from steptime.recording.recording import IntervalTable


class Mode(IntEnum):
    """Source of the step boundaries."""

    OPTIMIZER = 1
    BACKWARD = 2
    FORWARD = 3


PhaseName: TypeAlias = Literal["input", "transfer", "forward", "backward", "optimizer", "evaluation", "rest"]
"""Names of the phases in records."""


class Phase(IntEnum):
    """The phases of a step, in the order of the columns of `Steps.phases`. They sum to the step's duration."""

    INPUT = 0
    """Inside the training loader's next(), or the user's own batch preparation."""
    TRANSFER = 1
    """Lines that move the batch to the device."""
    FORWARD = 2
    BACKWARD = 3
    OPTIMIZER = 4
    EVALUATION = 5
    """Of the model in most of the steps; one between steps is a segment."""
    REST = 6
    """Everything else of the training thread."""

    @property
    def title(self) -> PhaseName:
        """Its name in records."""
        return _PHASE_NAMES[self]


_PHASE_NAMES: tuple[PhaseName, ...] = get_args(PhaseName)
UNSPLIT_PHASES = ("forward", "backward", "optimizer", "evaluation", "rest")
"""Names of the phases that only a profile can split into categories."""


class SegmentKind(IntEnum):
    """Kinds of time between training steps, or in them without belonging to them."""

    EVALUATION = 1
    CHECKPOINT = 2
    ROLLOUT = 3
    COMPILATION = 4
    PAUSE = 5
    """The probe held the thread."""
    LOADER_START = 6
    """Workers of a loader being started (between epochs)."""
    THINNED = 7
    """Steps that the recording of a long run does not hold any more."""


@dataclass(frozen=True, slots=True)
class Segment:
    """An interval of the training thread that is charged to no step. start, end: monotonic ns."""

    kind: SegmentKind
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Steps:
    """All steps of a process; arrays of length n, read-only, in time order; times: monotonic ns.

    start, end: boundaries. duration: end - start minus the segments inside. phases: (n, len(Phase)) ns, rows sum to
    duration.
    micro_batches: backwards (forwards when inferring) in the step. warm_up: left out at the start.
    excluded: the probe slowed it (discovery, profiler, lines, a long pause) or an evaluation, a checkpoint or a
    compilation lies in it, or it was kept for being slow, or steps are left out in it; a rollout or a loader's start is
    subtracted and does not disturb.
    watched: False for steps without the always-on timers (their phases are all REST).
    steady: neither warm_up nor disturbed and watched: what statistics are made from.
    """

    start: Int64
    end: Int64
    duration: Int64
    phases: Int64
    micro_batches: Int64
    warm_up: Bool
    excluded: Bool
    watched: Bool
    profiled: Bool
    lined: Bool

    @property
    def steady(self) -> Bool:
        """Mask of the steps that statistics are made from."""
        steady: Bool = ~(self.warm_up | self.excluded) & self.watched
        return steady


@dataclass(frozen=True, slots=True)
class Timeline:
    """One process laid out. warm_up_reason says, in words, what the warm-up was found from. gaps: (end in ns, steps
    that were taken and are not among `steps`), because the recording of a long run is thinned."""

    mode: Mode
    steps: Steps
    segments: tuple[Segment, ...]
    training_loaders: tuple[int, ...]
    warm_up_reason: str
    gaps: tuple[tuple[int, int], ...] = ()

    @property
    def left_out(self) -> int:
        """Steps in all gaps."""
        return sum(count for _, count in self.gaps)

    @property
    def whole(self) -> int:
        """Steps before the first gap."""
        gap = next((each.start for each in self.segments if each.kind is SegmentKind.THINNED), None)
        return len(self.steps.end) if gap is None else int(np.searchsorted(self.steps.end, gap, side="right"))

    def numbers(self, places: Int64) -> Int64:
        """Which steps of the job those at these places of `steps` are, from 0."""
        ends = np.array([end for end, _ in self.gaps], np.int64)
        before = np.cumsum([0, *(count for _, count in self.gaps)])
        known = np.minimum(places, max(0, len(self.steps.end) - 1))
        return places + before[np.searchsorted(ends, self.steps.end[known], side="right")] if len(ends) else places


@dataclass(frozen=True, slots=True, eq=False)
class RecordTable:
    """Records sorted by (start, -end), parents before children. identity is int64 so that sums cannot overflow."""

    kind: npt.NDArray[np.uint8]
    flags: npt.NDArray[np.uint8]
    identity: Int64
    start: Int64
    end: Int64

    def __len__(self) -> int:
        return len(self.start)

    def where(self, mask: Bool | Int64) -> RecordTable:
        """The records of a mask, or by index."""
        return RecordTable(self.kind[mask], self.flags[mask], self.identity[mask], self.start[mask], self.end[mask])

    def of(self, *kinds: Kind) -> RecordTable:
        """The records of these kinds."""
        return self.where(np.isin(self.kind, [int(kind) for kind in kinds]))

    def flagged(self, flag: int) -> Bool:
        """Which records carry a flag."""
        mask: Bool = (self.flags & flag) != 0
        return mask

    def outermost(self) -> RecordTable:
        """The records that lie in no other one of this track."""
        if not len(self):
            return self
        reach = np.maximum.accumulate(self.end)
        return self.where(np.concatenate(([True], self.start[1:] >= reach[:-1])))

    def inside(self, others: RecordTable) -> Bool:
        """Which records lie wholly in one of the other table's outermost records."""
        outer = others.outermost()
        if not len(outer):
            return np.zeros(len(self), np.bool_)
        found = np.searchsorted(outer.start, self.start, side="right") - 1
        mask: Bool = (found >= 0) & (self.end <= outer.end[np.maximum(found, 0)])
        return mask

    @property
    def intervals(self) -> Intervals:
        """The instants that the records cover."""
        return union(self.start, self.end)


def merge(*tables: RecordTable) -> RecordTable:
    """All records of several tables, sorted again."""
    columns = ("kind", "flags", "identity", "start", "end")
    whole = RecordTable(*(np.concatenate([getattr(table, column) for table in tables]) for column in columns))
    return whole.where(np.lexsort((-whole.end, whole.start)))


def records_of(table: IntervalTable, mask: Bool | None = None) -> RecordTable:
    """A table's records, or those of a mask."""
    chosen = slice(None) if mask is None else mask
    identity = table.identity[chosen].astype(np.int64)
    return RecordTable(table.kind[chosen], table.flags[chosen], identity, table.start[chosen], table.end[chosen])


def training_thread(table: IntervalTable) -> int:
    """The journal's number of the thread that trains: the one with the most backwards, else updates, else forwards."""
    for kind in (Kind.BACKWARD, Kind.OPTIMIZER_STEP, Kind.SCALER_STEP, Kind.FORWARD):
        threads = table.thread[table.kind == int(kind)]
        if len(threads):
            return int(np.bincount(threads).argmax())
    return 0
