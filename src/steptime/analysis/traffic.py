"""Copies, collectives and allocator calls to the driver by kind: time, bytes, and time that no computing hid.

A collective's kernel belongs to the CPU's "record_param_comms" around its launch, whose arguments say what is sent in
which group. They are read from the file again. Without them, the annotation (nccl:all_reduce) and the kernel's name
give the kind only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from steptime.analysis.categories import Category
from steptime.analysis.device_activity import communication_kernels, device_time
from steptime.analysis.idle import CATEGORIES, gaps_of, outermost_operator
from steptime.analysis.op_cost.call import ELEMENT_BYTES
from steptime.analysis.operators import grouped, per_step, source_of, step_at, time_inside
from steptime.analysis.step_context import StepContext
from steptime.analysis.threads import during
from steptime.arrays import Int64, distinct, give_back
from steptime.intervals import claim, intersect, join, measure, subtract, union
from steptime.quantities import SourceLine
from steptime.trace.links import UNKNOWN, Links
from steptime.trace.table import ABSENT, EventKind, Trace, details_of
from steptime.trace.vendors import (
    ALLOCATION,
    ANNOTATED_COLLECTIVE,
    COMMUNICATION_KIND,
    COPY_DIRECTIONS,
    GROUPED,
    HOST_MEMORY,
    SENDS,
    collective_name,
    matching,
    of_symbols,
)


@dataclass(frozen=True, slots=True, eq=False)
class CopyTotal:
    """Copies of one kind that one operator asked for. kind: "HtoD", "DtoH", "DtoD", "PtoP", "HtoH", "memset" or ""
    (unknown). memory: kind of host memory, "pageable", "pinned" or "". operator: the outermost aten operator around the
    launch, or torch's range that lays out data for communication, "" for none. calls, duration (device time, ns),
    exposed (time in which nothing else ran, ns) and bytes (None if unknown) are by step, (n,). The exposed time of all
    copies sums to the breakdown's COPY to the nanosecond; where two copies overlap, the earlier entry gets the time."""

    kind: str
    memory: str
    operator: str
    calls: Int64
    duration: Int64
    exposed: Int64
    bytes: Int64 | None
    source: SourceLine | None


def copies_of(steps: StepContext) -> tuple[CopyTotal, ...]:
    """Copies of the steps, the most exposed first."""
    trace, links, windows = steps.trace, steps.links, steps.windows
    events = trace.events
    give_back(len(events))
    rows = np.flatnonzero(events.are(EventKind.MEMCPY, EventKind.MEMSET))
    names = [copy_kind(symbol) for symbol in trace.symbols]
    kinds = sorted({names[number] for number in events.name[rows].tolist()})
    kind = np.array([kinds.index(names[number]) for number in events.name[rows].tolist()], np.int64)
    kind[events.event_kind[rows] == EventKind.MEMSET] = UNKNOWN
    asked = np.where(links.operator[rows] == UNKNOWN, UNKNOWN, events.name[outermost_operator(trace, links, rows)])
    groups = grouped(kind, asked)
    spent = device_time(trace)
    sets = [during(trace, rows[chosen]) for chosen in groups]
    exposed = claim(windows[:, 0], windows[:, 1], [join(spent.compute, spent.communication), *sets])[:, 1:-1]
    totals = []
    for number, chosen in enumerate(groups):
        first, mine = chosen[0], rows[chosen]
        direction, memory = ("memset", "") if kind[first] == UNKNOWN else kinds[kind[first]]
        step = step_at(windows, events.start[mine])
        sizes = events.bytes[mine].astype(np.int64)
        totals.append(
            CopyTotal(
                kind=direction,
                memory=memory,
                operator="" if asked[first] == UNKNOWN else trace.symbols[asked[first]],
                calls=per_step(step, 1, len(steps)),
                duration=time_inside(events.start[mine], events.ends(mine), windows),
                exposed=exposed[:, number],
                bytes=None if (sizes == ABSENT).any() else per_step(step, sizes, len(steps)),
                source=source_of(trace, links, mine, events.duration[mine]),
            )
        )
    kept = (each for each in totals if each.calls.any() or each.duration.any())
    return tuple(sorted(kept, key=lambda each: (-int(each.exposed.sum()), -int(each.duration.sum()), each.kind)))


