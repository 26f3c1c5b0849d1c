"""Variant: a process of a trial, which ends the job at a step boundary with status 0, without the job's own end.

Ranks of one job on one host end at the same step: the first one past its limit names a step a little later in a file.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import multiprocessing.process
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from steptime.probe.identity import ranks
from steptime.probe.ours import pass_on, suppressed

SECOND = 1_000_000_000
LATER = 3
"""Steps from the end of the time limit to the common last step: a rank may be a step or two ahead."""
GRACE_SECONDS = 10.0
"""Seconds after the first rank's end until the others end anywhere, because they would wait for it forever."""
POLL_SECONDS = 0.5
WARM, REST, RESTS = "warm", "rest-request", "rests"
"""Files in the recording. WARM: the warm-up is over. REST: a request to rest. RESTS: the times of the rests."""
CLOCKS = "clock-started-", "clock-ended-"
"""Starts of names of files in the recording (steptime.recording.inventory)."""
AT_ONCE, TRIES = 2_000_000, 8
"""Longest time for writing a file at whose time a clock is read, ns, and attempts to be as quick."""
NAP = 0.0005
"""Seconds between two checks whether a rest is over."""


@dataclass(eq=False)
class ProcessVariant:
    """Variant of a trial in this process, which ends the job. See `steptime.changes.VariantOptions` for the fields."""

    recording: str
    steps: int
    warm_up: int = 5
    limit_seconds: float = 60.0
    seed: int = 0
    seed_offset: int = 0
    dropout: bool = True
    fingerprint_steps: int = 0
    until_loss: float | None = None
    alternating: bool = False
    switched: Any = ()
    exact: bool = False

    def __post_init__(self) -> None:
        self.reached: Callable[[], bool] = lambda: False
        """True if the loss has fallen to `until_loss`."""
        self.finish: Callable[[], None] = lambda: None
        self._ended = os.path.join(self.recording, "variant-ended-")
        self._request = os.path.join(self.recording, REST)
        self.drain: Callable[[], None] | None = None
        """Function that waits for the device, if there is one; None if nobody asks this process to rest."""
        self._start = 0
        self._file = ""
        self._waiting = False

    def boundary(self, steps: int) -> None:
        """Called after step number `steps` (0 for the start); does not return if the job ends here."""
        over = self._over(steps)
        if self.drain is not None and self._start and (over or os.path.exists(self._request)):
            self._rest(self.drain)
        if over:
            self.end()

    def _over(self, steps: int) -> bool:
        now = time.perf_counter_ns()
        if not self._start:
            if steps < self.warm_up:
                return False
            self._start = now
            self._say_clock(CLOCKS[0])
            if self.alternating:
                on_device = _drain_of_device()
                self.drain = on_device or (lambda: None)
                self._rest(self.drain)
                self._say_warm(on_device is not None)
            if ranks() > 1:
                self._file = os.path.join(self.recording, f"variant-end-{os.getppid()}")
                threading.Thread(target=self._follow, name="steptime-variant", daemon=True).start()
        done = steps >= self.warm_up + self.steps
        late = self.reached() or now - self._start >= self.limit_seconds * SECOND
        over = done or late
        if self._file:
            if late and not done:
                self._name_end(steps + LATER)
            over = done or steps >= self._named_end()
        if over:
            self._say_clock(CLOCKS[1])
        return over

    def _say_clock(self, name: str) -> None:
        """Writes the time to a file. The system's own time of the file shows whether this process's clock is right."""
        with suppressed(OSError):  # then its clock is not compared
            for _ in range(TRIES):
                now = time.perf_counter_ns()
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
                file = os.open(os.path.join(self.recording, f"{name}{os.getpid()}"), flags, 0o644)
                os.write(file, b"%d\n" % now)
                os.close(file)
                if time.perf_counter_ns() - now < AT_ONCE:
                    break

    def _rest(self, drain: Callable[[], None]) -> None:
        """Rests at a step boundary, so that turns are whole steps. A device works on while its process is stopped, so
        it first becomes idle, within the time of the steps that launched the work. Without a request the rest ends at
        once: an interval that starts and ends with an idle device is one measurement."""
        drain()
        with suppressed(OSError):  # without a first time the job is not asked
            self._say_when()
            while os.path.exists(self._request):
                time.sleep(NAP)
            self._say_when()

    def _say_when(self) -> None:
        file = os.open(os.path.join(self.recording, RESTS), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(file, b"%d\n" % time.perf_counter_ns())
        os.close(file)

    def _say_warm(self, on_device: bool) -> None:
        """Writes that the warm-up is over: pid, pid namespace, and whether the process uses a device. From then on it
        can be asked to rest."""
        with suppressed(OSError):  # then it is not stopped, and nothing is taken from its run
            text = f"{os.getpid()}\n{os.stat('/proc/self/ns/pid').st_ino}\n{int(on_device)}\n"
            file = os.open(os.path.join(self.recording, WARM), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            os.write(file, text.encode())
            os.close(file)

    def install(self) -> None:
        """Makes a process that starts trainers end after them, because it would wait for their results."""
        original = multiprocessing.process.BaseProcess.start

        def start(process: multiprocessing.process.BaseProcess) -> None:
            original(process)
            if not process.daemon and not self._waiting:
                self._waiting = True
                threading.Thread(target=self._follow_children, name="steptime-variant", daemon=True).start()

        multiprocessing.process.BaseProcess.start = start  # type: ignore[method-assign,assignment]

    def _follow_children(self) -> None:
        ended = self._ended + str(os.getpid())
        while not os.path.exists(ended) or any(not child.daemon for child in multiprocessing.active_children()):
            time.sleep(POLL_SECONDS)
        time.sleep(POLL_SECONDS)
        self.finish()
        _leave()

    def end(self, steps: int = 0) -> None:
        """Ends the process after `finish`. steps: number of the other ranks' last step; 0 if they end anywhere."""
        if steps:
            self._name_end(steps)
        self.finish()
        if multiprocessing.parent_process() is not None:
            with suppressed(OSError):  # the recording is gone: the parent waits for itself
                os.close(os.open(self._ended + str(os.getppid()), os.O_CREAT | os.O_WRONLY, 0o644))
        self._name_end(0)
        _leave()

    def _name_end(self, steps: int) -> None:
        if not self._file:
            return
        with suppressed(FileExistsError):
            file = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            os.write(file, str(steps).encode())
            os.close(file)

    def _named_end(self) -> float:
        try:
            with open(self._file, encoding="ascii") as file:
                return int(file.read() or 0) or float("inf")
        except (OSError, ValueError) as error:
            pass_on(error)
            return float("inf")

    def _follow(self) -> None:
        """Ends this rank after another one, which it may wait for in a collective."""
        while not os.path.exists(self._file):
            time.sleep(POLL_SECONDS)
        time.sleep(GRACE_SECONDS)
        self.finish()
        _leave()


def _drain_of_device() -> Callable[[], None] | None:
    """Returns a function that waits for the job's device; None without one."""
    from steptime.probe import device

    return device.drained if device.in_use() else None


def _leave() -> None:
    """Ends the process with status 0 at once: no exit handlers, no final save. Kills loader workers, which are slow to
    end."""
    try:
        with suppressed(Exception):  # a stream that is closed or broken loses what it held
            sys.stdout.flush()
        with suppressed(Exception):  # the same
            sys.stderr.flush()
        with suppressed(Exception):  # no C library to ask: what C code has printed may be lost
            ctypes.CDLL(None).fflush(None)
        with suppressed(ValueError):  # torch's handler raises for each worker's end; it is the main thread's alone
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for child in multiprocessing.active_children():
            if child.daemon:
                child.kill()
    finally:
        os._exit(0)
