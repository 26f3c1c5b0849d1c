"""Repeated work in backward: forward operators (activation checkpointing), and derivatives that were taken before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from steptime.analysis.device_activity import device_activities
from steptime.analysis.operators import operations_on, step_at
from steptime.analysis.step_context import StepContext
from steptime.analysis.threads import during
from steptime.arrays import Bool, Int64, distinct, unique
from steptime.intervals import EMPTY, Intervals, contains, join, measure, subtract, union
from steptime.trace.call_tree import ROOT, CallTree, has_descendant, nearest_ancestor
from steptime.trace.links import UNKNOWN
from steptime.trace.table import ABSENT, Trace
from steptime.trace.vendors import of_symbols

_FORWARD_ONLY = """
linear conv1d conv2d conv3d layer_norm batch_norm group_norm rms_norm embedding relu gelu silu softmax log_softmax
dropout scaled_dot_product_attention matmul leaky_relu elu tanh sigmoid adaptive_avg_pool2d max_pool2d avg_pool2d einsum
cross_entropy_loss addmm
"""
FORWARD_ONLY = frozenset(_FORWARD_ONLY.split())
"""Operators that modules call. A derivative calls those below them (mm, threshold_backward…), also with
create_graph."""


def recomputed(steps: StepContext) -> Int64:
    """Time in each step of forward operators that run inside backward, and of the Python around them, (n,), ns; on an
    accelerator, time of the kernels they launched. In backward, gradients are off and operators have no sequence
    number; what checkpointing reruns is recorded for autograd and has one. A backward that is itself differentiated has
    numbers too, so a frame of autograd counts only if it runs an operator that modules call and derivatives do not."""
    found = EMPTY
    for track, tree, frames, again in _again(steps):
        host = union(tree.start[again], tree.end[again])
        on_track = on_device(steps.trace, host, track) if steps.on_device else _with_python(host, tree, frames, again)
        found = join(found, on_track)
    return measure(found, steps.boundaries[:, 0], steps.boundaries[:, 1])


def forward_again(steps: StepContext) -> Iterator[tuple[int, Intervals]]:
    """Yields (track, instants in forward operators inside backward)."""
    for track, tree, _, again in _again(steps):
        yield track, union(tree.start[again], tree.end[again])


def _again(steps: StepContext) -> Iterator[tuple[int, CallTree, Bool, Bool]]:
    """Yields (track, tree, mask of the autograd frames that rerun forward operators, mask of these operators), for each
    track that has such frames."""
    for track in steps.tracks:
        operations = operations_on(steps.trace, track)
        rows, engine = operations.rows, operations.engine
        frame = nearest_ancestor(operations.parent, engine)
        recorded = (steps.trace.events.sequence[rows] != ABSENT) & ~engine & (frame != ROOT)
        frames = np.zeros(len(rows), np.bool_)
        frames[frame[recorded & of_symbols(steps.trace, _is_forward_only)[steps.trace.events.name[rows]]]] = True
        if frames.any():
            yield track, operations.tree, frames, recorded & frames[frame]


def backward_again(steps: StepContext) -> Int64:
    """Time of each step in frames of autograd whose forward operator was differentiated before in that step, (n,), ns;
    on an accelerator, time of the kernels they launched. Each backward that reaches a kept graph (retain_graph) goes
    through it again. With create_graph that is intended: then the operators in a frame have numbers, and such a step
    counts as 0."""
    found = EMPTY
    for track in steps.tracks:
        frames = numbered_frames(steps, track)
        first, _ = distinct(frames.step, frames.number)
        again = np.ones(len(frames.number), np.bool_)
        again[first] = False
        again &= ~np.isin(frames.step, frames.recording)
        host = union(frames.start[again], frames.end[again])
        found = join(found, on_device(steps.trace, host, track) if steps.on_device else host)
    return measure(found, steps.boundaries[:, 0], steps.boundaries[:, 1])


@dataclass(frozen=True, slots=True, eq=False)
class NumberedFrames:
    """Frames of autograd inside the steps, except those inside other frames, one row each. number: sequence number of
    the forward operator that the frame differentiates; start, end: ns; step: index of its step; row: row in the event
    table. recording: indices of the steps whose backward is recorded for autograd itself."""

    number: Int64
    start: Int64
    end: Int64
    step: Int64
    row: Int64
    recording: Int64

    def only(self, chosen: Bool) -> NumberedFrames:
        number, start, end, step, row = (
            each[chosen] for each in (self.number, self.start, self.end, self.step, self.row)
        )
        return NumberedFrames(number, start, end, step, row, self.recording)


def numbered_frames(steps: StepContext, track: int) -> NumberedFrames:
    events, operations = steps.trace.events, operations_on(steps.trace, track)
    rows, engine = operations.rows, operations.engine
    number = events.sequence[rows]
    frame = nearest_ancestor(operations.parent, engine)
    called = of_symbols(steps.trace, _is_of_aten)[events.name[rows]]
    recorded = frame[called & (number != ABSENT) & (frame != ROOT)]
    outermost = np.flatnonzero(
        engine & (np.append(frame, np.int32(ROOT))[operations.parent] == ROOT) & (number != ABSENT)
    )
    step = step_at(steps.boundaries, events.start[rows[outermost]])
    outermost, step = outermost[step != UNKNOWN], step[step != UNKNOWN]
    row = rows[outermost].astype(np.int64)
    end = events.start[row] + operations.duration[outermost]
    recording = unique(step_at(steps.boundaries, events.start[rows[recorded]]))
    return NumberedFrames(number[outermost].astype(np.int64), events.start[row], end, step, row, recording)


def is_second_order(steps: StepContext) -> bool:
    """True if backward itself is recorded for autograd (create_graph): its calls have sequence numbers. Unlike for a
    checkpoint, which runs the forward again, no operator that modules call is among them."""
    for track in steps.tracks:
        operations = operations_on(steps.trace, track)
        frame = nearest_ancestor(operations.parent, operations.engine)
        names = steps.trace.events.name[operations.rows]
        recorded = (steps.trace.events.sequence[operations.rows] != ABSENT) & ~operations.engine & (frame != ROOT)
        of_forward = frame[recorded & of_symbols(steps.trace, _is_forward_only)[names]]
        recorded &= of_symbols(steps.trace, _is_of_aten)[names]
        if not set(frame[recorded].tolist()) <= set(of_forward.tolist()):
            return True
    return False


def _with_python(host: Intervals, tree: CallTree, frames: Bool, again: Bool) -> Intervals:
    """Instants that run again, with the code around them up to the frame's other operators: random state restored,
    modules called, forward left early. Next to layers of 1.2 ms this code took 0.5 to 0.7 ms."""
    others = ~again & ~has_descendant(tree.parent, again)
    other = subtract(union(tree.start[others], tree.end[others]), host)
    around = subtract(union(tree.start[frames], tree.end[frames]), other)
    touching = measure(host, around.start, around.end) > 0
    return union(around.start[touching], around.end[touching])


def on_device(trace: Trace, host: Intervals, track: int) -> Intervals:
    """Instants of the device activities that one thread launched at the instants `host`. track: track of the thread."""
    events, activities = trace.events, device_activities(trace)
    launch = activities.launch
    inside = (launch != UNKNOWN) & (events.track[launch] == track) & contains(host, events.start[launch])
    return during(trace, activities.rows[inside])


def _is_forward_only(name: str) -> bool:
    return name.rsplit("::", 1)[-1] in FORWARD_ONLY


def _is_of_aten(name: str) -> bool:
    """True for an operator of aten. A node of the graph carries its frame's sequence number and does not count."""
    return name.startswith("aten::")
