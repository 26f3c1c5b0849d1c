"""A machine for the part of pickle's opcodes that plain data needs.

A machine for the part of pickle's opcodes that plain data needs.

One law: whatever would look up a class or call something is refused, never done. Dictionaries leave the machine as
they close (see `builder`), so that what is kept is columns: 1 GB of pickle needs a fraction of it.

Opcodes: Lib/pickletools.py of CPython 3.13, protocols 2 to 5.
"""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from isal import igzip, isal_zlib

from steptime.errors import SnapshotError
from steptime.memory.snapshot import (
    ACTIONS,
    NO_STACK,
    STATES,
    Action,
    Annotation,
    Blocks,
    Events,
    Segments,
    Snapshot,
    Stacks,
    State,
)
from steptime.quantities import SourceLine

STRETCH = 1 << 22
"""Bytes read at once."""
MARGIN = 1 << 16
"""Bytes in reach at any opcode while the file goes on: no argument but a text is longer."""
DeflateError: Any = isal_zlib.error
GZIP = b"\x1f\x8b"
LONGEST_TEXT = 1 << 26
MOST_INFLATED, MOST_RATIO = 1 << 30, 250
"""Bytes that a compressed file may give anyhow, and how many times its own size beyond: real ones give 18 times."""


class TruncatedError(Exception):
    """The bytes end before the pickle does."""


class PickleBytes:
    """`data[at:]` is what comes next; up to `limit` an opcode has its arguments behind it."""

    def __init__(self, file: BinaryIO) -> None:
        start = file.read(2)
        file.seek(0)
        self._packed = file if start == GZIP else None
        self._file = cast(BinaryIO, igzip.IGzipFile(fileobj=file)) if start == GZIP else file
        self.data = b""
        self.at = 0
        self.limit = 0
        self._offset = 0
        self._ended = False

    @property
    def position(self) -> int:
        """Bytes of the pickle before what comes next."""
        return self._offset + self.at

    def more(self, least: int = MARGIN) -> None:
        """Drops what is read and reads on, until `least` bytes are there or the file ends."""
        parts = [self.data[self.at :]]
        there = len(parts[0])
        self._offset += self.at
        while not self._ended and there < max(least, STRETCH):
            part = self._read()
            self._ended = not part
            parts.append(part)
            there += len(part)
        self.data, self.at = b"".join(parts), 0
        self.limit = there if self._ended else there - MARGIN

    def _read(self) -> bytes:
        if self._packed is not None and self._offset > max(MOST_INFLATED, MOST_RATIO * self._packed.tell()):
            raise self.strange(f"{MOST_RATIO} times the bytes of its compressed file")
        try:
            return self._file.read(STRETCH)
        except (EOFError, DeflateError):  # compressed, and cut or damaged: what came before counts
            return b""

    def next(self) -> None:
        """Reads on at the limit. Raises TruncatedError at the end of the file."""
        if not self._ended:
            self.more()
        if self.at >= len(self.data):
            raise TruncatedError

    def take(self, count: int) -> bytes:
        """The next bytes. Raises TruncatedError where there are not as many."""
        if count > LONGEST_TEXT:
            raise self.strange(f"a text of {count} bytes")
        if self.at + count > len(self.data):
            self.more(count + MARGIN)
            if count > len(self.data):
                raise TruncatedError
        taken = self.data[self.at : self.at + count]
        self.at += count
        return taken

    def count(self, size: int) -> int:
        """A whole number of `size` bytes."""
        return int.from_bytes(self.take(size), "little")

    def strange(self, what: str) -> SnapshotError:
        """The refusal of what no allocator writes."""
        return SnapshotError(
            "snapshot-strange",
            f"The snapshot holds {what} at byte {self.position}, which no allocator writes: it is not read on. Give a "
            "file of torch.cuda.memory._dump_snapshot.",
        )


MOST_RUNS = 1 << 16
MOST_AHEAD = 1 << 20
"""Entries that may be left out: pickle numbers them without gaps."""
RUN = re.compile(rb"(?:h.|j....)+", re.DOTALL)
"""Values that stood before, in a row: nine tenths of a snapshot are call stacks written like this."""
SHORTEST_RUN = 16
RECALLS = (0x68, 0x6A)


