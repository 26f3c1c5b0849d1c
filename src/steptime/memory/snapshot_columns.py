"""Converter of a snapshot, a pickle or JSON, to columns, for plain_pickle.

Writes a line of JSON and the columns that it names. Runs in a separate process, with the standard library only.
"""

from __future__ import annotations

import gzip
import io
import json
from array import array
from collections.abc import Sequence
from typing import Any, BinaryIO

from steptime.plain_pickle import NotPlainError, unpickle

LARGEST = 1 << 62
MOST_TEXT = 4096
"""Characters kept of a name: mangled C++ names run to hundreds."""
MOST_SETTINGS = 256
NO_STACK = -1
TRACES = "device_traces"
Row = dict[Any, Any]


def convert(file: io.BufferedReader, made: BinaryIO) -> None:
    write(*_load(file), made)


def _load(file: io.BufferedReader) -> tuple[Row, bool]:
    """(outer dictionary, whether the file is truncated)."""
    if file.peek(2)[:2] == b"\x1f\x8b":
        file = io.BufferedReader(gzip.GzipFile(fileobj=file), 1 << 20)
    begun = None
    start = file.peek(1)[:1]
    if start in (b"{", b"["):
        try:
            top = json.load(file)
        except (ValueError, RecursionError):
            raise NotPlainError("foreign", "is neither an allocator snapshot nor JSON") from None
    elif start == b"\x80":
        top, begun = unpickle(file)
    else:
        raise NotPlainError("foreign", "is neither a pickle nor JSON")
    if begun is not None:
        top = salvaged(begun)
    if isinstance(top, list) and all(isinstance(each, dict) and "blocks" in each for each in top):
        top = {"segments": top}  # of torch.cuda.memory_snapshot()
    if not isinstance(top, dict) or not ("segments" in top or TRACES in top):
        raise NotPlainError(
            "foreign", "is not an allocator snapshot" if begun is None else "ends before its first complete segment"
        )
    return top, begun is not None


def salvaged(values: Sequence[Any]) -> Row:
    """Objects recovered from a truncated pickle. The last 64 KiB are dropped, because the unpickler reads a frame whole
    or not at all. values: objects in the order in which they start."""
    segments = [each for each in values if isinstance(each, dict) and "total_size" in each and "blocks" in each]
    first = next((place for place, each in enumerate(values) if isinstance(each, str) and each == TRACES), len(values))
    traces: list[list[Row]] = []
    stacks: set[int] = set()
    lists = 0
    for value in values[first + 1 :]:
        if isinstance(value, dict) and "action" in value:
            stacks.add(id(value.get("frames")))
            if traces:
                traces[-1].append(value)
        elif isinstance(value, list) and id(value) not in stacks:
            lists += 1
            if lists > 1:  # the first is the list of traces
                traces.append([])
    return {"segments": segments, TRACES: traces} if segments or any(traces) else {}


def whole(value: object) -> int:
    """The value if it is a number from 0 to LARGEST, clipped; else 0."""
    return min(value, LARGEST) if isinstance(value, int) and value >= 0 else 0


def text(value: object) -> str:
    """Text without lone surrogates; "" for anything else. Containers are not converted: two lists that contain each
    other twice, forty levels deep, are a hundred bytes of pickle and 10^12 characters."""
    return value[:MOST_TEXT].encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def rows_of(values: object) -> list[Row]:
    return [each for each in values if isinstance(each, dict)] if isinstance(values, list) else []


def numbers(rows: Sequence[Row], name: str, otherwise: str = "") -> array[int]:
    """Column of integers from one field of the rows. otherwise: value for a row without the field. The reader clips
    values below 0 or above LARGEST."""
    try:
        return array("q", [row[name] for row in rows])
    except (KeyError, TypeError, OverflowError):
        return array("q", [whole(row.get(name, row.get(otherwise))) for row in rows])


