"""The lives in the memory events of a trace: torch's profiler with profile_memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from steptime.arrays import Bool, Int32, Int64
from steptime.kineto.allocations import UNKNOWN, AllocationEvents
from steptime.kineto.table import HOST_CATEGORIES, Trace
from steptime.links.frames import source_line
from steptime.memory.history import BEFORE, CPU_PLACE, History, Lives
from steptime.nesting import ROOT, innermost_at, nest, stretches
from steptime.quantities import SourceLine
from steptime.snapshots.snapshot import NO_STACK, Stacks

CPU = 0
"""c10::DeviceType::CPU."""


def histories_of_trace(trace: Trace, found: AllocationEvents, borders: Int64, how: str) -> tuple[History, ...]:
    """One history for each device of a trace, the one with most memory first. borders: (n, 2) ns of the steps on the
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
            histories.append(_history(found, rows, device, (time, stack, stacks), (borders, how)))
    return tuple(sorted(histories, key=lambda history: -int(history.reserved.max())))


def _history(
    found: AllocationEvents,
    rows: npt.NDArray[np.intp],
    device: str,
    stamped: tuple[Int64, Int32, Stacks],
    steps: tuple[Int64, str],
) -> History:
    time, stack, stacks = stamped
    times, size, totals = time[rows], found.bytes[rows], found.allocated[rows]
    lives = _lives(found.address[rows], size, stack[rows])
    base = _before(lives, totals, size) if device != CPU_PLACE else 0
    held = np.maximum(found.reserved[rows], totals)
    first = held[0] - size[0] if held[0] == totals[0] else held[0]
    ends = np.searchsorted(times, steps[0][:, 1], side="right") - 1
    inside = (ends >= 0) & (ends < len(rows) - 1)
    return History(
        device=device,
        kind="trace",
        lives=_with_base(lives, base, len(rows)) if base > 0 else lives,
        stacks=stacks,
        time=times,
        stack=stack[rows],
        reserved=np.maximum(np.concatenate(([max(0, int(first))], held)), 0).astype(np.int64),
        complete=False,
        borders=tuple(np.unique(ends[inside]).tolist()),
        border_source=steps[1],
    )


def _lives(address: Int64, size: Int64, stack: Int32) -> Lives:
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
    host = np.isin(events.category, HOST_CATEGORIES)
    for lane in np.unique(events.lane[host]).tolist():
        mine = _of_lane(trace, found, lane)
        if not mine.any():
            continue
        rows = np.flatnonzero(host & (events.lane == lane))
        made = nest(events.begin[rows], events.end[rows])
        inner = innermost_at(stretches(made), time[mine])
        names = events.name[rows][made.order].tolist()
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
