"""Supervisor of a running job: passes on signals, takes telemetry, shows progress; then packs its recording.

Heavy imports (psutil, numpy) wait until the job has run for a moment: a short job never waits for them.

A signal reaches the launcher in one of two ways. Ctrl-C, a closed terminal and `kill -- -GROUP` send it to the whole
process group: the job has it already, and a second one would disturb the job's own ending. `kill PID` sends it to the
launcher alone, which must pass it on. The system hides which it was, so a witness shows it: a tiny process in the
same group.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from steptime.launcher.outcome import Progress
from steptime.recording.inventory import files_of_processes

PASSED_ON = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)
ENDING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
"""Signals by which somebody asks a job to end."""
GROUP_DELIVERY = 0.002
"""Seconds for the system to deliver a signal to the rest of the group; it takes microseconds."""
WITNESS_PATIENCE = 2.0
"""Seconds to wait for the witness's answer on an overloaded machine."""


class Witness:
    """Forked process that keeps the group's signals pending and reports on request which ones it got."""

    def __init__(self) -> None:
        asked_read, self._ask = os.pipe()
        self._answer, answered_write = os.pipe()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python >= 3.12 warns of threads; the child takes no locks
            self._pid = os.fork()
        if self._pid == 0:
            os.close(self._ask)
            os.close(self._answer)
            _testify(asked_read, answered_write)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(asked_read)
        os.close(answered_write)

    def saw(self, number: int) -> bool:
        """True if the whole group got this signal; the request clears it. Without a witness: only for SIGINT."""
        time.sleep(GROUP_DELIVERY)
        try:
            os.write(self._ask, bytes([number]))
            if select.select([self._answer], [], [], WITNESS_PATIENCE)[0] and (answer := os.read(self._answer, 1)):
                return answer == b"\x01"
        except OSError:
            pass  # the witness was killed
        return number == signal.SIGINT

    def close(self) -> None:
        """Ends the witness and waits for it."""
        os.close(self._ask)
        os.close(self._answer)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _testify(asked: int, answers: int) -> None:
    """Runs the witness, with all these signals blocked, until `asked` ends, as it does whenever the launcher ends."""
    try:
        while question := os.read(asked, 1):
            pending = question[0] in signal.sigpending()
            if pending:
                signal.sigwait({question[0]})
            os.write(answers, b"\x01" if pending else b"\x00")
    finally:
        os._exit(0)


class Pause(ABC):
    """Wait between two looks at a job: by default for a user's job, which runs alone to its own end. kept: True if a
    watchdog is between us and the job."""

    kept = False

    @abstractmethod
    def wait(self, seconds: float, send: Callable[[int], None]) -> None:
        """Returns after `seconds`, or as soon as the job ends; passes to `send` the signals for the job."""

    def interrupted(self) -> None:  # noqa: B027 - most do nothing
        """Called when we must end, in the middle of a look."""

    def alternating(self) -> Iterable[int]:
        """Yields further processes that, with their descendants, count as ours."""
        return ()


class Switchboard(Pause):
    """Context that catches signals during a job's whole life; `wait` passes them on.

    Signals that were ignored at our start stay ignored, here and in the job, as under nohup. Outside of the main
    thread, where Python allows no handlers, nothing is caught."""

    def __init__(self) -> None:
        self._handlers: dict[int, Any] = {}
        self._witness: Witness | None = None
        self._read = self._write = -1
        self._wakeup = -1
        self.asked_to_end = False
        """True once a signal came by which somebody asks the job to end."""

    def _caught(self, number: int, frame: object) -> None:
        """Handler: passing on is `wait`'s, to whose pipe Python has already written the number."""
        self.asked_to_end |= number in ENDING

    def __enter__(self) -> Switchboard:
        self._read, self._write = os.pipe()
        if threading.current_thread() is threading.main_thread():
            os.set_blocking(self._write, False)
            os.set_blocking(self._read, False)
            self._witness = Witness()
            self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
            for number in (*PASSED_ON, signal.SIGCHLD):
                if number == signal.SIGCHLD or signal.getsignal(number) is not signal.SIG_IGN:
                    self._handlers[number] = signal.signal(number, self._caught)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        if self._witness is not None:
            signal.set_wakeup_fd(self._wakeup)
            self._witness.close()
        os.close(self._read)
        os.close(self._write)

    def wait(self, seconds: float, send: Callable[[int], None]) -> None:
        """Returns after `seconds`, or as soon as a child ends; passes to `send` the signals that only we got."""
        if not select.select([self._read], [], [], max(0.0, seconds))[0]:
            return
        for number in sorted(set(os.read(self._read, 4096))):
            if number != signal.SIGCHLD and self._witness is not None and not self._witness.saw(number):
                send(number)


