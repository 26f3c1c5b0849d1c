"""Copies between host and device and on the device, by kind: how long, how much, and what of it nothing else hid."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from steptime.arrays import Int64
from steptime.intervals import claim, join, union
from steptime.kineto.table import ABSENT, Category, Trace
from steptime.ledger.activities import device_time
from steptime.ledger.causes import outermost_operator
from steptime.ledger.grouping import grouped, per_step, source_of, step_at, time_inside
from steptime.links.links import UNKNOWN, Links
from steptime.quantities import SourceLine

KINDS = {
    "HtoD": re.compile(r"HtoD|HtoA|HostToDevice|Host -> Device", re.IGNORECASE),
    "DtoH": re.compile(r"DtoH|AtoH|DeviceToHost|Device -> Host", re.IGNORECASE),
    "DtoD": re.compile(r"DtoD|AtoD|DtoA|AtoA|DeviceToDevice", re.IGNORECASE),
    "PtoP": re.compile(r"PtoP|PeerToPeer", re.IGNORECASE),
    "HtoH": re.compile(r"HtoH|HostToHost", re.IGNORECASE),
}
MEMORY = re.compile(r"Pageable|Pinned", re.IGNORECASE)


@dataclass(frozen=True, slots=True, eq=False)
class CopyTotal:
    """Copies of one kind that one operator asked for. kind: "HtoD", "DtoH", "DtoD", "PtoP", "HtoH", "memset" or "" (not
    said). memory of the host: "pageable", "pinned" or "". operator: the outermost aten operator around the launch, ""
    for none.

    All columns (n,), by step: calls begun in it, ns of device time, exposed ns in which nothing else ran, and bytes
    (None: the trace does not say). Exposed time of all copies together is the ledger's account COPY to the nanosecond;
    where two copies overlap, the one named first has it.
    """

    kind: str
    memory: str
    operator: str
    calls: Int64
    duration: Int64
    exposed: Int64
    bytes: Int64 | None
    source: SourceLine | None


def copies_of(trace: Trace, links: Links, windows: Int64) -> tuple[CopyTotal, ...]:
    """The copies of the steps, the most exposed first. windows: (n, 2) ns, the steps as the ledger has them."""
    events = trace.events
    rows = np.flatnonzero(np.isin(events.category, (Category.MEMCPY, Category.MEMSET)))
    names = [copy_kind(symbol) for symbol in trace.symbols]
    kinds = sorted({names[number] for number in events.name[rows].tolist()})
    kind = np.array([kinds.index(names[number]) for number in events.name[rows].tolist()], np.int64)
    kind[events.category[rows] == Category.MEMSET] = UNKNOWN
    asked = np.where(links.operator[rows] == UNKNOWN, UNKNOWN, events.name[outermost_operator(trace, links, rows)])
    groups = grouped(kind, asked)
    spent = device_time(trace)
    sets = [union(events.begin[rows[chosen]], events.end[rows[chosen]]) for chosen in groups]
    exposed = claim(windows[:, 0], windows[:, 1], [join(spent.compute, spent.communication), *sets])[:, 1:-1]
    totals = []
    for number, chosen in enumerate(groups):
        first, mine = chosen[0], rows[chosen]
        direction, memory = ("memset", "") if kind[first] == UNKNOWN else kinds[kind[first]]
        step = step_at(windows, events.begin[mine])
        sizes = events.bytes[mine].astype(np.int64)
        totals.append(
            CopyTotal(
                kind=direction,
                memory=memory,
                operator="" if asked[first] == UNKNOWN else trace.symbols[asked[first]],
                calls=per_step(step, np.ones(len(mine), np.int64), len(windows)),
                duration=time_inside(events.begin[mine], events.end[mine], windows),
                exposed=exposed[:, number],
                bytes=None if (sizes == ABSENT).any() else per_step(step, sizes, len(windows)),
                source=source_of(trace, links, mine, events.duration[mine]),
            )
        )
    kept = (each for each in totals if each.calls.any() or each.duration.any())
    return tuple(sorted(kept, key=lambda each: (-int(each.exposed.sum()), -int(each.duration.sum()), each.kind)))


def copy_kind(name: str) -> tuple[str, str]:
    """Direction and memory of the host from the name of a copy: "Memcpy HtoD (Pageable -> Device)"."""
    direction = next((kind for kind, pattern in KINDS.items() if pattern.search(name)), "")
    memory = MEMORY.search(name)
    return direction, memory[0].lower() if memory else ""
