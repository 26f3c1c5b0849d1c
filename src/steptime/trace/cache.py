"""The second look at a large trace: its columns as they were read, in the user's cache folder.

An entry counts only for the very file that it was made from, by this version, by this user, and when everything in it
is as it must be; whatever else happens, the file is read anew. It is a header in JSON and the columns as they lie in
memory. Lengths, types, checksums and every number that points into a dictionary are checked when it is read, and
nothing in it is ever executed.
"""

from __future__ import annotations

import dataclasses
import os
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, get_type_hints

import msgspec
import numpy as np
import numpy.typing as npt
from isal import isal_zlib

from steptime.arrays import Few
from steptime.trace.columns import sealed
from steptime.trace.entries import OF_COLUMNS, EntryError, Stamp, belongs_to_user, entry_of, stamp_of, write_entry
from steptime.trace.reader import DEFAULT_MAX_SIZE, read
from steptime.trace.table import ABSENT, FEW, AllocationEvents, EventKind, EventTable, Trace

Array: TypeAlias = npt.NDArray[Any]
MAGIC = b"steptime-trace-columns 5\n"
TABLES: dict[str, type[EventTable | AllocationEvents]] = {"events": EventTable, "allocations": AllocationEvents}
COLUMNS = {name: tuple(field.name for field in dataclasses.fields(table)) for name, table in TABLES.items()}
ROWS_OF = {f"{name}.rows": name for name in FEW}
"""Contents of an entry for a column that few events fill, next to its values."""
NOT_OF_A_FILE = ("path", "windows", "parts", "launched")
FACTS = tuple(field.name for field in dataclasses.fields(Trace) if field.name not in (*NOT_OF_A_FILE, *TABLES))
"""Facts of a single file besides its events."""
_TYPES = get_type_hints(Trace)
_Facts = msgspec.defstruct("_Facts", [(name, _TYPES[name]) for name in FACTS])
START = struct.Struct(f"<{len(MAGIC)}sQI")
"""The magic, the bytes of the header, and their checksum."""
WIDTHS = {"uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8}


class _Column(msgspec.Struct, frozen=True):
    kind: str
    rows: int
    checksum: int
    constant: int | None = None


class _Table(msgspec.Struct, frozen=True):
    rows: int
    columns: dict[str, _Column]


class _Header(msgspec.Struct, frozen=True):
    stamp: Stamp
    byte_order: str
    tables: dict[str, _Table]
    facts: dict[str, Any]
    """Of `FACTS`."""


def store(file: BinaryIO, trace: Trace, stamp: Stamp) -> None:
    """Writes a trace. Raises EntryError where a name of it is no text that can be written, OSError."""
    described = {
        table: _Table(len(getattr(trace, table)), {name: _described(column) for name, column in _columns(trace, table)})
        for table in TABLES
    }
    facts = {name: getattr(trace, name) for name in FACTS}
    try:
        header = msgspec.json.encode(_Header(stamp, sys.byteorder, described, facts))
    except (ValueError, OverflowError) as error:  # a lone surrogate, an integer beyond 64 bits
        raise EntryError(str(error)) from error
    file.write(START.pack(MAGIC, len(header), isal_zlib.crc32(header)) + header)
    for table in TABLES:
        for _, column in _columns(trace, table):
            if len(column) and not _is_constant(column):
                file.write(column.data.cast("B"))


def _columns(trace: Trace, table: str) -> Iterator[tuple[str, Array]]:
    for name in COLUMNS[table]:
        column = getattr(getattr(trace, table), name)
        if isinstance(column, Few):
            yield f"{name}.rows", column.rows
            yield name, column.values
        else:
            yield name, column


def _described(column: Array) -> _Column:
    if _is_constant(column):
        return _Column(column.dtype.name, len(column), 0, int(column[0]))
    return _Column(column.dtype.name, len(column), isal_zlib.crc32(column.data.cast("B")) if len(column) else 0)


def load(file: BinaryIO, stamp: Stamp) -> Trace:
    """The trace of exactly that file. Raises EntryError, OSError."""
    header = _read_header(file)
    names = {name: set(table.columns) for name, table in header.tables.items()}
    expected = {name: set(columns) for name, columns in COLUMNS.items()}
    expected["events"] |= set(ROWS_OF)
    if header.stamp != stamp or header.byte_order != sys.byteorder or names != expected:
        raise EntryError("of another file or version")
    try:
        facts = msgspec.structs.asdict(msgspec.convert(header.facts, _Facts))
    except ValueError as error:
        raise EntryError(str(error)) from error
    columns = {
        name: {column: _read_column(file, described) for column, described in table.columns.items()}
        for name, table in header.tables.items()
    }
    rows = {name: table.rows for name, table in header.tables.items()}
    if not _is_sound(columns["events"], rows["events"], facts) or any(
        column.dtype.kind != "i" or len(column) != rows["allocations"] for column in columns["allocations"].values()
    ):
        raise EntryError("damaged")
    return Trace(
        path=Path(stamp.path),
        events=sealed(_with_few(columns["events"], rows["events"]), EventTable),
        allocations=sealed(columns["allocations"], AllocationEvents),
        **facts,
    )


def _with_few(columns: dict[str, Array], rows: int) -> dict[str, Array | Few]:
    """Columns of a table: two of the file are one that few events fill."""
    filled = {name: Few(rows, ABSENT, columns[filling], columns[name]) for filling, name in ROWS_OF.items()}
    return {name: filled.get(name, columns[name]) for name in COLUMNS["events"]}


def _is_constant(column: Array) -> bool:
    """One value without memory for each row, as the reader makes columns that no event fills."""
    return len(column) > 0 and column.strides == (0,)


def _read_header(file: BinaryIO) -> _Header:
    left = os.fstat(file.fileno()).st_size - START.size
    start = file.read(START.size)
    magic, length, checksum = START.unpack(start) if len(start) == START.size else (b"", 0, 0)
    if magic != MAGIC or length > left:
        raise EntryError("none of ours")
    encoded = file.read(length)
    if isal_zlib.crc32(encoded) != checksum:
        raise EntryError("damaged")
    try:
        header = msgspec.json.decode(encoded, type=_Header)
        sizes = [
            WIDTHS[each.kind] * (each.constant is None) * each.rows
            for table in header.tables.values()
            for each in table.columns.values()
        ]
    except (ValueError, KeyError, RecursionError) as error:
        raise EntryError(str(error)) from error
    if any(size < 0 for size in sizes) or sum(sizes) != left - length:
        raise EntryError("damaged")
    return header


def _read_column(file: BinaryIO, column: _Column) -> Array:
    """The header has said that the file is long enough."""
    rows = column.rows
    if not 0 <= rows <= np.iinfo(np.int32).max:
        raise EntryError("damaged")
    if column.constant is not None:
        limits: np.iinfo[Any] = np.iinfo(column.kind)
        if not limits.min <= column.constant <= limits.max:
            raise EntryError("damaged")
        return np.broadcast_to(np.array(column.constant, column.kind), (rows,))
    values = np.empty(rows, column.kind)
    view = values.data.cast("B")
    if rows and (file.readinto(view) != len(view) or isal_zlib.crc32(view) != column.checksum):  # type: ignore[attr-defined]
        raise EntryError("damaged")
    return values


def _is_sound(columns: dict[str, Array], rows: int, facts: dict[str, Any]) -> bool:
    """True if each column has its length, each number points somewhere, and each type is what the table promises."""
    if any(len(columns[name]) != len(columns.get(f"{name}.rows", columns["start"])) for name in COLUMNS["events"]):
        return False
    if len(columns["start"]) != rows or not all(_is_rising(columns[name], rows) for name in ROWS_OF):
        return False
    lists, texts = {"name": "symbols", "track": "tracks"}, ("shapes", "dtypes", "inputs", "details")
    sound = columns["event_kind"].dtype == np.uint8 and _within(columns["event_kind"], len(EventKind))
    sound &= columns["start"].dtype == np.int64
    sound &= all(column.dtype.kind == "i" for name, column in columns.items() if name != "event_kind")
    sound &= _within(columns["duration"], 2**62)
    sound &= all(_within(columns[name], len(facts[fact])) for name, fact in lists.items())
    sound &= all(_within(columns[name], len(facts[name]), absent=True) for name in texts)
    return bool(sound)


def _is_rising(column: Array, rows: int) -> bool:
    """True if it holds numbers of different rows, in order."""
    return column.dtype == np.int32 and _within(column, rows) and bool((column[1:] > column[:-1]).all())


def _within(column: Array, end: int, *, absent: bool = False) -> bool:
    """True if all values are in [0, end), or ABSENT where that is allowed."""
    if absent or not len(column):
        return bool(((column == ABSENT) | ((column >= 0) & (column < end))).all())
    return bool(column.min() >= 0 and column.max() < end)


LEAST_SIZE = 16 * 10**6
"""Bytes of JSON that are read in 50 ms. Below, opening an entry gains nothing that could be felt."""


def read_remembered(path: Path, *, max_size: int = DEFAULT_MAX_SIZE, cache: bool = True) -> Trace:
    """As `read`, from the cache where it holds this file; remembers a large one. Raises TraceError as `read` does."""
    stamp = stamp_of(path) if cache else None
    if stamp is None:
        return read(path, max_size=max_size)
    entry = entry_of(stamp, OF_COLUMNS)
    trace = _recall(entry, stamp)
    if trace is not None and trace.size <= max_size:
        return dataclasses.replace(trace, path=path)
    started = time.time_ns()
    trace = read(path, max_size=max_size)
    if trace.size >= LEAST_SIZE and stamp.settled(started) and stamp_of(path) == stamp:
        _remember(trace, stamp, entry)
    return trace


def _recall(entry: Path, stamp: Stamp) -> Trace | None:
    try:
        with entry.open("rb") as file:
            if not belongs_to_user(file):
                return None
            trace = load(file, stamp)
        os.utime(entry)  # the oldest are deleted first
    except (OSError, EntryError):
        return None
    return trace


def _remember(trace: Trace, stamp: Stamp, entry: Path) -> None:
    columns = [column for table in TABLES for _, column in _columns(trace, table)]
    size = sum(each.nbytes for each in columns if not _is_constant(each))
    write_entry(entry, size, lambda file: store(file, trace, stamp))
