"""The segments at an instant, and what is free in them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from steptime.arrays import Bool, Int64
from steptime.memory.history import Extents, History
from steptime.snapshots.snapshot import Action


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Free stretches of segments: segment: row of the extents. whole: the segment holds nothing at all."""

    segment: Int64
    address: Int64
    size: Int64
    whole: Bool


def extents_at(history: History, event: int) -> Extents | None:
    """The segments right after an event: those at the end, with what the driver gave and took since undone, the latest
    first."""
    last = history.extents
    if last is None or history.segment_events is None:
        return last
    later = history.segment_events.event > event
    if not later.any():
        return last
    there = {address: (size, large) for address, size, large in zip(last.address.tolist(), last.size.tolist(),
                                                                    last.large.tolist(), strict=True)}  # fmt: skip
    changes = history.segment_events
    for row in np.flatnonzero(later)[::-1].tolist():
        action, address, size = int(changes.action[row]), int(changes.address[row]), int(changes.size[row])
        if action in (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP):
            there[address] = (size, True)
        elif action == Action.SEGMENT_ALLOC:
            there.pop(address, None)
        else:
            _cut(there, address, size)
    kept = sorted(there.items())
    return Extents(
        np.array([address for address, _ in kept], np.int64),
        np.array([size for _, (size, _) in kept], np.int64),
        np.array([large for _, (_, large) in kept], np.bool_),
    )


def _cut(there: dict[int, tuple[int, bool]], address: int, size: int) -> None:
    """Takes a mapped stretch out of the expandable segment that holds it."""
    for start, (length, large) in there.items():
        if start <= address and address + size <= start + length:
            del there[start]
            if address > start:
                there[start] = (address - start, large)
            if start + length > address + size:
                there[address + size] = (start + length - address - size, large)
            return


def free_pieces(extents: Extents, address: Int64, taken: Int64) -> Pieces:
    """What the given blocks leave free of the segments. Blocks outside all segments (of a damaged snapshot) count for
    nothing."""
    order = np.argsort(extents.address, kind="stable")
    start, stop = extents.address[order], (extents.address + extents.size)[order]
    by_address = np.argsort(address, kind="stable")
    begin, end = address[by_address], (address + taken)[by_address]
    home = np.searchsorted(start, begin, side="right") - 1
    inside = (home >= 0) & (begin < stop[np.maximum(home, 0)]) if len(start) else np.zeros(len(begin), bool)
    begin, end, home = begin[inside], end[inside], home[inside]
    used = np.zeros(len(start), bool)
    used[home] = True
    # each block's end, and each segment's begin, starts a gap that reaches to the next block, or to the segment's end
    segment = np.concatenate((np.arange(len(start)), home))
    gap_begin = np.concatenate((start, np.minimum(end, stop[home])))
    rank = np.lexsort((gap_begin, segment))
    segment, gap_begin = segment[rank], gap_begin[rank]
    following = np.append(begin, np.int64(0))
    place = np.cumsum(_is_block(rank, len(start)))
    gap_end = stop[segment].copy()
    if len(begin):
        nearest = np.minimum(place, len(begin) - 1)
        same = (place < len(begin)) & (home[nearest] == segment)
        gap_end[same] = following[nearest[same]]
    size = np.maximum(0, gap_end - gap_begin)
    kept = size > 0
    return Pieces(order[segment[kept]], gap_begin[kept], size[kept], ~used[segment[kept]])


def _is_block(rank: npt.NDArray[np.intp], segments: int) -> Int64:
    return (rank >= segments).astype(np.int64)