def copy_kind(name: str) -> tuple[str, str]:
    """(direction, kind of host memory) from the name of a copy, such as "Memcpy HtoD (Pageable -> Device)"."""
    direction = next((kind for kind, pattern in COPY_DIRECTIONS.items() if pattern.search(name)), "")
    memory = HOST_MEMORY.search(name)
    return direction, memory[0].lower() if memory else ""


@dataclass(frozen=True, slots=True, eq=False)
class AllocationTotal:
    """Calls of one name that ask the driver for memory (cudaMalloc, cudaFree, hipMalloc, …); PyTorch's allocator calls
    them only when its pool is exhausted. Columns by step, (n,): calls, duration (on the CPU, ns), idle (device idle
    time during the calls, ns) and within (idle by category; over all names, at most the breakdown's entry)."""

    name: str
    calls: Int64
    duration: Int64
    idle: Int64
    within: tuple[tuple[Category, Int64], ...]
    source: SourceLine | None


def allocations_of(steps: StepContext) -> tuple[AllocationTotal, ...]:
    """Allocator calls of the steps, those with most device idle time first."""
    trace, windows, events = steps.trace, steps.windows, steps.trace.events
    rows = np.flatnonzero((events.event_kind == EventKind.RUNTIME) & matching(trace, ALLOCATION.match))
    step = step_at(windows, events.start[rows])
    if not len(rows):
        return ()
    gaps = gaps_of(steps)
    of = {category: gaps.category == category for category in (*CATEGORIES, Category.UNEXPLAINED)}
    left = {category: union(gaps.start[mine], gaps.end[mine]) for category, mine in of.items()}
    totals = []
    for chosen in grouped(events.name[rows]):
        mine = rows[chosen]
        calling, idle = during(trace, mine), np.zeros(len(steps), np.int64)
        within = []
        for category, gap in left.items():
            spent = measure(intersect(gap, calling), windows[:, 0], windows[:, 1])
            left[category], idle = subtract(gap, calling), idle + spent
            within += [(category, spent)] if spent.any() else []
        totals.append(
            AllocationTotal(
                name=trace.symbols[events.name[mine[0]]],
                calls=per_step(step[chosen], 1, len(steps)),
                duration=time_inside(events.start[mine], events.ends(mine), windows),
                idle=idle,
                within=tuple(within),
                source=source_of(trace, steps.links, mine, events.duration[mine]),
            )
        )
    kept = (each for each in totals if each.calls.any())
    return tuple(sorted(kept, key=lambda each: (-int(each.idle.sum()), -int(each.duration.sum()), each.name)))


LARGEST = 1 << 50
"""Most bytes of one call: a petabyte."""
RECORD = "record_param_comms"
"""Operator in which torch's process groups record the parameters of a collective."""
FUNCTION = re.compile(r"(\w+)(?=[<(]|$)")
"""Name of a kernel without its namespaces, template arguments and parameters."""
ELEMENT = {name.removeprefix("c10::").lower(): size for name, size in ELEMENT_BYTES.items()}
ELEMENT |= {"byte": 1, "complexfloat": 8, "complexdouble": 16}
"""Bytes per element by C++ type or by torch's name of the dtype, in lower case without c10::."""


