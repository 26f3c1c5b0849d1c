"""Reader of traces: half a megabyte of JSON at a time, into columns.

The blocks fit the processor's cache (32 MB blocks cost 2.5 times as much). A block is cut at an event separator, whose
comma is overwritten by brackets, and decoded in place. A wrong cut (a separator inside a nested list or a string)
always leaves an unclosed bracket, so it is detected. Then the separators before it are tried, then a larger block.
Memory events are events without a duration, one for each allocation and each free.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import fields
from decimal import Decimal
from enum import Enum
from pathlib import Path

import numpy as np

from steptime.errors import TraceError
from steptime.trace.columns import (
    NOTHING,
    PRECISE_TIME,
    ColumnBuilder,
    Columns,
    Event,
    Mark,
    OfInstant,
    decode_list,
    decode_one,
    integers,
    lenient,
    needs_exactness,
    sealed,
    sorted_out,
    starts,
)
from steptime.trace.source import GZIP_MAGIC, TraceSource
from steptime.trace.table import UNSAID, AllocationEvents, Damage, Trace, closes, facts_of

NAME = "[memory]"
LIMIT = 1 << 62


class Allocations:
    """Builder of the columns of an `AllocationEvents` table."""

    def __init__(self) -> None:
        self._columns = {
            field.name: ColumnBuilder(np.int32, UNSAID, growing=True) for field in fields(AllocationEvents)
        }

    def add(self, marks: Sequence[Mark], *, exactly: bool) -> None:
        """Appends the memory events of a block that have a time."""
        found = [mark for mark in marks if mark.name == NAME and mark.ts is not NOTHING]
        if not found:
            return
        times, sound = starts(found, exactly=exactly)
        columns = {"process": [mark.pid for mark in found], "thread": [mark.tid for mark in found]}
        columns |= {name: [getattr(mark.args, name) for mark in found] for name in OfInstant.__struct_fields__}
        self._columns["time"].extend(times[sound])
        for name, values in columns.items():
            self._columns[name].extend(np.clip(integers(values, UNSAID), -LIMIT, LIMIT)[sound])

    def table(self) -> AllocationEvents:
        return sealed({name: column.finished() for name, column in self._columns.items()}, AllocationEvents)


BLOCK = 512 * 1024
LARGEST_BLOCK = 64 * 1024 * 1024
"""Most bytes of a single event, a header or a trailer; Kineto writes none this large."""
CUT_ATTEMPTS = 8
END_ATTEMPTS = 64
DEFAULT_MAX_SIZE = 8 * 10**9
"""Default limit for the JSON of a trace, bytes: about 25 million events, 1 GB of columns."""
EVENTS_START = re.compile(rb'"traceEvents"\s*:\s*(\[)')
BARE_ARRAY = re.compile(rb"(?:\xef\xbb\xbf)?\s*(\[)\s*[\{\]]")
EVENTS_END = re.compile(rb'[\}\[]\s*(\])\s*(,\s*("|$)|\}|$)')
OPEN, CLOSE = b"[]"


class BlockOutcome(Enum):
    READ = 1
    UNCLOSED = 2
    """A bracket or a string is open at the end: the cut was wrong."""
    BROKEN = 3
    """The block is no JSON, or has unexpected types."""


def read(path: Path, *, max_size: int = DEFAULT_MAX_SIZE) -> Trace:
    """Trace from a file in Kineto's chrome format, plain or gzipped, whole or truncated. max_size: most bytes of JSON
    after decompression. Peak memory: 0.1 to 0.3 bytes per byte of JSON. Raises TraceError: trace-unreadable,
    trace-empty, trace-not-a-trace, trace-too-large."""
    with TraceSource(path, max_size) as source:
        reading = _Reading(path, source)
        reading.run()
    return reading.trace()


def peek(path: Path, *, max_size: int = DEFAULT_MAX_SIZE) -> Trace:
    """Trace of a file's first events alone: its header, and the processes that wrote it. Raises TraceError."""
    with TraceSource(path, max_size) as source:
        reading = _Reading(path, source)
        reading.start()
    return reading.trace()


