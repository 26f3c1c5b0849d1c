"""The columns of a trace in a file of ours: a header in JSON, then the columns as they lie in memory.

What is read is not trusted: lengths, types, checksums and every number that points into a dictionary are checked, and
nothing in it is ever executed.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
from isal import isal_zlib

from steptime.kineto.table import ABSENT, Category, Damage, Device, EventTable, Lane, Trace

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
        lanes=tuple(Lane(*lane) for lane in header.lanes), shapes=header.shapes, dtypes=header.dtypes,
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
    fine = columns["category"].dtype == np.uint8 and _within(columns["category"], 0, len(Category), False)
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
