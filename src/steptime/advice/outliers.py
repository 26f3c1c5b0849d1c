"""Outliers: steps that take far longer than the others, and their exclusion from the mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from steptime.advice.run_uses import OutlierUse
from steptime.analysis.categories import Breakdown, Category
from steptime.analysis.layout import Layout
from steptime.analysis.step_patterns import find_period, rising
from steptime.analysis.steps import UPDATES
from steptime.analysis.timeline import Phase, SegmentKind
from steptime.arrays import Bool, Int64, quartiles
from steptime.intervals import measure
from steptime.journal import Kind

FAR = 10.0
"""Distance of an outlier above the upper quartile, in interquartile ranges, …"""
TIMES = 2.0
"""… and its least length, as a multiple of the median."""
MOST = 0.25
"""Largest fraction of outliers among the steps; if there are more, they are how the job runs."""
MOST_LATE = 0.02
"""Bound MOST for steps that are long because of their wait for input: an occasional late batch is normal, and its wait
could be saved."""
MODEL = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
"""Phases of the model: the same operators on the same shapes take the same time, unless the machine was busy with
something else. (Varying shapes widen the interquartile range.)"""
MOST_OF_THEM = 0.5
"""Fraction of the outliers' time, in the steps of one optimizer: a phase of the training that is its own."""
NO_OPTIMIZERS: Mapping[int, str] = MappingProxyType({})
SLOWED, SLOWED_BY_LINES = 20.0, 100.0
"""Times the usual step; a judgement: no look of the probe's slows a step so much. Profiling with stacks costs some
10 µs per operator, of which the smallest takes 2; timing lines 0.8 µs per line, of which the smallest takes 20 ns (rows
that are decoded in a comprehension took 21 times as long; EPYC, Python 3.11)."""
MOST_NUMBERS = 8
"""Most outliers whose numbers are reported."""


def usual_steps(layout: Layout) -> Int64:
    """Indices of the steady steps without outliers, which would dominate a mean. Steps that garbage collection makes
    long stay, however rare, because a full collection is slow and comes seldom. Periodically slow steps stay, too."""
    steps, own = layout.timeline.steps, _own(layout)
    collected = measure(layout.records.of(Kind.GARBAGE).intervals, steps.start, steps.end)
    usual = np.flatnonzero(steps.steady)
    without_input = steps.duration - steps.phases[:, Phase.INPUT]
    limits = ((steps.phases[:, MODEL].sum(axis=1), MOST), (without_input, MOST), (steps.duration, MOST_LATE))
    for values, most in limits:
        far = _far((values - collected)[usual]) & ~own[usual]
        if far.sum() <= most * len(usual):
            usual = usual[~far]
    return usual


def _own(layout: Layout) -> Bool:
    """Mask of the periodically slow steps."""
    steps = layout.timeline.steps
    period = find_period(steps)
    own: Bool = np.isin(np.arange(len(steps.start)), period.slow if period is not None else ())
    return own


def usual_of_trace(breakdown: Breakdown) -> Int64:
    """Indices of the steps of a trace without outliers, from their breakdown."""
    usual = np.arange(len(breakdown.wall))
    for values, most in ((breakdown.wall - breakdown.entries[:, Category.INPUT], MOST), (breakdown.wall, MOST_LATE)):
        far = _far(values[usual])
        if far.sum() <= most * len(usual):
            usual = usual[~far]
    return usual


def _far(values: Int64) -> Bool:
    if not len(values):
        return np.zeros(0, np.bool_)
    far: Bool = values > _limit(values)
    return far


def _limit(values: Int64) -> float:
    lower, middle, upper = quartiles(values)
    return max(upper + FAR * (upper - lower), TIMES * middle)


def outliers_of(layout: Layout, usual: Int64, optimizers: Mapping[int, str] = NO_OPTIMIZERS) -> OutlierUse | None:
    """Outliers among the steady steps of a recording, whether excluded from the usual ones or not; None without any.
    Periodically slow steps are no outliers. optimizers: types of the optimizers by identity."""
    steps = layout.timeline.steps
    steady = np.flatnonzero(steps.steady & ~_own(layout))
    names = tuple(phase.name.lower() for phase in Phase)
    use = _use(steady, steps.duration[steady], steps.phases[steady], names, usual)
    unsteady = np.flatnonzero(~steps.steady & ~steps.warm_up)
    by_lines = measure(layout.records.of(Kind.LINES).intervals, steps.start, steps.end) > 0
    limits = np.where(by_lines, SLOWED_BY_LINES, SLOWED) * np.median(steps.duration[usual])
    if len(usual):
        limits[_at_segments(layout)] = _limit(steps.duration[usual])
    far = unsteady[(steps.duration > limits)[unsteady]]
    if len(far) and steps.duration[far].sum() > (use.count * use.duration if use is not None else 0.0):
        # A phase of the training that met a look of the probe's.
        use, steady = _left_out(layout, far, usual, names), far
    return use and replace(use, optimizer=_of_their_own(layout, steady, usual, optimizers, use))


