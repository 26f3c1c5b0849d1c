"""The host's part of the graph: each thread as a chain of points, and how threads hand over to each other.

A point is where a thread meets something outside itself: a launch, a wait, a border of a step, autograd's engine.
Between two points lies the thread's own work, whatever it is. While autograd's engine works, the training thread has
no event: such a stretch is the engine's, entered by a fork and left by a join.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from steptime.arrays import Bool, Int64
from steptime.intervals import union
from steptime.kineto.table import Category
from steptime.ledger.operations import operator_events
from steptime.replay.graph import NONE
from steptime.replay.scope import Scope, Waits


class Point(IntEnum):
    """What a thread meets at a point; at one time on one thread they come in this order."""

    CALL_END = 0
    """A waiting call returns."""
    BURST_END = 1
    JOIN = 2
    STEP_END = 3
    STEP_BEGIN = 4
    BURST_BEGIN = 5
    FORK = 6
    CALL_BEGIN = 7
    """A call that launches or waits begins."""


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """Columns, by lane and, on a lane, in program order. row: the runtime call of a call's points, else NONE. mark: the
    step of a border, the number of a burst or of a fork and its join, else NONE."""

    lane: Int64
    time: Int64
    kind: Int64
    row: Int64
    mark: Int64

    def __len__(self) -> int:
        return len(self.lane)


@dataclass(frozen=True, slots=True, eq=False)
class Bursts:
    """Stretches of work of autograd's engine inside one stretch of the training thread that holds no event of its own.

    fork, join: ns, the ends of that stretch; stretch: its number.
    """

    lane: Int64
    begin: Int64
    end: Int64
    stretch: Int64
    fork: Int64
    join: Int64

    def __len__(self) -> int:
        return len(self.lane)


def bursts_of(scope: Scope) -> Bursts:
    """The bursts of all engine lanes, by begin."""
    times = _training_times(scope)
    found = [_bursts_on(scope, lane, times) for lane in scope.engines]
    table = np.concatenate([np.empty((0, 4), np.int64), *found])
    table = table[np.argsort(table[:, 1], kind="stable")]
    lane, begin, end, stretch = table.T
    fork = np.where(stretch > 0, times[stretch - 1], scope.begin)
    join = times[np.minimum(stretch, len(times) - 1)]
    kept = (stretch < len(times)) & (fork >= scope.begin) & (join <= scope.end)
    return Bursts(lane[kept], begin[kept], end[kept], stretch[kept], fork[kept], join[kept])


def points_of(scope: Scope, waits: Waits, bursts: Bursts) -> Points:
    """The points of all lanes."""
    calls = scope.activities.call
    calls = np.unique(calls[(calls != NONE) & (scope.trace.events.begin[calls] >= scope.begin)])
    events = scope.trace.events
    begun = np.unique(np.concatenate((calls, waits.row)))
    steps = np.arange(len(scope.borders))
    stretches, first = np.unique(bursts.stretch, return_index=True)
    numbers = np.arange(len(bursts))
    parts = [
        _part(events.lane[begun], events.begin[begun], Point.CALL_BEGIN, begun),
        _part(events.lane[waits.row], events.end[waits.row], Point.CALL_END, waits.row),
        _part(scope.training, scope.borders[:, 0], Point.STEP_BEGIN, mark=steps),
        _part(scope.training, scope.borders[:, 1], Point.STEP_END, mark=steps),
        _part(scope.training, bursts.fork[first], Point.FORK, mark=stretches),
        _part(scope.training, bursts.join[first], Point.JOIN, mark=stretches),
        _part(bursts.lane, bursts.begin, Point.BURST_BEGIN, mark=numbers),
        _part(bursts.lane, bursts.end, Point.BURST_END, mark=numbers),
    ]
    lane, time, kind, row, mark = np.concatenate(parts, axis=1)
    instant = (kind == Point.CALL_END) & (events.duration[row] == 0)
    order = np.lexsort((np.where(instant, len(Point), kind), time, lane))
    return Points(lane[order], time[order], kind[order], row[order], mark[order])


def _part(
    lane: npt.NDArray[np.signedinteger] | int,
    time: Int64,
    kind: Point,
    row: Int64 | int = NONE,
    mark: Int64 | int = NONE,
) -> Int64:
    columns = np.broadcast_arrays(lane, time, kind, row, mark)
    return np.stack(columns).astype(np.int64)


def _training_times(scope: Scope) -> Int64:
    """When an event of the training thread begins or ends; Python functions stay open while the engine works."""
    events = scope.trace.events
    listed = np.isin(events.category, (Category.OPERATOR, Category.ANNOTATION, Category.RUNTIME))
    chosen = listed & (events.lane == scope.training)
    return np.unique(np.concatenate((events.begin[chosen], events.end[chosen], scope.borders.reshape(-1))))


def _bursts_on(scope: Scope, lane: int, times: Int64) -> Int64:
    """(n, 4): lane, begin, end, stretch. What overlaps an event of the training thread is no burst: it runs beside."""
    events = scope.trace.events
    chosen = (operator_events(scope.trace) | (events.category == Category.RUNTIME)) & (events.lane == lane)
    chosen &= (events.begin >= scope.begin) & (events.end <= scope.end)
    busy = union(events.begin[chosen], events.end[chosen])
    stretch = np.searchsorted(times, busy.begin, side="right")
    inside: Bool = stretch == np.searchsorted(times, busy.end, side="left")
    if not inside.any():
        return np.empty((0, 4), np.int64)
    begin, end, stretch = busy.begin[inside], busy.end[inside], stretch[inside]
    first = np.flatnonzero(np.concatenate(([True], stretch[1:] != stretch[:-1])))
    last = np.append(first[1:], len(begin)) - 1
    return np.stack((np.full(len(first), lane), begin[first], end[last], stretch[first]), axis=1)