@dataclass(frozen=True, slots=True, eq=False)
class CollectiveTotal:
    """Collectives of one kind in one group. name: as in torch.distributed ("all_reduce", "all_to_all", "send 0->1").
    group: the process group's description, else its name, "" if unknown; size: number of its ranks, 0 if unknown;
    members: its ranks as the file spells them, "" if unknown.

    Columns by step, (n,): calls (kernels), duration (device time, ns), exposed (time in which only communication ran,
    ns) and bytes (the larger of input and output, None if unknown). The exposed time of all collectives sums to the
    breakdown's COMMUNICATION to the nanosecond; where two overlap, the longer kind gets the time. bus_bandwidth: B/s
    while the kernels ran, waiting for other ranks included; None if size or bytes are unknown."""

    name: str
    group: str
    size: int
    calls: Int64
    duration: Int64
    exposed: Int64
    bytes: Int64 | None
    members: str = ""
    bus_bandwidth: float | None = None


FACTORS: tuple[tuple[re.Pattern[str], Callable[[int], float]], ...] = (
    (re.compile(r"all_?reduce", re.IGNORECASE), lambda n: 2 * (n - 1) / n),
    (re.compile(r"all_?gather|reduce_?scatter|all_?to_?all", re.IGNORECASE), lambda n: (n - 1) / n),
    (re.compile(r"broadcast|reduce|send|recv", re.IGNORECASE), lambda n: 1.0),
)
"""Bytes that an optimal algorithm sends over each rank's link, per byte of the larger side (the output of an
all-gather, the input of a reduce-scatter), for n ranks, by torch's or NCCL's name of the operation. As NCCL-tests
defines it (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md)."""


def bus_factor(name: str, ranks: int) -> float | None:
    """Factor from size / time of a collective to its bus bandwidth; None for one rank, and for operations that
    NCCL-tests lacks."""
    if ranks < 2:
        return None
    return next((factor(ranks) for pattern, factor in FACTORS if pattern.search(name)), None)


@dataclass(frozen=True, slots=True)
class Parameters:
    """Arguments of one collective. bytes: None if unknown. members: ranks of the group as the file spells them, "" if
    unknown."""

    name: str
    group: str = ""
    size: int = 0
    bytes: int | None = None
    members: str = ""


def collectives_of(steps: StepContext) -> tuple[CollectiveTotal, ...]:
    """Collectives of the steps, the longest first."""
    trace, windows, events = steps.trace, steps.windows, steps.trace.events
    start, end = windows[:1, 0].max(initial=0), windows[-1:, 1].max(initial=0)
    rows = np.flatnonzero(communication_kernels(trace))
    rows = rows[(events.start[rows] < end) & (events.ends(rows) > start)]
    known = parameters_of(trace, steps.links, rows)
    keys = [(each.name, each.group, each.size) for each in known]
    numbers = {key: number for number, key in enumerate(sorted(set(keys)))}
    groups = grouped(np.array([numbers[key] for key in keys], np.int64))
    groups = sorted(groups, key=lambda chosen: -int(events.duration[rows[chosen]].sum()))
    sets = [during(trace, rows[chosen]) for chosen in groups]
    exposed = claim(windows[:, 0], windows[:, 1], [device_time(trace).compute, *sets])[:, 1:-1]
    totals = []
    for number, chosen in enumerate(groups):
        mine = rows[chosen]
        step = step_at(windows, events.start[mine])
        sizes, first = [known[at].bytes for at in chosen.tolist()], known[chosen[0]]
        factor, lasted = bus_factor(first.name, first.size), int(events.duration[mine].sum())
        moved = None if None in sizes or factor is None or not lasted else factor * sum(map(int, filter(None, sizes)))
        total = CollectiveTotal(
            name=first.name,
            group=first.group,
            size=first.size,
            members=first.members,
            bus_bandwidth=moved / lasted * 1e9 if moved is not None else None,
            calls=per_step(step, 1, len(steps)),
            duration=time_inside(events.start[mine], events.ends(mine), windows),
            exposed=exposed[:, number],
            bytes=None if None in sizes else per_step(step, np.array(sizes, np.int64), len(steps)),
        )
        totals.append(total)
    return tuple(each for each in totals if each.calls.any() or each.duration.any())