class _Reading:
    """State of one pass over one file. The first `filled` bytes of the buffer are unread text."""

    def __init__(self, path: Path, source: TraceSource) -> None:
        self._path, self._source = path, source
        self._buffer = bytearray(BLOCK)
        self._filled = 0
        self._at_end = False
        self._columns, self._allocations = Columns(), Allocations()
        self._exactly: bool | None = None
        self._header, self._trailer = b"", b""
        self._damaged = self._refused = 0
        self._truncated = False

    def run(self) -> None:
        self._find_events()
        while self._take_block():
            pass

    def start(self) -> None:
        """Reads the header and the first block that holds an event."""
        self._find_events()
        while not self._columns.names and self._take_block():
            pass

    def trace(self) -> Trace:
        """The trace that was read. Raises TraceError if nothing in it was an event."""
        columns = self._columns
        facts = facts_of(self._header, self._trailer)
        events = columns.table(facts["base_ns"])
        damage = Damage(self._truncated, self._damaged, self._refused + columns.refused, columns.negative)
        if not len(events) and damage.sentences:
            raise self._not_a_trace("its list of events has no readable event")
        return Trace(
            path=self._path, size=self._source.size, events=events, symbols=tuple(columns.names), tracks=columns.tracks,
            shapes=columns.shapes.decoded(), dtypes=columns.dtypes.decoded(), inputs=columns.inputs.decoded(),
            details=columns.details.decoded(), allocations=self._allocations.table(), damage=damage, **facts,
        )  # fmt: skip

    def _find_events(self) -> None:
        """Reads up to the "[" of the list of events, which becomes the first byte of the buffer."""
        while True:
            self._fill()
            text, length = self._buffer, self._filled
            found = BARE_ARRAY.match(text, 0, length) or EVENTS_START.search(text, 0, length)
            if found:
                self._header = bytes(self._buffer[: found.end(1)])
                self._drop(found.start(1))
                return
            if self._at_end:
                twice = text[:2] == GZIP_MAGIC
                raise self._not_a_trace("it is compressed twice" if twice else 'it has no list "traceEvents"')
            self._grow("before its list of events")

    def _take_block(self) -> bool:
        """Reads events up to a separator; False after the last block."""
        self._fill()
        cuts = self._cuts()
        outcome = BlockOutcome.UNCLOSED
        for cut in cuts:
            outcome = self._decode(cut)
            if outcome is BlockOutcome.READ:
                self._drop(cut)
                return True
            if outcome is BlockOutcome.BROKEN:
                break
        ends = [match.start(1) for match in EVENTS_END.finditer(self._buffer, 0, self._filled)]
        for end in ends[: -END_ATTEMPTS - 1 : -1]:
            if self._decode(end) is BlockOutcome.READ:
                self._read_trailer(end)
                return False
        if self._at_end:
            return self._salvage_rest()
        if outcome is BlockOutcome.UNCLOSED and self._filled < LARGEST_BLOCK:
            self._grow("inside one event")
            return True
        return self._salvage_block(cuts)

    def _cuts(self) -> list[int]:
        """Positions of the last commas between events, last first; none near the file's end, where the list ends."""
        if self._at_end and self._filled <= BLOCK:
            return []
        window = 1 << 14
        while True:
            head = max(0, self._filled - window)
            found = [match.start(1) for match in SEPARATOR.finditer(self._buffer, head, self._filled)]
            if len(found) >= CUT_ATTEMPTS or head == 0:
                return found[: -CUT_ATTEMPTS - 1 : -1]
            window *= 8

    def _decode(self, stop: int) -> BlockOutcome:
        """Adds the events before `stop`, whose byte (a comma or a bracket) is temporarily replaced by a bracket."""
        kept = self._buffer[stop]
        self._buffer[0], self._buffer[stop] = OPEN, CLOSE
        try:
            with memoryview(self._buffer) as whole, whole[: stop + 1] as block:
                self._add_block(block)
        except ValueError as error:
            return BlockOutcome.UNCLOSED if "truncated" in str(error) else BlockOutcome.BROKEN
        finally:
            self._buffer[stop] = kept
        return BlockOutcome.READ

    def _add_block(self, block: memoryview) -> None:
        """Adds the events of a block. Apart, so that no event outlives the view into which its raw fields point."""
        events, marks = decode_list(block, exactly=bool(self._exactly))
        if self._exactly is None and events:
            self._exactly = needs_exactness(events, block)
            if self._exactly:
                events, marks = decode_list(block, exactly=True)
        self._add(events, marks)

    def _read_trailer(self, end: int) -> None:
        self._drop(end)
        while not self._at_end and self._filled < LARGEST_BLOCK:
            self._grow("after its list of events")
            self._fill()
        self._trailer = bytes(self._buffer[: self._filled])
        self._truncated = self._source.cut_short or not closes(self._header, self._trailer)

    def _salvage_rest(self) -> bool:
        """Handles a last part that does not parse because it is damaged or the file was truncated. Returns False."""
        text = bytes(self._buffer[1 : self._filled])
        ends = [match.start(1) for match in EVENTS_END.finditer(text)]
        for end in ends[: -END_ATTEMPTS - 1 : -1]:
            if closes(self._header, text[end:]):
                self._trailer = text[end:]
                self._salvage(text[:end])
                return False
        self._truncated = True
        boundaries = [match.start(1) for match in SEPARATOR.finditer(text)]
        whole, torn = (text[: boundaries[-1]], text[boundaries[-1] + 1 :]) if boundaries else (b"", text)
        if whole:
            self._salvage(whole)
        kept, _, _ = salvage(torn.rstrip().removesuffix(b","), exactly=bool(self._exactly))
        self._add(*sorted_out(kept))
        return False

    def _salvage_block(self, cuts: list[int]) -> bool:
        """Keeps the readable events of a damaged block. Gives up the rest of the file if the block has no separator."""
        if not cuts:
            self._damaged += 1
            self._truncated = True
            return False
        self._salvage(bytes(self._buffer[1 : cuts[0]]))
        self._drop(cuts[0])
        return True

    def _salvage(self, text: bytes) -> None:
        if self._exactly is None:
            self._exactly = PRECISE_TIME.search(text) is not None
        kept, damaged, refused = salvage(text, exactly=bool(self._exactly))
        self._add(*sorted_out(kept))
        self._damaged += damaged
        self._refused += refused

    def _add(self, events: list[Event], marks: list[Mark]) -> None:
        self._columns.add(events, exactly=bool(self._exactly))
        self._allocations.add(marks, exactly=bool(self._exactly))

    def _fill(self) -> None:
        if self._at_end or self._filled == len(self._buffer):
            return
        with memoryview(self._buffer) as whole, whole[self._filled :] as room:
            count = self._source.fill(room)
            self._at_end = count < len(room)
        self._filled += count

    def _drop(self, count: int) -> None:
        """Moves the unread text to the buffer's start; a buffer that had grown shrinks again."""
        rest = self._buffer[count : self._filled]
        if len(self._buffer) > BLOCK and len(rest) < BLOCK:
            self._buffer = bytearray(BLOCK)
        self._buffer[: len(rest)] = rest
        self._filled = len(rest)

    def _grow(self, where: str) -> None:
        if len(self._buffer) >= LARGEST_BLOCK:
            raise self._not_a_trace(f"more than {LARGEST_BLOCK >> 20} MB {where}")
        self._buffer.extend(bytes(len(self._buffer)))

    def _not_a_trace(self, reason: str) -> TraceError:
        return TraceError(
            "trace-not-a-trace",
            f"{self._path} is not a trace of torch.profiler: {reason}. Expected a file that export_chrome_trace wrote.",
        )


