"""Jobs that take turns: one runs while the others are stopped.

The speed of a shared machine changes from second to second. Jobs that run one after the other meet different machines;
jobs with turns of a fraction of a second meet the same one, and differ only by themselves (measured:
benchmarks/results/turns.md).

Several jobs start at the same time, or one by one, and each is stopped once its warm-up is over. When all have started,
they take turns. At the end of a time slice, a job is asked to rest, and stopped with all its descendants at the end of
a step, so that turns are whole steps. Nothing of it runs while it is stopped, neither loader workers nor threads. Work
launched on a device would go on, so the job waits for that first; its slices are longer, because each starts with an
idle device.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

from steptime.errors import SteptimeError
from steptime.recording.inventory import REST, RESTS, WARM

LONGER = 4
"""Factor of the slices of a job that works on a device."""
LOOK, ASKED = 0.02, 0.001
"""Seconds between two checks whether a warm-up is over, and whose turn it is; and, shorter, for the answer of a job
that is asked to rest, as its loader's workers go on."""


CHILDREN = Path("/proc/thread-self/children")
"""A thread's children, as the kernel lists them (proc(5), CONFIG_PROC_CHILDREN). It may leave out some while others
end; all of /proc takes thirty times as long to read."""


class TurnsEndedError(SteptimeError):
    """Error: the round of these jobs was ended."""


class CannotAlternateError(SteptimeError):
    """Error: a job cannot be stopped from here."""


class Turns:
    """Round of jobs that take turns, one at a time, once all have started. slice_seconds: length of a turn while others
    wait. at_once: number of jobs that start at the same time."""

    def __init__(self, slice_seconds: float, at_once: int = 1) -> None:
        self.slice_seconds, self.at_once = slice_seconds, at_once
        self.starting: set[object] = set()
        self.unready: set[object] = set()
        """Jobs that have not rested yet, and whatever else must be over before one has the turn."""
        self.of_ours: list[int] = []
        """Processes whose load is ours, too."""
        self.order: deque[Turn] = deque()
        """Jobs that have not ended; the first one has the turn."""
        self.changed = threading.Condition()
        self.ended = False

    def turn(self) -> Turn:
        """Returns a place for a new job at the end of the round."""
        turn = Turn(self)
        self.order.append(turn)
        self.unready.add(turn)
        return turn

    def ready(self, each: object) -> None:
        """Notes that a job has started, or that other work (`each`) is over."""
        with self.changed:
            self.starting.discard(each)
            self.unready.discard(each)
            self.changed.notify_all()

    def end(self) -> None:
        """Ends the round; waiting jobs get a TurnsEndedError."""
        with self.changed:
            self.ended = True
            self.changed.notify_all()


