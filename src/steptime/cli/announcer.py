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
    """Tells a notice and each stage once, then the step count after 1, 2, 4, 8 … minutes: few lines, and whole ones,
    because the job writes to the same terminal and a line that redraws itself would tear the job's own."""

    def __init__(self, say: Callable[[str], None], end_bar: Callable[[], None] | None = None) -> None:
        """end_bar: ends the line in which a bar of the job's stands."""
        self._notify, self._end_bar = say, end_bar
        self._stage, self._notice = WAITING, ""
        self._next = FIRST_SECONDS

    def show(self, progress: Progress) -> None:
        """Called twice a second by the supervisor."""
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
    """In a terminal, on the line that a progress bar of the job may be in: the bar draws itself again below. In a
    file, on a line of its own, which its last byte tells."""
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
    elif last_byte(sys.stderr) not in (b"", b"\n"):
        sys.stderr.write("\n")
    say(sentence)


def end_bar() -> None:
    """Ends the line of a progress bar in a pipe, of which nobody else knows what was written last."""
    if not sys.stderr.isatty() and not last_byte(sys.stderr):
        sys.stderr.write("\n")


def last_byte(stream: Any) -> bytes:
    """Last byte that was written to a file; b"" where it is empty, or where nothing can be read: no file, or a closed
    one."""
    with contextlib.suppress(OSError, ValueError):
        number = stream.fileno()
        if stat.S_ISREG(os.fstat(number).st_mode):
            with Path(f"/proc/self/fd/{number}").open("rb", buffering=0) as file:
                file.seek(max(0, os.fstat(number).st_size - 1))
                return file.read(1)
    return b""