SEPARATOR = re.compile(rb"\}\s*(,)\s*\{")
"""Separator of events in all layouts of Kineto and rewriters; inside an event, it is only between objects in a list."""
LONGEST_JOIN = 16
"""Most pieces that are joined again when an event was split between objects in a list."""


def salvage(text: bytes, *, exactly: bool) -> tuple[list[Event | Mark], int, int]:
    """Readable events of a damaged JSON list, parsed one by one. `text` starts and ends with an event, without the
    list's brackets. Returns (kept events, number of damaged intervals, number of events without a usable time or
    name)."""
    events: list[Event | Mark] = []
    damaged = refused = piece = 0
    boundaries = [match.start(1) for match in SEPARATOR.finditer(text)]
    starts, stops = [0, *(boundary + 1 for boundary in boundaries)], [*boundaries, len(text)]
    while piece < len(starts):
        for joined in range(1, min(LONGEST_JOIN, len(starts) - piece) + 1):
            part = text[starts[piece] : stops[piece + joined - 1]]
            try:
                event = decode_one(part, exactly=exactly)
            except ValueError as error:
                if "truncated" in str(error):
                    continue
                event, lost, useless = _leniently(part, exactly=exactly)
                damaged, refused = damaged + lost, refused + useless
            if event is not None:
                events.append(event)
            piece += joined
            break
        else:
            damaged, piece = damaged + 1, piece + 1
    return events, damaged, refused


def _leniently(part: bytes, *, exactly: bool) -> tuple[Event | Mark | None, bool, bool]:
    """Parses text that the typed parser refused (NaN, an odd type, invalid UTF-8, or no JSON at all). Returns (event or
    None, whether the text is damaged, whether it lacks a usable time or name)."""
    try:
        value = json.loads(part.decode("utf-8", "replace"), parse_float=Decimal)
    except (ValueError, RecursionError):
        return None, True, False
    if isinstance(value, dict) and value.get("ph", "X") != "X":
        return None, False, False
    event = lenient(value, exactly=exactly) if isinstance(value, dict) else None
    return event, False, event is None