class Numbered:
    """Builder that numbers distinct words and call stacks in order of appearance."""

    def __init__(self) -> None:
        self.words: dict[str, int] = {"": 0}
        self.frames: dict[tuple[str, int, str], int] = {}
        self.start, self.member = array("q", [0]), array("i")
        self._stacks: dict[tuple[int, ...], int] = {}
        self._seen: dict[tuple[int, ...], int] = {}

    def named(self, rows: Sequence[Row], name: str) -> array[int]:
        """Column with the number of each row's word."""
        words = self.words
        found = (row.get(name) for row in rows)
        return array("i", [words.setdefault(each, len(words)) if isinstance(each, str) else 0 for each in found])

    def stack(self, frames: object) -> int:
        """Number of the call stack given as a list of frames; NO_STACK for anything else. The id of a list identifies
        it, since all lists stay alive."""
        if not isinstance(frames, list) or not frames:
            return NO_STACK
        key = tuple(map(id, frames))
        known = self._seen.get(key)
        if known is None:
            members = tuple(map(self._frame, rows_of(frames)))
            known = self._seen[key] = self._stacks.setdefault(members, len(self._stacks))
            if known == len(self.start) - 1:
                self.member.extend(members)
                self.start.append(len(self.member))
        return known

    def _frame(self, row: Row) -> int:
        key = text(row.get("filename")), min(whole(row.get("line")), 1 << 31), text(row.get("name"))
        return self.frames.setdefault(key, len(self.frames))


Columns = dict[str, "array[int]"]


def events_of(traces: object, table: Numbered) -> tuple[Columns, list[int]]:
    """(columns of all devices' events, number of events of each device)."""
    each = list(map(rows_of, traces)) if isinstance(traces, list) else []
    rows = [row for trace in each for row in trace]
    columns = {
        "action": table.named(rows, "action"),
        "address": numbers(rows, "addr", "device_free"),  # of a failed request what the driver had left
        "size": numbers(rows, "size"),
        "time": numbers(rows, "time_us"),
        "stack": array("i", [table.stack(row.get("frames")) for row in rows]),
    }
    return columns, list(map(len, each))


def blocks_of(segments: Sequence[Row], table: Numbered) -> Columns:
    """Columns of the segments' blocks. Without addresses (torch 2.1), blocks are assumed contiguous."""
    of_segment = [rows_of(segment.get("blocks")) for segment in segments]
    rows = [block for blocks in of_segment for block in blocks]
    address = array("q")
    for segment, blocks in zip(segments, of_segment, strict=True):
        place, own = whole(segment.get("address")), numbers(blocks, "address")
        if not all(own):
            own = array("q")
            for block in blocks:
                own.append(place)
                place = min(LARGEST, place + whole(block.get("size")))
        address.extend(own)
    return {
        "segment": array("q", [number for number, blocks in enumerate(of_segment) for _ in blocks]),
        "address": address,
        "size": numbers(rows, "size"),
        "requested": numbers(rows, "requested_size", "size"),
        "state": table.named(rows, "state"),
        "stack": array("i", [table.stack(frames_of(row)) for row in rows]),
    }


def frames_of(block: Row) -> object:
    """Frames of a block; torch 2.0 and 2.1 nested them one level deeper."""
    history = rows_of(block.get("history"))
    return block.get("frames", history[0].get("frames") if history else None)


def settings_of(found: object) -> list[tuple[str, str]]:
    settings = found.items() if isinstance(found, dict) else ()
    plain = [(name, value) for name, value in settings if isinstance(value, str | int | float)]
    return [(text(name), text(str(value))) for name, value in plain[:MOST_SETTINGS]]


def write(top: Row, truncated: bool, file: BinaryIO) -> None:
    """Writes a line of JSON, and the columns in the order of their names in it."""
    table, segments = Numbered(), rows_of(top.get("segments"))
    names = {"device": "device", "address": "address", "size": "total_size"}
    tables = {"segments": {column: numbers(segments, name) for column, name in names.items()}}
    tables["blocks"] = blocks_of(segments, table)
    tables["events"], lengths = events_of(top.get(TRACES), table)
    tables["stacks"] = {"start": table.start, "member": table.member}
    head = {
        "columns": [
            (of, name, column.typecode, len(column))
            for of, columns in tables.items()
            for name, column in columns.items()
        ],
        "lengths": lengths,
        "words": list(table.words),
        "frames": list(table.frames),
        "settings": settings_of(top.get("allocator_settings")),
        "truncated": truncated,
    }
    file.write(json.dumps(head).encode() + b"\n")
    for columns in tables.values():
        for column in columns.values():
            column.tofile(file)
