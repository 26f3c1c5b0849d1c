"""A triage: what a history says about a job that ran out of memory, as plain data. Made by `triage`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steptime.analysis.memory_samples import OverTime, highest_points
from steptime.memory.blocks import AllocationBlock, blocks_of
from steptime.memory.breakdown import MemoryBreakdown, breakdown_at, free_at
from steptime.memory.in_report import over_time
from steptime.memory.leaks import Leak, leaks_of
from steptime.memory.lives import BEFORE, AllocationHistory, Failure, allocated
from steptime.memory.owners import LABELS, Owner, owners_of
from steptime.memory.savings import Fit, Peak, Saving, autocast_on, largest_batch, savings_of
from steptime.memory.signs import signs_of
from steptime.memory.steps import boundaries_of, steady_of
from steptime.quantities import SourceLine, format_bytes

POINTS = 120
"""Points of the timeline, for a line on a screen."""
MOST_SEGMENTS = 20
CONSIDERABLE = 0.05
"""Fraction of a device: a context and its kernels normally take up to some hundred MiB."""


@dataclass(frozen=True, slots=True)
class OwnerSample:
    """Live and reserved memory at one event, bytes. time: ns since the first event (0 if not recorded); event: its
    index."""

    time: int
    event: int
    live: int
    reserved: int


@dataclass(frozen=True, slots=True)
class FragmentedSegment:
    """A segment with free pieces. size, free, largest: bytes of the segment, of all free pieces and of the largest
    one."""

    address: int
    size: int
    free: int
    largest: int


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """Fragmentation of the allocator's free memory. free: free bytes. in_used: free bytes in segments that are partly
    in use. largest: bytes of the largest free piece. pieces: number of free pieces. segments: those with the most free
    bytes."""

    free: int
    in_used: int
    largest: int
    pieces: int
    segments: tuple[FragmentedSegment, ...]


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """A request for memory that failed. asked: bytes requested; driver_free: bytes that the driver had left, None if
    unknown. obstacle: sentence on what prevented the allocation. others: bytes of the device held outside of this
    process's allocator (other processes, contexts); None if the device's size is unknown."""

    asked: int
    driver_free: int | None
    obstacle: str
    source: SourceLine | None
    others: int | None = None


@dataclass(frozen=True, slots=True)
class MemoryTriage:
    """Memory of one device: its peak, owners, leaks and possible savings. moment: instant of the breakdown, as text.
    peak: most bytes of tensors at once. steps: number of step boundaries that were found; boundary_source: how they
    were found. capacity: bytes of the device, None if unknown; fit: batch size that fills the device. autocast: True if
    the history shows that autocast is on. cut: clause on what is missing from the history, or ""."""

    device: str
    kind: str
    moment: str
    peak: int
    reserved_peak: int
    breakdown: MemoryBreakdown
    leaks: tuple[Leak, ...]
    savings: tuple[Saving, ...]
    fragmentation: Fragmentation | None
    failure: OutOfMemory | None
    timeline: tuple[OwnerSample, ...]
    steps: int
    boundary_source: str
    capacity: int | None = None
    fit: Fit | None = None
    autocast: bool = False
    cut: str = ""
    problems: tuple[str, ...] = ()
    over_time: OverTime | None = None
    """By owner, for a picture."""
    blocks: tuple[AllocationBlock, ...] = ()
    """The largest, for a picture."""
    events: int = 0


def triage(
    history: AllocationHistory, *, capacity: int | None = None, ranks: int = 1, samples: int | None = None
) -> MemoryTriage:
    """Memory of one device, from its allocation history. capacity: bytes of the device, None if unknown. ranks,
    samples: as in `savings_of`."""
    signs = signs_of(history.stacks)
    boundaries, source = boundaries_of(history, signs)
    owners = owners_of(history, signs, boundaries)
    live = allocated(history)
    chosen = highest_points(live, POINTS)
    times = np.where(chosen > 0, history.time[chosen - 1] - history.time[0], 0) if history.events else 0 * chosen
    points = (np.maximum(times, 0), chosen - 1, live[chosen], history.reserved[chosen])
    last = history.failures[-1] if history.failures else None
    event = last.event if last is not None else int(np.argmax(live)) - 1
    breakdown = breakdown_at(history, signs, owners, event)
    fragmentation = _fragmentation(history, event)
    failure = None
    if last is not None:
        line = signs.line[last.stack] if last.stack >= 0 else None
        failure = _failure(last, line, breakdown, fragmentation, capacity)
        capacity = capacity or (breakdown.reserved + last.free if last.free is not None else None)
    # Of a device all that it has to hold must be known: a trace of a CPU says nothing of what was there before.
    whole = history.kind == "snapshot" or bool((history.lives.born == BEFORE).any())
    leaks = leaks_of(history, signs, owners, boundaries)
    steady = steady_of(history, signs, owners)
    peak = Peak(history, signs, owners, steady, event if last is not None else None)
    return MemoryTriage(
        device=history.device,
        kind=history.kind,
        moment="when memory ran out" if last is not None else "at the peak",
        peak=int(live.max()),
        reserved_peak=int(history.reserved.max()),
        breakdown=breakdown,
        leaks=leaks,
        savings=savings_of(peak, breakdown, leaks, boundaries, ranks=ranks, samples=samples),
        fragmentation=fragmentation,
        failure=failure,
        timeline=tuple(OwnerSample(*each) for each in zip(*(column.tolist() for column in points), strict=True)),
        steps=len(boundaries),
        boundary_source=source,
        capacity=capacity,
        fit=largest_batch(history, signs, owners, capacity, steady) if capacity and whole else None,
        autocast=autocast_on(history, signs, owners),
        cut=history.cut,
        problems=history.problems,
        over_time=over_time(history, owners),
        blocks=blocks_of(history, signs, owners),
        events=history.events,
    )


def _fragmentation(history: AllocationHistory, event: int) -> Fragmentation | None:
    found = free_at(history, event)
    if found is None:
        return None
    segments, pieces = found
    free = np.bincount(pieces.segment, pieces.size, len(segments.size)).astype(np.int64)
    largest = np.zeros(len(free), np.int64)
    np.maximum.at(largest, pieces.segment, pieces.size)
    most = [row for row in np.argsort(-free, kind="stable")[:MOST_SEGMENTS].tolist() if free[row]]
    return Fragmentation(
        free=int(pieces.size.sum()),
        in_used=int(pieces.size[~pieces.whole].sum()),
        largest=int(pieces.size.max(initial=0)),
        pieces=len(pieces.size),
        segments=tuple(
            FragmentedSegment(int(segments.address[row]), int(segments.size[row]), int(free[row]), int(largest[row]))
            for row in most
        ),
    )


def _failure(
    request: Failure,
    line: SourceLine | None,
    breakdown: MemoryBreakdown,
    fragmentation: Fragmentation | None,
    capacity: int | None,
) -> OutOfMemory:
    if fragmentation is not None and fragmentation.free >= request.asked:
        obstacle = (
            f"fragmentation: {format_bytes(fragmentation.free)} were free in the cache, but in {fragmentation.pieces} "
            f"pieces of at most {format_bytes(fragmentation.largest)}"
        )
    else:
        owner, held = max(breakdown.entries, key=lambda entry: entry[1], default=(Owner.TEMPORARIES, 0))
        alive = format_bytes(breakdown.live)
        obstacle = f"tensors: {alive} were alive, most of it {LABELS[owner]} ({format_bytes(held)})"
        if request.free is not None:
            obstacle += f"; the driver had {format_bytes(request.free)} left"
    others = max(0, capacity - breakdown.reserved - request.free) if capacity and request.free is not None else None
    if others is not None and capacity is not None and others >= CONSIDERABLE * capacity:
        obstacle += f"; {format_bytes(others)} of the device belonged to others: other processes, CUDA contexts"
    return OutOfMemory(request.asked, request.free, obstacle, line, others)
