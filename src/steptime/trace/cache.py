"""Cache of a large trace's columns, in the user's cache folder.

An entry counts only for the file that it was made from, by this version and this user, and if everything in it is
valid. In any other case the file is read again. It consists of a header in JSON and the columns as they are in memory.
Reading checks lengths, types, a checksum and every index into a dictionary, and executes nothing from the file.
"""

from __future__ import annotations

import dataclasses
import os
import struct
import sys
import time
from collections.abc import Iterable, Iterator
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeAlias, get_type_hints

import msgspec
import numpy as np
import numpy.typing as npt
from isal import isal_zlib

from steptime.arrays import Few
from steptime.trace.columns import sealed
from steptime.trace.entries import OF_COLUMNS, EntryError, Stamp, entry_of, read_entry, stamp_of, write_entry
from steptime.trace.reader import DEFAULT_MAX_SIZE, read
from steptime.trace.table import ABSENT, FEW, AllocationEvents, EventKind, EventTable, Trace

Array: TypeAlias = npt.NDArray[Any]
MAGIC = b"steptime-trace-columns 6\n"
TABLES: dict[str, type[EventTable | AllocationEvents]] = {"events": EventTable, "allocations": AllocationEvents}
COLUMNS = {name: tuple(field.name for field in dataclasses.fields(table)) for name, table in TABLES.items()}
ROWS_OF = {f"{name}.rows": name for name in FEW}
"""Sparse columns (`Few`) by the name of their rows in an entry, next to the values under the column's own name."""
NOT_OF_A_FILE = ("path", "windows", "parts", "launched")
FACTS = tuple(field.name for field in dataclasses.fields(Trace) if field.name not in (*NOT_OF_A_FILE, *TABLES))
"""Fields of a single file's trace, except its tables."""
_TYPES = get_type_hints(Trace)
_Facts = msgspec.defstruct("_Facts", [(name, _TYPES[name]) for name in FACTS])
START = struct.Struct(f"<{len(MAGIC)}sQI")
"""Magic, size of the header in bytes, checksum of all that follows."""


class _Column(msgspec.Struct, frozen=True):
    """Description of a column. constant: value of all rows of one that has no memory per row."""

    kind: Annotated[str, msgspec.Meta(pattern=r"^(uint8|int(8|16|32|64))\Z")]
    rows: Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
    constant: int | None = None


class _Header(msgspec.Struct, frozen=True):
    stamp: Stamp
    byte_order: str
    tables: dict[str, dict[str, _Column]]
    facts: dict[str, Any]
    """Values of `FACTS`."""


def store(file: BinaryIO, trace: Trace, stamp: Stamp) -> None:
    """Writes a trace to a cache file. stamp: identity of the trace's own file. Raises EntryError if a text or a number
    cannot be encoded, OSError if the file cannot be written."""
    described = {
        table: {
            name: _Column(column.dtype.name, len(column), int(column[0]) if _is_constant(column) else None)
            for name, column in _columns(trace, table)
        }
        for table in TABLES
    }
    facts = {name: getattr(trace, name) for name in FACTS}
    try:
        header = msgspec.json.encode(_Header(stamp, sys.byteorder, described, facts))
    except (ValueError, OverflowError) as error:  # a lone surrogate, an integer beyond 64 bits
        raise EntryError(str(error)) from error
    parts = _parts(header, (column for table in TABLES for _, column in _columns(trace, table)))
    file.write(START.pack(MAGIC, len(header), _checksum(parts)))
    for part in parts:
        file.write(part)


def _parts(header: bytes, columns: Iterable[Array]) -> list[bytes | memoryview]:
    """Parts of an entry after its start; constant columns are in the header alone."""
    return [header, *(each.data.cast("B") for each in columns if len(each) and not _is_constant(each))]


def _checksum(parts: Iterable[bytes | memoryview]) -> int:
    return reduce(lambda checksum, part: isal_zlib.crc32(part, checksum), parts, 0)


def _columns(trace: Trace, table: str) -> Iterator[tuple[str, Array]]:
    for name in COLUMNS[table]:
        column = getattr(getattr(trace, table), name)
        if isinstance(column, Few):
            yield f"{name}.rows", column.rows
            yield name, column.values
        else:
            yield name, column


