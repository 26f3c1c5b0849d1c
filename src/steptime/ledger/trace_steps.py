"""The steps of a trace that nobody else knows the steps of."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from steptime.kineto.table import Category, Trace
from steptime.ledger.activities import UNKNOWN, device_activities
from steptime.ledger.names import OPTIMIZER_STEP, STEP, matching
from steptime.ledger.threads import training_lane

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


def steps_of(trace: Trace) -> Int64:
    """(n, 2) begins and ends in ns, in time order, without overlap: the ranges ProfilerStep#; without them from the
    end of one Optimizer.step to the end of the next; without two of those the whole recording as one step; none
    without events. A trace that was put together from several recordings has no step across two of them.
    """
    marked = _ranges(trace, STEP.match)
    if len(marked):
        return _apart(marked)
    ends = np.unique(np.maximum.accumulate(_ranges(trace, OPTIMIZER_STEP.match)[:, 1]))  # an update may hold another
    if len(ends) > 1:
        pairs = np.stack((ends[:-1], ends[1:]), axis=1)
        cuts = np.array([begin for begin, _ in trace.windows[1:]], np.int64)
        return pairs[np.searchsorted(cuts, pairs[:, 0], "right") == np.searchsorted(cuts, pairs[:, 1], "right")]
    if trace.windows:
        return np.array(trace.windows, np.int64)
    events = trace.events
    if not len(events):
        return np.empty((0, 2), np.int64)
    return np.array([[events.begin.min(), events.end.max()]], np.int64)


def reach(trace: Trace, borders: Int64) -> Int64:
    """Steps on the device: each ends with the last kernel that was launched in it, and the next begins there.

    The host runs ahead of the device, so a step's kernels outlast the host's step. Kernels of a step that ran before
    its begin as moved here still count as compute, in the step in whose time they ran: a ledger is about time, not
    about work. borders: (n, 2) ns on the host, in time order.
    """
    events = trace.events
    activities = device_activities(trace)
    launched = activities.launch != UNKNOWN
    calls, done = activities.launch[launched], events.end[activities.rows[launched]]
    step = np.searchsorted(borders[:, 0], events.begin[calls], side="right") - 1
    inside = (step >= 0) & (events.end[calls] <= borders[np.maximum(step, 0), 1])
    ends = borders[:, 1].copy()
    np.maximum.at(ends, step[inside], done[inside])
    ends = np.maximum.accumulate(ends)
    begins = np.maximum(borders[:, 0], np.concatenate((borders[:1, 0], ends[:-1])))
    return np.stack((begins, ends), axis=1)


def _ranges(trace: Trace, test: Callable[[str], object]) -> Int64:
    """Named annotations of the host, of the training thread where it has some."""
    events = trace.events
    chosen: Bool = matching(trace, test) & np.isin(events.category, (Category.ANNOTATION, Category.OPERATOR))
    lane = training_lane(trace)
    if lane is not None and (chosen & (events.lane == lane)).any():
        chosen &= events.lane == lane
    rows = np.flatnonzero(chosen)
    rows = rows[np.argsort(events.begin[rows], kind="stable")]
    return np.stack((events.begin[rows], events.end[rows]), axis=1)


def _apart(ranges: Int64) -> Int64:
    """Ranges that overlap (several profilers, rounding) begin where the one before ends; what is left empty goes."""
    ends = np.maximum.accumulate(ranges[:, 1])
    begins = np.maximum(ranges[:, 0], np.concatenate((ranges[:1, 0], ends[:-1])))
    kept = ends > begins
    return np.stack((begins[kept], ends[kept]), axis=1)
