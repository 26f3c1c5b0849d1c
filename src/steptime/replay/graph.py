"""The dependency graph of some consecutive steps: points in time and what each of them has to wait for.

One law: it holds durations and delays, never times of day; only the order of the nodes comes from the clock of the
trace. So running it again is a prediction, and where it misses the measured step that is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from steptime.arrays import Bool, Int64

NONE = -1
"""No such row, lane, node or edge."""


class NodeKind(IntEnum):
    """What happens at a node."""

    HOST = 0
    """A thread gets to a point of its program: a launch, the end of a wait, a border of a step."""
    KERNEL = 1
    """A kernel that computes has ended."""
    COMMUNICATION = 2
    COPY = 3


class EdgeKind(IntEnum):
    """Why a node has to wait for another."""

    PROGRAM = 0
    """The thread's own work between two of its points."""
    HAND_OVER = 1
    """From thread to thread: into autograd's engine and back."""
    LAUNCH = 2
    """From the launching call to the device."""
    STREAM = 3
    """Activities of one stream run one after the other."""
    EVENT = 4
    """A stream waits for an event that another stream recorded."""
    WAIT = 5
    """The host waits for the device."""
    QUEUE = 6
    """A launch waits for room in the driver's queue."""


@dataclass(frozen=True, slots=True, eq=False)
class Nodes:
    """Columns, in an order in which each node comes after all it waits for.

    kind: `NodeKind`. time: ns on the trace's clock, what the order comes from. observed: ns on the trace's clock when
    the node was reached, only for comparing and showing. duration: ns that pass at the node once all it waits for is
    there; 0 for the host. row: of the event table (a device activity,
    or the runtime call of a host node; else NONE). lane: of a host node, else NONE. step: the step to whose end it
    belongs (a device activity: the step that launched it), NONE outside.
    """

    kind: Int64
    time: Int64
    observed: Int64
    duration: Int64
    row: Int64
    lane: Int64
    step: Int64

    def __len__(self) -> int:
        return len(self.kind)


@dataclass(frozen=True, slots=True, eq=False)
class Edges:
    """Columns, by target. weight: ns from the source's end to the target's start; negative where activities of one
    stream overlap.

    input, dispatch, allocation: what the weight of a PROGRAM edge is made of: waiting for input, dispatching (in
    operators, runtime calls and the short gaps between them), and allocating or freeing in the driver; they do not
    overlap, and what is left is other Python. blocking: a PROGRAM edge through a call that waited (the weight is what
    it costs without waiting), or a WAIT edge of a call that frees memory. unexplained: ns of the weight in which the
    device waited for something that the trace does not hold.
    """

    kind: Int64
    source: Int64
    target: Int64
    weight: Int64
    input: Int64
    dispatch: Int64
    allocation: Int64
    unexplained: Int64
    blocking: Bool

    def __len__(self) -> int:
        return len(self.kind)


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """Nodes and edges of the steps borders[0] to borders[-1].

    begin, end: (n,) nodes at which the host begins and ends each step. borders: (n, 2) ns as the host saw them. before:
    the activity that ended the step before the first one, which begins no earlier; NONE where the host begins it.
    """

    nodes: Nodes
    edges: Edges
    begin: Int64
    end: Int64
    borders: Int64
    before: int = NONE


def chosen(edges: Edges, which: Int64 | Bool) -> Edges:
    """Some of the edges: by a mask, or by their numbers in a new order."""
    columns: dict[str, Any] = {name: getattr(edges, name)[which] for name in Edges.__slots__}
    return Edges(**columns)


def joined(parts: Sequence[Edges]) -> Edges:
    """All the edges, one part after the other."""
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in Edges.__slots__
    }
    return Edges(**columns)


def edges_of(kind: EdgeKind, source: Int64, target: Int64, weight: Int64 | int, **parts: Int64) -> Edges:
    """Edges of one kind. parts: further columns; those not given are 0."""
    zero = np.zeros(len(source), np.int64)
    names = ("input", "dispatch", "allocation", "unexplained")
    return Edges(
        kind=np.full(len(source), int(kind)),
        source=source,
        target=target,
        weight=np.broadcast_to(weight, source.shape).astype(np.int64),
        blocking=parts.get("blocking", zero).astype(np.bool_),
        **{name: parts.get(name, zero) for name in names},
    )
