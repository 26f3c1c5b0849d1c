"""One rank in a few kilobytes: all that a comparison with other ranks needs.

Traces are large and ranks are many, so each is reduced where it is read, and only this summary is sent. Also the
exchange of gradients, from the annotations and operators of DistributedDataParallel, on any device.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod

import numpy as np

from steptime.analysis.breakdown import breakdown_of
from steptime.analysis.categories import Breakdown
from steptime.analysis.device_activity import communication_kernels, device_time
from steptime.analysis.layout import Layout
from steptime.analysis.operators import grouped, per_step, step_at
from steptime.analysis.recorded_breakdown import RecordedBreakdown
from steptime.analysis.step_context import StepContext, step_context
from steptime.analysis.timeline import Phase
from steptime.analysis.trace_steps import whole_steps
from steptime.analysis.traffic import Parameters, argument_bytes, parameters_of
from steptime.arrays import Bool, Int64
from steptime.intervals import Intervals, claim, contains, measure, union
from steptime.recording.recording import Process
from steptime.trace.links import UNKNOWN
from steptime.trace.table import ABSENT, EventKind, Trace
from steptime.trace.vendors import COLLECTIVE_ON_HOST, matching

MOST_CALLS = 512
"""Most collectives in a summary, 32 bytes each: the first of each kind, in proportion to the kind's number."""
LEAST_CALLS = 8
"""Fewest calls that are kept of each kind."""
MOST_BLOCKS = 256
"""Most columns of the series over all steps of a recording: blocks of 1, 2, 4 … steps."""


@dataclass(frozen=True, slots=True, eq=False)
class Exchange:
    """Collectives of one kind in one process group, by one rank, in time order. members: ranks of the group as the
    trace spells them, "" if unknown. calls: number of calls in the steps; the columns (k,) hold the first k of them.
    step: index among the summarised steps; start, duration: ns; bytes: bytes of the call, -1 if unknown. exposed: time
    of all calls together in which nothing but communication ran, ns."""

    name: str
    group: str
    size: int
    members: str
    calls: int
    exposed: int
    step: Int64
    start: Int64
    duration: Int64
    bytes: Int64

    @property
    def key(self) -> tuple[str, str, int, str]:
        """Key by which the collective is found on all ranks."""
        return self.name, self.group, self.size, self.members


@dataclass(frozen=True, slots=True, eq=False)
class RankSeries:
    """Series of a rank's own time over the steps, from the timers alone. Own time excludes phases that wait for other
    ranks. width: steps per column; own: mean of each column's steady steps, (k,), ns, -1 if it has none."""

    width: int
    own: Int64


@dataclass(frozen=True, slots=True, eq=False)
class RankSummary:
    """Summary of one rank. steps: number of steps behind the times; step: mean, ns. categories: ns per step, by
    `Category`. exchanges: collectives of the profiled steps. numbers: numbers of the profiled steps in the job, () if
    unknown. flops: FLOPs per step, 0 if unknown. series: own time in all steps of a recording. in_profiled: own time in
    the profiled steps, ns per step. world: number of ranks in the job, None if unknown."""

    rank: int
    name: str
    host: str
    steps: int
    step: float
    categories: tuple[float, ...]
    exchanges: tuple[Exchange, ...] = ()
    numbers: tuple[int, ...] = ()
    flops: float = 0.0
    series: RankSeries | None = None
    in_profiled: float | None = None
    world: int | None = None


