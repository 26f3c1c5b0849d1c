"""The second look at a large trace: its columns as they were read, in the user's cache folder.

One law: the cache never changes what is seen. An entry counts only for the very file that it was made from, by this
version, by this user, and when everything in it is as it must be; whatever else happens, the file is read anew.

The columns of a trace in a file of ours: a header in JSON, then the columns as they lie in memory.

What is read is not trusted: lengths, types, checksums and every number that points into a dictionary are checked, and
nothing in it is ever executed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
from isal import isal_zlib

from steptime._version import __version__
from steptime.folders import cache_folder
from steptime.trace.reader import DEFAULT_MAX_SIZE, read
from steptime.trace.table import ABSENT, Damage, Device, EventKind, EventTable, Trace, Track

Array: TypeAlias = npt.NDArray[Any]
MAGIC = b"steptime-trace-columns 1\n"
KINDS = {"uint8": np.uint8, "int32": np.int32, "int64": np.int64}
COLUMNS = tuple(field.name for field in dataclasses.fields(EventTable))
LENGTH_BYTES = 8


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


class _Header(msgspec.Struct, frozen=True):
    stamp: Stamp
    byte_order: str
    rows: int
    columns: dict[str, _Column]
    size: int
    symbols: tuple[str, ...]
    lanes: tuple[tuple[int | str | None, int | str | None], ...]
    shapes: tuple[str, ...]
    dtypes: tuple[str, ...]
    inputs: tuple[str, ...]
    devices: tuple[Device, ...]
    rank: int | None
    world_size: int | None
    backend: str
    base_ns: int
    damage: Damage


def store(file: BinaryIO, trace: Trace, stamp: Stamp) -> None:
    """Writes a trace. Raises ContainerError where a name of it is no text that can be written, OSError."""
    columns = {name: getattr(trace.events, name) for name in COLUMNS}
    header = _Header(
        stamp=stamp, byte_order=sys.byteorder, rows=len(trace.events),
        columns={name: _described(column) for name, column in columns.items()}, size=trace.size,
        symbols=trace.symbols, lanes=tuple((lane.process, lane.thread) for lane in trace.lanes),
        shapes=trace.shapes, dtypes=trace.dtypes, inputs=trace.inputs, devices=trace.devices, rank=trace.rank,
        world_size=trace.world_size, backend=trace.backend, base_ns=trace.base_ns, damage=trace.damage,
    )  # fmt: skip
    try:
        encoded = msgspec.json.encode(header)
    except (ValueError, OverflowError) as error:  # a lone surrogate, an integer beyond 64 bits
        raise ContainerError(str(error)) from error
    checksum = isal_zlib.crc32(encoded)
    for part in (MAGIC, len(encoded).to_bytes(LENGTH_BYTES, "little"), checksum.to_bytes(4, "little"), encoded):
        file.write(part)
    for column in columns.values():
        if not _is_constant(column):
            file.write(column.data.cast("B"))


def load(file: BinaryIO, stamp: Stamp) -> Trace:
    """The trace of exactly that file. Raises ContainerError, OSError."""
    header = _read_header(file)
    if header.stamp != stamp or header.byte_order != sys.byteorder or set(header.columns) != set(COLUMNS):
        raise ContainerError("of another file or version")
    columns = {name: _read_column(file, header.columns[name], header.rows) for name in COLUMNS}
    _check(columns, header)
    for column in columns.values():
        column.flags.writeable = False
    return Trace(
        path=Path(stamp.path), size=header.size, events=EventTable(**columns), symbols=header.symbols,
        lanes=tuple(Track(*lane) for lane in header.lanes), shapes=header.shapes, dtypes=header.dtypes,
        inputs=header.inputs, devices=header.devices, rank=header.rank, world_size=header.world_size,
        backend=header.backend, base_ns=header.base_ns, damage=header.damage,
    )  # fmt: skip


def _described(column: Array) -> _Column:
    if _is_constant(column):
        return _Column(column.dtype.name, 0, int(column[0]))
    return _Column(column.dtype.name, isal_zlib.crc32(column.data.cast("B")))


def _is_constant(column: Array) -> bool:
    """One value without memory for each row, as the reader makes columns that no event fills."""
    return len(column) > 0 and column.strides == (0,)


def _read_header(file: BinaryIO) -> _Header:
    left = os.fstat(file.fileno()).st_size
    start = file.read(len(MAGIC) + LENGTH_BYTES + 4)
    length = int.from_bytes(start[len(MAGIC) : -4], "little")
    if not start.startswith(MAGIC) or length > left:
        raise ContainerError("none of ours")
    encoded = file.read(length)
    if isal_zlib.crc32(encoded) != int.from_bytes(start[-4:], "little"):
        raise ContainerError("damaged")
    try:
        header = msgspec.json.decode(encoded, type=_Header)
    except (ValueError, RecursionError) as error:
        raise ContainerError(str(error)) from error
    stored = sum(_width(column) * header.rows for column in header.columns.values())
    if header.rows < 0 or stored != left - len(start) - length:
        raise ContainerError("damaged")
    return header


def _width(column: _Column) -> int:
    """Bytes of a row."""
    kind = KINDS.get(column.kind)
    if kind is None:
        raise ContainerError("damaged")
    return 0 if column.constant is not None else np.dtype(kind).itemsize


def _read_column(file: BinaryIO, column: _Column, rows: int) -> Array:
    """The header has said that the file is long enough."""
    kind = np.dtype(KINDS[column.kind])
    if column.constant is not None:
        limits: np.iinfo[Any] = np.iinfo(kind)
        if not limits.min <= column.constant <= limits.max:
            raise ContainerError("damaged")
        return np.broadcast_to(np.asarray(column.constant, kind), (rows,))
    values = np.empty(rows, kind)
    view = values.data.cast("B")
    if rows and (file.readinto(view) != len(view) or isal_zlib.crc32(view) != column.checksum):  # type: ignore[attr-defined]
        raise ContainerError("damaged")
    return values


def _check(columns: dict[str, Array], header: _Header) -> None:
    """Raises ContainerError where a number points nowhere or a type is not what the table promises."""
    lists = {"name": header.symbols, "lane": header.lanes}
    texts = {"shapes": header.shapes, "dtypes": header.dtypes, "inputs": header.inputs}
    fine = columns["event_kind"].dtype == np.uint8 and _within(columns["event_kind"], 0, len(EventKind), False)
    fine &= columns["begin"].dtype == columns["duration"].dtype == np.int64
    fine &= _within(columns["duration"], 0, 2**62, False)
    fine &= all(columns[name].dtype == np.int32 for name in (*lists, *texts))
    fine &= all(_within(columns[name], 0, len(values), False) for name, values in lists.items())
    fine &= all(_within(columns[name], 0, len(values), True) for name, values in texts.items())
    if not fine:
        raise ContainerError("damaged")


def _within(column: Array, least: int, end: int, absent: bool) -> bool:
    """Whether all values are in [least, end), or ABSENT where that is allowed."""
    if not len(column):
        return True
    if not absent:
        return bool(column.min() >= least and column.max() < end)
    return bool(((column == ABSENT) | ((column >= least) & (column < end))).all())


READER = f"{__version__}/3"
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
    entry = entry_of(stamp)
    trace = _recall(entry, stamp)
    if trace is not None and trace.size <= max_size:
        return dataclasses.replace(trace, path=path)
    started = time.time_ns()
    trace = read(path, max_size=max_size)
    settled = max(stamp.modified_ns, stamp.changed_ns) < started - QUIET_NS
    if trace.size >= LEAST_SIZE and settled and _stamp(path) == stamp:
        _remember(trace, stamp, entry)
    return trace


def entry_of(stamp: Stamp) -> Path:
    """The cache's file for a trace: one for each path, so that a new version of a trace replaces the old one."""
    digest = hashlib.sha256(os.fsencode(stamp.path)).hexdigest()[:32]
    return cache_folder() / "traces" / f"{digest}{SUFFIX}"


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
            if not _is_own(file):
                return None
            trace = load(file, stamp)
        os.utime(entry)  # the oldest are deleted first
    except (OSError, ContainerError):
        return None
    return trace


