"""The lives of allocations: from an allocator's snapshot, or from the memory events of a trace."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from steptime.analysis.memory_samples import CPU_PLACE
from steptime.arrays import Bool, Int8, Int32, Int64
from steptime.memory.snapshot import NO_STACK, Action, Events, Snapshot, Stacks, State
from steptime.quantities import SourceLine
from steptime.trace.arguments import UNKNOWN, AllocationEvents
from steptime.trace.call_tree import ROOT, call_tree, innermost_at
from steptime.trace.links import source_line
from steptime.trace.table import HOST_CATEGORIES, Trace

BEFORE = -1
"""Born before the history begins."""


@dataclass(frozen=True, slots=True, eq=False)
class Lives:
    """One row for each allocation. Columns of one length, read-only.

    born, died: indexes of events; BEFORE, and the number of events for what lives on. released: event at which its
    memory could be used again (>= died: another stream may have used it). size: bytes asked for; taken: bytes that the
    allocator gave for it (exact where the block was still there at the end, else rounded up to ROUNDING).
    stack: of the allocation; ended_by: of what freed it. NO_STACK where nothing was recorded.
    """

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
    """A request that failed. event: its index. asked: bytes; free: bytes that the driver had left, None where unknown.
    stack: of the request."""

    event: int
    asked: int
    free: int | None
    stack: int


@dataclass(frozen=True, slots=True, eq=False)
class Extents:
    """Segments of the allocator at one instant: address and size in bytes."""

    address: Int64
    size: Int64
    large: Bool


@dataclass(frozen=True, slots=True, eq=False)
class SegmentEvents:
    """What the driver gave and took. event: index in the history; action: `snapshots.snapshot.Action`."""

    event: Int64
    action: Int8
    address: Int64
    size: Int64


@dataclass(frozen=True, slots=True, eq=False)
class AllocationHistory:
    """What happened on one device. kind: "snapshot" or "trace".

    time: ns of each event, 0 where unknown. stack: of each event. reserved: (events + 1,) bytes that the process held
    before the first event and after each. complete: every live byte is known (an allocator's snapshot), not only those
    that were handed out while somebody looked (a trace). extents: the segments at the end, None for a trace.
    boundaries: indexes of the events that are the first of a new step. border_source: what they were found from.
    cut: what is missing at one of its ends, a clause; "" where it is whole.
    """

    device: str
    kind: str
    lives: Lives
    stacks: Stacks
    time: Int64
    stack: Int32
    reserved: Int64
    complete: bool
    failures: tuple[Failure, ...] = ()
    extents: Extents | None = None
    segment_events: SegmentEvents | None = None
    boundaries: tuple[int, ...] = ()
    boundary_source: str = ""
    settings: tuple[tuple[str, str], ...] = ()
    cut: str = ""
    problems: tuple[str, ...] = ()

    @property
    def events(self) -> int:
        """Number of events."""
        return len(self.time)


def allocated(history: AllocationHistory, chosen: Bool | None = None) -> Int64:
    """(events + 1,) bytes asked for and not yet freed, before the first event and after each; of all lives or some."""
    return summed(history, history.lives.size if chosen is None else np.where(chosen, history.lives.size, 0))


def summed(history: AllocationHistory, size: Int64) -> Int64:
    """The same of sizes that are given, one for each life."""
    lives, count = history.lives, history.events
    change = np.zeros(count + 2, np.int64)
    np.add.at(change, lives.born + 1, size)
    np.subtract.at(change, np.minimum(lives.died + 1, count + 1), size)
    return np.cumsum(change[: count + 1])


def alive_at(history: AllocationHistory, event: int) -> Bool:
    """The lives that had memory right after an event (BEFORE: before the first)."""
    lives = history.lives
    alive: Bool = (lives.born <= event) & (lives.died > event)
    return alive


ROUNDING = 512
"""Bytes: the CUDA caching allocator hands out multiples of it (kMinBlockSize, c10/cuda/CUDACachingAllocator.h)."""
LEAST_LIMIT = 1000
"""Events: nobody records fewer. A history of exactly a multiple of it, or of a power of two, is as long as it was
allowed to be (max_entries of torch.cuda.memory._record_memory_history, a ring)."""
Rows = Int64


def histories(snapshot: Snapshot) -> tuple[AllocationHistory, ...]:
    """One history for each device that holds memory or did anything, those with most memory first."""
    devices = {*snapshot.segments.device.tolist(), *np.unique(snapshot.events.device).tolist()}
    found = [_history_from_snapshot(snapshot, device) for device in sorted(devices)]
    return tuple(sorted(found, key=lambda history: -int(history.reserved.max())))


def _history_from_snapshot(snapshot: Snapshot, device: int) -> AllocationHistory:
    events = _of_device(snapshot.events, device)
    action = events.action
    segments = np.flatnonzero(snapshot.segments.device == device)
    extents = Extents(
        snapshot.segments.address[segments],
        snapshot.segments.size[segments],
        snapshot.segments.large[segments].astype(bool),
    )
    lives, disagreements = _lives_from_snapshot(snapshot, events, segments)
    return AllocationHistory(
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


def _lives_from_snapshot(snapshot: Snapshot, events: Events, segments: Rows) -> tuple[Lives, int]:
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


CPU = 0
"""c10::DeviceType::CPU."""


def histories_of_trace(
    trace: Trace, found: AllocationEvents, boundaries: Int64, how: str
) -> tuple[AllocationHistory, ...]:
    """One history for each device of a trace, the one with most memory first. boundaries: (n, 2) ns of the steps on the
    host, and what they were found by. Devices whose events have no addresses are left out."""
    time = found.time + trace.base_ns
    stack, stacks = _stacks(trace, found, time)
    devices = np.unique(np.stack((found.device_type, found.device), axis=1), axis=0).tolist()
    histories = []
    for kind, number in devices:
        rows = np.flatnonzero((found.device_type == kind) & (found.device == number) & (found.address != UNKNOWN))
        rows = rows[np.argsort(time[rows], kind="stable")]
        if len(rows):
            device = CPU_PLACE if kind == CPU else f"GPU {number}"
            histories.append(_history_from_trace(found, rows, device, (time, stack, stacks), (boundaries, how)))
    return tuple(sorted(histories, key=lambda history: -int(history.reserved.max())))


def _history_from_trace(
    found: AllocationEvents,
    rows: npt.NDArray[np.intp],
    device: str,
    stamped: tuple[Int64, Int32, Stacks],
    steps: tuple[Int64, str],
) -> AllocationHistory:
    time, stack, stacks = stamped
    times, size, totals = time[rows], found.bytes[rows], found.allocated[rows]
    lives = _lives_from_trace(found.address[rows], size, stack[rows])
    base = _before(lives, totals, size) if device != CPU_PLACE else 0
    held = np.maximum(found.reserved[rows], totals)
    first = held[0] - size[0] if held[0] == totals[0] else held[0]
    ends = np.searchsorted(times, steps[0][:, 1], side="right") - 1
    inside = (ends >= 0) & (ends < len(rows) - 1)
    return AllocationHistory(
        device=device,
        kind="trace",
        lives=_with_base(lives, base, len(rows)) if base > 0 else lives,
        stacks=stacks,
        time=times,
        stack=stack[rows],
        reserved=np.maximum(np.concatenate(([max(0, int(first))], held)), 0).astype(np.int64),
        complete=False,
        boundaries=tuple(np.unique(ends[inside]).tolist()),
        boundary_source=steps[1],
    )


def _lives_from_trace(address: Int64, size: Int64, stack: Int32) -> Lives:
    """Allocations and the frees of the same address that follow them."""
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


def _before(lives: Lives, totals: Int64, size: Int64) -> int:
    """Bytes that were there before, and stay: of the total before the first event, what no event frees."""
    freed_later = int(lives.size[lives.born == BEFORE].sum())
    return max(0, int(totals[0] - size[0]) - freed_later)


def _with_base(lives: Lives, size: int, count: int) -> Lives:
    """One more life for all that was there before and stays."""
    extra = {"born": BEFORE, "died": count, "released": count, "size": size, "taken": size, "address": 0,
             "stack": NO_STACK, "ended_by": NO_STACK}  # fmt: skip
    columns = {name: getattr(lives, name) for name in extra}
    return Lives(**{name: np.append(column, np.asarray(extra[name], column.dtype)) for name, column in columns.items()})


class _Interner:
    """Call stacks, each once, from their outermost frame inwards."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}
        self._parts: list[tuple[int, int]] = []

    def number(self, outer: int, symbol: int) -> int:
        key = (outer, symbol)
        known = self._numbers.get(key)
        if known is None:
            known = self._numbers[key] = len(self._parts)
            self._parts.append(key)
        return known

    def stacks(self, symbols: tuple[str, ...], entered: frozenset[int]) -> Stacks:
        """Innermost first. A function that is none of Python's has neither file nor line. entered: symbols of functions
        that were running when the recording began: the line in their name is where they stood then, often the last one
        of the training loop, and says nothing of what they did later."""
        members, begin = [], [0]
        for stack in range(len(self._parts)):
            while stack != NO_STACK:
                stack, symbol = self._parts[stack]
                members.append(symbol)
            begin.append(len(members))
        frames = tuple(_frame(symbol, number in entered) for number, symbol in enumerate(symbols))
        return Stacks(frames, np.array(begin, np.int64), np.array(members, np.int32), definitions=True)


def _frame(symbol: str, entered: bool) -> SourceLine:
    found = source_line(symbol)
    if found is None:
        return SourceLine("", 0, symbol)
    return SourceLine(found.file, 0, found.function) if entered else found


def _stacks(trace: Trace, found: AllocationEvents, time: Int64) -> tuple[Int32, Stacks]:
    """The stack of each memory event: what enclosed it on its thread, Python functions and operators alike."""
    events, interner = trace.events, _Interner()
    entered: set[int] = set()
    stack = np.full(len(found), NO_STACK, np.int32)
    host = np.isin(events.event_kind, HOST_CATEGORIES)
    for lane in np.unique(events.lane[host]).tolist():
        mine = _of_lane(trace, found, lane)
        if not mine.any():
            continue
        rows = np.flatnonzero(host & (events.lane == lane))
        made = call_tree(events.begin[rows], events.end[rows])
        inner = innermost_at(made, time[mine])
        names = events.name[rows][made.rows].tolist()
        stack[mine] = _numbers(interner, inner, made.parent.tolist(), names)
        entered |= _running_at_first(made.parent.tolist(), names)
    return stack, interner.stacks(trace.symbols, frozenset(entered))


def _running_at_first(parent: list[int], names: list[int]) -> set[int]:
    """The names of the first event of a thread, of the first inside it, and so on: when torch begins to record, it
    enters everything that runs, down to its own call that began the recording."""
    chain = set(names[:1])
    for index in range(1, len(parent)):
        if parent[index] != index - 1:
            break
        chain.add(names[index])
    return chain


def _of_lane(trace: Trace, found: AllocationEvents, lane: int) -> Bool:
    named = trace.lanes[lane]
    if not isinstance(named.thread, int):
        return np.zeros(len(found), np.bool_)
    mine: Bool = found.thread == named.thread
    return mine & (found.process == named.process) if isinstance(named.process, int) else mine


def _numbers(interner: _Interner, inner: Int64, parent: list[int], names: list[int]) -> Int32:
    known: dict[int, int] = {ROOT: NO_STACK}

    def number(index: int) -> int:
        chain = []
        while index not in known:
            chain.append(index)
            index = parent[index]
        for each in reversed(chain):
            known[each] = interner.number(known[parent[each]], names[each])
        return known[chain[0]] if chain else known[index]

    return np.array([number(index) for index in inner.tolist()], np.int32)
