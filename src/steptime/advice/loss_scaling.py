"""Cost of a gradient scaler per step, from a trace of a device."""

from __future__ import annotations

import numpy as np

from steptime.advice.device_uses import ScalingUse
from steptime.analysis.categories import Category
from steptime.analysis.idle import gaps_of, outermost_operator
from steptime.analysis.operators import operator_events, per_step
from steptime.analysis.step_context import StepContext
from steptime.arrays import Int64, Numbers
from steptime.quantities import Estimate, mean_of_series
from steptime.trace.links import UNKNOWN
from steptime.trace.table import EventKind
from steptime.trace.vendors import OPTIMIZER_STEP, SCALER, matching


def scaling_use(steps: StepContext) -> ScalingUse | None:
    """Cost of the gradient scaler per step; None if no scaler checked gradients."""
    trace, links = steps.trace, steps.links
    scaling = matching(trace, SCALER.match)
    if not scaling.any():
        return None
    events = trace.events
    rows = np.flatnonzero((events.event_kind == EventKind.KERNEL) & (links.step[:] != UNKNOWN))
    operator = links.operator[rows]
    mine = rows[(operator != UNKNOWN) & scaling[operator]]
    gaps = gaps_of(steps)
    launching = (gaps.category == Category.OVERHEAD) & (gaps.cause != UNKNOWN) & scaling[gaps.cause]
    waiting = np.flatnonzero((gaps.category == Category.SYNC) & (gaps.wait != UNKNOWN))
    waiting = waiting[_before_update(steps, outermost_operator(trace, links, gaps.wait[waiting].astype(np.int64)))]
    if not len(mine):
        return None
    return ScalingUse(
        kernels=_mean(steps, links.step[mine], events.duration[mine]),
        launching=_mean(steps, gaps.step[launching], gaps.duration[launching]),
        waiting=_mean(steps, gaps.step[waiting], gaps.duration[waiting]),
    )


def _mean(steps: StepContext, step: Numbers, spent: Numbers) -> Estimate:
    return mean_of_series(per_step(step.astype(np.int64), spent.astype(np.int64), len(steps)))


def _before_update(steps: StepContext, reads: Int64) -> Int64:
    """Positions of the reads after which the thread's next work is the optimizer's update: the scaler reads there
    whether a gradient overflowed. Other reads are further away from it."""
    trace, events = steps.trace, steps.trace.events
    updates = np.flatnonzero(matching(trace, OPTIMIZER_STEP.match) & (events.event_kind == EventKind.ANNOTATION))
    starts = np.sort(events.start[updates])
    operators = np.sort(events.start[operator_events(trace) & (events.track == steps.track)])
    ends = events.ends(reads)
    at = np.searchsorted(starts, ends)
    following = np.append(starts, np.iinfo(np.int64).max)[at]
    between = np.searchsorted(operators, following) - np.searchsorted(operators, ends)
    return np.flatnonzero((at < len(starts)) & (between == 0))