def load(file: BinaryIO, stamp: Stamp) -> Trace:
    """Trace in a cache file, if it is of the trace file with this stamp. Raises EntryError for another or a damaged
    file, OSError if it cannot be read."""
    header, encoded, checksum = _read_header(file)
    names = {name: set(columns) for name, columns in header.tables.items()}
    expected = {name: set(columns) for name, columns in COLUMNS.items()}
    expected["events"] |= set(ROWS_OF)
    if header.stamp != stamp or header.byte_order != sys.byteorder or names != expected:
        raise EntryError("of another file or version")
    try:
        facts = msgspec.structs.asdict(msgspec.convert(header.facts, _Facts))
    except ValueError as error:
        raise EntryError(str(error)) from error
    events, allocations = (
        {name: _read_column(file, described) for name, described in header.tables[table].items()} for table in TABLES
    )
    whole = _checksum(_parts(encoded, (*events.values(), *allocations.values()))) == checksum
    if (
        not whole
        or not _is_sound(events, facts)
        or any(column.dtype.kind != "i" or len(column) != len(allocations["time"]) for column in allocations.values())
    ):
        raise EntryError("damaged")
    few = {name: Few(len(events["start"]), ABSENT, events[rows], events[name]) for rows, name in ROWS_OF.items()}
    columns = {name: few.get(name, events[name]) for name in COLUMNS["events"]}
    return Trace(
        path=Path(stamp.path),
        events=sealed(columns, EventTable),
        allocations=sealed(allocations, AllocationEvents),
        **facts,
    )


def _is_constant(column: Array) -> bool:
    """True for a column with one value and no memory per row, as the reader makes columns that no event fills."""
    return len(column) > 0 and column.strides == (0,)


def _read_header(file: BinaryIO) -> tuple[_Header, bytes, int]:
    """(header, the same encoded, checksum of the entry), if the file is as long as its columns. Raises EntryError."""
    left = os.fstat(file.fileno()).st_size - START.size
    start = file.read(START.size)
    magic, length, checksum = START.unpack(start) if len(start) == START.size else (b"", 0, 0)
    if magic != MAGIC or length > left:
        raise EntryError("none of ours")
    encoded = file.read(length)
    try:
        header = msgspec.json.decode(encoded, type=_Header)
    except (ValueError, RecursionError) as error:
        raise EntryError(str(error)) from error
    columns = (each for table in header.tables.values() for each in table.values() if each.constant is None)
    if sum(each.rows * np.dtype(each.kind).itemsize for each in columns) != left - length:
        raise EntryError("damaged")
    return header, encoded, checksum


def _read_column(file: BinaryIO, column: _Column) -> Array:
    """Reads a column; the header check guarantees that the file is long enough. Raises EntryError."""
    if column.constant is None:
        return np.fromfile(file, column.kind, column.rows)
    limits: np.iinfo[Any] = np.iinfo(column.kind)
    if not limits.min <= column.constant <= limits.max:
        raise EntryError("damaged")
    return np.broadcast_to(np.array(column.constant, column.kind), (column.rows,))


def _is_sound(columns: dict[str, Array], facts: dict[str, Any]) -> bool:
    """True if each column has its length, each index is in range, and each type is that of the table."""
    rows = len(columns["start"])
    if any(len(columns[name]) != len(columns.get(f"{name}.rows", columns["start"])) for name in COLUMNS["events"]):
        return False
    if not all(
        columns[name].dtype == np.int32 and _within(columns[name], rows) and (np.diff(columns[name]) > 0).all()
        for name in ROWS_OF
    ):
        return False
    lists, texts = {"name": "symbols", "track": "tracks"}, ("shapes", "dtypes", "inputs", "details")
    sound = columns["event_kind"].dtype == np.uint8 and _within(columns["event_kind"], len(EventKind))
    sound &= columns["start"].dtype == np.int64
    sound &= all(column.dtype.kind == "i" for name, column in columns.items() if name != "event_kind")
    sound &= _within(columns["duration"], 2**62)
    sound &= all(_within(columns[name], len(facts[fact])) for name, fact in lists.items())
    sound &= all(_within(columns[name], len(facts[name]), absent=True) for name in texts)
    return bool(sound)


def _within(column: Array, end: int, *, absent: bool = False) -> bool:
    """True if all values are in [0, end), or ABSENT if that is allowed."""
    if absent or not len(column):
        return bool(((column == ABSENT) | ((column >= 0) & (column < end))).all())
    return bool(column.min() >= 0 and column.max() < end)


LEAST_SIZE = 16 * 10**6
"""Least size of a trace for the cache, bytes of JSON: 50 ms of reading. Below, an entry saves no noticeable time."""


def read_remembered(path: Path, *, max_size: int = DEFAULT_MAX_SIZE, cache: bool = True) -> Trace:
    """Trace of a file, from the cache if it holds this very file, else by `read`; a large trace is then cached. Raises
    TraceError as `read` does."""
    stamp = stamp_of(path) if cache else None
    if stamp is None:
        return read(path, max_size=max_size)
    entry = entry_of(stamp, OF_COLUMNS)
    trace = read_entry(entry, lambda file: load(file, stamp))
    if trace is not None and trace.size <= max_size:
        return dataclasses.replace(trace, path=path)
    started = time.time_ns()
    trace = read(path, max_size=max_size)
    if trace.size >= LEAST_SIZE and stamp.settled(started) and stamp_of(path) == stamp:
        columns = [column for table in TABLES for _, column in _columns(trace, table)]
        size = sum(each.nbytes for each in columns if not _is_constant(each))
        write_entry(entry, size, lambda file: store(file, trace, stamp))
    return trace
