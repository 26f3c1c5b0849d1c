"""Memory sampled while the job ran: over time, and its growth per step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steptime.analysis.timeline import Steps, Timeline
from steptime.arrays import Float64, Int64, unique
from steptime.journal import Kind
from steptime.quantities import Estimate, autocorrelation_time, format_bytes
from steptime.recording.recording import Process

CPU_PLACE = "CPU"
"""Name of the device of CPU allocations."""
MOST_POINTS, LEAST_POINTS = 240, 3
"""Most and fewest points of a chart."""
RESIDENT, ALLOCATED, RESERVED, RETRIES = 1, 2, 3, 4
ALLOCATED_PEAK, RESERVED_PEAK = 6, 7
"""Identities of MEMORY records of the journal. A device's memory is sampled between steps, when what backward needed is
free again: only the allocator's own peaks know the most that was held."""
SETTLING = 1_000_000_000
"""Time after a profiler window that still belongs to it, ns: the profiler writes its trace for up to 1 s."""
LEVEL = 3
"""Samples before and after a window whose medians are set equal."""
LEAST_SAMPLES = 12
WARM_UP = 0.25
"""Fraction of the samples: caches, arenas and the allocator's pools fill up first."""
MOST_SAMPLES = 400
"""Most samples: their pairs grow with the square. More samples are thinned evenly."""
BLOCKS = 400
"""Resamples of the bootstrap."""
LEAST_GROWTH = 1 << 20
"""Least growth of a leak over the whole run, bytes: an arena of malloc grows by less."""
STEADY_SHARE = 0.75
"""Fraction of the intervals that must rise for growth: a sawtooth rises and falls back, a cache that fills rises
once."""
LEAST_RISE = 0.25
"""Fraction of the slope: an interval rises if it grows by at least this much of what the slope predicts."""
INTERVALS = 8
NAMES = {RESIDENT: "resident", ALLOCATED: "allocated", RESERVED: "reserved"}


def samples_of(process: Process, identity: int) -> tuple[Int64, Int64]:
    """(times in ns, values) of a process's memory samples with one identity."""
    table = process.intervals
    rows = np.flatnonzero((table.kind == Kind.MEMORY) & (table.identity == identity))
    return table.start[rows], table.end[rows]


def most_held(process: Process, steps: Steps) -> int | None:
    """Peak of tensor memory on the process's device, bytes; without a device, peak of the resident set less the
    profiler's memory, which depends on the number of its windows. None without samples. Recordings without the
    allocator's peak contain only samples between steps."""
    for identity in (ALLOCATED_PEAK, ALLOCATED):
        values = samples_of(process, identity)[1]
        if len(values):
            return int(values.max())
    times, resident = samples_of(process, RESIDENT)
    own = without_profiler(times, resident, steps)[1]
    return int((own if len(own) else resident).max()) if len(resident) else None


def growths(process: Process, timeline: Timeline, name: str = "") -> tuple[Growth, ...]:
    """Growth of each kind of memory over the steps, for kinds with enough samples."""
    found = []
    for identity, memory in NAMES.items():
        times, values = samples_of(process, identity)
        times, values = without_profiler(times, values, timeline.steps)
        step = np.searchsorted(timeline.steps.end, times).astype(np.int64)
        growth = growth_of(name, memory, step, values)
        if growth is not None:
            found.append(growth)
    return tuple(found)


def without_profiler(times: Int64, values: Int64, steps: Steps) -> tuple[Int64, Int64]:
    """Memory samples outside of the profiler's windows. Samples after a window are lowered by the memory that each
    window left behind: up to hundreds of megabytes belong to the profiler and are no growth of the job."""
    profiled = np.concatenate(([False], steps.profiled, [False])).astype(np.int8)
    starts = steps.start[np.flatnonzero(np.diff(profiled) == 1)]
    ends = steps.end[np.flatnonzero(np.diff(profiled) == -1) - 1] + SETTLING
    values, kept = values.copy(), np.ones(len(times), bool)
    for start, end in zip(starts, ends, strict=True):
        before, after = kept & (times < start), times > end
        kept &= before | after
        if before.any() and after.any():
            values[after] -= int(np.median(values[after][:LEVEL]) - np.median(values[before][-LEVEL:]))
    return times[kept], values[kept]


@dataclass(frozen=True, slots=True)
class Growth:
    """Growth of one kind of memory with the steps. memory: "resident", "allocated" or "reserved". per_step: bytes per
    step; leaks: True if memory grows for certain. total: growth after the warm-up without jumps, bytes. steps: number
    of steps after the warm-up."""

    process: str
    memory: str
    per_step: Estimate
    total: int
    leaks: bool
    steps: int

    @property
    def sentence(self) -> str:
        """Description of the growth for a person."""
        value = self.per_step
        reach = f"{format_bytes(value.low)} to {format_bytes(value.high)}"
        if not self.leaks and value.low > 0:
            grown = f"{format_bytes(self.total)} in {self.steps} steps"
            return f"{self.memory} memory grew by {grown}, too little for a leak"
        if not self.leaks:
            return f"{self.memory} memory does not grow with the steps ({reach} per step over {self.steps} steps)"
        return (
            f"{self.memory} memory grows by {format_bytes(value.value)} per step ({reach}), "
            f"{format_bytes(self.total)} in {self.steps} steps"
        )


