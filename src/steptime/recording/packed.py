"""A journal at a quarter of its size: the same records, column by column, in blocks that can be read one by one.

Times are kept as differences: of a record's begin to that of the record before it, and of its end to its begin. So most
of their bytes are zero, and the columns' bytes, laid side by side, compress well. Nothing is lost, the order neither.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import numpy as np

from steptime.journal import RECORD
from steptime.recording.records import LAYOUT

SUFFIX, ASIDE = ".packed", ".aside"
"""Of a journal that was packed, and of one that is about to be, while a new one is written in its place."""
MAGIC = b"STJ1"
HEAD = struct.Struct("<II")
"""Of a block: records in it, bytes that follow."""
BLOCK = 1 << 16
"""Records."""
LEVEL = 6
HEADS = ("kind", "flags", "thread", "identity")


def pack(records: bytes) -> bytes:
    """The whole records of a journal; a torn one at its end is left out."""
    table = np.frombuffer(records, LAYOUT, count=len(records) // RECORD.size)
    blocks = (table[start : start + BLOCK] for start in range(0, len(table), BLOCK))
    return MAGIC + b"".join(map(_block, blocks))


def _block(table: np.ndarray[tuple[int], np.dtype[np.void]]) -> bytes:
    begin, end = (table[name].astype("<i8").view("<u8") for name in ("begin", "end"))
    columns = [np.ascontiguousarray(table[name]) for name in HEADS]
    columns += [np.diff(begin, prepend=begin.dtype.type(0)), end - begin]
    planes = b"".join(column.view(np.uint8).reshape(len(table), column.itemsize).T.tobytes() for column in columns)
    packed = zlib.compress(planes, LEVEL)
    return HEAD.pack(len(table), len(packed)) + packed


def unpack(packed: bytes, largest: int) -> Iterator[bytes]:
    """The records, block by block. largest: bytes of records that are made at most. Raises ValueError where it is
    damaged, behind what can be read."""
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
    """The records of a block; None where it is damaged. No more is made than they need, whatever the bytes say."""
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
    begin = np.cumsum(columns[-2], dtype=np.uint64)
    table["begin"] = begin.view(np.int64)
    table["end"] = (begin + columns[-1]).view(np.int64)
    return table.tobytes()
