"""The second look at a large trace: its columns as they were read, in the user's cache folder.

An entry counts only for the very file that it was made from, by this version, by this user, and when everything in it
is as it must be; whatever else happens, the file is read anew. It is a header in JSON and the columns as they lie in
memory. Lengths, types, checksums and every number that points into a dictionary are checked when it is read, and
nothing in it is ever executed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, get_type_hints

import msgspec
import numpy as np
import numpy.typing as npt
from isal import isal_zlib

from steptime._version import __version__
from steptime.folders import cache_folder
from steptime.trace.reader import DEFAULT_MAX_SIZE, read
from steptime.trace.table import ABSENT, AllocationEvents, EventKind, EventTable, Trace

Array: TypeAlias = npt.NDArray[Any]
MAGIC = b"steptime-trace-columns 3\n"
TABLES: dict[str, type[EventTable | AllocationEvents]] = {"events": EventTable, "allocations": AllocationEvents}
COLUMNS = {name: tuple(field.name for field in dataclasses.fields(table)) for name, table in TABLES.items()}
FACTS = tuple(
    field.name for field in dataclasses.fields(Trace) if field.name not in ("path", "windows", "parts", *TABLES)
)
"""What a single file says besides its events."""
_TYPES = get_type_hints(Trace)
_Facts = msgspec.defstruct("_Facts", [(name, _TYPES[name]) for name in FACTS])
START = struct.Struct(f"<{len(MAGIC)}sQI")
"""The magic, the bytes of the header, and their checksum."""
WIDTHS = {"uint8": 1, "int32": 4, "int64": 8}


class ContainerError(Exception):
    """It is none of ours, damaged, or of another file; or a trace cannot be put into one."""


class Stamp(msgspec.Struct, frozen=True):
    """What the trace's file was like when it was read: any difference means another file."""

    reader: str
    path: str
    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int
    ends: str


class _Column(msgspec.Struct, frozen=True):
    kind: str
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
    """Writes a trace. Raises ContainerError where a name of it is no text that can be written, OSError."""
    described = {
        table: _Table(len(getattr(trace, table)), {name: _described(column) for name, column in _columns(trace, table)})
        for table in TABLES
    }
    facts = {name: getattr(trace, name) for name in FACTS}
    try:
        header = msgspec.json.encode(_Header(stamp, sys.byteorder, described, facts))
    except (ValueError, OverflowError) as error:  # a lone surrogate, an integer beyond 64 bits
        raise ContainerError(str(error)) from error
    file.write(START.pack(MAGIC, len(header), isal_zlib.crc32(header)) + header)
    for table in TABLES:
        for _, column in _columns(trace, table):
            if len(column) and not _is_constant(column):
                file.write(column.data.cast("B"))


def _columns(trace: Trace, table: str) -> Iterator[tuple[str, Array]]:
    return ((name, getattr(getattr(trace, table), name)) for name in COLUMNS[table])


def _described(column: Array) -> _Column:
    if _is_constant(column):
        return _Column(column.dtype.name, 0, int(column[0]))
    return _Column(column.dtype.name, isal_zlib.crc32(column.data.cast("B")) if len(column) else 0)


def load(file: BinaryIO, stamp: Stamp) -> Trace:
    """The trace of exactly that file. Raises ContainerError, OSError."""
    header = _read_header(file)
    names = {name: set(table.columns) for name, table in header.tables.items()}
    expected = {name: set(columns) for name, columns in COLUMNS.items()}
    if header.stamp != stamp or header.byte_order != sys.byteorder or names != expected:
        raise ContainerError("of another file or version")
    try:
        facts = msgspec.structs.asdict(msgspec.convert(header.facts, _Facts))
    except ValueError as error:
        raise ContainerError(str(error)) from error
    columns = {
        table: {
            name: _read_column(file, header.tables[table].columns[name], header.tables[table].rows) for name in names
        }
        for table, names in COLUMNS.items()
    }
    if not _is_sound(columns["events"], facts) or any(
        column.dtype.kind != "i" for column in columns["allocations"].values()
    ):
        raise ContainerError("damaged")
    for column in (column for table in columns.values() for column in table.values()):
        column.flags.writeable = False
    events, allocations = EventTable(**columns["events"]), AllocationEvents(**columns["allocations"])
    return Trace(path=Path(stamp.path), events=events, allocations=allocations, **facts)


def _is_constant(column: Array) -> bool:
    """One value without memory for each row, as the reader makes columns that no event fills."""
    return len(column) > 0 and column.strides == (0,)


def _read_header(file: BinaryIO) -> _Header:
    left = os.fstat(file.fileno()).st_size - START.size
    start = file.read(START.size)
    magic, length, checksum = START.unpack(start) if len(start) == START.size else (b"", 0, 0)
    if magic != MAGIC or length > left:
        raise ContainerError("none of ours")
    encoded = file.read(length)
    if isal_zlib.crc32(encoded) != checksum:
        raise ContainerError("damaged")
    try:
        header = msgspec.json.decode(encoded, type=_Header)
        sizes = [
            WIDTHS[each.kind] * (each.constant is None) * table.rows
            for table in header.tables.values()
            for each in table.columns.values()
        ]
    except (ValueError, KeyError, RecursionError) as error:
        raise ContainerError(str(error)) from error
    if any(table.rows < 0 for table in header.tables.values()) or sum(sizes) != left - length:
        raise ContainerError("damaged")
    return header