class Turn:
    """Place of one job in the round. rests: its stops, (start, end) in ns of the monotonic clock. look: seconds until
    the next check."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._watchdog, self._warm = 0, False
        self._request = self._answers = Path()
        self._slice, self._asked = turns.slice_seconds, False
        self._until = float("inf")
        self.rests: list[tuple[int, int]] = []
        self.look = LOOK

    @property
    def rested(self) -> float:
        """Total duration of the job's rests, seconds."""
        return sum(end - start for start, end in self.rests) / 1e9

    def start(self) -> None:
        """Waits until the job may start, and starts it. Raises TurnsEndedError."""
        turns = self._turns
        with turns.changed:
            self._wait(lambda: len(turns.starting) < turns.at_once)
            turns.starting.add(self)

    def await_(self) -> None:
        """Waits until the job has the turn. Raises TurnsEndedError."""
        self._wait(lambda: self._turns.order[0] is self and not self._turns.unready)

    def _wait(self, reached: Callable[[], bool]) -> None:
        with self._turns.changed:  # a condition's lock may be taken again by its thread
            self._turns.changed.wait_for(lambda: self._turns.ended or reached())
        if self._turns.ended:
            raise TurnsEndedError("turns-ended", "The round was ended.")

    def leave(self) -> None:
        """Removes the ended job from the round: the next one has the turn."""
        turns = self._turns
        with turns.changed:
            turns.order.remove(self)
        turns.ready(self)

    def starts(self, watchdog: int, recording: Path) -> None:
        """Stores the started job's watchdog, which holds all its processes (`watchdog`), and its recording."""
        self._watchdog = watchdog
        self._request, self._answers = recording / REST, recording / RESTS

    def others(self) -> Iterable[int]:
        """Returns the watchdogs of the other jobs, and further processes of ours."""
        own = [turn._watchdog for turn in tuple(self._turns.order) if turn is not self and turn._watchdog]
        return [*own, *self._turns.of_ours]

    def over(self, recording: Path) -> bool:
        """True if the job must be stopped now: it is warm, its slice is over, others wait, and it rests at the end of a
        step with an idle device. Raises TurnsEndedError and CannotAlternateError."""
        if self._turns.ended:
            raise TurnsEndedError("turns-ended", "The round was ended.")
        if not self._warm:
            self._warm, on_device = _warm(recording / WARM, self._watchdog)
            self._until = 0.0 if self._warm else self._until
            self._slice = self._turns.slice_seconds * (LONGER if on_device else 1)
        if time.monotonic() < self._until or len(self._turns.order) <= 1:
            self._take_back()  # the others have ended meanwhile
            return False
        if not self._asked:
            self._ask()
        stamps = stamps_in(self._answers)
        if not stamps:  # it has written some before it was warm
            raise CannotAlternateError("cannot-alternate", "steptime cannot pause the job.")
        return len(stamps) % 2 == 1  # it has answered

    def _ask(self) -> None:
        try:
            os.close(os.open(self._request, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644))
        except OSError:  # the job has put something else there
            raise CannotAlternateError("cannot-alternate", "steptime cannot pause the job.") from None
        self._asked, self.look = True, ASKED

    def _take_back(self) -> None:
        if self._asked:
            self._request.unlink(missing_ok=True)
        self._asked, self.look = False, LOOK

    def rest(self) -> float:
        """Stops the job, lets the others run, resumes it. Returns the seconds of the stop. Raises TurnsEndedError."""
        turns, start = self._turns, time.perf_counter_ns()
        stopped: list[psutil.Process] = []
        while new := [each for each in _job_of(self._watchdog) if each not in stopped]:  # started in this moment
            _send(new, signal.SIGSTOP)
            stopped += new
        try:
            with turns.changed:
                if turns.order[0] is self:
                    turns.order.rotate(-1)
            turns.ready(self)
            self.await_()
        finally:  # whoever ends the job can only end what runs
            self._until = time.monotonic() + self._slice
            self._take_back()
            _send(stopped, signal.SIGCONT)
        self.rests.append((start, time.perf_counter_ns()))
        return (self.rests[-1][1] - start) / 1e9


def stamps_in(file: Path) -> list[int]:
    """Returns the times (ns of the monotonic clock) at which a job and its device became idle, each followed by the
    time at which it continued: at the end of its warm-up, for each rest, and at its end. [] if the file has any other
    content."""
    try:
        stamps = [int(line) for line in file.read_text(encoding="ascii").split()]
    except (OSError, ValueError):
        return []
    return stamps if all(0 <= stamp < 1 << 62 for stamp in stamps) else []


def _warm(marker: Path, watchdog: int) -> tuple[bool, bool]:
    """Returns (whether the warm-up is over, whether the job uses a device). Raises CannotAlternateError for a process
    that is no descendant of the watchdog (a service started it), or has another pid here."""
    try:
        number, namespace, on_device = map(int, marker.read_text(encoding="ascii").split())
    except (OSError, ValueError):  # not there, or not whole yet
        return False, False
    here = Path("/proc/self/ns/pid").stat().st_ino
    if namespace != here or number not in {each.pid for each in _job_of(watchdog)}:
        raise CannotAlternateError("cannot-alternate", "steptime cannot stop the job from here.")
    return True, bool(on_device)


def _job_of(watchdog: int) -> list[psutil.Process]:
    """Returns all descendants of a watchdog's job, parents first."""
    processes: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        if not CHILDREN.exists():
            return psutil.Process(watchdog).children(recursive=True)
        found = [watchdog]
        for number in found:
            with contextlib.suppress(OSError):  # it has ended
                for task in Path(f"/proc/{number}/task").iterdir():
                    found += map(int, (task / "children").read_text(encoding="ascii").split())
        for number in found[1:]:
            with contextlib.suppress(psutil.NoSuchProcess):
                processes.append(psutil.Process(number))
    return processes


def _send(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):  # it has ended; psutil knows a number that was given again
            process.send_signal(number)
