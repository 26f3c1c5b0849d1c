"""A timeline: one process's recording laid out as steps, phases and segments. The room's central type."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from steptime.arrays import Bool, Int64


class Mode(IntEnum):
    """What the borders of the steps were found from."""

    OPTIMIZER = 1
    BACKWARD = 2
    FORWARD = 3


class Phase(IntEnum):
    """The phases of a step, in the order of the columns of `Steps.phases`. They sum to the step's duration."""

    INPUT = 0
    """Inside the training loader's next(), or the user's own batch preparation."""
    TRANSFER = 1
    """Lines that move the batch to the device."""
    FORWARD = 2
    BACKWARD = 3
    OPTIMIZER = 4
    REST = 5
    """Everything else of the training thread."""


class SegmentKind(IntEnum):
    """What lies between training steps, or in them without belonging to them."""

    EVALUATION = 1
    CHECKPOINT = 2
    ROLLOUT = 3
    COMPILATION = 4
    PAUSE = 5
    """The probe held the thread."""
    LOADER_START = 6
    """Workers of a loader being started (between epochs)."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of the training thread that is charged to no step. begin, end: monotonic ns."""

    kind: SegmentKind
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Steps:
    """All steps of a process; arrays of length n, read-only, in time order; times: monotonic ns.

    begin, end: borders. duration: end - begin minus the segments inside. phases: (n, len(Phase)) ns, rows sum to
    duration.
    micro_batches: backwards (forwards when inferring) in the step. warm_up: left out at the start.
    disturbed: the probe slowed it (discovery, profiler, lines, a pause) or an evaluation, a checkpoint or a compilation
    lies in it; a rollout or a loader's start is subtracted and does not disturb.
    watched: False for steps taken with the watch off (their phases are all REST).
    steady: neither warm_up nor disturbed and watched: what statistics are made from.
    """

    begin: Int64
    end: Int64
    duration: Int64
    phases: Int64
    micro_batches: Int64
    warm_up: Bool
    disturbed: Bool
    watched: Bool
    profiled: Bool
    lined: Bool

    @property
    def steady(self) -> Bool:
        """Mask of the steps that statistics are made from."""
        steady: Bool = ~(self.warm_up | self.disturbed) & self.watched
        return steady


@dataclass(frozen=True, slots=True)
class Timeline:
    """One process laid out. training_thread: the journal's thread number that took the steps.

    warm_up_reason says, in words, what the warm-up was found from.
    """

    mode: Mode
    steps: Steps
    segments: tuple[Segment, ...]
    training_thread: int
    training_loaders: tuple[int, ...]
    warm_up_reason: str
