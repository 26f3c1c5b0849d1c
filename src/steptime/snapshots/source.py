"""The bytes of a snapshot, a stretch at a time."""

from __future__ import annotations

from typing import Any, BinaryIO, cast

from isal import igzip, isal_zlib

from steptime.errors import SnapshotError

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


class Source:
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