HEAD_START = 0.3
"""Seconds before any other work, for most of an interpreter's start."""
PROGRESS_PERIOD = 0.5
"""Seconds between two calls of the user's progress function."""
BARS = "process-*/bar-open"
"""Files of the recording that exist while a progress bar is open (`probe.messages`)."""
LONG_JOURNAL = 1 << 18
"""Least bytes of a journal to pack: thousands of steps."""
PATIENCE = 3600.0
"""Seconds of one wait for a signal or the end of the job."""
NO_TELEMETRY = "Telemetry could not be written to the recording. The machine's load is only partly known."


class StartedJob(Protocol):
    """Interface of a running job: a `subprocess.Popen`, or a fork of the server's."""

    pid: int

    def poll(self) -> int | None:
        """Returns the job's return code; None while it runs."""

    def send_signal(self, number: int) -> None:
        """Sends the job a signal."""


class Timer(Protocol):
    """Repeated work of the supervisor, due at `due` (seconds of time.monotonic), after which it sets the next time."""

    due: float
    failed: bool

    def look(self) -> None:
        """Does the work that is due."""


class Display:
    """Timer that calls the user's progress function."""

    def __init__(
        self, folder: Path, show: Callable[[Progress], None], start: float, pids: Callable[[], Iterable[int]]
    ) -> None:
        from steptime.launcher.progress import Journals, Overlooked

        self._journals = Journals(folder)
        self._overlooked = Overlooked(folder, pids)
        self._show, self._folder = show, folder
        self._start = start
        self.due = time.monotonic()
        self.failed = False

    def look(self) -> None:
        self.due = time.monotonic() + PROGRESS_PERIOD
        with contextlib.suppress(OSError):  # the terminal was closed: the job goes on, and so do we
            elapsed = time.monotonic() - self._start
            bar = any(self._folder.glob(BARS))
            self._show(Progress(elapsed, *self._journals.look(), notice=self._overlooked.look(), bar=bar))


def supervise(job: StartedJob, folder: Path, signals: Pause, show: Callable[[Progress], None] | None) -> list[str]:
    """Waits for the job's end, whatever its children do; returns a sentence for each loss."""
    try:
        lost = _stay(job, folder, signals, show)
    except KeyboardInterrupt:
        signals.interrupted()
        raise
    finally:  # whatever fails in us, nobody else would pass on the signals
        while job.poll() is None:
            signals.wait(PATIENCE, job.send_signal)
    return lost


def _stay(job: StartedJob, folder: Path, signals: Pause, show: Callable[[Progress], None] | None) -> list[str]:
    start = time.monotonic()
    timers: list[Timer] = []
    while job.poll() is None:
        due = min((timer.due for timer in timers), default=start + HEAD_START)
        signals.wait(due - time.monotonic(), job.send_signal)
        if not timers and time.monotonic() >= start + HEAD_START and job.poll() is None:
            timers = _timers(job, folder, show, start, signals)
        for timer in timers:
            if time.monotonic() >= timer.due:
                timer.look()
    return [NO_TELEMETRY] if any(timer.failed for timer in timers) else []


def _timers(
    job: StartedJob, folder: Path, show: Callable[[Progress], None] | None, start: float, signals: Pause
) -> list[Timer]:
    from steptime.launcher.telemetry import Telemetry
    from steptime.launcher.thin import JournalThinner

    telemetry = Telemetry(folder, job.pid, signals.alternating, kept=signals.kept)
    timers: list[Timer] = [telemetry]
    if not signals.kept:  # a process of a trial is short, and what it does to its folder meanwhile is its own
        timers.append(JournalThinner(folder, lambda: telemetry.pids))
    if show is not None:
        timers.append(Display(folder, show, start, lambda: telemetry.pids))
    return timers


def pack_recording(folder: Path) -> list[str]:
    """Compresses a recording's traces and packs its long journals; returns a sentence about each that failed."""
    traces = any(True for _ in files_of_processes(folder, "trace-*.json"))
    if not traces and not any(True for _ in long_journals(folder)):
        return []
    from steptime.launcher.thin import compress_traces, pack_journals

    pack_journals(long_journals(folder))
    return compress_traces(folder)


def long_journals(folder: Path) -> Iterator[Path]:
    for journal in files_of_processes(folder, "journal.bin"):
        with contextlib.suppress(OSError):
            if journal.stat().st_size >= LONG_JOURNAL:
                yield journal
