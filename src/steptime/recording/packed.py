"""Journal at a quarter of its size: the same records, column by column, in blocks that can be read one by one.

Times are stored as differences: of a record's start to the previous one's, and of its end to its start. So most bytes
are zero, and the bytes of the columns, side by side, compress well. Nothing is lost, not even the order.

Also the decoder of journals into columns: any bytes give a table; invalid records are counted and left out.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from steptime.arrays import Bool
from steptime.journal import RECORD, Kind
from steptime.recording.recording import IntervalTable

LAYOUT = np.dtype(
    [("kind", "u1"), ("flags", "u1"), ("thread", "<u2"), ("identity", "<u4"), ("start", "<i8"), ("end", "<i8")]
)
"""`journal.RECORD` as a numpy type: the same 24 bytes."""
Records = npt.NDArray[np.void]
"""Records of LAYOUT."""
VALUE_KINDS = (Kind.MEMORY, Kind.GRADIENT_NORM)
"""Kinds whose second time is a value. QUEUE is one too if that is shorter than a clock reading: see `plausible`."""
CLOCK_SLACK = 120_000_000_000
"""ns by which a process's clocks may have been adjusted before a record counts as outside its life."""
LONGEST_LIFE = 400 * 86_400 * 1_000_000_000
"""Longest expected run, ns: 400 days; a later time is garbage."""


@dataclass(frozen=True, slots=True)
class Life:
    """Time in which a process can have written records. start, end: monotonic ns."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Decoded:
    """Table of a journal. torn: number of bytes left out at its end; senseless: number of invalid records left out."""

    table: IntervalTable
    torn: int
    senseless: int


def decode(blocks: Iterable[bytes], life: Life | None) -> Decoded:
    """Returns the table of a journal's blocks; each block except the last contains whole records. Leaves out unknown
    kinds, ends before starts, and times outside of `life`. If most records are outside, all valid ones are kept: the
    clock was set while the process ran, and its life is unknown."""
    kept, total, torn = [np.empty(0, LAYOUT)], 0, 0
    for data in blocks:
        whole = len(data) // RECORD.size
        records = np.frombuffer(data, LAYOUT, count=whole)
        kept.append(records[plausible(records, None)])
        total, torn = total + whole, torn + len(data) - whole * RECORD.size
    possible = np.concatenate(kept)
    sound = possible[plausible(possible, life)]
    if total - len(sound) > len(sound):
        sound = possible
    return Decoded(as_table(sound), torn, total - len(sound))


def as_table(records: npt.NDArray[np.void]) -> IntervalTable:
    """Returns a table of the records, sorted by (start, -end). Of equal intervals, the later written one is the parent,
    and first."""
    last_first = records[::-1]
    ordered = last_first[np.lexsort((-last_first["end"], last_first["start"]))]
    columns: dict[str, Any] = {
        name: ordered[name].astype(LAYOUT[name].newbyteorder("=")) for name in LAYOUT.names or ()
    }
    for column in columns.values():
        column.flags.writeable = False
    return IntervalTable(**columns)


def plausible(records: Records, life: Life | None) -> Bool:
    """Returns a mask of the valid records: of a known kind, in time order, in this life."""
    kind, start, end = records["kind"], records["start"], records["end"]
    first, last = (life.start, life.end) if life else (0, 2**62)
    in_life = np.isin(kind, list(Kind)) & (start >= max(0, first)) & (start <= last) & (end >= 0)
    ordered = (end >= start) & (end <= last)
    ready = (kind == Kind.QUEUE) & (end < 2**32)
    sound: Bool = in_life & (ordered | np.isin(kind, VALUE_KINDS) | ready)
    return sound


SUFFIX, ASIDE = ".packed", ".aside"
"""Suffixes of a packed journal, and of one renamed for packing while a new one is written."""
MAGIC = b"STJ1"
HEAD = struct.Struct("<II")
"""Head of a block: number of records, and of the following bytes."""
BLOCK = 1 << 16
"""Records of a block."""
LEVEL = 6
HEADS = ("kind", "flags", "thread", "identity")


def pack(records: bytes) -> bytes:
    """Packs the whole records of a journal, without a torn one at its end."""
    table = np.frombuffer(records, LAYOUT, count=len(records) // RECORD.size)
    blocks = (table[start : start + BLOCK] for start in range(0, len(table), BLOCK))
    return MAGIC + b"".join(map(_block, blocks))


def _block(table: np.ndarray[tuple[int], np.dtype[np.void]]) -> bytes:
    start, end = (table[name].astype("<i8").view("<u8") for name in ("start", "end"))
    columns = [np.ascontiguousarray(table[name]) for name in HEADS]
    columns += [np.diff(start, prepend=start.dtype.type(0)), end - start]
    planes = b"".join(column.view(np.uint8).reshape(len(table), column.itemsize).T.tobytes() for column in columns)
    packed = zlib.compress(planes, LEVEL)
    return HEAD.pack(len(table), len(packed)) + packed


def unpack(packed: bytes, largest: int) -> Iterator[bytes]:
    """Yields the records by block. largest: most bytes of records. Raises ValueError after the last readable block."""
    if packed[: len(MAGIC)] != MAGIC:
        raise ValueError("no packed journal")
    at, made = len(MAGIC), 0
    while at < len(packed):
        if at + HEAD.size > len(packed):
            raise ValueError("a block's head is cut")
        count, size = HEAD.unpack_from(packed, at)
        at += HEAD.size
        made += count * RECORD.size
        block = _unpacked(packed[at : at + size], count) if count <= BLOCK and made <= largest else None
        if block is None:
            raise ValueError("a block is damaged")
        yield block
        at += size


def _unpacked(packed: bytes, count: int) -> bytes | None:
    """Returns the records of a block; None if it is damaged. Makes no more bytes than they need, for any content."""
    try:
        opened = zlib.decompressobj()
        planes = opened.decompress(packed, count * RECORD.size + 1)
    except zlib.error:
        return None
    if len(planes) != count * RECORD.size or not opened.eof:
        return None
    table = np.zeros(count, LAYOUT)
    columns, at = [], 0
    for kind in (*(LAYOUT[name] for name in HEADS), np.dtype("<u8"), np.dtype("<u8")):
        size = count * kind.itemsize
        rows = np.frombuffer(planes, np.uint8, size, at).reshape(kind.itemsize, count).T
        columns.append(np.ascontiguousarray(rows).view(kind).reshape(count))
        at += size
    for name, column in zip(HEADS, columns, strict=False):
        table[name] = column
    start = np.cumsum(columns[-2], dtype=np.uint64)
    table["start"] = start.view(np.int64)
    table["end"] = (start + columns[-1]).view(np.int64)
    return table.tobytes()
