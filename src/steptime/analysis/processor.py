"""Categories of training on a CPU: what the training thread did, instant by instant.

The claims, in their order: *communication* (in a collective, or idle while one ran), *input* (in the loader's next(),
or what the caller knows to be batch preparation), *copy* (moving the batch, as the caller knows), *compile*, *compute*,
*launch*, *host*. Input stands before compute, unlike on an accelerator: the same thread prepares batches with the
same operators, and nothing of that overlaps the model's work.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import numpy as np

from steptime.analysis.categories import Category
from steptime.analysis.operators import (
    Operations,
    compute_time,
    dispatch_time,
    operations_on,
    operator_events,
    short_gaps,
)
from steptime.analysis.threads import autograd_lanes, compile_time, input_time, recorded_time
from steptime.analysis.timeline import Phase
from steptime.intervals import EMPTY, Intervals, intersect, join, subtract, union
from steptime.trace.table import EventKind, Trace
from steptime.trace.vendors import COLLECTIVE, matching

Claims = tuple[tuple[Category, Intervals], ...]
MODEL_PHASES = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)


def claims_on_processor(
    trace: Trace,
    lane: int,
    dispatch: int,
    input_ranges: Intervals,
    compile_ranges: Intervals,
    phases: Mapping[Phase, Intervals],
) -> Claims:
    """Who claims which time of the training thread on `lane`. dispatch: ns of a tiny operator."""
    operators = operator_events(trace)
    training = operations_on(trace, lane, operators)
    engine = [operations_on(trace, other, operators) for other in autograd_lanes(trace, lane)]
    compute, busy = _of_all(training, engine, dispatch, computing=True), _covered(training, engine)
    launch = _of_all(training, engine, dispatch, computing=False)
    between = short_gaps(busy)
    if phases:
        between = intersect(between, join(*(phases.get(phase, EMPTY) for phase in MODEL_PHASES)))
    return (
        (Category.COMMUNICATION, _communication(trace, lane, busy)),
        (Category.INPUT, join(input_time(trace, lane), input_ranges)),
        (Category.COPY, phases.get(Phase.TRANSFER, EMPTY)),
        (Category.COMPILE, join(compile_time(trace, lane), compile_ranges)),
        (Category.COMPUTE, compute),
        (Category.OVERHEAD, join(launch, between)),
        (Category.PYTHON, recorded_time(trace)),
    )


def _of_all(training: Operations, engine: list[Operations], dispatch: int, *, computing: bool) -> Intervals:
    """Computing or dispatching on the training thread, or on autograd's while the training thread waits for it."""

    def one(operations: Operations) -> Intervals:
        compute = compute_time(operations, dispatch)
        return compute if computing else dispatch_time(operations, compute)

    return join(one(training), *(subtract(one(each), training.covered) for each in engine))


def _covered(training: Operations, engine: list[Operations]) -> Intervals:
    return reduce(join, (each.covered for each in engine), training.covered)


def _communication(trace: Trace, lane: int, busy: Intervals) -> Intervals:
    """Inside a collective's call on the training thread or autograd's, or while one runs anywhere and no operator
    does."""
    events = trace.events
    calling = np.isin(events.lane, (lane, *autograd_lanes(trace, lane)))
    anywhere = matching(trace, COLLECTIVE.match)
    here = anywhere & calling & (events.event_kind == EventKind.OPERATOR)
    running = subtract(union(events.begin[anywhere], events.end[anywhere]), busy)
    return join(union(events.begin[here], events.end[here]), running)
