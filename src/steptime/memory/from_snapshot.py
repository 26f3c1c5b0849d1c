"""The lives in an allocator's snapshot: its history matched with what it holds at the end."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from steptime.arrays import Int8, Int64
from steptime.memory.history import BEFORE, Extents, Failure, History, Lives, SegmentEvents
from steptime.snapshots.snapshot import NO_STACK, Action, Events, Snapshot, State

ROUNDING = 512
"""Bytes: the CUDA caching allocator hands out multiples of it (kMinBlockSize, c10/cuda/CUDACachingAllocator.h)."""
LEAST_LIMIT = 1000
"""Events: nobody records fewer. A history of exactly a multiple of it, or of a power of two, is as long as it was
allowed to be (max_entries of torch.cuda.memory._record_memory_history, a ring)."""
Rows = Int64


def histories(snapshot: Snapshot) -> tuple[History, ...]:
    """One history for each device that holds memory or did anything, those with most memory first."""
    devices = {*snapshot.segments.device.tolist(), *np.unique(snapshot.events.device).tolist()}
    found = [_history(snapshot, device) for device in sorted(devices)]
    return tuple(sorted(found, key=lambda history: -int(history.reserved.max())))


def _history(snapshot: Snapshot, device: int) -> History:
    events = _of_device(snapshot.events, device)
    action = events.action
    segments = np.flatnonzero(snapshot.segments.device == device)
    extents = Extents(
        snapshot.segments.address[segments],
        snapshot.segments.size[segments],
        snapshot.segments.large[segments].astype(bool),
    )
    lives, disagreements = _lives(snapshot, events, segments)
    return History(
        device=f"GPU {device}",
        kind="snapshot",
        lives=lives,
        stacks=snapshot.stacks,
        time=events.time,
        stack=events.stack,
        reserved=_reserved(action, events.size, int(extents.size.sum())),
        complete=True,
        failures=_failures(events),
        extents=extents,
        segment_events=_segment_events(events),
        settings=snapshot.settings,
        cut=_cut(snapshot, lives, len(events), disagreements),
        problems=snapshot.problems,
    )


def _cut(snapshot: Snapshot, lives: Lives, events: int, disagreements: int) -> str:
    """What is missing of a history, and how that is known; "" where nothing is."""
    if snapshot.truncated:
        return "the file ends in the middle, so what came behind, and perhaps the peak, is not known"
    parts = []
    old = lives.born == BEFORE
    recorded = int((old & (lives.stack != NO_STACK)).sum())  # frames are kept only of what is made while it records
    full = events >= LEAST_LIMIT and (events % LEAST_LIMIT == 0 or events & (events - 1) == 0)
    if events and (recorded or (full and bool(old.any()))):
        known = f"{recorded} blocks were recorded before its first event" if recorded else f"it has {events:,} events"
        why = "max_entries was reached" if full else "max_entries was reached, or the history was cleared"
        parts.append(f"the history begins in the middle ({known}: {why}), and a peak before it is not known")
    if disagreements:
        parts.append(
            f"the history ends before the snapshot ({disagreements} blocks differ), and a peak behind it is not known"
        )
    return "; ".join(parts)


def _of_device(events: Events, device: int) -> Events:
    """The events of one device; without copies where there is only one."""
    mine = events.device == device
    if mine.all():
        return events
    return Events(**{field.name: getattr(events, field.name)[mine] for field in fields(Events)})


def _reserved(action: Int8, size: Int64, at_end: int) -> Int64:
    """Backwards from the end, where it is known."""
    grows = (action == Action.SEGMENT_ALLOC) | (action == Action.SEGMENT_MAP)
    shrinks = (action == Action.SEGMENT_FREE) | (action == Action.SEGMENT_UNMAP)
    reserved = np.zeros(len(size) + 1, np.int64)
    np.cumsum(np.where(grows, size, np.where(shrinks, -size, 0)), out=reserved[1:])
    reserved += at_end - reserved[-1]
    return reserved


def _segment_events(events: Events) -> SegmentEvents:
    index = np.flatnonzero((events.action >= Action.SEGMENT_ALLOC) & (events.action <= Action.SEGMENT_UNMAP))
    return SegmentEvents(index, events.action[index], events.address[index], events.size[index])


def _failures(events: Events) -> tuple[Failure, ...]:
    failed = np.flatnonzero(events.action == Action.OUT_OF_MEMORY)
    columns = (failed, events.size[failed], events.address[failed], events.stack[failed])
    return tuple(Failure(*values) for values in zip(*(column.tolist() for column in columns), strict=True))


def _by_address(events: Events) -> Int64:
    """Events of blocks, by address and in the order of time."""
    mine = np.flatnonzero((events.action >= Action.ALLOC) & (events.action <= Action.FREE_COMPLETED))
    return mine[np.argsort(events.address[mine], kind="stable")]


def _lives(snapshot: Snapshot, events: Events, segments: Rows) -> tuple[Lives, int]:
    """The lives on one device, and how many blocks the history and the segments tell differently.

    Events of one address follow each other as alloc, free requested, free completed; sorted by address and time, each
    life is up to three neighbours.
    """
    count, order = len(events), _by_address(events)
    address, kind = events.address[order], events.action[order]
    first = np.ones(len(order), bool)  # the first event of a life
    first[1:] = (address[1:] != address[:-1]) | (kind[1:] <= kind[:-1])
    starts = np.flatnonzero(first)
    life = np.cumsum(first, dtype=np.int32) - 1
    del address
    begun = kind[starts] == Action.ALLOC
    born = np.where(begun, order[starts], BEFORE)
    freed = np.flatnonzero(kind != Action.ALLOC)
    died = np.full(len(starts), count, np.int64)
    np.minimum.at(died, life[freed], order[freed])
    completed = np.flatnonzero(kind == Action.FREE_COMPLETED)
    released = np.full(len(starts), count, np.int64)
    released[life[completed]] = order[completed]
    ended = died < count
    ended_by = np.full(len(starts), NO_STACK, np.int32)
    ended_by[ended] = events.stack[died[ended]]
    at_start = order[starts]
    del order, life, kind, first, freed, completed, ended
    size = events.size[at_start]
    lives = Lives(
        born=born,
        died=died,
        released=np.maximum(released, died),
        size=size,
        taken=-(-size // ROUNDING) * ROUNDING,
        address=events.address[at_start],
        stack=np.where(begun, events.stack[at_start], NO_STACK).astype(np.int32),
        ended_by=ended_by,
    )
    return _with_blocks(snapshot, lives, segments, count)


def _with_blocks(snapshot: Snapshot, lives: Lives, segments: Rows, count: int) -> tuple[Lives, int]:
    """Adds what lived all the time, which no event tells, and takes sizes and stacks from what is there at the end."""
    blocks = snapshot.blocks
    there = np.flatnonzero((blocks.state != State.INACTIVE) & np.isin(blocks.segment, segments))
    block_at = dict(zip(blocks.address[there].tolist(), there.tolist(), strict=True))
    alive = np.flatnonzero(lives.released == count)
    matched = [block_at.pop(address, -1) for address in lives.address[alive].tolist()]
    rows = np.array(matched, np.int64)
    known = rows >= 0
    taken = lives.taken.copy()
    taken[alive[known]] = blocks.size[rows[known]]
    rest = np.array(sorted(block_at.values()), np.int64)
    held = blocks.state[rest] == State.ALLOCATED
    joined = Lives(
        born=_joined(lives.born, np.full(len(rest), BEFORE)),
        died=_joined(lives.died, np.where(held, count, BEFORE)),
        released=_joined(lives.released, np.full(len(rest), count)),
        size=_joined(lives.size, blocks.requested[rest]),
        taken=_joined(taken, blocks.size[rest]),
        address=_joined(lives.address, blocks.address[rest]),
        stack=np.concatenate((lives.stack, blocks.stack[rest])).astype(np.int32),
        ended_by=np.concatenate((lives.ended_by, np.full(len(rest), NO_STACK))).astype(np.int32),
    )
    return joined, int((~known).sum())


def _joined(one: Int64, other: Int64) -> Int64:
    return np.concatenate((one, other)).astype(np.int64)
