"""How a rank exchanges its gradients: in which micro-batches, in how many buckets, and what looking for unused
parameters costs. From the annotations and operators of DistributedDataParallel, on any device."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod

import numpy as np

from steptime.arrays import Int64
from steptime.intervals import measure, union
from steptime.kineto.table import ABSENT, Category, Trace
from steptime.ledger.grouping import per_step, step_at
from steptime.links.links import UNKNOWN
from steptime.links.names import matching

FORWARD = "DistributedDataParallel.forward"
REDUCE = re.compile(r"^c10d::_?all_?reduce_?$")
SEARCH = re.compile(r"^torch\.distributed\.ddp\.reducer::search_unused_parameters$")
FIRST_TENSOR = re.compile(r"\[\s*\[\s*\[([\d,\s]+)\]")
SIDE = re.compile(r"(?<!\d)\d{1,12}(?!\d)")
LARGEST = 1 << 50
"""Elements of a tensor: a petabyte."""
LEAST_ELEMENTS = 256
"""Of an all-reduce: less is a counter, a loss or the map of unused parameters, and no bucket."""


@dataclass(frozen=True, slots=True, eq=False)
class Gradients:
    """All columns (n,), by step: forwards of the wrapped model (micro-batches); those of them behind which gradients
    were exchanged; buckets exchanged; numbers in them, 0 where shapes were not recorded; ns in the search for unused
    parameters."""

    forwards: Int64
    synchronised: Int64
    buckets: Int64
    elements: Int64
    search: Int64


def gradients_of(trace: Trace, borders: Int64) -> Gradients | None:
    """None where no DistributedDataParallel model ran. borders: (n, 2) ns, the steps as the host has them."""
    events = trace.events
    steps = len(borders)
    forwards = _inside(trace, np.flatnonzero(matching(trace, FORWARD.__eq__)), borders)
    forwards = forwards[events.category[forwards] == Category.ANNOTATION]
    if not len(forwards):
        return None
    reduced = np.flatnonzero((events.category == Category.OPERATOR) & matching(trace, REDUCE.match))
    reduced = _inside(trace, reduced, borders)
    sizes = np.array([_elements(trace, row) for row in reduced.tolist()], np.int64)
    reduced, sizes = reduced[(sizes < 0) | (sizes >= LEAST_ELEMENTS)], sizes[(sizes < 0) | (sizes >= LEAST_ELEMENTS)]
    behind = np.searchsorted(events.begin[forwards], events.begin[reduced], side="right") - 1
    of_step = step_at(borders, events.begin[forwards])
    exchanged = np.isin(np.arange(len(forwards)), behind).astype(np.int64)
    searching = matching(trace, SEARCH.match)
    search = union(events.begin[searching], events.end[searching])
    return Gradients(
        forwards=per_step(of_step, np.ones(len(forwards), np.int64), steps),
        synchronised=per_step(of_step, exchanged, steps),
        buckets=per_step(step_at(borders, events.begin[reduced]), np.ones(len(reduced), np.int64), steps),
        elements=per_step(step_at(borders, events.begin[reduced]), np.maximum(sizes, 0), steps),
        search=measure(search, borders[:, 0], borders[:, 1]),
    )


def _inside(trace: Trace, rows: Int64, borders: Int64) -> Int64:
    """Those that begin in a step, in time order."""
    begin = trace.events.begin[rows]
    kept = rows[step_at(borders, begin) != UNKNOWN]
    ordered: Int64 = kept[np.argsort(trace.events.begin[kept], kind="stable")]
    return ordered


def _elements(trace: Trace, row: int) -> int:
    """Of an all-reduce's first argument, -1 where the file does not say: c10d's operators take a list of tensors, of
    which DistributedDataParallel gives one, and the file has no type of it."""
    shapes = int(trace.events.shapes[row])
    found = FIRST_TENSOR.match(trace.shapes[shapes]) if shapes != ABSENT else None
    sides = [int(number) for number in SIDE.findall(found[1])] if found else []
    return min(prod(sides), LARGEST) if found else -1