def _at_segments(layout: Layout) -> Bool:
    """Mask of the steps that an evaluation or a checkpoint excludes, and no look of the probe's: what else they do (the
    next epoch's samples, a plot) is theirs."""
    steps, segments = layout.timeline.steps, layout.timeline.segments
    others = [each.start for each in segments if each.kind not in (SegmentKind.EVALUATION, SegmentKind.CHECKPOINT)]
    own = [each.start for each in segments if each.kind in (SegmentKind.EVALUATION, SegmentKind.CHECKPOINT)]
    held, slowed = (np.isin(np.arange(len(steps.end)), np.searchsorted(steps.end, at, "right")) for at in (own, others))
    found: Bool = held & ~slowed & ~steps.profiled & ~steps.lined & steps.timed
    return found


def _left_out(layout: Layout, far: Int64, usual: Int64, names: Sequence[str]) -> OutlierUse:
    """Long steps that are no steady ones: the probe looked into them or had its timers off, or they hold a segment."""
    steps = layout.timeline.steps
    use = _compared(steps.duration, steps.phases, far, usual, names)
    part = use.part if steps.timed[far].all() else ""
    return replace(use, part=part, at_segments=int(_at_segments(layout)[far].sum()))


def _of_their_own(layout: Layout, steady: Int64, usual: Int64, optimizers: Mapping[int, str], use: OutlierUse) -> str:
    """Type of the optimizer that steps in most of the outliers' time and in no usual step; "" for none."""
    steps, updates = layout.timeline.steps, layout.records.of(*UPDATES)
    step = np.searchsorted(steps.end, updates.start, side="right")
    others = np.setdiff1d(updates.identity[np.isin(step, steady)], updates.identity[np.isin(step, usual)])
    for number in others.tolist():
        there = np.intersect1d(step[updates.identity == number], steady)
        if steps.duration[there].sum() >= MOST_OF_THEM * use.count * use.duration:
            return optimizers.get(number, "")
    return ""


def outliers_of_trace(breakdown: Breakdown, usual: Int64, first: int) -> OutlierUse | None:
    """Outliers among the steps of a trace; None without any. breakdown: breakdown of all steps but the first ones;
    usual: rows of it that are no outliers; first: number of steps before it."""
    names = tuple(category.name.lower() for category in Category)
    return _use(np.arange(len(breakdown.wall)) + first, breakdown.wall, breakdown.entries, names, usual + first)


def _use(numbers: Int64, duration: Int64, parts: Int64, names: Sequence[str], usual: Int64) -> OutlierUse | None:
    left_out = ~np.isin(numbers, usual)
    far = left_out if left_out.any() else _far(duration)  # one count: what the mean leaves out, where it leaves out any
    if not far.any() or far.sum() > MOST * len(far):
        return None
    use = _compared(duration, parts, np.flatnonzero(far), np.flatnonzero(~far), names)
    return replace(use, left_out=int(left_out.sum()), numbers=_numbers(numbers[far]))


def _compared(duration: Int64, parts: Int64, far: Int64, others: Int64, names: Sequence[str]) -> OutlierUse:
    """Long steps next to others. far, others: rows of the steps' times and their parts."""
    grown = parts[far].mean(axis=0) - parts[others].mean(axis=0)
    most = int(grown.argmax())
    return OutlierUse(
        count=len(far),
        steps=len(duration),
        duration=float(duration[far].mean()),
        usual=float(np.median(duration[others])),
        part=names[most],
        growth=float(grown[most]),
        share=float(duration[far].sum() / duration.sum()),
        left_out=len(far),
        numbers=_numbers(far),
        rise=rising(duration[far]),
    )


def _numbers(rows: Int64) -> tuple[int, ...]:
    return tuple((rows[:MOST_NUMBERS] + 1).tolist())