def growth_of(process: str, memory: str, step: Int64, size: Int64) -> Growth | None:
    """Growth of memory with the steps, None with too few samples. step, size: step (rising) and bytes of each sample.
    The estimator is Theil and Sen's: the median slope of all pairs, which a few outliers do not move. Its 95 % interval
    is from a block bootstrap with blocks as long as the autocorrelation. A sawtooth is no growth, since some intervals
    fall."""
    first = int(WARM_UP * len(step))
    step, size = step[first:], size[first:]
    if len(step) < LEAST_SAMPLES or step[-1] <= step[0]:
        return None
    thin = unique(np.linspace(0, len(step) - 1, min(len(step), MOST_SAMPLES)).astype(np.int64))
    x, y = step[thin].astype(np.float64), size[thin].astype(np.float64)
    one, other = _pairs(x)
    slope = float(np.median((y[other] - y[one]) / (x[other] - x[one])))
    low, high = _interval(x, y, slope)
    edges = np.linspace(0, len(y) - 1, INTERVALS + 1).astype(np.int64)
    rising = float(np.mean(np.diff(y[edges]) > LEAST_RISE * slope * np.diff(x[edges])))
    # What it jumped by is not what it grows by.
    total = int(min(np.median(size[-3:]) - np.median(size[:3]), slope * (step[-1] - step[0])))
    leaks = low > 0 and total >= LEAST_GROWTH and rising >= STEADY_SHARE
    estimate = Estimate(slope, min(low, slope), max(high, slope), len(step), "bytes")
    return Growth(process, memory, estimate, total, leaks, int(step[-1] - step[0]))


def _pairs(x: Float64) -> tuple[Int64, Int64]:
    """Both indices of each pair of samples from different steps."""
    one, other = np.triu_indices(len(x), 1)
    apart = x[other] > x[one]
    return one[apart], other[apart]


def _interval(x: Float64, y: Float64, slope: float) -> tuple[float, float]:
    """95 % interval of the slope: resamples blocks of the residuals, as long as their autocorrelation time."""
    rest = y - slope * x
    rest = rest - np.median(rest)
    length = int(min(len(x) // 3, max(2, np.ceil(autocorrelation_time(rest)))))
    thin = unique(np.linspace(0, len(x) - 1, min(len(x), 60)).astype(np.int64))
    starts = np.random.default_rng(0).integers(0, len(x) - length + 1, (BLOCKS, -(-len(x) // length)))
    drawn = rest[starts[:, :, None] + np.arange(length)].reshape(BLOCKS, -1)[:, thin]
    one, other = _pairs(x[thin])
    slopes = slope + np.median((drawn[:, other] - drawn[:, one]) / (x[thin][other] - x[thin][one]), axis=1)
    low, high = np.quantile(slopes, (0.025, 0.975))
    return float(low), float(high)


@dataclass(frozen=True, slots=True)
class OverTime:
    """Chart of memory over time. place: name of a device, or the process. times: time of each point; clock: unit of
    these times ("ns", "event", "step"). owners: names, from the bottom of the chart upwards; bytes: bytes by owner and
    point. peak: index of the highest point."""

    place: str
    clock: str
    times: tuple[int, ...]
    owners: tuple[str, ...]
    bytes: tuple[tuple[int, ...], ...]
    peak: int

    def __post_init__(self) -> None:
        """Raises ValueError if lengths or the peak do not fit: a report's file may come from anyone."""
        if len(self.owners) != len(self.bytes) or any(len(row) != len(self.times) for row in self.bytes):
            raise ValueError("memory over time has rows of different lengths")
        if self.times and not 0 <= self.peak < len(self.times):
            raise ValueError("memory over time has its peak at no point")


def highest_points(values: Int64, most: int = MOST_POINTS) -> Int64:
    """Indices of the highest value in each of at most `most` equal intervals, for a chart that loses no peak."""
    edges = unique(np.linspace(0, len(values), min(most, len(values)) + 1).astype(np.int64))
    pairs = zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    return np.array([start + int(np.argmax(values[start:end])) for start, end in pairs], np.int64)


def sampled_memory(process: Process, start: int) -> OverTime | None:
    """Chart of the device's memory if it was sampled, else of the resident set; None with too few samples. start: start
    of the first step, monotonic ns."""
    allocated, reserved = samples_of(process, ALLOCATED), samples_of(process, RESERVED)
    if allocated[1].any() and len(allocated[0]) == len(reserved[0]):
        times, tensors, held = allocated[0], allocated[1], reserved[1]
        rows = [("tensors", tensors), ("free in the allocator", np.maximum(held - tensors, 0))]
    else:
        times, resident = samples_of(process, RESIDENT)
        rows = [("resident in memory", resident)]
    if len(times) < LEAST_POINTS:
        return None
    top = rows[0][1]
    chosen = highest_points(top)
    place = process.facts.device_name or process.facts.device if len(rows) > 1 else "the process"
    return OverTime(
        place=place,
        clock="ns",
        times=tuple(np.maximum(times[chosen] - start, 0).tolist()),
        owners=tuple(name for name, _ in rows),
        bytes=tuple(tuple(row[chosen].tolist()) for _, row in rows),
        peak=int(np.argmax(top[chosen])),
    )
