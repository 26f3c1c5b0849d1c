"""The time breakdown of a trace: every nanosecond of its steps in one category.

On an accelerator: what the device did and, while it idled, why (`idle.py`). Streams and devices of one process count as
one: idle means that all of them are.

On a CPU: what the training thread did. *communication*: in a collective, or idle while one ran. *input*: in the
loader's next(), or in batch preparation that the caller knows. It comes before compute, unlike on an accelerator: the
same thread prepares batches with the same operators, and nothing of that overlaps the model's work. *copy*: moving the
batch, as the caller knows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from steptime.analysis.categories import Breakdown, Category, Claims
from steptime.analysis.device_activity import device_time, has_kernels, unseen_work
from steptime.analysis.idle import idle_claims
from steptime.analysis.operators import DISPATCH_GAP, Operations, operations_on, short_gaps, spans_on
from steptime.analysis.step_context import StepContext
from steptime.analysis.threads import compile_time, input_time, recorded_time
from steptime.analysis.timeline import Phase
from steptime.arrays import Int64
from steptime.intervals import EMPTY, Intervals, claim, contains, intersect, join, subtract, union
from steptime.trace.call_tree import ExclusiveSpans
from steptime.trace.links import host_events
from steptime.trace.table import EventKind, Trace
from steptime.trace.vendors import COLLECTIVE, matching

USUAL_DISPATCH = 2_000
"""Cost of dispatching one operator, ns, if the machine was not measured: 1 to 3 µs on processors of the last decade."""
MODEL_PHASES = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.EVALUATION)


def breakdown_of(steps: StepContext) -> Breakdown:
    """Breakdown of the steps, by the accelerator's definition if the trace has kernels, else by the CPU's. Raises
    ImbalanceError if it does not sum (a bug)."""
    windows = steps.windows
    return Breakdown(device_of(steps.trace), windows[:, 1] - windows[:, 0], _entries(windows, claims_of(steps)))


def phase_breakdown(steps: StepContext) -> Int64:
    """Time of each category in each phase of the CPU thread, all steps together, (len(Phase), len(Category)), ns. The
    table sums to the steps' durations."""
    claims = claims_of(steps)
    windows = (np.stack((inside.start, inside.end), axis=1) for inside in _phases(steps))
    return np.stack([_entries(each, claims).sum(axis=0) for each in windows])


def count_events(steps: StepContext) -> Int64:
    """Number of CPU events that start in each phase of the steps, (len(Phase),): the profiler's cost grows with it."""
    start = steps.trace.events.start[host_events(steps.trace)]
    return np.array([contains(inside, start).sum() for inside in _phases(steps)], np.int64)


def _phases(steps: StepContext) -> Iterator[Intervals]:
    """Instants of all steps, phase by phase. Where phases overlap, the earlier one of `Phase` gets the time; REST, the
    last, gets what remains."""
    left = union(steps.boundaries[:, 0], steps.boundaries[:, 1])
    for phase in Phase:
        inside = left if phase is Phase.REST else intersect(left, steps.phases.get(phase, EMPTY))
        yield inside
        left = subtract(left, inside)


def _entries(windows: Int64, claims: Claims) -> Int64:
    """Time of each category in each window, (n, len(Category)), ns. UNEXPLAINED is the time that no category claims."""
    shares = claim(windows[:, 0], windows[:, 1], [held for _, held in claims])
    entries = np.zeros((len(windows), len(Category)), np.int64)
    for column, category in enumerate((*(category for category, _ in claims), Category.UNEXPLAINED)):
        entries[:, category] += shares[:, column]
    return entries


def device_of(trace: Trace) -> str:
    """Device that ran a trace's kernels: "cpu" without kernels, "accelerator" if the trace does not name it."""
    if not has_kernels(trace):
        return "cpu"
    number = trace.events.device[trace.events.event_kind == EventKind.KERNEL][0]
    names = {device.number: device.name for device in trace.devices}
    alike = set(names.values())  # a process that sees some of a host's devices numbers them again
    return names.get(int(number)) or (alike.pop() if len(alike) == 1 else "") or "accelerator"


