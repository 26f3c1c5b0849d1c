"""Case from a bare trace: the evidence in a file of torch's profiler without a recording.

All its steps were profiled, so its times hold for the profiled job. What only the always-on timers know (loader
internals, lines, settings, other load) is absent, and the rules that need it report that."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from steptime.advice.assemble import with_profile
from steptime.advice.device_evidence import machine_use
from steptime.advice.evidence import Case
from steptime.advice.outliers import outliers_of_trace, usual_of_trace
from steptime.advice.run_uses import StepSummary
from steptime.advice.step_evidence import categories_of, waste
from steptime.analysis.breakdown import breakdown_of
from steptime.analysis.categories import Breakdown
from steptime.analysis.device_activity import unseen_work
from steptime.analysis.operators import operations_on, operator_totals, rounds_of, sources_of
from steptime.analysis.recompute import backward_again, is_second_order, recomputed
from steptime.analysis.recorded_breakdown import RecordedBreakdown
from steptime.analysis.step_context import StepContext, step_context
from steptime.arrays import MANY, Int64, give_back
from steptime.intervals import contains, union
from steptime.machine.machine import Machine
from steptime.quantities import mean_of_series
from steptime.trace.cached_per_trace import forget
from steptime.trace.table import Trace

WARM_UP = 1.5
"""Length of a first step, as a multiple of the others' median, above which it is the profiler's or the job's start."""


@dataclass(frozen=True, slots=True, eq=False)
class TraceCase:
    """Case of a trace, with the data for comparing ranks and for single steps. steps: usual steps; numbers: their
    indices among all steps. later: all steps after the warm-up, outliers included. whole: breakdown of all steps."""

    case: Case
    steps: StepContext
    numbers: Int64
    later: StepContext
    whole: Breakdown


def look_at_trace(trace: Trace, boundaries: Int64, machine: Machine | None = None, *, how: str = "") -> TraceCase:
    """Case of a trace and its steps. boundaries: (n, 2) ns, n at least 1; how: source of the boundaries, in words."""
    everything = step_context(trace, boundaries, machine=machine)
    durations = everything.windows[:, 1] - everything.windows[:, 0]
    warm_up = int(len(durations) > 2 and durations[0] > WARM_UP * np.median(durations[1:]))
    whole, numbers = breakdown_of(everything), np.arange(warm_up, len(durations))
    give_back(len(trace.events))
    after = whole.only(numbers)
    usual = usual_of_trace(after)
    later = everything.only(numbers)
    steps = later if len(usual) == len(later) else later.only(usual)
    breakdown = after.only(usual)
    sources, rounds = sources_of(steps), rounds_of(steps)
    operators = tuple(
        replace(use, rounds=rounds.get(use.source) if use.source is not None else None)
        for use in operator_totals(steps, sources)
    )
    step = StepSummary(
        mean_of_series(breakdown.wall),
        len(boundaries),
        len(steps),
        warm_up,
        "trace",
        "cuda" if steps.on_device else "cpu",
        how=how,
        untraced=_untraced(trace, steps.windows),
        shortest=int(breakdown.wall.min()),
        longest=int(breakdown.wall.max()),
    )
    give_back(len(trace.events))
    again = recomputed(steps)
    give_back(len(trace.events))
    twice, second_order = backward_again(steps), is_second_order(steps)
    if steps.on_device and len(trace.events) > MANY:
        forget(trace, operations_on)  # what remains looks at the device
    give_back(len(trace.events))
    operators = operators if not step.untraced else ()
    case = Case(
        step=step,
        categories=categories_of(breakdown.entries, waste(operators, machine), seen=not step.untraced),
        operators=operators,
        machine=machine_use(machine),
        outliers=outliers_of_trace(after, usual, warm_up),
    )
    case = with_profile(case, RecordedBreakdown(breakdown, operators, again, twice, (steps,), (), second_order))
    return TraceCase(case, steps, numbers[usual], later, whole)


def _untraced(trace: Trace, windows: Int64) -> float:
    """Calls for a device per step, if the trace has none of the device's work; else 0."""
    inside = contains(union(windows[:, 0], windows[:, 1]), trace.events.start)
    return float((unseen_work(trace) & inside).sum()) / len(windows)