class OpenDict(dict[Any, Any]):
    """A dictionary that may yet become a row. place: in the memo."""

    __slots__ = ("place",)
    place: int


class OpenList(list[Any]):
    """A list. rows: events in it, which are not kept as values."""

    __slots__ = ("place", "rows")
    place: int
    rows: int


class Memo:
    """values: what was put in, by number. A row of references is looked up once and kept."""

    def __init__(self, source: PickleBytes) -> None:
        self._source = source
        self.values: list[Any] = []
        self._runs: dict[bytes, list[Any]] = {}

    def recall(self, stack: list[Any]) -> int:
        """Pushes the values that are referred to here, as many as stand in a row; returns the bytes that they take."""
        found = RUN.match(self._source.data, self._source.at)
        if found is None:
            raise TruncatedError
        text = found.group()
        values = self._runs.get(text)
        if values is None:
            values = self._recalled(text)
            if len(text) >= SHORTEST_RUN:
                if len(self._runs) >= MOST_RUNS:
                    self._runs.clear()
                self._runs[text] = values
        stack += values
        return len(text)

    def _recalled(self, text: bytes) -> list[Any]:
        memo, at = self.values, 0
        found: list[Any] = []
        while at < len(text):
            if text[at] == RECALLS[0]:
                found.append(memo[text[at + 1]])
                at += 2
            else:
                found.append(memo[int.from_bytes(text[at + 1 : at + 5], "little")])
                at += 5
        return found

    def put(self, value: Any, place: int) -> None:
        """Puts a value at a place of its own choice (protocols 2 and 3)."""
        if place > len(self.values) + MOST_AHEAD:
            raise self._source.strange(f"a memo of {place} entries")
        if type(value) is OpenDict or type(value) is OpenList:
            value.place = place
        if place == len(self.values):
            self.values.append(value)
            return
        self._runs.clear()
        self.values.extend([None] * (place + 1 - len(self.values)))
        self.values[place] = value


