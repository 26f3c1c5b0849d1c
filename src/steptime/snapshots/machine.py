"""A machine for the part of pickle's opcodes that plain data needs.

One law: whatever would look up a class or call something is refused, never done. Dictionaries leave the machine as
they close (see `builder`), so that what is kept is columns: 1 GB of pickle needs a fraction of it.

Opcodes: Lib/pickletools.py of CPython 3.13, protocols 2 to 5.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from steptime.errors import SnapshotError
from steptime.snapshots.builder import EVENT, Builder, Row
from steptime.snapshots.memo import RECALLS, Memo, OpenDict, OpenList
from steptime.snapshots.source import Source, TruncatedError

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


class Machine:
    """Runs a pickle from `source` into `builder`."""

    def __init__(self, source: Source, builder: Builder) -> None:
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
