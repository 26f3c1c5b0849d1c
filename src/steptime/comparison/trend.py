"""Three runs or more in order: whether the step's time has a trend, and where its level changed.

A change of level is found by a simple rule that a person can follow by hand (docs/history.md): a run opens a new level
when it lies outside of the noise around the median of its level so far, and the median of it and the next ones does,
too. A last run has nobody to confirm it; that is said.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from steptime.comparison.comparison import Level, Trend
from steptime.estimates import Jump, jumps, slope_of
from steptime.quantities import Estimate, format_duration, format_share
from steptime.report.report import Report


def trend_of(reports: Sequence[Report], floor: float) -> Trend:
    """The trend of the reports' steps, in their order."""
    steps = [report.processes[0].case.step.duration for report in reports]
    values = np.array([step.value for step in steps])
    found = jumps(values, floor, [max(step.high - step.value, step.value - step.low) for step in steps])
    slope = slope_of(values) if len(values) >= 4 else None
    levels = tuple(Level(each.at, each.before, each.after, each.confirmed) for each in found)
    return Trend(slope, levels, _sentence(found, slope, len(values)))


def _sentence(found: Sequence[Jump], slope: Estimate | None, count: int) -> str:
    if not found and slope is not None and (slope.low > 0 or slope.high < 0):
        word = "longer" if slope.value > 0 else "shorter"
        return f"From run to run the step gets {format_share(abs(slope.value))} {word} (median of all pairs)."
    if not found:
        return f"The step's time keeps its level over the {count} runs, as far as noise tells."
    told = [
        f"from run {each.at + 1} on {format_share(abs(each.after / each.before - 1))} "
        f"{'longer' if each.after > each.before else 'shorter'} ({format_duration(each.before)} to "
        f"{format_duration(each.after)}){'' if each.confirmed else ', which one more run would confirm'}"
        for each in found
    ]
    return f"The step is {'; '.join(told)}."
