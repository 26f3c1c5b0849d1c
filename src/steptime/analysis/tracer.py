"""Slowdown that a profile leaves behind on a device.

CUPTI, by which torch's profiler sees kernels, costs each launch 1.9 microseconds as long as it is attached: 28 % of one
on an H200's host (torch 2.11, CUDA 13.0; benchmarks/results/gpu/h200-left-behind.md). The probe has it detached at its
last window, and launches take what they took before. Yet steps after the first window were longer in eleven jobs on
H100 and H200, by 2 to 21 %, once by 39 %. In these recordings the tracer was detached at every window; the cause is not
known. So the mean step is that of the steps before the window, where they are enough and those after it are longer for
certain.
"""

from __future__ import annotations

import numpy as np

from steptime.analysis.layout import Layout
from steptime.arrays import Bool, Int64
from steptime.quantities import Estimate, difference_of_series

SOON = 8
"""Steady steps after a window in which a change of level is attributed to it: the detected change may be a few steps
late."""
FEWEST = 16
"""Steps before the first window that are needed for a mean of them alone."""


def without_tracer(layout: Layout, usual: Int64) -> Int64:
    """Indices of the steps for the mean, in time order: all usual steps or, if a device's tracer slows those after its
    first window, the steps before."""
    return usual if slowed_by_tracer(layout, usual) is None else usual[_before(layout, usual)]


def slowed_by_tracer(layout: Layout, usual: Int64) -> Estimate | None:
    """Time by which steps are slower after the first device profile, ns; None without a profile or if uncertain."""
    before = _before(layout, usual)
    if before.sum() < FEWEST or before.all():
        return None
    duration = layout.timeline.steps.duration[usual]
    longer = difference_of_series(duration[~before], duration[before])
    return longer if longer.low > 0 else None


def starts_with_tracer(layout: Layout, step: int) -> bool:
    """True if a change at this step may come from the tracer: it is one of the first steady steps after the tracer
    attached."""
    if layout.traced is None:
        return False
    steps = layout.timeline.steps
    behind = np.flatnonzero(steps.steady & (steps.start >= layout.traced))
    return bool(len(behind)) and bool(behind[0] <= step <= behind[:SOON][-1])


def _before(layout: Layout, usual: Int64) -> Bool:
    start = layout.timeline.steps.start[usual]
    before: Bool = start < (layout.traced if layout.traced is not None else start.max(initial=0) + 1)
    return before
