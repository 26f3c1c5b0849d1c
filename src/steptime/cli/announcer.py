"""Progress of a job, in the terminal that the job writes to."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from steptime.cli.exit_codes import say
from steptime.launcher.outcome import WAITING, Progress

FIRST_SECONDS = 60.0


class Announcer:
    """Printer of a job's progress: each notice and each stage once, then the step count after 1, 2, 4, 8 … minutes. A
    few whole lines, because the job writes to the same terminal, and a redrawn line would break the job's own."""

    def __init__(self, say: Callable[[str], None], end_bar: Callable[[], None] | None = None) -> None:
        """Sets the output functions. end_bar: ends the line of the job's progress bar."""
        self._notify, self._end_bar = say, end_bar
        self._stage, self._notice = WAITING, ""
        self._next = FIRST_SECONDS

    def show(self, progress: Progress) -> None:
        """Prints progress; the supervisor calls it twice a second."""
        if progress.notice != self._notice:
            self._notice = progress.notice
            self._say(progress, progress.notice)
        if progress.stage == self._stage and progress.elapsed_seconds < self._next:
            return
        self._stage = progress.stage
        while self._next <= progress.elapsed_seconds:
            self._next *= 2
        several = f" in {progress.processes} processes" if progress.processes > 1 else ""
        steps = f", {progress.steps} step{'s' * (progress.steps != 1)}{several}" if progress.steps else ""
        self._say(progress, f"{progress.elapsed_seconds:.0f} s{steps}: {progress.stage}")

    def _say(self, progress: Progress, sentence: str) -> None:
        if progress.bar and self._end_bar is not None:
            self._end_bar()
        self._notify(sentence)


def say_above(sentence: str) -> None:
    """Prints a sentence. In a terminal, it overwrites the line of the job's progress bar, which redraws itself below.
    In a file, it starts a new line if the last byte is no line feed."""
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
    elif last_byte(sys.stderr) not in (b"", b"\n"):
        sys.stderr.write("\n")
    say(sentence)


def end_bar() -> None:
    """Ends the line of a progress bar in a pipe, whose last byte is unknown."""
    if not sys.stderr.isatty() and not last_byte(sys.stderr):
        sys.stderr.write("\n")


def last_byte(stream: Any) -> bytes:
    """Last byte that was written to a file; b"" if it is empty or cannot be read (no file, or a closed one)."""
    with contextlib.suppress(OSError, ValueError):
        number = stream.fileno()
        if stat.S_ISREG(os.fstat(number).st_mode):
            with Path(f"/proc/self/fd/{number}").open("rb", buffering=0) as file:
                file.seek(max(0, os.fstat(number).st_size - 1))
                return file.read(1)
    return b""
