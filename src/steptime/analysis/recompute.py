"""Recomputation in backward: forward operators (activation checkpointing), and derivatives that it has taken before."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from steptime.analysis.device_activity import device_activities
from steptime.analysis.operators import operations_on, step_at
from steptime.analysis.step_context import StepContext
from steptime.analysis.threads import during
from steptime.arrays import Bool, Int64, distinct
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
"""What modules call. A derivative calls the operators below them (mm, threshold_backward…), also under create_graph."""


def recomputed(steps: StepContext) -> Int64:
    """(n,) ns of each step spent on forward operators inside backward, and on the Python around them; on an
    accelerator, of the kernels they launched.

    In backward, gradients are off, so its operators have no sequence number; what checkpointing runs again is
    recorded for autograd and has one. A backward that is itself differentiated has numbers too, so a frame of autograd
    counts only when it runs something that modules call and derivatives do not.
    """
    found = EMPTY
    for track, tree, frames, again in _again(steps):
        host = union(tree.start[again], tree.end[again])
        on_track = _on_device(steps.trace, host, track) if steps.on_device else _with_python(host, tree, frames, again)
        found = join(found, on_track)
    return measure(found, steps.boundaries[:, 0], steps.boundaries[:, 1])


def forward_again(steps: StepContext) -> Iterator[tuple[int, Intervals]]:
    """By track, when it was in forward operators inside backward."""
    for track, tree, _, again in _again(steps):
        yield track, union(tree.start[again], tree.end[again])


def _again(steps: StepContext) -> Iterator[tuple[int, CallTree, Bool, Bool]]:
    """By track that has some, its tree, the frames of autograd that run forward operators, and these operators."""
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
    """(n,) ns of each step spent on frames of autograd whose operator of forward was differentiated before in that
    step; on an accelerator, of the kernels they launched.

    A graph that is kept (retain_graph) is gone through by each backward that reaches it. Where gradients are wanted of
    gradients (create_graph) that is the point: then what a frame calls has numbers, and nothing of such a step counts.
    """
    events, found = steps.trace.events, EMPTY
    for track in steps.tracks:
        operations = operations_on(steps.trace, track)
        rows, engine = operations.rows, operations.engine
        number = events.sequence[rows]
        frame = nearest_ancestor(operations.parent, engine)
        called = of_symbols(steps.trace, _is_of_aten)[events.name[rows]]
        recorded = frame[called & (number != ABSENT) & (frame != ROOT)]
        outermost = np.flatnonzero(
            engine & (np.append(frame, np.int32(ROOT))[operations.parent] == ROOT) & (number != ABSENT)
        )
        step = step_at(steps.boundaries, events.start[rows[outermost]])
        first, _ = distinct(step, number[outermost])
        again = np.ones(len(outermost), np.bool_)
        again[first] = False
        again &= (step != UNKNOWN) & ~np.isin(step, step_at(steps.boundaries, events.start[rows[recorded]]))
        twice = outermost[again]
        start = events.start[rows[twice]]
        host = union(start, start + operations.duration[twice])
        found = join(found, _on_device(steps.trace, host, track) if steps.on_device else host)
    return measure(found, steps.boundaries[:, 0], steps.boundaries[:, 1])


def _with_python(host: Intervals, tree: CallTree, frames: Bool, again: Bool) -> Intervals:
    """The part that runs again, and the code around it up to the frame's other operators: random numbers put back,
    modules called, the forward left where its last tensor is known. Next to layers of 1.2 ms it took 0.5 to 0.7."""
    others = ~again & ~has_descendant(tree.parent, again)
    other = subtract(union(tree.start[others], tree.end[others]), host)
    around = subtract(union(tree.start[frames], tree.end[frames]), other)
    touching = measure(host, around.start, around.end) > 0
    return union(around.start[touching], around.end[touching])


def _on_device(trace: Trace, host: Intervals, track: int) -> Intervals:
    """The device's activities that were launched in some time of one thread."""
    events, activities = trace.events, device_activities(trace)
    launch = activities.launch
    inside = (launch != UNKNOWN) & (events.track[launch] == track) & contains(host, events.start[launch])
    return during(trace, activities.rows[inside])


def _is_forward_only(name: str) -> bool:
    return name.rsplit("::", 1)[-1] in FORWARD_ONLY


def _is_of_aten(name: str) -> bool:
    """Not a node of the graph, which carries its frame's number."""
    return name.startswith("aten::")
