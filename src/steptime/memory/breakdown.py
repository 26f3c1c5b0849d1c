"""The breakdown of one instant: every byte that the process had reserved, by owner and by line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from steptime.arrays import Bool, Int64
from steptime.errors import ImbalanceError
from steptime.memory.lives import AllocationHistory, alive_at
from steptime.memory.owners import Codes, Owner
from steptime.memory.signs import Signs
from steptime.memory.snapshot import Action, Segments
from steptime.quantities import SourceLine


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Free intervals of segments. segment: row of the segment. whole: True if all of it is free."""

    segment: Int64
    size: Int64
    whole: Bool


def free_at(history: AllocationHistory, event: int) -> tuple[Segments, Pieces] | None:
    """(segments right after an event, their free pieces); None for a history from a trace, which has no segments."""
    segments = _segments_at(history, event)
    if segments is None:
        return None
    lives = history.lives
    held = (lives.born <= event) & (lives.released > event)
    return segments, _free_pieces(segments, lives.address[held], lives.taken[held])


def _segments_at(history: AllocationHistory, event: int) -> Segments | None:
    """Segments after an event: those at the end, with later changes by the driver undone, the latest first."""
    last, changes = history.segments, history.segment_events
    later = np.flatnonzero(history.segment_event_index > event)
    if last is None or changes is None or not len(later):
        return last
    there = dict(zip(last.address.tolist(), last.size.tolist(), strict=True))
    for row in later[::-1].tolist():
        action, address, size = int(changes.action[row]), int(changes.address[row]), int(changes.size[row])
        if action in (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP):
            there[address] = size
        elif action == Action.SEGMENT_ALLOC:
            there.pop(address, None)
        else:
            _cut(there, address, size)
    addresses = sorted(there)
    sizes = np.array([there[each] for each in addresses], np.int64)
    return Segments(np.resize(last.device, len(sizes)), np.array(addresses, np.int64), sizes)


def _cut(there: dict[int, int], address: int, size: int) -> None:
    """Removes a mapped interval from the expandable segment that holds it, in place."""
    for start, length in there.items():
        if start <= address and address + size <= start + length:
            del there[start]
            if address > start:
                there[start] = address - start
            if start + length > address + size:
                there[address + size] = start + length - address - size
            return


def _free_pieces(segments: Segments, address: Int64, taken: Int64) -> Pieces:
    """Free pieces of the segments, between blocks. Blocks outside all segments (of a damaged snapshot) are ignored."""
    order = np.argsort(segments.address, kind="stable")
    start, stop = segments.address[order], (segments.address + segments.size)[order]
    by_address = np.argsort(address, kind="stable")
    since, end = address[by_address], (address + taken)[by_address]
    home = np.searchsorted(start, since, side="right") - 1
    inside = (home >= 0) & (since < stop[np.maximum(home, 0)]) if len(start) else np.zeros(len(since), bool)
    since, end, home = since[inside], end[inside], home[inside]
    used = np.zeros(len(start), bool)
    used[home] = True
    # Each segment's start, and each block's end, starts a gap that reaches to the next block, or to the segment's end.
    segment = np.concatenate((np.arange(len(start)), home))
    gap_start = np.concatenate((start, np.minimum(end, stop[home])))
    rank = np.lexsort((gap_start, segment))
    segment, gap_start = segment[rank], gap_start[rank]
    place = np.cumsum(rank >= len(start))
    gap_end = stop[segment].copy()
    if len(since):
        nearest = np.minimum(place, len(since) - 1)
        same = (place < len(since)) & (home[nearest] == segment)
        gap_end[same] = since[nearest[same]]
    size = np.maximum(0, gap_end - gap_start)
    kept = size > 0
    return Pieces(order[segment[kept]], size[kept], ~used[segment[kept]])


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Line:
    """Memory held by one line of code. source: None if no Python frame was recorded. blocks: number of allocations."""

    owner: Owner
    source: SourceLine | None
    bytes: int
    blocks: int


