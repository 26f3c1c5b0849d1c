"""The bytes of a trace file, plain or gzipped, never more than a stated number of them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from isal import isal_zlib

from steptime.errors import TraceError, no_such_file

COMPRESSED_CHUNK, LARGEST = 1 << 16, 1 << 40
GZIP_MAGIC = b"\x1f\x8b"
DeflateError: Any = isal_zlib.error
UNITS = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "bytes"))
GZIP_WINDOW = 31
"""zlib's wbits for a gzip header and a 32 KiB window."""


class TraceSource:
    """A trace's file as a stream of bytes, unpacked if it is gzipped. cut_short: True if the compressed data ends or
    breaks in the middle; what came before was delivered. size: bytes delivered so far. Raises TraceError
    (trace-unreadable, trace-empty, trace-too-large)."""

    def __init__(self, path: Path, max_size: int) -> None:
        self._path = path
        self._max_size = max_size
        self.size = 0
        self.cut_short = False
        if path.is_fifo():  # it would hold us until somebody writes into it, and can be read once only
            raise TraceError("trace-unreadable", f"{path} is a pipe. Give a file.")
        try:
            self._file: io.BufferedReader = path.open("rb")
        except FileNotFoundError:
            raise no_such_file(path, "a trace of torch's profiler, .json or .json.gz", TraceError) from None
        except OSError as error:
            raise self._unreadable(error) from error
        try:
            head = self._file.peek(2)[:2]
        except OSError as error:
            self._file.close()
            raise self._unreadable(error) from error
        if not head:
            self._file.close()
            raise TraceError("trace-empty", f"{path} is empty. Was the export interrupted, or the disk full?")
        self._inflater = isal_zlib.decompressobj(GZIP_WINDOW) if head == GZIP_MAGIC else None
        self._pending = b""

    def __enter__(self) -> TraceSource:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def fill(self, view: memoryview) -> int:
        """Fills the view with the next bytes and returns their number, below its size only at the file's end."""
        filled = 0
        while filled < len(view):
            try:
                count = self._file.readinto(view[filled:]) if self._inflater is None else self._inflate(view[filled:])
            except OSError as error:
                raise self._unreadable(error) from error
            if not count:
                break
            filled += count
            self.size += count
            if self.size > self._max_size:
                raise too_large(f"{self._path} holds", self._max_size)
        return filled

    def _inflate(self, view: memoryview) -> int:
        """Inflates at most len(view) bytes into the view and returns their number; 0 at the end."""
        while self._inflater is not None:
            data = self._pending or self._file.read(COMPRESSED_CHUNK)
            if not data:
                self.cut_short = self.cut_short or not self._inflater.eof
                return 0
            try:
                out: bytes = self._inflater.decompress(data, len(view))
            except DeflateError:
                self.cut_short, self._pending = True, b""
                self._file.seek(0, io.SEEK_END)
                return 0
            self._pending = self._inflater.unconsumed_tail
            if self._inflater.eof:
                self._next_member(self._inflater.unused_data)
            if out:
                view[: len(out)] = out
                return len(out)
        return 0

    def _next_member(self, rest: bytes) -> None:
        """Starts the next member of a gzip file; anything else after a member is padding and skipped."""
        rest = rest or self._file.read(COMPRESSED_CHUNK)
        if rest.startswith(GZIP_MAGIC):
            self._inflater, self._pending = isal_zlib.decompressobj(GZIP_WINDOW), rest
        else:
            self._pending = b""
            self._file.seek(0, io.SEEK_END)

    def _unreadable(self, error: OSError) -> TraceError:
        reason = error.strerror or str(error)
        return TraceError("trace-unreadable", f"{self._path} cannot be read: {reason}.")


def first_bytes(path: Path, count: int) -> bytes:
    """First bytes of a file, unpacked; empty if it cannot be read, since its reader reports errors better."""
    start = bytearray(count)
    try:
        with TraceSource(path, LARGEST) as source:
            return bytes(start[: source.fill(memoryview(start))])
    except TraceError:
        return b""


def too_large(what_holds: str, limit: int) -> TraceError:
    """Error for a trace of more than `limit` bytes of JSON."""
    unit, name = next((unit, name) for unit, name in UNITS if limit >= unit)
    return TraceError(
        "trace-too-large",
        f"{what_holds} more than {limit / unit:.3g} {name} of JSON, the limit for the traces of one rank. "
        "Record fewer steps, or raise the limit, as in --max-size 20GB.",
    )