def claims_of(steps: StepContext) -> Claims:
    """Instants that each category claims in the whole trace, in order of precedence, whatever the steps' boundaries."""
    if steps.on_device:
        spent = device_time(steps.trace)
        return (
            (Category.COMPUTE, spent.compute),
            (Category.COMMUNICATION, spent.communication),
            (Category.COPY, spent.copies),
            *idle_claims(steps.trace, steps.track, steps.input, steps.compiling),
        )
    return _claims_on_processor(steps) if steps.tracks else ()


def _claims_on_processor(steps: StepContext) -> Claims:
    trace, phases, track = steps.trace, steps.phases, steps.tracks[0]
    measured = steps.machine.dispatch if steps.machine is not None else None
    cost = USUAL_DISPATCH if measured is None else round(measured.value)
    training, *engine = (operations_on(trace, each) for each in steps.tracks)
    spans, *helpers = (spans_on(trace, each) for each in steps.tracks)
    computing, dispatching = _work_of(training, spans, cost)
    for helping, its in zip(engine, helpers, strict=True):  # on autograd's threads: the training thread waits for them
        work = _work_of(helping, its, cost)
        computing = join(computing, subtract(work[0], training.covered))
        dispatching = join(dispatching, subtract(work[1], training.covered))
    if unseen_work(trace).any():  # what operators compute is on a device that was not recorded
        computing, dispatching = EMPTY, join(computing, dispatching)
    busy = join(training.covered, *(each.covered for each in engine))
    between = short_gaps(busy)
    if phases:
        between = intersect(between, join(*(phases.get(phase, EMPTY) for phase in MODEL_PHASES)))
    return (
        (Category.COMMUNICATION, _communication(steps, busy)),
        (Category.INPUT, join(input_time(trace, track), steps.input)),
        (Category.COPY, phases.get(Phase.TRANSFER, EMPTY)),
        (Category.COMPILE, join(compile_time(trace, track), steps.compiling)),
        (Category.COMPUTE, computing),
        (Category.OVERHEAD, join(dispatching, between)),
        (Category.PYTHON, recorded_time(trace)),
    )


def _work_of(operations: Operations, spans: ExclusiveSpans, dispatch: int) -> tuple[Intervals, Intervals]:
    """(instants in which a CPU thread computes, instants in which it dispatches).

    A computing operator computes in all of its own time but the first `dispatch` ns. An operator around others computes
    only in intervals too long for dispatching; a view or a frame of autograd never computes. All other time in
    operators is dispatching, except long intervals in a frame of autograd: those are Python, a hook or the backward of
    a custom function."""
    length = spans.end - spans.start
    long, engine = length > DISPATCH_GAP, operations.engine[spans.owner]
    leaf = operations.computing[spans.owner]
    start = np.where(leaf, spans.start + np.clip(dispatch - _spent_before(spans), 0, length), spans.start)
    kept = leaf | (~engine & ~operations.free[spans.owner] & long)
    computing = union(start[kept], spans.end[kept])
    python = engine & long
    return computing, subtract(union(spans.start[~python], spans.end[~python]), computing)


def _spent_before(spans: ExclusiveSpans) -> Int64:
    """Time that each interval's owner has had in earlier intervals, ns."""
    order = np.argsort(spans.owner, kind="stable")
    owners, lengths = spans.owner[order], (spans.end - spans.start)[order]
    before = np.cumsum(lengths) - lengths
    spent = np.empty(len(order), np.int64)
    spent[order] = before - before[np.searchsorted(owners, owners)]
    return spent


def _communication(steps: StepContext, busy: Intervals) -> Intervals:
    """Instants in a collective's call on the training thread or autograd's, and instants in which a collective runs on
    any thread and no operator does."""
    events = steps.trace.events
    anywhere = matching(steps.trace, COLLECTIVE.match)
    here = anywhere & np.isin(events.track, steps.tracks) & (events.event_kind == EventKind.OPERATOR)
    running = subtract(union(events.start[anywhere], events.ends(anywhere)), busy)
    return join(union(events.start[here], events.ends(here)), running)
