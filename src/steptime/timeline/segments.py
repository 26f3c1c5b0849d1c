"""What belongs to no step.

One law: segments are disjoint, each instant goes to the first kind of PRIORITY that claims it, and what happens in at
least half of the steps is no segment but a part of the step (a checkpoint per step, a loader made anew for each batch).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steptime.arrays import Int64
from steptime.intervals import EMPTY, Intervals, join, subtract
from steptime.journal import Kind
from steptime.timeline.activity import Activity, is_recurring
from steptime.timeline.borders import UPDATES
from steptime.timeline.lane import Lane
from steptime.timeline.timeline import Segment, SegmentKind

PRIORITY = (
    SegmentKind.PAUSE,
    SegmentKind.EVALUATION,
    SegmentKind.ROLLOUT,
    SegmentKind.CHECKPOINT,
    SegmentKind.COMPILATION,
    SegmentKind.LOADER_START,
)
"""Ours first; then what is large holds what is small (a checkpoint of the best model inside an evaluation)."""
DISTURBING = (SegmentKind.PAUSE, SegmentKind.EVALUATION, SegmentKind.CHECKPOINT, SegmentKind.COMPILATION)
"""A step that holds one of these is left out of statistics: caches are cold, threads asleep. A rollout or a loader's
start is subtracted exactly, and the rest of such a step is as good as any."""


@dataclass(frozen=True, slots=True)
class Claims:
    """sets: instants by kind, disjoint. loader_starts: those of the training loader that belong to the steps."""

    sets: dict[SegmentKind, Intervals]
    loader_starts: Intervals

    @property
    def all(self) -> Intervals:
        """The instants of any segment."""
        return join(*self.sets.values())

    @property
    def disturbing(self) -> Intervals:
        """The instants of segments after which a step is not as usual."""
        return join(*(self.sets[kind] for kind in DISTURBING))

    @property
    def segments(self) -> tuple[Segment, ...]:
        """In time order."""
        found = [
            Segment(kind, begin, end)
            for kind, held in self.sets.items()
            for begin, end in zip(held.begin.tolist(), held.end.tolist(), strict=True)
        ]
        return tuple(sorted(found, key=lambda segment: segment.begin))


def find_segments(lane: Lane, pauses: Lane, activity: Activity, ends: Int64) -> Claims:
    """Claims instants for segments. pauses: PAUSE records of any thread; ends: the steps'."""
    training = lane.of(Kind.LOADER_START)
    training = training.where(np.isin(training.identity, activity.training_loaders))
    busy = lane.of(Kind.FORWARD, Kind.BACKWARD, *UPDATES).intervals
    starts = subtract(training.intervals, busy)
    wanted = {
        SegmentKind.PAUSE: pauses.intervals,
        SegmentKind.EVALUATION: activity.evaluation,
        SegmentKind.ROLLOUT: activity.rollout,
        SegmentKind.CHECKPOINT: _rare(lane.of(Kind.CHECKPOINT).intervals, ends),
        SegmentKind.COMPILATION: _rare(lane.of(Kind.COMPILE).intervals, ends),
        SegmentKind.LOADER_START: _rare(starts, ends),
    }
    taken, sets = EMPTY, {}
    for kind in PRIORITY:
        sets[kind] = subtract(wanted[kind], taken)
        taken = join(taken, wanted[kind])
    return Claims(sets, EMPTY if len(wanted[SegmentKind.LOADER_START]) else starts)


def _rare(found: Intervals, ends: Int64) -> Intervals:
    return EMPTY if is_recurring(found.begin, ends) else found
