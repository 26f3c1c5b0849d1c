"""The arguments of single events, read again from their file when somebody asks.

Reading a trace drops most of what events carry, which is worth a factor of three. What few events carry beyond (the
size of a collective, the file of a compiled kernel, the grid of a kernel) is fetched here in one more pass over the
bytes, which looks for nothing but the times of the wanted events: they are in the order of the table.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from steptime.arrays import Int32, Int64
from steptime.errors import TraceError
from steptime.trace.columns import as_nanoseconds
from steptime.trace.reader import DEFAULT_MAX_SIZE
from steptime.trace.source import TraceSource
from steptime.trace.table import ABSENT, Trace, Track

MOST = 1 << 16
"""Events of one request. Whoever wants more wants a column."""
BLOCK = 4 << 20
MARGIN = 256 << 10
"""Bytes before and behind a time that are in reach: an event is not longer."""
LOOK_AHEAD = 4
"""An event that is not found is given up when one of the next few is."""
ATTEMPTS = 8
BEGIN = re.compile(rb"(?:\}\s*,|\[)\s*(\{)")
"""Where an event can begin: behind another, or first in the list."""
DECODER = json.JSONDecoder(parse_float=Decimal)
Arguments = dict[str, Any]


def arguments_of(trace: Trace, rows: Int64 | Int32) -> tuple[Arguments | None, ...]:
    """The "args" of events, as JSON has them with decimals for fractions; {} where an event has none, None where it is
    not found (the file is gone or was changed, or the event was damaged). rows: positions in the table, any order.

    At most the first `MOST` of them in file order are looked for.
    """
    order = np.argsort(rows, kind="stable")
    found: list[Arguments | None] = [None] * len(rows)
    parts = trace.parts or ((trace.path, len(trace.events)),)
    first = 0
    for path, count in parts:
        mine = [at for at in order[:MOST].tolist() if first <= rows[at] < first + count]
        if mine:
            for at, arguments in zip(mine, _in_file(trace, path, [int(rows[at]) for at in mine]), strict=True):
                found[at] = arguments
        first += count
    return tuple(found)


def _in_file(trace: Trace, path: Path, rows: Sequence[int]) -> list[Arguments | None]:
    """In the order of rows, which is that of the file."""
    found: list[Arguments | None] = [None] * len(rows)
    wanted = [_Wanted(trace, row) for row in rows]
    at = 0
    try:
        with TraceSource(path, 1 << 62) as source:
            for text, start, stop in blocks_of(source):
                at = _take(text, start, stop, wanted, at, found)
                if at == len(wanted):
                    break
    except TraceError:
        pass
    return found


class _Wanted:
    """An event that is looked for. marker: how the file spells the microseconds of its time."""

    __slots__ = ("correlation", "duration", "lane", "marker", "name", "time")

    def __init__(self, trace: Trace, row: int) -> None:
        events = trace.events
        self.name = trace.symbols[events.name[row]]
        self.time = int(events.begin[row]) - trace.base_ns
        self.duration = int(events.duration[row])
        self.lane = trace.lanes[events.lane[row]]
        # Ids of a trace that was put together are not those of its files.
        self.correlation = ABSENT if trace.parts else int(events.correlation[row])
        self.marker = str(self.time // 1000).encode()

    def is_it(self, event: Arguments) -> bool:
        """Whether an event of the file is this one; events that agree in all of this are one to us."""
        arguments = event.get("args")
        correlation = arguments.get("correlation", ABSENT) if isinstance(arguments, dict) else ABSENT
        return (
            event.get("name") == self.name
            and as_nanoseconds(event.get("ts")) == self.time
            and max(0, as_nanoseconds(event.get("dur", 0)) or 0) == self.duration
            and Track(event.get("pid"), event.get("tid")) == self.lane
            and (self.correlation == ABSENT or str(correlation) == str(self.correlation))
        )


def blocks_of(source: TraceSource) -> Iterator[tuple[bytes, int, int]]:
    """Stretches of a file with, inside each, the range in which times are looked for: every byte is in one range, with
    the margin around it."""
    text, start = b"", 0
    buffer = bytearray(BLOCK)
    while True:
        with memoryview(buffer) as view:
            count = source.fill(view)
        text += buffer[:count]
        last = count < BLOCK
        stop = len(text) if last else max(start, len(text) - MARGIN)
        yield text, start, stop
        if last:
            return
        kept = max(0, stop - MARGIN)
        text, start = text[kept:], stop - kept


def _take(text: bytes, start: int, stop: int, wanted: Sequence[_Wanted], at: int, found: list[Arguments | None]) -> int:
    """Finds what lies in the range; returns the number of the first that is still to be looked for."""
    while at < len(wanted):
        for ahead in range(at, min(at + LOOK_AHEAD, len(wanted))):
            hit = _find(text, start, stop, wanted[ahead])
            if hit is not None:
                start, found[ahead] = hit
                at = ahead + 1
                break
        else:
            return at
    return at


def _find(text: bytes, start: int, stop: int, wanted: _Wanted) -> tuple[int, Arguments] | None:
    """The position behind the event's time and its arguments."""
    at = text.find(wanted.marker, start, stop + len(wanted.marker))
    while 0 <= at < stop:
        event = _event_around(text, at)
        if event is not None and wanted.is_it(event):
            arguments = event.get("args")
            return at + 1, arguments if isinstance(arguments, dict) else {}
        at = text.find(wanted.marker, at + 1, stop + len(wanted.marker))
    return None


