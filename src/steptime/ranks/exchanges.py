"""What one rank exchanged with others, from its trace: kernels of collectives, or on a CPU spans of gloo and MPI."""

from __future__ import annotations

import re

import numpy as np

from steptime.arrays import Int64
from steptime.intervals import Intervals, claim, union
from steptime.kineto.table import ABSENT, Category, Trace
from steptime.ledger.activities import device_time
from steptime.ledger.collectives import Parameters, parameters_of, tensor_bytes
from steptime.ledger.grouping import grouped, step_at
from steptime.links.links import UNKNOWN, Links
from steptime.links.names import COMMUNICATION_KERNEL, matching
from steptime.ranks.summary import Exchange, kept_calls

ON_HOST = re.compile(r"^(gloo|mpi|ucc):")
"""Spans that a backend of the host opens when a collective is handed over and closes when it is done."""


def exchanges_of(trace: Trace, links: Links, windows: Int64) -> tuple[Exchange, ...]:
    """The collectives that begin in the steps. windows: (n, 2) ns, as the ledger has the steps, n at least 1.

    On a CPU `exposed` is not known from the spans and stays 0: the ledger's account has it.
    """
    events = trace.events
    chosen = (events.category == Category.KERNEL) & matching(trace, COMMUNICATION_KERNEL.search)
    if chosen.any():
        rows = _in_steps(trace, np.flatnonzero(chosen), windows)
        return _by_kind(trace, rows, parameters_of(trace, links, rows), windows, device_time(trace).compute)
    rows = _in_steps(trace, np.flatnonzero(matching(trace, ON_HOST.match)), windows)
    return _by_kind(trace, rows, tuple(_span(trace, row) for row in rows.tolist()), windows, None)


def _in_steps(trace: Trace, rows: Int64, windows: Int64) -> Int64:
    """Those that begin in a step, in time order."""
    begin = trace.events.begin[rows]
    inside = rows[step_at(windows, begin) != UNKNOWN]
    ordered: Int64 = inside[np.argsort(trace.events.begin[inside], kind="stable")]
    return ordered


def _span(trace: Trace, row: int) -> Parameters:
    events = trace.events
    shapes, types = int(events.shapes[row]), int(events.dtypes[row])
    known = shapes != ABSENT and types != ABSENT
    size = tensor_bytes(trace.shapes[shapes], trace.dtypes[types]) if known else None
    return Parameters(ON_HOST.sub("", trace.symbols[events.name[row]]), size=trace.world_size or 0, bytes=size)


def _by_kind(
    trace: Trace,
    rows: Int64,
    known: tuple[Parameters, ...],
    windows: Int64,
    compute: Intervals | None,
) -> tuple[Exchange, ...]:
    if not len(rows):
        return ()
    events = trace.events
    keys = [(each.name, each.group, each.size, each.members) for each in known]
    numbers = {key: number for number, key in enumerate(sorted(set(keys)))}
    groups = grouped(np.array([numbers[key] for key in keys], np.int64))
    hidden = _exposed(trace, rows, windows, compute, groups)
    kept = kept_calls([len(chosen) for chosen in groups])
    found = []
    for chosen, exposed, count in zip(groups, hidden, kept, strict=True):
        parameters = known[int(chosen[0])]
        first = chosen[:count]
        mine = rows[first]
        sizes = [known[at].bytes for at in first.tolist()]
        found.append(
            Exchange(
                name=parameters.name,
                group=parameters.group,
                size=parameters.size,
                members=parameters.members,
                calls=len(chosen),
                exposed=exposed,
                step=step_at(windows, events.begin[mine]),
                begin=events.begin[mine].copy(),
                duration=events.duration[mine].copy(),
                bytes=np.array([-1 if size is None else size for size in sizes], np.int64),
            )
        )
    return tuple(found)


def _exposed(trace: Trace, rows: Int64, windows: Int64, compute: Intervals | None, groups: list[Int64]) -> list[int]:
    """ns of each kind in which nothing but communication ran; where two overlap, the longer kind has it."""
    if compute is None:
        return [0] * len(groups)
    events = trace.events
    order = sorted(range(len(groups)), key=lambda at: -int(events.duration[rows[groups[at]]].sum()))
    sets = [union(events.begin[rows[groups[at]]], events.end[rows[groups[at]]]) for at in order]
    shares = claim(windows[:, 0], windows[:, 1], [compute, *sets])[:, 1:-1].sum(axis=0)
    found = [0] * len(groups)
    for at, share in zip(order, shares.tolist(), strict=True):
        found[at] = int(share)
    return found
