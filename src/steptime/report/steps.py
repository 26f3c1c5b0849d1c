"""Series of steps in a report: kind, duration and categories of each.

One law: categories are only given for steps whose categories are known; the others have only a duration."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steptime.analysis.categories import Breakdown, Category
from steptime.analysis.timeline import SegmentKind, Steps, Timeline
from steptime.arrays import Bool, Int64, quartiles, unique

EXCLUDING = ("with evaluation", "with checkpoint", "with compilation")
"""Work of the job besides training that excludes a step from the mean; rollouts and starts of a loader do not."""
THINNED = "several, left out"
KINDS = (
    "steady", "outlier", "warm-up", "profiled", "with evaluation", "with checkpoint", "with compilation",
    "with rollout", "with loader start", "paused", "timers off", "line-timed", "excluded", THINNED,
)  # fmt: skip
"""Kinds of steps. An outlier is marked whether the mean excludes it or not. "timers off": steps without the always-on
timers, which show the cost of these. "excluded": other work of steptime, such as the discovery of modules, or slow
steps that were kept of a thinned recording."""
_OF_SEGMENT = {
    SegmentKind.EVALUATION: "with evaluation",
    SegmentKind.CHECKPOINT: "with checkpoint",
    SegmentKind.COMPILATION: "with compilation",
    SegmentKind.ROLLOUT: "with rollout",
    SegmentKind.LOADER_START: "with loader start",
    SegmentKind.PAUSE: "paused",
    SegmentKind.THINNED: THINNED,
}
FAR_OUT = 3.0
"""Interquartile ranges above the third quartile: Tukey's "far out" (Exploratory Data Analysis, 1977)."""
LEAST_EXCESS = 1.25
"""Least length of an outlier over the median: on an even machine quartiles coincide, and a few percent are no event."""
MOST_ROWS = 1000
"""Most rows with categories; in a longer job several neighbours share one."""
MOST_MARKS = 500


@dataclass(frozen=True, slots=True)
class StepMark:
    """Time in or before a step that belongs to no step: kind "evaluation", "checkpoint", …; duration: ns."""

    step: int
    kind: str
    duration: int


@dataclass(frozen=True, slots=True)
class StepSeries:
    """Steps of a process. kinds: kind of every step, as an index of `names`. categories: names of the columns of
    `spent`; each row of `spent` is the mean ns by category of `stride` steps, over those with known categories; empty
    without any. marks: the longest marks."""

    names: tuple[str, ...]
    kinds: tuple[int, ...]
    categories: tuple[str, ...]
    stride: int
    spent: tuple[tuple[int, ...], ...]
    marks: tuple[StepMark, ...] = ()

    def __post_init__(self) -> None:
        """Raises ValueError for a kind without a name, a mark without a step, or a row of the wrong length: a report's
        file may come from anybody."""
        if any(not 0 <= kind < len(self.names) for kind in self.kinds):
            raise ValueError("a step of a series is of no kind")
        if any(not 0 <= mark.step < len(self.kinds) for mark in self.marks):
            raise ValueError("a mark of a series is at no step")
        if self.stride < 1 or any(len(row) not in (0, len(self.categories)) for row in self.spent):
            raise ValueError("a series of steps has rows of different lengths")


def series_of_process(timeline: Timeline, breakdown: Breakdown) -> StepSeries:
    """Series of the steps of a recording. breakdown: breakdown of its steady steps."""
    steps = timeline.steps
    kinds = np.full(len(steps.start), KINDS.index("steady"), np.int64)
    kinds[steps.excluded] = KINDS.index("excluded")
    marks = _marks(timeline)
    for mark in marks:
        if steps.excluded[mark.step]:
            kinds[mark.step] = KINDS.index(_OF_SEGMENT[SegmentKind[mark.kind.replace(" ", "_").upper()]])
    kinds[steps.lined & steps.excluded] = KINDS.index("line-timed")
    kinds[~steps.timed] = KINDS.index("timers off")
    kinds[steps.profiled] = KINDS.index("profiled")
    kinds[steps.warm_up] = KINDS.index("warm-up")
    kinds[_outliers(steps.duration, steps.steady)] = KINDS.index("outlier")
    return _series(kinds, np.flatnonzero(steps.steady), breakdown, marks)


def series_of_trace(breakdown: Breakdown, warm_up: int) -> StepSeries:
    """Series of a trace's steps. breakdown: that of all steps; warm_up: number of first steps without statistics."""
    kinds = np.full(len(breakdown.wall), KINDS.index("steady"), np.int64)
    kinds[:warm_up] = KINDS.index("warm-up")
    kinds[_outliers(breakdown.wall, np.arange(len(breakdown.wall)) >= warm_up)] = KINDS.index("outlier")
    return _series(kinds, np.arange(len(breakdown.wall)), breakdown, ())


def _outliers(duration: Int64, steady: Bool) -> Bool:
    if steady.sum() < 4:
        return np.zeros(len(duration), np.bool_)
    low, median, high = quartiles(duration[steady])
    limit = max(high + FAR_OUT * (high - low), LEAST_EXCESS * median)
    far: Bool = steady & (duration > limit)
    return far


def _series(kinds: Int64, known: Int64, breakdown: Breakdown, marks: tuple[StepMark, ...]) -> StepSeries:
    """Series of steps. known: indices of the breakdown's steps."""
    stride = max(-(-len(kinds) // MOST_ROWS), 1)
    columns = np.flatnonzero(breakdown.entries.sum(axis=0)) if len(known) else np.zeros(0, np.int64)
    rows = known // stride
    count = -(-len(kinds) // stride)
    sums = np.zeros((count, len(columns)), np.int64)
    np.add.at(sums, rows, breakdown.entries[:, columns])
    members = np.bincount(rows, minlength=count)
    spent = tuple(
        tuple((row // many).tolist()) if many else () for row, many in zip(sums, members.tolist(), strict=True)
    )
    used = unique(kinds).tolist()
    return StepSeries(
        names=tuple(KINDS[kind] for kind in used),
        kinds=tuple(np.searchsorted(used, kinds).tolist()),
        categories=tuple(Category(column).name.lower() for column in columns.tolist()),
        stride=stride,
        spent=spent if len(columns) else (),
        marks=marks,
    )


def _marks(timeline: Timeline) -> tuple[StepMark, ...]:
    """Segments by the step in which they end, the longest MOST_MARKS; without those after the last step."""
    steps: Steps = timeline.steps
    longest = sorted(timeline.segments, key=lambda segment: segment.start - segment.end)
    found = []
    for segment in longest[:MOST_MARKS]:
        step = int(np.searchsorted(steps.end, segment.start, side="right"))
        if step < len(steps.end) and segment.end > steps.start[step]:
            kind = segment.kind.name.lower().replace("_", " ")
            found.append(StepMark(step, kind, segment.end - segment.start))
    return tuple(sorted(found, key=lambda mark: (mark.step, -mark.duration)))
