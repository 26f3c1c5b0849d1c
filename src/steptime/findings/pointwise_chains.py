"""Chains of pointwise kernels that one kernel could do: what a fused kernel would not write and read again.

A chain is two or more kernels in a row on one stream, launched in one step by pointwise operators of at least two kinds
on tensors of one size. That each takes what the one before made is not in a trace; rows of one operator (gradients that
are scaled, buffers that are cleared) are left out for that, and so is the optimiser, which has a rule of its own.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from steptime.arrays import Int32, Int64
from steptime.findings.case import ChainUse
from steptime.findings.device_uses import source_of
from steptime.findings.kernel_kinds import COPIES, POINTWISE, elements, plain_name, shapes_of
from steptime.intervals import contains, union
from steptime.kineto.table import ABSENT, Category, Trace
from steptime.links.links import UNKNOWN, Links
from steptime.links.names import OPTIMIZER_STEP, matching
from steptime.work.arguments import ELEMENT_BYTES

FUSIBLE = POINTWISE | COPIES
"""A cast or a change of layout is part of the next kernel once they are fused."""
MOST_CHAINS = 50
"""Kinds of chains that are kept: those with the most time."""


def chain_uses(trace: Trace, links: Links, steps: int) -> tuple[ChainUse, ...]:
    """The chains of the steps, the longest kind first. steps: how many were linked."""
    rows = _pointwise(trace, links)
    if not len(rows):
        return ()
    size, item = _sizes(trace, links.operator[rows])
    rows, size, item = rows[size > 0], size[size > 0], item[size > 0]
    runs = _runs(trace, links, rows, size)
    found: dict[tuple[int, ...], list[Int64]] = defaultdict(list)
    names = trace.events.name[links.operator[rows]]
    for run in runs:
        found[(int(size[run[0]]), *names[run].tolist(), *item[run].tolist())].append(run)
    uses = [
        _use(trace, links, _Chain(rows[each[0]], rows[np.concatenate(each)], size[each[0]] * item[each[0]]), steps)
        for each in found.values()
        if len(set(names[each[0]].tolist())) > 1
    ]
    return tuple(sorted(uses, key=lambda use: -use.duration)[:MOST_CHAINS])


def _pointwise(trace: Trace, links: Links) -> Int64:
    """Rows of the kernels of steps that an operator launched, the optimiser's left out, by stream and time."""
    events = trace.events
    rows = np.flatnonzero((events.category == Category.KERNEL) & (links.step != UNKNOWN) & (links.operator != UNKNOWN))
    if not len(rows):
        return rows
    updates = matching(trace, OPTIMIZER_STEP.match)
    launch = links.launch[rows]
    updating = contains(union(events.begin[updates], events.end[updates]), events.begin[np.maximum(launch, 0)])
    rows = rows[~(updating & (launch != UNKNOWN))]
    order: Int64 = np.lexsort((events.begin[rows], events.stream[rows], events.device[rows]))
    ordered: Int64 = rows[order]
    return ordered


def _sizes(trace: Trace, operators: Int32) -> tuple[Int64, Int64]:
    """(elements of the largest tensor, bytes of one of its elements) for each operator; 0 elements unless pointwise."""
    shapes = np.array([_largest(text) for text in trace.shapes] or [0], np.int64)
    items = np.array([_item(text) for text in trace.dtypes] or [4], np.int64)
    kinds = np.array([plain_name(symbol) in FUSIBLE for symbol in trace.symbols] or [False])
    events = trace.events
    shape, dtype = events.shapes[operators], events.dtypes[operators]
    known = (shape != ABSENT) & kinds[events.name[operators]]
    size = np.where(known, shapes[np.maximum(shape, 0)], 0)
    return size, np.where(dtype != ABSENT, items[np.maximum(dtype, 0)], 4)


@lru_cache(maxsize=4096)
def _largest(text: str) -> int:
    return max((elements(shape) for shape in shapes_of(text) if shape), default=0)


def _item(text: str) -> int:
    """Bytes of an element of the first tensor."""
    return next((size for part in text.split('"') if (size := ELEMENT_BYTES.get(part))), 4)


def _runs(trace: Trace, links: Links, rows: Int64, size: Int64) -> list[Int64]:
    """Positions in rows of each chain: neighbours on a stream, in one step, of one size."""
    events = trace.events
    keys = np.stack((events.device[rows], events.stream[rows], links.step[rows], size, _between(trace, rows)))
    heads = np.flatnonzero(np.any(keys[:, 1:] != keys[:, :-1], axis=0)) + 1
    return [run for run in np.split(np.arange(len(rows)), heads) if len(run) > 1]


def _between(trace: Trace, rows: Int64) -> Int64:
    """Which stretch without another kernel on its stream each of the rows lies in."""
    events = trace.events
    everything = np.flatnonzero(events.category == Category.KERNEL)
    everything = everything[
        np.lexsort((events.begin[everything], events.stream[everything], events.device[everything]))
    ]
    other = ~np.isin(everything, rows)
    stretch = np.empty(len(events), np.int64)
    stretch[everything] = np.cumsum(other)
    return stretch[rows]


@dataclass(frozen=True, slots=True, eq=False)
class _Chain:
    """Chains of one kind. first: kernels of one of them; everyone: of all. tensor: bytes of the tensor that each kernel
    of one takes (a cast's result is what the next one takes)."""

    first: Int64
    everyone: Int64
    tensor: Int64


def _use(trace: Trace, links: Links, chain: _Chain, steps: int) -> ChainUse:
    operators = links.operator[chain.first]
    inputs = np.array([_inputs(trace, row) for row in operators.tolist()])
    between = int(chain.tensor[1:].sum())  # each written once and read once
    whole = int((inputs * chain.tensor).sum()) + between + int(chain.tensor[-1])
    count = len(chain.everyone) / len(chain.first) / steps
    known = (source_of(trace, links, row) for row in chain.first.tolist())
    return ChainUse(
        operators=tuple(trace.symbols[number] for number in trace.events.name[operators].tolist()),
        calls=count,
        kernels=len(chain.everyone) / steps,
        duration=float(trace.events.duration[chain.everyone].sum()) / steps,
        bytes=count * whole,
        saved=count * 2 * between,
        source=next((line for line in known if line is not None), None),
    )


def _inputs(trace: Trace, operator: int) -> int:
    """How many tensors as large as its largest one an operator reads."""
    shape = int(trace.events.shapes[operator])
    sizes = [elements(each) for each in shapes_of(trace.shapes[shape]) if each]
    return max(1, sum(each == max(sizes, default=0) for each in sizes))
