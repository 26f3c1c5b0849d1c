"""Standard streams that cannot fail: a closed, full or hung-up one costs its text, never the exit status.

One law: a job sees the descriptors that the user gave us. Where one of the three is closed, something holds its number
here, so that no file of ours gets it; that goes when a job is started, which finds it closed as it would have alone.
"""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from typing import Any, TextIO

STANDARD_OUTPUT, STANDARD_ERROR = 1, 2


class Outlet(io.FileIO):
    """A descriptor that is written to until that fails; what comes after is dropped. failure: why."""

    failure: OSError | None = None
    taken = False
    """Whether a reader was there for some of it."""

    def write(self, data: Any, /) -> int:
        """Takes all of it, or a part; waits where a pipe that does not block is full."""
        try:
            while self.failure is None:
                written = super().write(data)
                if written is not None:
                    self.taken |= bool(written)
                    return written
                select.select([], [self], [])
        except OSError as error:
            self.failure = error
        return memoryview(data).nbytes


def secure() -> Outlet:
    """Replaces the standard streams; returns standard output's outlet."""
    while (number := os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)) <= STANDARD_ERROR:
        pass  # the lowest free number: one of the three was closed, and what is written to it fails
    os.close(number)
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False))
    output, error = Outlet(STANDARD_OUTPUT, "w", closefd=False), Outlet(STANDARD_ERROR, "w", closefd=False)
    sys.stdout, sys.stderr = _text(output, sys.stdout), _text(error, sys.stderr, lines=True)
    return output


def _text(outlet: Outlet, before: TextIO | None, *, lines: bool = False) -> TextIO:
    """Text as the interpreter would have written it."""
    lines |= bool(getattr(before, "line_buffering", False))
    encoding, errors = getattr(before, "encoding", "utf-8"), getattr(before, "errors", "backslashreplace")
    return io.TextIOWrapper(io.BufferedWriter(outlet), encoding, errors, line_buffering=lines)


def lost(outlet: Outlet) -> str:
    """Why text that was to be written is missing; "" where it is not, or its reader had seen enough."""
    if outlet.failure is None or (outlet.failure.errno == errno.EPIPE and outlet.taken):
        return ""
    reasons = {errno.EPIPE: "nobody reads it", errno.EBADF: "it is closed"}
    number = outlet.failure.errno or 0
    return reasons.get(number) or os.strerror(number)