@dataclass(frozen=True, slots=True)
class ModuleMemory:
    """Memory allocated in a module's calls and still held. path: names of the nested modules, from the outermost
    inwards, as torch's profiler numbers them: "Sequential_0/Linear_1"."""

    owner: Owner
    path: str
    bytes: int
    blocks: int


@dataclass(frozen=True, slots=True)
class MemoryBreakdown:
    """Memory at one instant, by owner. event: index of the event in the history, or BEFORE for the history's start.
    entries: bytes by owner, without empty ones; they sum to `reserved`. lines: memory by owner and line, the largest
    first. modules: memory by owner and module path, if a trace names modules.

    Raises ImbalanceError if an entry is negative or the entries do not sum to `reserved`, to the byte."""

    event: int
    reserved: int
    entries: tuple[tuple[Owner, int], ...]
    lines: tuple[Line, ...] = ()
    modules: tuple[ModuleMemory, ...] = ()

    def __post_init__(self) -> None:
        total = sum(size for _, size in self.entries)
        if total != self.reserved or any(size < 0 for _, size in self.entries):
            raise ImbalanceError(
                "memory-imbalance", f"The breakdown of {self.reserved} bytes sums to {total}: a bug of steptime."
            )

    def of(self, owner: Owner) -> int:
        return sum(size for found, size in self.entries if found is owner)

    @property
    def live(self) -> int:
        """Bytes held by tensors."""
        return sum(size for owner, size in self.entries if owner < Owner.AWAITING)


def breakdown_at(history: AllocationHistory, signs: Signs, owners: Codes, event: int) -> MemoryBreakdown:
    """Memory by owner right after an event. If a damaged history has more bytes alive than reserved, the live bytes
    replace the reserved ones."""
    lives = history.lives
    alive = alive_at(history, event)
    awaiting = (lives.died <= event) & (lives.released > event)
    sizes = {owner: int(lives.size[alive & (owners == owner)].sum()) for owner in Owner if owner < Owner.AWAITING}
    sizes[Owner.AWAITING] = int(lives.taken[awaiting].sum())
    sizes[Owner.ROUNDING] = int((lives.taken - lives.size)[alive].sum())
    taken = sum(sizes.values())
    reserved = max(int(history.reserved[event + 1]), taken)
    free, found = reserved - taken, free_at(history, event)
    fragments = min(free, int(found[1].size[~found[1].whole].sum())) if found is not None else 0
    sizes[Owner.FRAGMENTS], sizes[Owner.CACHED] = fragments, free - fragments
    entries = tuple((owner, size) for owner, size in sorted(sizes.items()) if size)
    lines = (Line(*label, *held) for label, held in _held(history, owners, alive, signs.line, None).items())
    modules = (
        ModuleMemory(*label, *held) for label, held in _held(history, owners, alive, signs.module_path, "").items()
    )
    return MemoryBreakdown(
        event,
        reserved,
        entries,
        tuple(sorted(lines, key=lambda line: (-line.bytes, line.owner))),
        tuple(sorted((use for use in modules if use.path), key=lambda use: (-use.bytes, use.owner, use.path))),
    )


def _held(
    history: AllocationHistory, owners: Codes, chosen: Bool, labels: Sequence[T], unnamed: T
) -> dict[tuple[Owner, T], tuple[int, int]]:
    """(bytes, blocks) of the chosen lives by owner and by the label of the stack that made them."""
    lives = history.lives
    rows = np.flatnonzero(chosen)
    key = owners[rows].astype(np.int64) << 32 | (lives.stack[rows].astype(np.int64) + 1)
    values, inverse, counts = np.unique(key, return_inverse=True, return_counts=True)
    sums = np.zeros(len(values), np.int64)
    np.add.at(sums, inverse, lives.size[rows])
    found: dict[tuple[Owner, T], tuple[int, int]] = {}
    for value, size, count in zip(values.tolist(), sums.tolist(), counts.tolist(), strict=True):
        stack = (value & 0xFFFFFFFF) - 1
        label = Owner(value >> 32), labels[stack] if stack >= 0 else unnamed
        bytes_, blocks = found.get(label, (0, 0))
        found[label] = bytes_ + size, blocks + count
    return found
