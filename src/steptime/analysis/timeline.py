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
    """Phases of a step, in the order of the columns of `Steps.phases`. They sum to the step's duration."""

    INPUT = 0
    """Time in the training loader's next(), or in the user's own batch preparation."""
    TRANSFER = 1
    """Time in lines that move the batch to the device."""
    FORWARD = 2
    BACKWARD = 3
    OPTIMIZER = 4
    EVALUATION = 5
    """Evaluations that recur in most steps. An evaluation between steps is a segment."""
    REST = 6
    """Remaining time of the training thread."""

    @property
    def title(self) -> PhaseName:
        """Name of the phase in records."""
        return _PHASE_NAMES[self]


_PHASE_NAMES: tuple[PhaseName, ...] = get_args(PhaseName)
UNSPLIT_PHASES = ("forward", "backward", "optimizer", "evaluation", "rest")
"""Names of the phases that only a profile can split into categories."""


class SegmentKind(IntEnum):
    """Kinds of time that belongs to no training step, although some of it is inside of steps."""

    EVALUATION = 1
    CHECKPOINT = 2
    ROLLOUT = 3
    COMPILATION = 4
    PAUSE = 5
    """The probe held the training thread."""
    LOADER_START = 6
    """A loader started its workers (between epochs)."""
    THINNED = 7
    """Steps that were removed from the recording of a long run."""


@dataclass(frozen=True, slots=True)
class Segment:
    """An interval of the training thread that belongs to no step. start, end: monotonic ns."""

    kind: SegmentKind
    start: int
    end: int


def counted(times: Int64, start: Int64, end: Int64) -> Int64:
    """Number of times in each interval [start, end). times: sorted."""
    counts: Int64 = np.searchsorted(times, end) - np.searchsorted(times, start)
    return counts


@dataclass(frozen=True, slots=True)
class Steps:
    """All steps of a process, as read-only arrays of length n in time order; times are monotonic ns.

    start, end: boundaries. duration: end - start minus the segments inside. phases: (n, len(Phase)), ns; rows sum to
    duration. micro_batches: number of backwards (forwards when inferring), of one model if several are updated in
    turns. warm_up: True for steps left out at the start. excluded: True if the probe slowed the step (discovery,
    profiler, lines, a long pause), if it holds an evaluation, a checkpoint or a compilation, if it was kept for being
    slow, or if steps were thinned out of it. A rollout or a loader's start is subtracted and does not exclude. timed:
    False for steps without the always-on timers (their phases are all REST). profiled, lined: True for steps recorded
    by the profiler, or with line timing."""

    start: Int64
    end: Int64
    duration: Int64
    phases: Int64
    micro_batches: Int64
    warm_up: Bool
    excluded: Bool
    timed: Bool
    profiled: Bool
    lined: Bool

    @property
    def steady(self) -> Bool:
        """Mask of the steps that statistics use: timed, no warm-up and not excluded."""
        steady: Bool = ~(self.warm_up | self.excluded) & self.timed
        return steady


@dataclass(frozen=True, slots=True)
class Timeline:
    """Steps, phases and segments of one process. training_loaders: numbers of the iterators that feed training.
    warm_up_reason: source of the warm-up's length, in words. gaps: (end in ns, number of missing steps) for each gap in
    the recording of a long run, which is thinned."""

    mode: Mode
    steps: Steps
    segments: tuple[Segment, ...]
    training_loaders: tuple[int, ...]
    warm_up_reason: str
    gaps: tuple[tuple[int, int], ...] = ()

    @property
    def left_out(self) -> int:
        """Number of steps that are missing in all gaps of the recording."""
        return sum(count for _, count in self.gaps)

    @property
    def whole(self) -> int:
        """Number of steps before the first gap of the recording."""
        gap = next((each.start for each in self.segments if each.kind is SegmentKind.THINNED), None)
        return len(self.steps.end) if gap is None else int(np.searchsorted(self.steps.end, gap, side="right"))

    def numbers(self, places: Int64) -> Int64:
        """Number in the job, from 0, of each step at these positions of `steps`."""
        ends = np.array([end for end, _ in self.gaps], np.int64)
        before = np.cumsum([0, *(count for _, count in self.gaps)])
        known = np.minimum(places, max(0, len(self.steps.end) - 1))
        return places + before[np.searchsorted(ends, self.steps.end[known], side="right")] if len(ends) else places


@dataclass(frozen=True, slots=True, eq=False)
class RecordTable:
    """Records of the journal, sorted by (start, -end), so that parents come before children. identity: int64, so that
    sums cannot overflow."""

    kind: npt.NDArray[np.uint8]
    flags: npt.NDArray[np.uint8]
    identity: Int64
    start: Int64
    end: Int64

    def __len__(self) -> int:
        return len(self.start)

    def where(self, mask: Bool | Int64) -> RecordTable:
        """The table with only the records that a mask or indices select."""
        return RecordTable(self.kind[mask], self.flags[mask], self.identity[mask], self.start[mask], self.end[mask])

    def of(self, *kinds: Kind) -> RecordTable:
        return self.where(np.isin(self.kind, [int(kind) for kind in kinds]))

    def flagged(self, flag: int) -> Bool:
        """Mask of the records that carry a flag."""
        mask: Bool = (self.flags & flag) != 0
        return mask

    def outermost(self) -> RecordTable:
        """The table with only the records that no other record of it encloses."""
        if not len(self):
            return self
        reach = np.maximum.accumulate(self.end)
        return self.where(np.concatenate(([True], self.start[1:] >= reach[:-1])))

    def inside(self, others: RecordTable) -> Bool:
        """Mask of the records that lie wholly in one of the other table's outermost records."""
        outer = others.outermost()
        if not len(outer):
            return np.zeros(len(self), np.bool_)
        found = np.searchsorted(outer.start, self.start, side="right") - 1
        mask: Bool = (found >= 0) & (self.end <= outer.end[np.maximum(found, 0)])
        return mask

    @property
    def intervals(self) -> Intervals:
        """Instants that the records cover."""
        return union(self.start, self.end)


def merge(*tables: RecordTable) -> RecordTable:
    """One sorted table of the records of several tables."""
    columns = ("kind", "flags", "identity", "start", "end")
    whole = RecordTable(*(np.concatenate([getattr(table, column) for table in tables]) for column in columns))
    return whole.where(np.lexsort((-whole.end, whole.start)))


def records_of(table: IntervalTable, mask: Bool | None = None) -> RecordTable:
    """Records of a journal's table, optionally only those that a mask selects."""
    chosen = slice(None) if mask is None else mask
    identity = table.identity[chosen].astype(np.int64)
    return RecordTable(table.kind[chosen], table.flags[chosen], identity, table.start[chosen], table.end[chosen])


def training_thread(table: IntervalTable) -> int:
    """Number in the journal of the thread with most backwards, else most updates, else most forwards."""
    for kind in (Kind.BACKWARD, Kind.OPTIMIZER_STEP, Kind.SCALER_STEP, Kind.FORWARD):
        threads = table.thread[table.kind == int(kind)]
        if len(threads):
            return int(np.bincount(threads).argmax())
    return 0