def kept_calls(counts: list[int]) -> list[int]:
    """Number of calls to keep of each kind: a function of the counts alone, so that all ranks keep the same calls."""
    whole = sum(counts)
    if whole <= MOST_CALLS:
        return counts
    return [min(count, max(LEAST_CALLS, MOST_CALLS * count // whole)) for count in counts]


def blocks(own: Int64, known: Bool) -> RankSeries | None:
    """Series of a rank's own time, in columns of the smallest power of two that leaves at most MOST_BLOCKS; None
    without steady steps. own: (n,), ns; known: mask of the steady steps."""
    if not known.any():
        return None
    width = 1
    while -(-len(own) // width) > MOST_BLOCKS:
        width *= 2
    return RankSeries(width, _block_means(np.where(known, own, -1), width))


def widened(series: RankSeries, width: int) -> RankSeries:
    """The series in wider columns. width: a power of two times the series' own."""
    factor = width // series.width
    return series if factor == 1 else RankSeries(width, _block_means(series.own, factor))


def _block_means(values: Int64, width: int) -> Int64:
    """Means of each `width` values, ignoring unknown ones (-1)."""
    missing = -len(values) % width
    padded = np.append(values, np.full(missing, -1)).reshape(-1, width)
    known = padded >= 0
    count = known.sum(axis=1)
    total = np.where(known, padded, 0).sum(axis=1)
    return np.where(count > 0, total // np.maximum(count, 1), -1)


def exchanges_of(steps: StepContext) -> tuple[Exchange, ...]:
    """Collectives that start in the steps. On a CPU `exposed` is 0, since a trace does not show it; the breakdown's
    COMMUNICATION does."""
    trace, windows = steps.trace, steps.windows
    chosen = communication_kernels(trace)
    if chosen.any():
        rows = _in_steps(trace, np.flatnonzero(chosen), windows)
        return _by_kind(trace, rows, parameters_of(trace, steps.links, rows), windows, device_time(trace).compute)
    rows = _in_steps(trace, np.flatnonzero(matching(trace, COLLECTIVE_ON_HOST.match)), windows)
    names = [COLLECTIVE_ON_HOST.sub("", trace.symbols[name]) for name in trace.events.name[rows].tolist()]
    spans = [
        Parameters(name, size=trace.world_size or 0, bytes=argument_bytes(trace, row))
        for name, row in zip(names, rows.tolist(), strict=True)
    ]
    return _by_kind(trace, rows, tuple(spans), windows, None)


def _in_steps(trace: Trace, rows: Int64, windows: Int64) -> Int64:
    """Rows that start in a step, in time order."""
    inside = rows[step_at(windows, trace.events.start[rows]) != UNKNOWN]
    ordered: Int64 = inside[np.argsort(trace.events.start[inside], kind="stable")]
    return ordered


def _by_kind(
    trace: Trace, rows: Int64, known: tuple[Parameters, ...], windows: Int64, compute: Intervals | None
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
                step=step_at(windows, events.start[mine]),
                start=events.start[mine].copy(),
                duration=events.duration[mine].astype(np.int64),
                bytes=np.array([-1 if size is None else size for size in sizes], np.int64),
            )
        )
    return tuple(found)


def _exposed(trace: Trace, rows: Int64, windows: Int64, compute: Intervals | None, groups: list[Int64]) -> list[int]:
    """Time of each kind in which nothing but communication ran, ns; where two overlap, the longer kind gets it."""
    if compute is None:
        return [0] * len(groups)
    events = trace.events
    order = sorted(range(len(groups)), key=lambda at: -int(events.duration[rows[groups[at]]].sum()))
    sets = [union(events.start[rows[groups[at]]], events.ends(rows[groups[at]])) for at in order]
    shares = claim(windows[:, 0], windows[:, 1], [compute, *sets])[:, 1:-1].sum(axis=0)
    found = [0] * len(groups)
    for at, share in zip(order, shares.tolist(), strict=True):
        found[at] = int(share)
    return found


FORWARD = "DistributedDataParallel.forward"
REDUCE = re.compile(r"^c10d::_?all_?reduce_?$")
SEARCH = re.compile(r"^torch\.distributed\.ddp\.reducer::search_unused_parameters$")
FIRST_TENSOR = re.compile(r"\[\s*\[\s*\[([\d,\s]+)\]")
SIDE = re.compile(r"(?<!\d)\d{1,12}(?!\d)")
LARGEST = 1 << 50
"""Most elements of a tensor: a petabyte."""
LEAST_ELEMENTS = 256
"""Fewest elements of a bucket: a smaller all-reduce is a counter, a loss or the map of unused parameters."""


@dataclass(frozen=True, slots=True, eq=False)
class GradientExchange:
    """Gradient exchange of each step, (n,). forwards: number of forwards of the wrapped model (micro-batches);
    synchronised: number of forwards after which gradients were exchanged; buckets: number of buckets; elements: number
    of elements in them, 0 if shapes were not recorded; search: ns in the search for unused parameters."""

    forwards: Int64
    synchronised: Int64
    buckets: Int64
    elements: Int64
    search: Int64


def gradients_of(trace: Trace, boundaries: Int64) -> GradientExchange | None:
    """Gradient exchange by step, None without a DistributedDataParallel model. boundaries: steps on the CPU, (n, 2),
    ns."""
    events = trace.events
    steps = len(boundaries)
    forwards = _in_steps(trace, np.flatnonzero(matching(trace, FORWARD.__eq__)), boundaries)
    forwards = forwards[events.event_kind[forwards] == EventKind.ANNOTATION]
    if not len(forwards):
        return None
    reduced = np.flatnonzero((events.event_kind == EventKind.OPERATOR) & matching(trace, REDUCE.match))
    reduced = _in_steps(trace, reduced, boundaries)
    sizes = np.array([_elements(trace, row) for row in reduced.tolist()], np.int64)
    reduced, sizes = reduced[(sizes < 0) | (sizes >= LEAST_ELEMENTS)], sizes[(sizes < 0) | (sizes >= LEAST_ELEMENTS)]
    behind = np.searchsorted(events.start[forwards], events.start[reduced], side="right") - 1
    of_step = step_at(boundaries, events.start[forwards])
    exchanged = np.isin(np.arange(len(forwards)), behind).astype(np.int64)
    searching = matching(trace, SEARCH.match)
    search = union(events.start[searching], events.ends(searching))
    return GradientExchange(
        forwards=per_step(of_step, np.ones(len(forwards), np.int64), steps),
        synchronised=per_step(of_step, exchanged, steps),
        buckets=per_step(step_at(boundaries, events.start[reduced]), np.ones(len(reduced), np.int64), steps),
        elements=per_step(step_at(boundaries, events.start[reduced]), np.maximum(sizes, 0), steps),
        search=measure(search, boundaries[:, 0], boundaries[:, 1]),
    )


def _elements(trace: Trace, row: int) -> int:
    """Elements of an all-reduce's first argument, -1 if the file does not say. c10d's operators take a list of tensors,
    in which DistributedDataParallel puts one, and the file has no type for it."""
    shapes = int(trace.events.shapes[row])
    found = FIRST_TENSOR.match(trace.shapes[shapes]) if shapes != ABSENT else None
    sides = [int(number) for number in SIDE.findall(found[1])] if found else []
    return min(prod(sides), LARGEST) if found else -1


def summarise_trace(trace: Trace, rank: int) -> RankSummary | None:
    """Summary of a rank from its trace, whose steps are searched; None if the trace has no step."""
    trace, found = whole_steps(trace)
    if not len(found.boundaries):
        return None
    whole = step_context(trace, found.boundaries)
    return summarise(whole, breakdown_of(whole), rank)


def summarise(steps: StepContext, breakdown: Breakdown, rank: int) -> RankSummary:
    """Summary of a rank from its trace, with known steps. breakdown: breakdown of these steps."""
    return RankSummary(
        rank=rank,
        name=f"rank {rank}",
        host="",
        steps=len(steps),
        step=float(breakdown.wall.mean()),
        categories=tuple(breakdown.entries.mean(axis=0).tolist()),
        exchanges=exchanges_of(steps),
        world=steps.trace.world_size,
    )


SURELY_OWN = (Phase.INPUT, Phase.TRANSFER)
"""Phases that are surely the rank's own work on an accelerator, where the CPU may wait for the device in any other."""


def summarise_process(process: Process, layout: Layout, recorded: RecordedBreakdown) -> RankSummary:
    """Summary of a process with at least one steady step. Its rank is 0 if unknown."""
    window = recorded.profiled
    exchanges: tuple[Exchange, ...] = ()
    numbers = profiled = np.zeros(0, np.int64)
    steps = layout.timeline.steps
    if window is not None:
        exchanges = exchanges_of(window)
        profiled = np.searchsorted(steps.end, window.boundaries[:, 1] - window.shift)
        numbers = layout.timeline.numbers(profiled)
        profiled = profiled[profiled < len(steps.end)]
    if window is not None and window.on_device:
        own = steps.phases[:, SURELY_OWN].sum(axis=1)
    else:  # without backward, and the phases in which a collective is begun: buffers and sharded weights are exchanged
        held = window.phases if window is not None else {}
        shared = [
            phase
            for phase in (Phase.FORWARD, Phase.OPTIMIZER)
            if phase in held and any(contains(held[phase], each.start).any() for each in exchanges)
        ]
        own = steps.duration - steps.phases[:, [Phase.BACKWARD, *shared]].sum(axis=1)
    breakdown, facts, whole = recorded.breakdown, process.facts, layout.timeline.whole  # behind, ranks keep others
    rank = facts.rank if facts.rank is not None else 0
    return RankSummary(
        rank=rank,
        name=f"rank {rank}",
        host=facts.host,
        steps=max(1, len(numbers)),
        step=float(breakdown.wall.mean()),
        categories=tuple(breakdown.entries.mean(axis=0).tolist()),
        exchanges=exchanges,
        numbers=tuple(numbers.tolist()),
        flops=sum(operator.flops or 0.0 for operator in recorded.operators),
        series=blocks(own[:whole], steps.steady[:whole]),
        in_profiled=float(own[profiled].mean()) if len(profiled) else None,
        world=facts.world_size,
    )