MOST_STACKS = 1 << 22
"""Different call stacks that are kept: real jobs have thousands; beyond, allocations count as without frames."""
MOST_TEXT = 4096
"""Characters kept of a name: mangled C++ names run to hundreds."""
MOST_SETTINGS = 256
MOST_ANNOTATIONS = 1 << 20
LARGEST = 1 << 62


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame that has closed."""

    number: int


class Row:
    """A dictionary that has become a row."""

    __slots__ = ()


EVENT, BLOCK, SEGMENT = Row(), Row(), Row()


class Builder:
    """Takes closed dictionaries and keeps columns. Wrong types count as absent: nothing here raises for what a file
    holds."""

    def __init__(self) -> None:
        self._frames: list[SourceLine] = []
        self._frame_numbers: dict[tuple[str, int, str], Frame] = {}
        self._texts: dict[str, str] = {}
        self._stacks: dict[bytes, int] = {}
        self._stack_begin = array("q", [0])
        self._members = array("i")
        self._events = {name: array(code) for name, code in _EVENT_COLUMNS}
        self._blocks = {name: array(code) for name, code in _BLOCK_COLUMNS}
        self._segments = {name: array(code) for name, code in _SEGMENT_COLUMNS}
        self._blocks_closed = 0
        self.unknown_actions = 0
        self.lost_stacks = 0

    # -- what closes -----------------------------------------------------------------------------------------------

    def close(self, entries: Mapping[Any, Any]) -> Frame | Row | None:
        """What a dictionary has become; None where it is none of ours."""
        if "filename" in entries and "line" in entries:
            return self._frame(entries)
        if "action" in entries:
            return self._event(entries)
        if "total_size" in entries and "blocks" in entries:
            return self._segment(entries)
        if "state" in entries and "size" in entries:
            return self._block(entries)
        return None

    def _frame(self, entries: Mapping[Any, Any]) -> Frame:
        key = (_text(entries["filename"]), _number(entries["line"], 1 << 31), _text(entries.get("name")))
        known = self._frame_numbers.get(key)
        if known is None:
            known = self._frame_numbers[key] = Frame(len(self._frames))
            file, line, function = key
            self._frames.append(SourceLine(self._once(file), line, self._once(function)))
        return known

    def _once(self, text: str) -> str:
        """One object for equal texts: files repeat in thousands of frames."""
        return self._texts.setdefault(text, text)

    def _event(self, entries: Mapping[Any, Any]) -> Row:
        name = entries["action"]
        action = ACTIONS.get(name, Action.OTHER) if isinstance(name, str) else Action.OTHER
        self.unknown_actions += action is Action.OTHER
        address = entries.get("device_free") if action is Action.OUT_OF_MEMORY else entries.get("addr")
        columns = self._events
        columns["action"].append(action)
        columns["address"].append(_number(address))
        columns["size"].append(_number(entries.get("size")))
        columns["stream"].append(_number(entries.get("stream")))
        columns["time"].append(_number(entries.get("time_us"), LARGEST // 1000) * 1000)
        columns["stack"].append(self.stack(entries.get("frames")))
        return EVENT

    def _block(self, entries: Mapping[Any, Any]) -> Row:
        size = _number(entries["size"])
        history = entries.get("history")
        frames = entries.get("frames")
        if frames is None and isinstance(history, list) and history and isinstance(history[0], dict):
            frames = history[0].get("frames")  # torch 2.0 and 2.1 kept them one level deeper
        columns = self._blocks
        columns["address"].append(_number(entries.get("address")))
        columns["size"].append(size)
        columns["requested"].append(min(size, _number(entries.get("requested_size", size))))
        state = entries["state"]
        columns["state"].append(STATES.get(state, State.INACTIVE) if isinstance(state, str) else State.INACTIVE)
        columns["stack"].append(self.stack(frames))
        return BLOCK

    def _segment(self, entries: Mapping[Any, Any]) -> Row:
        """A segment closes behind its blocks: those that no segment has yet are its own."""
        columns = self._segments
        columns["device"].append(_number(entries.get("device"), 1 << 20))
        columns["address"].append(_number(entries.get("address")))
        columns["size"].append(_number(entries["total_size"]))
        columns["stream"].append(_number(entries.get("stream")))
        columns["large"].append(entries.get("segment_type") != "small")
        columns["expandable"].append(entries.get("is_expandable") is True)
        count = len(self._blocks["size"])
        self._blocks["segment"].extend([len(columns["size"]) - 1] * (count - self._blocks_closed))
        if any(not address for address in self._blocks["address"][self._blocks_closed : count]):
            self._place_blocks(count)
        self._blocks_closed = count
        return SEGMENT

    def _place_blocks(self, count: int) -> None:
        """Blocks without addresses (torch 2.1 has none) lie one behind the other in their segment."""
        address = self._segments["address"][-1]
        for row in range(self._blocks_closed, count):
            self._blocks["address"][row] = address
            address = min(LARGEST, address + self._blocks["size"][row])

    def stack(self, frames: object) -> int:
        """The number of a stack; NO_STACK for none, or an empty one."""
        if isinstance(frames, int):  # a list of frames that was numbered before, or what a file has in its place
            return frames if 0 <= frames < len(self._stacks) else NO_STACK
        if not isinstance(frames, list) or not frames:
            return NO_STACK
        members = array("i", [frame.number for frame in frames if isinstance(frame, Frame)])
        key = members.tobytes()
        known = self._stacks.get(key)
        if known is None:
            if len(self._stacks) >= MOST_STACKS:
                self.lost_stacks += 1
                return NO_STACK
            known = self._stacks[key] = len(self._stacks)
            self._members.extend(members)
            self._stack_begin.append(len(self._members))
        return known

    # -- the end ---------------------------------------------------------------------------------------------------

    @property
    def events(self) -> int:
        """Events so far."""
        return len(self._events["action"])

    def finish(
        self, path: Path, size: int, top: Mapping[Any, Any], lengths: list[int], *, truncated: bool, problems: list[str]
    ) -> Snapshot:
        """The snapshot. top: its outer dictionary as far as it was read; lengths: events of each device, in order."""
        device = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
        rest = np.full(self.events - len(device), max(0, len(lengths)), np.int32)
        orphans = len(self._blocks["size"]) - self._blocks_closed
        self._blocks["segment"].extend([-1] * orphans)  # of a segment that the end of the file cut off
        self._stacks.clear()
        return Snapshot(
            path=path,
            size=size,
            segments=Segments(**_columns(self._segments)),
            blocks=Blocks(**_columns(self._blocks)),
            events=Events(device=_sealed(np.concatenate([device, rest])), **_columns(self._events)),
            stacks=Stacks(tuple(self._frames), _column(self._stack_begin), _column(self._members)),
            settings=_settings(top.get("allocator_settings")),
            annotations=_annotations(top.get("external_annotations")),
            truncated=truncated,
            problems=tuple(problems),
        )


_EVENT_COLUMNS = (("action", "b"), ("address", "q"), ("size", "q"), ("stream", "q"), ("time", "q"), ("stack", "i"))
_BLOCK_COLUMNS = (
    ("segment", "i"), ("address", "q"), ("size", "q"), ("requested", "q"), ("state", "b"), ("stack", "i"),
)  # fmt: skip
_SEGMENT_COLUMNS = (
    ("device", "i"), ("address", "q"), ("size", "q"), ("stream", "q"), ("large", "b"), ("expandable", "b"),
)  # fmt: skip


def _number(value: object, most: int = LARGEST) -> int:
    """A whole number from 0 to `most`; 0 for anything else. Sizes below zero exist nowhere; handles of streams may be
    above the limit in theory, and only their being equal matters."""
    if not isinstance(value, int):
        return 0
    return min(value, most) if value >= 0 else 0


def _text(value: object) -> str:
    """A text, of at most MOST_TEXT characters; "" for anything else. Nothing else is spelt out: lists that hold one
    another twice, forty levels deep, are a hundred bytes of pickle and 10^12 characters."""
    return value[:MOST_TEXT] if isinstance(value, str) else ""


def _column(values: array[Any]) -> np.ndarray[Any, np.dtype[Any]]:
    """A read-only view of a column, without a copy."""
    return _sealed(np.frombuffer(values, dtype=values.typecode) if len(values) else np.empty(0, values.typecode))


def _sealed(column: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[Any]]:
    column.flags.writeable = False
    return column


def _columns(columns: Mapping[str, array[Any]]) -> dict[str, np.ndarray[Any, np.dtype[Any]]]:
    return {name: _column(values) for name, values in columns.items()}


def _settings(found: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(found, dict):
        return ()
    plain = ((name, value) for name, value in found.items() if isinstance(value, str | int | float))
    return tuple((_text(name), str(value)[:MOST_TEXT]) for name, value in plain)[:MOST_SETTINGS]


def _annotations(found: object) -> tuple[Annotation, ...]:
    if not isinstance(found, list):
        return ()
    return tuple(
        Annotation(
            name=_text(each.get("name")),
            stage=_text(each.get("stage"))[:16],
            device=_number(each.get("device"), 1 << 20),
            time=_number(each.get("time_us"), LARGEST // 1000) * 1000,
        )
        for each in found[:MOST_ANNOTATIONS]
        if isinstance(each, dict)
    )


DEEPEST = 64
"""Nested containers; a snapshot has six."""
MOST_OPEN = 1 << 18
"""Values that wait for their container: pickle puts 1000 at once into one."""
MOST_KEPT = 1 << 20
"""Values in containers that are none of ours (settings, annotations, metadata), altogether."""
MOST_NUMBER_BYTES = 64
KEYS = (str, int, float, bytes, type(None))
LONGEST_ARGUMENT = 300
"""Bytes that an opcode of the inner loop may take."""


class PickleMachine:
    """Runs a pickle from `source` into `builder`."""

    def __init__(self, source: PickleBytes, builder: Builder) -> None:
        self._source = source
        self._builder = builder
        self.stack: list[Any] = []
        self._marks: list[int] = []
        self._memo = Memo(source)
        self._kept = 0
        self._handlers = self._table()

    def run(self) -> Any:
        """The value of the pickle. Raises TruncatedError, and SnapshotError for what is no plain data."""
        try:
            return self._run()
        except IndexError:
            source = self._source
            if source.at + LONGEST_ARGUMENT >= len(source.data):
                raise TruncatedError from None  # an argument was cut
            raise source.strange("a reference to what was never there") from None

    def _run(self) -> Any:
        source, handlers, stack, memo = self._source, self._handlers, self.stack, self._memo.values
        source.more()
        data, at, limit = source.data, source.at, source.limit
        while True:
            if at >= limit:
                source.at = at
                self._check_stack()
                source.next()
                data, at, limit = source.data, source.at, source.limit
            code = data[at]
            if code == 0x94:  # MEMOIZE
                value = stack[-1]
                if type(value) is OpenDict or type(value) is OpenList:
                    value.place = len(memo)
                memo.append(value)
                at += 1
            elif code == 0x68 and data[at + 2] not in RECALLS:  # BINGET
                stack.append(memo[data[at + 1]])
                at += 2
            elif code in RECALLS:
                source.at = at
                at += self._memo.recall(stack)
            elif code == 0x4B:  # BININT1
                stack.append(data[at + 1])
                at += 2
            elif code == 0x8A:  # LONG1
                size = data[at + 1]
                stack.append(_long(data[at + 2 : at + 2 + size]))
                at += 2 + size
            elif code == 0x4A:  # BININT
                stack.append(_long(data[at + 1 : at + 5]))
                at += 5
            elif code == 0x95:  # FRAME: only for who reads ahead
                at += 9
            elif code == 0x2E:  # STOP
                return stack[-1]
            else:
                source.at = at + 1
                handler = handlers.get(code)
                if handler is None:
                    raise self._refused(code)
                handler()
                data, at, limit = source.data, source.at, source.limit

    def _check_stack(self) -> None:
        if len(self.stack) > MOST_OPEN:
            raise self._source.strange("hundreds of thousands of values that no container takes")

    def _refused(self, code: int) -> SnapshotError:
        at = self._source.position - 1
        known = _REFUSED.get(code)
        if known is None:
            return SnapshotError(
                "snapshot-damaged",
                f"Byte {at} of the snapshot is no opcode of pickle's protocols 2 to 5 ({code:#04x}): it is damaged, or "
                "no pickle. Give a file of torch.cuda.memory._dump_snapshot.",
            )
        return SnapshotError(
            "snapshot-refused",
            f"The pickle asks for {known} at byte {at}, and a snapshot is plain data: nothing of it was run. Give a "
            "file of torch.cuda.memory._dump_snapshot.",
        )

    # -- values ----------------------------------------------------------------------------------------------------

    def _text(self, size: int) -> None:
        self.stack.append(self._source.take(size).decode("utf-8", "replace"))

    def _long4(self) -> None:
        size = self._source.count(4)
        if size > MOST_NUMBER_BYTES:
            raise self._source.strange(f"a number of {size} bytes")
        self.stack.append(_long(self._source.take(size)))

    # -- containers ------------------------------------------------------------------------------------------------

    def _mark(self) -> None:
        if len(self._marks) >= DEEPEST:
            raise self._source.strange(f"more than {DEEPEST} containers in each other")
        self._marks.append(len(self.stack))

    def _since_mark(self) -> list[Any]:
        mark = self._marks.pop() if self._marks else 0
        values = self.stack[mark:]
        del self.stack[mark:]
        return values

    def _last(self) -> Any:
        return self.stack[-1] if self.stack else None

    def _top(self, kind: type[Any]) -> Any:
        value = self._last()
        if not isinstance(value, kind):
            raise self._source.strange("entries without a container")
        return value

    def _new_dict(self) -> None:
        value = OpenDict()
        value.place = -1
        self.stack.append(value)

    def _new_list(self) -> None:
        value = OpenList()
        value.place, value.rows = -1, 0
        self.stack.append(value)

    def _append(self, values: list[Any]) -> None:
        target = self._top(OpenList)
        if values and values[0] is EVENT and values.count(EVENT) == len(values):
            target.rows += len(values)
            return
        self._keep(len(values))
        target += values

    def _keep(self, count: int) -> None:
        self._kept += count
        if self._kept > MOST_KEPT:
            raise self._source.strange("a million values that are no part of a snapshot")

    def _set(self, values: list[Any]) -> None:
        if type(self._last()) is Row or len(values) % 2:
            raise self._source.strange("entries without a container")
        target = self._top(OpenDict)
        # Nothing else is hashed: tuples that hold one another twice, forty levels deep, would take for ever.
        if not all(isinstance(key, KEYS) for key in values[::2]):
            raise self._source.strange("a key that is none")
        target.update(zip(values[::2], values[1::2], strict=True))
        frames = target.get("frames")
        if type(frames) is OpenList:
            self._kept -= len(frames)
            target["frames"] = number = self._builder.stack(frames)
            if frames.place >= 0:
                self._memo.values[frames.place] = number
        closed = self._builder.close(target)
        if closed is None:
            self._keep(len(values))
            return
        blocks = target.get("blocks")
        if type(blocks) is OpenList:
            self._kept -= len(blocks)
        self.stack[-1] = closed
        if target.place >= 0:
            self._memo.values[target.place] = closed

    def _tuple(self, count: int | None) -> None:
        if count is None:
            values = self._since_mark()
        else:
            values = self.stack[-count:] if count else []
            del self.stack[len(self.stack) - len(values) :]
        self._keep(len(values) + 1)
        self.stack.append(tuple(values))

    def _pop(self) -> None:
        if self._marks and self._marks[-1] == len(self.stack):
            self._marks.pop()
        elif self.stack:
            self.stack.pop()

    def _table(self) -> dict[int, Callable[[], None]]:
        """What each rarer opcode does."""
        push = self.stack.append
        return {
            0x80: lambda: void(self._source.take(1)),  # PROTO
            0x28: self._mark,
            0x30: self._pop,
            0x31: lambda: void(self._since_mark()),  # POP_MARK
            0x32: lambda: push(self._last()),  # DUP
            0x4E: lambda: push(None),
            0x88: lambda: push(True),
            0x89: lambda: push(False),
            0x4D: lambda: push(self._source.count(2)),  # BININT2
            0x8B: self._long4,
            0x47: lambda: push(struct.unpack(">d", self._source.take(8))[0]),  # BINFLOAT
            0x8C: lambda: self._text(self._source.count(1)),  # SHORT_BINUNICODE
            0x58: lambda: self._text(self._source.count(4)),  # BINUNICODE
            0x8D: lambda: self._text(self._source.count(8)),  # BINUNICODE8
            0x43: lambda: void(push(self._source.take(self._source.count(1)))),  # SHORT_BINBYTES
            0x42: lambda: void(push(self._source.take(self._source.count(4)))),  # BINBYTES
            0x7D: self._new_dict,
            0x5D: self._new_list,
            0x29: lambda: push(()),  # EMPTY_TUPLE
            0x74: lambda: self._tuple(None),
            0x85: lambda: self._tuple(1),
            0x86: lambda: self._tuple(2),
            0x87: lambda: self._tuple(3),
            0x61: lambda: self._append([self.stack.pop()] if self.stack else []),  # APPEND
            0x65: lambda: self._append(self._since_mark()),  # APPENDS
            0x73: lambda: self._set([self.stack.pop(-2), self.stack.pop()] if len(self.stack) > 2 else [None]),
            0x75: lambda: self._set(self._since_mark()),  # SETITEMS
            0x71: lambda: self._memo.put(self._last(), self._source.count(1)),  # BINPUT
            0x72: lambda: self._memo.put(self._last(), self._source.count(4)),  # LONG_BINPUT
        }


_REFUSED = {
    0x63: "a class (GLOBAL)", 0x93: "a class (STACK_GLOBAL)", 0x52: "a call (REDUCE)", 0x62: "a call (BUILD)",
    0x69: "an object (INST)", 0x6F: "an object (OBJ)", 0x81: "an object (NEWOBJ)", 0x92: "an object (NEWOBJ_EX)",
    0x50: "an outside object (PERSID)", 0x51: "an outside object (BINPERSID)", 0x82: "an extension (EXT1)",
    0x83: "an extension (EXT2)", 0x84: "an extension (EXT4)", 0x96: "a byte array", 0x97: "an outside buffer",
    0x98: "an outside buffer", 0x8F: "a set", 0x90: "a set", 0x91: "a frozen set", 0x8E: "very long bytes",
    0x53: "a text of Python 2", 0x54: "a text of Python 2", 0x55: "a text of Python 2",
}  # fmt: skip


def void(value: object) -> None:
    """Drops a value."""


def _long(digits: bytes) -> int:
    return int.from_bytes(digits, "little", signed=True)