def _is_own(file: BinaryIO) -> bool:
    """Whether this user wrote it: what others put there is not trusted."""
    return os.fstat(file.fileno()).st_uid == os.getuid()


def _remember(trace: Trace, stamp: Stamp, entry: Path) -> None:
    """Writes an entry whole or not at all. A full disk, or a folder that cannot be written to, is no reason to fail."""
    partial = entry.with_name(f"{entry.name}.{os.getpid()}.partial")
    try:
        entry.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not make_room(entry.parent, _bytes_of(trace), keep=entry):
            return
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            store(file, trace, stamp)
        partial.replace(entry)
    except (OSError, ContainerError):
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def _bytes_of(trace: Trace) -> int:
    columns = (getattr(trace.events, field.name) for field in dataclasses.fields(trace.events))
    return sum(column.nbytes for column in columns if column.strides != (0,))


def make_room(folder: Path, needed: int, *, keep: Path | None = None) -> bool:
    """Deletes the entries that were not used for the longest time until there is room; False where there is none.

    keep: an entry that is about to be replaced, which does not count. Raises OSError.
    """
    entries = sorted((_age_and_size(file), file) for file in folder.glob(f"*{SUFFIX}") if file != keep)
    held = sum(size for (_, size), _ in entries)
    limit = min(LARGEST_FOLDER, (shutil.disk_usage(folder).free + held) // 10)
    for partial in _abandoned(folder):
        partial.unlink(missing_ok=True)
    if needed > limit:
        return False
    for (_, size), file in entries:
        if held + needed <= limit:
            break
        file.unlink(missing_ok=True)
        held -= size
    return True


def _abandoned(folder: Path) -> Iterator[Path]:
    """What a process that was killed while writing left behind."""
    now = time.time_ns()
    for file in folder.glob("*.partial"):
        with suppress(OSError):
            if now - file.stat().st_mtime_ns > ABANDONED_NS:
                yield file


def _age_and_size(file: Path) -> tuple[int, int]:
    try:
        status = file.stat()
    except OSError:  # another process deleted it just now
        return 0, 0
    return status.st_mtime_ns, status.st_size
