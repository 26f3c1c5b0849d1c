"""Stays beside a running job: passes on signals, takes telemetry, shows progress, and packs the recording at its end.

What is heavy to import (psutil, numpy) comes in when the job has been running for a moment: a short job never waits
for it.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol

from steptime.capture.outcome import Progress

HEAD_START = 0.3
"""Seconds that the job has to itself: most of an interpreter's start."""
PROGRESS_PERIOD = 0.5
"""Seconds between two calls of the user's progress function."""
LONG_JOURNAL = 1 << 18
"""Bytes that are worth packing: thousands of steps."""
PATIENCE = 3600.0
"""Seconds of one wait for a signal or the end of the job."""
NO_TELEMETRY = "Telemetry could not be written to the recording: the machine's load is known in part."


class Timer(Protocol):
    """Something to do at `due` (seconds of time.monotonic), which then names the next time."""

    due: float
    failed: bool

    def look(self) -> None:
        """Does it."""


class Signals(Protocol):
    """How the time until the next look is spent: `signals.Switchboard`, or `arm.Deadline`."""

    def wait(self, seconds: float, send: Callable[[int], None]) -> None:
        """Returns after `seconds`, or as soon as the job ends; passes on to `send` what is to reach it."""

    def interrupted(self) -> None:
        """We are told to end, in the middle of a look."""


class Display:
    """Calls the user's progress function."""

    def __init__(
        self, folder: Path, show: Callable[[Progress], None], begin: float, pids: Callable[[], Iterable[int]]
    ) -> None:
        from steptime.capture.overlooked import Overlooked
        from steptime.capture.progress import Journals

        self._journals = Journals(folder)
        self._overlooked = Overlooked(folder, pids)
        self._show = show
        self._begin = begin
        self.due = time.monotonic()
        self.failed = False

    def look(self) -> None:
        """Reads what is new in the journals and shows it."""
        self.due = time.monotonic() + PROGRESS_PERIOD
        with contextlib.suppress(OSError):  # the terminal was closed: the job goes on, and so do we
            elapsed = time.monotonic() - self._begin
            self._show(Progress(elapsed, *self._journals.look(), notice=self._overlooked.look()))


def supervise(
    job: subprocess.Popen[bytes], folder: Path, signals: Signals, show: Callable[[Progress], None] | None
) -> list[str]:
    """Returns when the job has ended, whatever its children still do; a sentence for each thing that was lost."""
    try:
        lost = _stay(job, folder, signals, show)
    except KeyboardInterrupt:
        signals.interrupted()
        raise
    finally:  # whatever fails in us, nobody else would pass on the signals
        while job.poll() is None:
            signals.wait(PATIENCE, job.send_signal)
    return lost + pack(folder)


def _stay(
    job: subprocess.Popen[bytes], folder: Path, signals: Signals, show: Callable[[Progress], None] | None
) -> list[str]:
    begin = time.monotonic()
    timers: list[Timer] = []
    while job.poll() is None:
        due = min((timer.due for timer in timers), default=begin + HEAD_START)
        signals.wait(due - time.monotonic(), job.send_signal)
        if not timers and time.monotonic() >= begin + HEAD_START and job.poll() is None:
            timers = _timers(job, folder, show, begin)
        for timer in timers:
            if time.monotonic() >= timer.due:
                timer.look()
    return [NO_TELEMETRY] if any(timer.failed for timer in timers) else []


def _timers(
    job: subprocess.Popen[bytes], folder: Path, show: Callable[[Progress], None] | None, begin: float
) -> list[Timer]:
    from steptime.capture.telemetry import Telemetry

    telemetry = Telemetry(folder, job.pid)
    timers: list[Timer] = [telemetry]
    if show is not None:
        timers.append(Display(folder, show, begin, lambda: telemetry.pids))
    return timers


def pack(folder: Path) -> list[str]:
    """Compresses the traces that are there, and packs long journals; a sentence where some could not be."""
    traces = any(True for _ in folder.glob("process-*/trace-*.json"))
    if not traces and not any(True for _ in long_journals(folder)):
        return []
    from steptime.capture.compress import compress_traces, pack_journals

    pack_journals(long_journals(folder))
    return compress_traces(folder)


def long_journals(folder: Path) -> Iterator[Path]:
    """Those worth packing."""
    for journal in folder.glob("process-*/journal.bin"):
        with contextlib.suppress(OSError):
            if journal.stat().st_size >= LONG_JOURNAL:
                yield journal