def parameters_of(trace: Trace, links: Links, kernels: Int64) -> tuple[Parameters, ...]:
    """Arguments of the collective behind each kernel."""
    events = trace.events
    noted = of_symbols(trace, RECORD.__eq__)
    record = np.where(links.operator[kernels] == UNKNOWN, UNKNOWN, links.operator[kernels])
    record[~np.append(noted[events.name], False)[record]] = UNKNOWN
    sources = np.where(record == UNKNOWN, kernels, record)  # newer files repeat the parameters at the kernel
    first, position = distinct(sources)
    arguments = details_of(trace, sources[first])
    annotated = np.append(matching(trace, ANNOTATED_COLLECTIVE.match), False)
    above = links.annotation[kernels].astype(np.int64)
    for each in (links.annotation[kernels], links.operator[kernels]):  # NVTX ranges of torch count as operators
        above = np.where(annotated[above], above, each)
    above = np.where(annotated[above], above, UNKNOWN)
    return tuple(
        _parameters(trace, kernel, annotation, arguments[at])
        for kernel, annotation, at in zip(kernels.tolist(), above.tolist(), position.tolist(), strict=True)
    )


def _parameters(trace: Trace, kernel: int, annotation: int, arguments: Mapping[str, Any]) -> Parameters:
    name = arguments.get("Collective name")
    if not isinstance(name, str) or not name:
        return _without_arguments(trace, kernel, annotation)
    kind = _kernel_kind(trace, kernel) if name == GROUPED else name
    name = collective_name(name if kind == SENDS else kind)
    described = str(arguments.get("Process Group Description") or "")
    group = described if described not in ("", "undefined") else str(arguments.get("Process Group Name") or "")
    size, item = arguments.get("Group size"), _item(str(arguments.get("dtype") or ""))
    given = [arguments.get(key) for key in ("In msg nelems", "Out msg nelems")]
    elements = max((int(each) for each in given if isinstance(each, int)), default=None)
    total = None if elements is None or item is None else elements * item
    members = str(arguments.get("Process Group Ranks") or "")
    return Parameters(name, group, size if isinstance(size, int) else 0, total, members)


def _without_arguments(trace: Trace, kernel: int, annotation: int) -> Parameters:
    """Arguments from the annotation around the launch, whose shapes are the data's, or from the kernel's name."""
    events = trace.events
    if annotation != UNKNOWN:
        name = ANNOTATED_COLLECTIVE.sub("", trace.symbols[events.name[annotation]])
        return Parameters(collective_name(name), bytes=argument_bytes(trace, annotation))
    return Parameters(collective_name(_kernel_kind(trace, kernel)))


def _kernel_kind(trace: Trace, kernel: int) -> str:
    """Kind of collective in a kernel's name, else the name of its function."""
    symbol = trace.symbols[trace.events.name[kernel]].replace("(anonymous namespace)::", "")
    found = COMMUNICATION_KIND.search(symbol) or FUNCTION.search(symbol)
    return found[1] if found else symbol


def argument_bytes(trace: Trace, row: int) -> int | None:
    """Bytes of an event's tensor arguments; None if the trace does not say."""
    shapes, types = int(trace.events.shapes[row]), int(trace.events.dtypes[row])
    known = shapes != ABSENT and types != ABSENT
    return tensor_bytes(trace.shapes[shapes], trace.dtypes[types]) if known else None


def tensor_bytes(shapes: str, types: str) -> int | None:
    """Bytes of a call's tensors; None if one of them is unknown."""
    total = 0
    try:
        tensors = list(zip(json.loads(shapes), json.loads(types), strict=False))
    except (ValueError, TypeError, RecursionError):
        return None
    for shape, kind in tensors:
        item = _item(kind)
        is_shape = isinstance(shape, list) and all(isinstance(side, int) and side >= 0 for side in shape)
        if item is None or not is_shape:
            return None
        total += prod(shape) * item
    return total if 0 < total <= LARGEST else None


def _item(kind: object) -> int | None:
    return ELEMENT.get(kind.removeprefix("c10::").lower()) if isinstance(kind, str) else None