def _event_around(text: bytes, position: int) -> Arguments | None:
    """The event whose time is written at a position: it begins at one of the last braces that can begin one."""
    for reach in (MARGIN >> 6, MARGIN):
        head = max(0, position - reach)
        begins = [match.start(1) for match in BEGIN.finditer(text, head, position)]
        for begin in begins[: -ATTEMPTS - 1 : -1]:
            try:
                event, _ = DECODER.raw_decode(text[begin : position + MARGIN].decode("utf-8", "replace"))
            except (ValueError, RecursionError):
                continue
            if isinstance(event, dict) and "ts" in event:
                return event
    return None


NAME = b"[memory]"
EVENT = re.compile(
    rb'"name":\s*"\[memory\]",\s*"pid":\s*"?(-?\w+)"?,\s*"tid":\s*"?(-?\w+)"?,\s*"ts":\s*(\d+)(?:\.(\d+))?\s*,'
    rb'\s*"args":\s*\{([^{}]*)\}'
)
"""Unescaped quotes in front of its keys: no text inside the trace can look like it."""
ARGUMENT = re.compile(rb'"(Total Reserved|Total Allocated|Bytes|Addr|Device Id|Device Type)":\s*(-?\d{1,19})\b')
COLUMNS = {b"Total Reserved": "reserved", b"Total Allocated": "allocated", b"Bytes": "bytes", b"Addr": "address",
           b"Device Id": "device", b"Device Type": "device_type"}  # fmt: skip
LIMIT = 1 << 62
UNKNOWN = -1


@dataclass(frozen=True, slots=True, eq=False)
class AllocationEvents:
    """Columns in file order. time: ns in the file's own terms (add the trace's base_ns). thread: as the file has it.
    bytes: negative where memory was freed. address: UNKNOWN in traces before torch 1.12. allocated, reserved: totals of
    the device right after; of a CPU only what was handed out since the recording began. device_type: 0 for a CPU."""

    time: Int64
    process: Int64
    thread: Int64
    address: Int64
    bytes: Int64
    allocated: Int64
    reserved: Int64
    device: Int64
    device_type: Int64

    def __len__(self) -> int:
        return len(self.time)


def read_allocations(path: Path, *, max_size: int = DEFAULT_MAX_SIZE) -> AllocationEvents:
    """The memory events of a trace; none where it was recorded without them. Raises TraceError as `read` does."""
    columns = {name: array("q") for name in ("time", "process", "thread", *COLUMNS.values())}
    with TraceSource(path, max_size) as source:
        for text, start, stop in blocks_of(source):
            if text.find(NAME, start) < 0:
                continue
            for event in EVENT.finditer(text, start):
                if event.start() >= stop:
                    break
                _add(columns, event)
    found = {name: np.array(values, np.int64) for name, values in columns.items()}
    for column in found.values():
        column.flags.writeable = False
    return AllocationEvents(**found)


def _add(columns: dict[str, array[int]], found: re.Match[bytes]) -> None:
    process, thread, whole, fraction, arguments = found.groups()
    values = dict.fromkeys(COLUMNS.values(), UNKNOWN)
    for name, number in ARGUMENT.findall(arguments):
        values[COLUMNS[name]] = max(-LIMIT, min(LIMIT, int(number)))
    nanoseconds = int((fraction or b"").ljust(3, b"0")[:3])
    values["time"] = min(LIMIT // 1000, int(whole)) * 1000 + nanoseconds
    values["process"], values["thread"] = _identity(process), _identity(thread)
    for name, value in values.items():
        columns[name].append(value)


def _identity(text: bytes) -> int:
    digits = text.removeprefix(b"-")
    return max(-LIMIT, min(LIMIT, int(text))) if digits.isdigit() and len(digits) < 20 else UNKNOWN