def _read_column(file: BinaryIO, column: _Column, rows: int) -> Array:
    """The header has said that the file is long enough."""
    if column.constant is not None:
        limits: np.iinfo[Any] = np.iinfo(column.kind)
        if not limits.min <= column.constant <= limits.max:
            raise ContainerError("damaged")
        return np.broadcast_to(np.array(column.constant, column.kind), (rows,))
    values = np.empty(rows, column.kind)
    view = values.data.cast("B")
    if rows and (file.readinto(view) != len(view) or isal_zlib.crc32(view) != column.checksum):  # type: ignore[attr-defined]
        raise ContainerError("damaged")
    return values


def _is_sound(columns: dict[str, Array], facts: dict[str, Any]) -> bool:
    """Whether each number points somewhere and each type is what the table promises."""
    lists, texts = {"name": "symbols", "lane": "lanes"}, ("shapes", "dtypes", "inputs", "details")
    sound = columns["event_kind"].dtype == np.uint8 and _within(columns["event_kind"], 0, len(EventKind))
    sound &= columns["begin"].dtype == columns["duration"].dtype == np.int64
    sound &= _within(columns["duration"], 0, 2**62)
    sound &= all(columns[name].dtype == np.int32 for name in (*lists, *texts))
    sound &= all(_within(columns[name], 0, len(facts[fact])) for name, fact in lists.items())
    sound &= all(_within(columns[name], 0, len(facts[name]), absent=True) for name in texts)
    return bool(sound)


def _within(column: Array, least: int, end: int, *, absent: bool = False) -> bool:
    """Whether all values are in [least, end), or ABSENT where that is allowed."""
    if absent or not len(column):
        return bool(((column == ABSENT) | ((column >= least) & (column < end))).all())
    return bool(column.min() >= least and column.max() < end)


READER = f"{__version__}/5"
"""Grows when the same file would be read into other columns."""
LEAST_SIZE = 16 * 10**6
"""Bytes of JSON that are read in 50 ms. Below, opening an entry gains nothing that could be felt."""
LARGEST_FOLDER = 5 * 10**9
"""Bytes of all entries; and never more than a tenth of the room that there is."""
QUIET_NS = 2 * 10**9
"""A file that was changed less than this before it was read may change again without a new time: coarse clocks of file
systems tick up to every two seconds."""
ABANDONED_NS = 3600 * 10**9
ENDS = 1 << 16
"""Bytes at a file's begin and end that must be the same, too."""
SUFFIX = ".columns"


def read_remembered(path: Path, *, max_size: int = DEFAULT_MAX_SIZE, cache: bool = True) -> Trace:
    """As `read`, from the cache where it holds this file; remembers a large one. Raises TraceError as `read` does."""
    stamp = _stamp(path) if cache else None
    if stamp is None:
        return read(path, max_size=max_size)
    digest = hashlib.sha256(os.fsencode(stamp.path)).hexdigest()[:32]
    entry = cache_folder() / "traces" / f"{digest}{SUFFIX}"  # one for each path: a new version replaces the old one
    trace = _recall(entry, stamp)
    if trace is not None and trace.size <= max_size:
        return dataclasses.replace(trace, path=path)
    started = time.time_ns()
    trace = read(path, max_size=max_size)
    settled = max(stamp.modified_ns, stamp.changed_ns) < started - QUIET_NS
    if trace.size >= LEAST_SIZE and settled and _stamp(path) == stamp:
        _remember(trace, stamp, entry)
    return trace


def _stamp(path: Path) -> Stamp | None:
    """What tells a file from any other; None for one that cannot be read, which `read` says better."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            head = file.read(ENDS)
            file.seek(max(0, status.st_size - ENDS))
            tail = file.read(ENDS)
    except OSError:
        return None
    ends = hashlib.blake2b(head + tail, digest_size=16).hexdigest()
    where = (status.st_dev, status.st_ino, status.st_size)
    return Stamp(READER, str(path.absolute()), *where, status.st_mtime_ns, status.st_ctime_ns, ends)


def _recall(entry: Path, stamp: Stamp) -> Trace | None:
    try:
        with entry.open("rb") as file:
            if os.fstat(file.fileno()).st_uid != os.getuid():
                return None  # what others put there is not trusted
            trace = load(file, stamp)
        os.utime(entry)  # the oldest are deleted first
    except (OSError, ContainerError):
        return None
    return trace


def _remember(trace: Trace, stamp: Stamp, entry: Path) -> None:
    """Writes an entry whole or not at all. A full disk, or a folder that cannot be written to, is no reason to fail."""
    partial = entry.with_name(f"{entry.name}.{os.getpid()}.partial")
    try:
        entry.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        columns = [column for table in TABLES for _, column in _columns(trace, table)]
        if not make_room(entry.parent, sum(each.nbytes for each in columns if not _is_constant(each)), keep=entry):
            return
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            store(file, trace, stamp)
        partial.replace(entry)
    except (OSError, ContainerError):
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def make_room(folder: Path, needed: int, *, keep: Path | None = None) -> bool:
    """Deletes the entries that were not used for the longest time until there is room; False where there is none.

    keep: an entry that is about to be replaced, which does not count. Raises OSError.
    """
    entries = []
    for file in folder.iterdir():
        with suppress(OSError):  # another process deleted it just now
            status = file.stat()
            if file.suffix == SUFFIX and file != keep:
                entries.append((status.st_mtime_ns, status.st_size, file))
            elif file.suffix == ".partial" and time.time_ns() - status.st_mtime_ns > ABANDONED_NS:
                file.unlink(missing_ok=True)  # of a process that was killed while writing
    held = sum(size for _, size, _ in entries)
    limit = min(LARGEST_FOLDER, (shutil.disk_usage(folder).free + held) // 10)
    if needed > limit:
        return False
    for _, size, file in sorted(entries):
        if held + needed <= limit:
            break
        file.unlink(missing_ok=True)
        held -= size
    return True
