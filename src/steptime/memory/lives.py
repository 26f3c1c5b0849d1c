"""Lives of allocations, from an allocator's snapshot or from the memory events of a trace."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import numpy as np

from steptime.analysis.memory_samples import CPU_PLACE
from steptime.arrays import Bool, Int32, Int64, unique
from steptime.memory.snapshot import NO_STACK, Action, Events, Segments, Snapshot, Stacks, State, selected
from steptime.quantities import SourceLine
from steptime.trace.call_tree import ROOT, call_tree, innermost_at
from steptime.trace.links import source_line
from steptime.trace.table import HOST_CATEGORIES, UNSAID, AllocationEvents, Trace

BEFORE = -1
"""Birth of an allocation from before the history."""
ROUNDING = 512
"""Granularity of the CUDA caching allocator, bytes (kMinBlockSize, c10/cuda/CUDACachingAllocator.h)."""
LEAST_LIMIT = 1000
"""Smallest plausible limit of a history, events. A history of exactly a multiple of it, or of a power of two, has
probably reached its limit (max_entries of torch.cuda.memory._record_memory_history, a ring)."""
CPU = 0
"""Value of c10::DeviceType::CPU."""


@dataclass(frozen=True, slots=True, eq=False)
class Lives:
    """Allocations, one row each. Columns of one length, read-only. born, died: indices of the events that allocate and
    free the memory; BEFORE if it existed at the start, the number of events if it is never freed. released: event at
    which its memory became reusable (>= died: another stream may have used it). size: bytes requested; taken: bytes
    that the allocator used for it (exact if the block existed at the end, else rounded up to ROUNDING). stack: call
    stack of the allocation; ended_by: call stack of the free; NO_STACK if not recorded."""

    born: Int64
    died: Int64
    released: Int64
    size: Int64
    taken: Int64
    address: Int64
    stack: Int32
    ended_by: Int32

    def __len__(self) -> int:
        return len(self.born)


@dataclass(frozen=True, slots=True)
class Failure:
    """A request for memory that failed. event: index of the request in the history. asked: bytes requested; free: bytes
    that the driver had left, None if unknown. stack: call stack of the request."""

    event: int
    asked: int
    free: int | None
    stack: int


@dataclass(frozen=True, slots=True, eq=False)
class AllocationHistory:
    """History of allocations on one device. kind: "snapshot" (every live byte is known) or "trace" (only allocations
    during the recording). time: time of each event, ns, 0 if unknown. stack: call stack of each event. reserved: bytes
    that the process held before the first event and after each, (events + 1,). segments: segments at the end, None for
    a trace. segment_events: allocations and frees by the driver; segment_event_index: their indices among all events.
    boundaries: index of the last event of each step, boundary_source: how the boundaries were found, in words. cut:
    clause on what is missing, or ""."""

    device: str
    kind: str
    lives: Lives
    stacks: Stacks
    time: Int64
    stack: Int32
    reserved: Int64
    failures: tuple[Failure, ...] = ()
    segments: Segments | None = None
    segment_events: Events | None = None
    segment_event_index: Int64 = field(default_factory=lambda: np.zeros(0, np.int64))
    boundaries: tuple[int, ...] = ()
    boundary_source: str = ""
    settings: tuple[tuple[str, str], ...] = ()
    cut: str = ""
    problems: tuple[str, ...] = ()

    @property
    def events(self) -> int:
        return len(self.time)


def allocated(history: AllocationHistory, chosen: Bool | None = None) -> Int64:
    """Bytes requested and not yet freed, before the first event and after each event, (events + 1,). chosen: mask of
    the lives to count; all by default."""
    return summed(history, history.lives.size if chosen is None else np.where(chosen, history.lives.size, 0))


def summed(history: AllocationHistory, size: Int64) -> Int64:
    """Bytes alive before the first event and after each, as in `allocated`, with a given size for each life."""
    lives, count = history.lives, history.events
    change = np.zeros(count + 2, np.int64)
    np.add.at(change, lives.born + 1, size)
    np.subtract.at(change, np.minimum(lives.died + 1, count + 1), size)
    return np.cumsum(change[: count + 1])


def alive_at(history: AllocationHistory, event: int) -> Bool:
    """Mask of the lives that held memory right after an event; BEFORE is the time before the first event."""
    lives = history.lives
    alive: Bool = (lives.born <= event) & (lives.died > event)
    return alive


def histories(snapshot: Snapshot) -> tuple[AllocationHistory, ...]:
    """Allocation history of each device that holds memory or has events, the one with the most memory first."""
    devices = {*snapshot.segments.device.tolist(), *unique(snapshot.events.device).tolist()}
    return _most_first([_history_from_snapshot(snapshot, device) for device in sorted(devices)])


def _most_first(found: list[AllocationHistory]) -> tuple[AllocationHistory, ...]:
    return tuple(sorted(found, key=lambda history: -int(history.reserved.max())))


def _history_from_snapshot(snapshot: Snapshot, device: int) -> AllocationHistory:
    events = selected(snapshot.events, snapshot.events.device == device)
    segments = snapshot.segments.device == device
    at_end = selected(snapshot.segments, segments)
    lives, disagreements = _lives_from_snapshot(snapshot, events, np.flatnonzero(segments))
    of_segments = (events.action >= Action.SEGMENT_ALLOC) & (events.action <= Action.SEGMENT_UNMAP)
    failed = selected(events, events.action == Action.OUT_OF_MEMORY)
    failures = (np.flatnonzero(events.action == Action.OUT_OF_MEMORY), failed.size, failed.address, failed.stack)
    return AllocationHistory(
        device=f"GPU {device}",
        kind="snapshot",
        lives=lives,
        stacks=snapshot.stacks,
        time=events.time,
        stack=events.stack,
        reserved=_reserved(events, int(at_end.size.sum())),
        failures=tuple(Failure(*values) for values in zip(*(column.tolist() for column in failures), strict=True)),
        segments=at_end,
        segment_events=selected(events, of_segments),
        segment_event_index=np.flatnonzero(of_segments),
        settings=snapshot.settings,
        cut=_cut(snapshot, lives, len(events), disagreements),
        problems=snapshot.problems,
    )


def _cut(snapshot: Snapshot, lives: Lives, events: int, disagreements: int) -> str:
    """Clause on the missing part of a history and how it is known; "" if it is complete."""
    if snapshot.truncated:
        return "the file is cut short, so later events, and perhaps the peak, are missing"
    parts = []
    old = lives.born == BEFORE
    recorded = int((old & (lives.stack != NO_STACK)).sum())  # frames are kept only of what is made while it records
    full = events >= LEAST_LIMIT and (events % LEAST_LIMIT == 0 or events & (events - 1) == 0)
    if events and (recorded or (full and bool(old.any()))):
        known = f"{recorded} blocks were recorded before its first event" if recorded else f"it has {events:,} events"
        why = "max_entries was reached" if full else "max_entries was reached, or the history was cleared"
        parts.append(f"the history starts late ({known}: {why}), so an earlier peak is unknown")
    if disagreements:
        parts.append(
            f"the history ends before the snapshot ({disagreements} blocks differ), so a later peak is unknown"
        )
    return "; ".join(parts)


def _reserved(events: Events, at_end: int) -> Int64:
    """Reserved bytes before and after each event, computed backwards from the end, where they are known."""
    grows = np.isin(events.action, (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP))
    shrinks = np.isin(events.action, (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP))
    reserved = np.zeros(len(events) + 1, np.int64)
    np.cumsum(np.where(grows, events.size, np.where(shrinks, -events.size, 0)), out=reserved[1:])
    reserved += at_end - reserved[-1]
    return reserved


def _lives_from_snapshot(snapshot: Snapshot, events: Events, segments: Int64) -> tuple[Lives, int]:
    """(lives on one device, number of blocks on which history and segments disagree).

    Events of one address follow each other as alloc, free requested, free completed; sorted by address and time, each
    life is up to three neighbours."""
    count = len(events)
    order = np.flatnonzero((events.action >= Action.ALLOC) & (events.action <= Action.FREE_COMPLETED))
    order = order[np.argsort(events.address[order], kind="stable")]
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


def _with_blocks(snapshot: Snapshot, lives: Lives, segments: Int64, count: int) -> tuple[Lives, int]:
    """Adds allocations that lived all the time, without events, and takes sizes and stacks from the blocks at the end.
    Returns also the number of disagreements."""
    blocks = snapshot.blocks
    there = np.flatnonzero((blocks.state != State.INACTIVE) & np.isin(blocks.segment, segments))
    block_at = dict(zip(blocks.address[there].tolist(), there.tolist(), strict=True))
    alive = np.flatnonzero(lives.released == count)
    rows = np.array([block_at.pop(address, -1) for address in lives.address[alive].tolist()], np.int64)
    known = rows >= 0
    lives.taken[alive[known]] = blocks.size[rows[known]]
    rest = np.array(sorted(block_at.values()), np.int64)
    others = Lives(
        born=np.full(len(rest), BEFORE),
        died=np.where(blocks.state[rest] == State.ALLOCATED, count, BEFORE),
        released=np.full(len(rest), count),
        size=blocks.requested[rest],
        taken=blocks.size[rest],
        address=blocks.address[rest],
        stack=blocks.stack[rest],
        ended_by=np.full(len(rest), NO_STACK, np.int32),
    )
    return _joined(lives, others), int((~known).sum())


def _joined(one: Lives, other: Lives) -> Lives:
    names = [column.name for column in fields(Lives)]
    return Lives(**{name: np.concatenate((getattr(one, name), getattr(other, name))) for name in names})


def histories_of_trace(trace: Trace, boundaries: Int64, how: str) -> tuple[AllocationHistory, ...]:
    """Allocation history of each device in a trace, the one with the most memory first. boundaries: steps on the CPU,
    (n, 2), ns; how: source of the boundaries, in words. Devices whose events have no addresses are left out."""
    found = trace.allocations
    time = found.time.astype(np.int64) + trace.base_ns
    stack, stacks = _stacks(trace, found, time)
    known = found.address != UNSAID
    devices = np.unique(np.stack((found.device_type, found.device), axis=1)[known], axis=0).tolist()
    histories = []
    for kind, number in devices:
        rows = np.flatnonzero((found.device_type == kind) & (found.device == number) & known)
        rows = rows[np.argsort(time[rows], kind="stable")]
        columns = (found.address, found.bytes, found.allocated, found.reserved)
        address, size, totals, reserved = (column[rows].astype(np.int64) for column in columns)
        lives, times = _lives_from_trace(address, size, stack[rows]), time[rows]
        freed_later = int(lives.size[lives.born == BEFORE].sum())
        before = int(totals[0] - size[0]) - freed_later
        if kind != CPU and before > 0:
            never, nowhere, held = np.array([len(rows)]), np.array([NO_STACK], np.int32), np.array([before])
            unseen = Lives(np.array([BEFORE]), never, never, held, held, np.array([0]), nowhere, nowhere)
            lives = _joined(lives, unseen)  # one life for what was there before, and no event frees
        held = np.maximum(reserved, totals)
        first = held[0] - size[0] if held[0] == totals[0] else held[0]
        ends = np.searchsorted(times, boundaries[:, 1], side="right") - 1
        histories.append(
            AllocationHistory(
                device=CPU_PLACE if kind == CPU else f"GPU {number}",
                kind="trace",
                lives=lives,
                stacks=stacks,
                time=times,
                stack=stack[rows],
                reserved=np.maximum(np.concatenate(([first], held)), 0).astype(np.int64),
                boundaries=tuple(unique(ends[(ends >= 0) & (ends < len(rows) - 1)]).tolist()),
                boundary_source=how,
            )
        )
    return _most_first(histories)


def _lives_from_trace(address: Int64, size: Int64, stack: Int32) -> Lives:
    """Lives from allocations and the frees that follow at the same address."""
    count = len(address)
    order = np.lexsort((np.arange(count), address))
    sorted_address, sorted_size = address[order], size[order]
    first = np.ones(count, bool)
    first[1:] = (sorted_address[1:] != sorted_address[:-1]) | (sorted_size[1:] > 0) | (sorted_size[:-1] < 0)
    starts = np.flatnonzero(first)
    begun = sorted_size[starts] > 0
    following = np.append(starts[1:], count)
    has_end = following - starts > 1
    died = np.where(has_end, order[np.minimum(starts + 1, count - 1)], count)
    died = np.where(begun, died, order[starts])
    rows = order[starts]
    ended_by = np.full(len(starts), NO_STACK, np.int32)
    ended = died < count
    ended_by[ended] = stack[died[ended]]
    bytes_ = np.abs(size[rows])
    return Lives(
        born=np.where(begun, rows, BEFORE).astype(np.int64),
        died=died.astype(np.int64),
        released=died.astype(np.int64),
        size=bytes_,
        taken=bytes_,
        address=address[rows],
        stack=np.where(begun, stack[rows], NO_STACK).astype(np.int32),
        ended_by=ended_by,
    )


def _stacks(trace: Trace, found: AllocationEvents, time: Int64) -> tuple[Int32, Stacks]:
    """(stack of each memory event, all stacks): what enclosed the event on its thread, Python functions and operators
    alike.

    A frame that is no Python function has neither file nor line. If a function was already running when the recording
    started, the line in its name is from that moment and is dropped."""
    events = trace.events
    numbers: dict[tuple[int, int], int] = {}  # of a stack, by that of its callers and its innermost symbol
    entered: set[int] = set()
    stack = np.full(len(found), NO_STACK, np.int32)
    host = np.isin(events.event_kind, HOST_CATEGORIES)
    for track in unique(events.track[host]).tolist():
        mine = _of_track(trace, found, track)
        if not mine.any():
            continue
        rows = np.flatnonzero(host & (events.track == track))
        made = call_tree(events.start[rows], events.ends(rows))
        parent, names = made.parent.tolist(), events.name[rows][made.rows].tolist()
        stack[mine] = _numbered(innermost_at(made, time[mine]), parent, names, numbers)
        entered |= _running_at_first(parent, names)
    members, start = [], [0]
    parts = list(numbers)
    for number in range(len(parts)):
        while number != NO_STACK:
            number, symbol = parts[number]
            members.append(symbol)
        start.append(len(members))
    frames = tuple(_frame(symbol, number in entered) for number, symbol in enumerate(trace.symbols))
    return stack, Stacks(frames, np.array(start, np.int64), np.array(members, np.int32), definitions=True)


def _frame(symbol: str, entered: bool) -> SourceLine:
    found = source_line(symbol)
    if found is None:
        return SourceLine("", 0, symbol)
    return SourceLine(found.file, 0, found.function) if entered else found


def _running_at_first(parent: list[int], names: list[int]) -> set[int]:
    """Names of a thread's first event, the first inside it, and so on. When torch starts to record, it enters all
    running functions, down to its own call that started the recording."""
    chain = set(names[:1])
    for index in range(1, len(parent)):
        if parent[index] != index - 1:
            break
        chain.add(names[index])
    return chain


def _of_track(trace: Trace, found: AllocationEvents, track: int) -> Bool:
    named = trace.tracks[track]
    if not isinstance(named.thread, int):
        return np.zeros(len(found), np.bool_)
    mine: Bool = found.thread == named.thread
    return mine & (found.process == named.process) if isinstance(named.process, int) else mine


def _numbered(inner: Int64, parent: list[int], names: list[int], numbers: dict[tuple[int, int], int]) -> Int32:
    """Number of the stack that ends with each of the innermost events."""
    known: dict[int, int] = {ROOT: NO_STACK}

    def number(index: int) -> int:
        chain = []
        while index not in known:
            chain.append(index)
            index = parent[index]
        for each in reversed(chain):
            known[each] = numbers.setdefault((known[parent[each]], names[each]), len(numbers))
        return known[chain[0]] if chain else known[index]

    return np.array([number(index) for index in inner.tolist()], np.int32)
