"""Jobs that take turns: several live, one runs, and the others are stopped.

The speed of a shared machine changes from second to second. Jobs that run one after the other meet different machines;
jobs that take turns of a fraction of a second meet the same one, and what is left between them is their own (measured:
benchmarks/results/turns.md).

A job starts when it is its turn for the first time, and keeps the turn until its warm-up is over. From then on, when a
slice of time is over, it is asked to rest, and is stopped, with all that it has started, when it has come to the end of
a step, so that turns are whole steps. Nothing of it runs while it is stopped: neither loader workers nor threads. Work
that it has launched on a device would go on, so it waits for that first; its slices are longer, as each starts with an
idle device.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path

import psutil

from steptime.errors import SteptimeError
from steptime.recording.inventory import REST, RESTS, WARM

LONGER = 4
"""Times as long is a slice of a job that works on a device."""
LOOK, ASKED = 0.02, 0.001
"""Seconds between two looks at whether a warm-up is over, and at whose turn it is; and while a job that is asked to
rest has not answered: its loader's workers go on."""


class TurnsEndedError(SteptimeError):
    """Nobody waits for these jobs any more."""


class CannotAlternateError(SteptimeError):
    """A job cannot be stopped from here."""


class Turns:
    """A round of jobs, of which one has the turn. slice_seconds: how long, while others wait."""

    def __init__(self, slice_seconds: float) -> None:
        self.slice_seconds = slice_seconds
        self.order: deque[Turn] = deque()
        """Those that have not ended; the first one has the turn."""
        self.changed = threading.Condition()
        self.ended = False

    def turn(self) -> Turn:
        """A place behind those that were given."""
        turn = Turn(self)
        self.order.append(turn)
        return turn

    def end(self) -> None:
        """Whoever waits for a turn gets a TurnsEndedError."""
        with self.changed:
            self.ended = True
            self.changed.notify_all()


class Turn:
    """One job's. rests: when it was stopped and went on, ns of the monotonic clock. look: seconds until it is asked for
    again whether it must rest."""

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
        """Seconds."""
        return sum(end - start for start, end in self.rests) / 1e9

    def await_(self) -> None:
        """Returns when it has the turn. Raises TurnsEndedError."""
        turns = self._turns
        with turns.changed:
            turns.changed.wait_for(lambda: turns.ended or turns.order[0] is self)
        if turns.ended:
            raise TurnsEndedError("turns-ended", "The round was ended.")

    def leave(self) -> None:
        """It has ended: the next one has the turn."""
        turns = self._turns
        with turns.changed:
            turns.order.remove(self)
            turns.changed.notify_all()

    def starts(self, watchdog: int, recording: Path) -> None:
        """Its job has been started, and all that comes of it is the watchdog's (`watchdog`)."""
        self._watchdog = watchdog
        self._request, self._answers = recording / REST, recording / RESTS

    def others(self) -> Iterable[int]:
        """The watchdogs of the jobs that it takes turns with."""
        return [turn._watchdog for turn in tuple(self._turns.order) if turn is not self and turn._watchdog]

    def over(self, recording: Path) -> bool:
        """True if it must rest: it is warm, its slice is over, others wait, and it has come to the end of a step, its
        device with nothing to do. Raises CannotAlternateError."""
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
            raise CannotAlternateError("cannot-alternate", "The job cannot be asked to rest.")
        return len(stamps) % 2 == 1  # it has answered

    def _ask(self) -> None:
        try:
            os.close(os.open(self._request, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644))
        except OSError:  # the job has put something else there
            raise CannotAlternateError("cannot-alternate", "The job cannot be asked to rest.") from None
        self._asked, self.look = True, ASKED

    def _take_back(self) -> None:
        if self._asked:
            self._request.unlink(missing_ok=True)
        self._asked, self.look = False, LOOK

    def rest(self) -> float:
        """Stops the job, lets the others run, and goes on with it. Returns the seconds in between. Raises
        TurnsEndedError."""
        turns, start = self._turns, time.perf_counter_ns()
        stopped: list[psutil.Process] = []
        while new := [each for each in _job_of(self._watchdog) if each not in stopped]:  # started in this moment
            _send(new, signal.SIGSTOP)
            stopped += new
        try:
            with turns.changed:
                turns.order.rotate(-1)
                turns.changed.notify_all()
            self.await_()
        finally:  # whoever ends the job can only end what runs
            self._until = time.monotonic() + self._slice
            self._take_back()
            _send(stopped, signal.SIGCONT)
        self.rests.append((start, time.perf_counter_ns()))
        return (self.rests[-1][1] - start) / 1e9


def stamps_in(file: Path) -> list[int]:
    """Times, ns of the monotonic clock, at which a job and its device had nothing more to do and, behind each, at which
    it went on: at the end of its warm-up, for each rest, and at its end. None where the job has written something else
    there."""
    try:
        stamps = [int(line) for line in file.read_text(encoding="ascii").split()]
    except (OSError, ValueError):
        return []
    return stamps if all(0 <= stamp < 1 << 62 for stamp in stamps) else []


def _warm(marker: Path, watchdog: int) -> tuple[bool, bool]:
    """(Whether a process has said that its warm-up is over, whether it works on a device). Raises CannotAlternateError
    for one that the watchdog's job has not started (a service has, on request), or that has another number here."""
    try:
        number, namespace, on_device = map(int, marker.read_text(encoding="ascii").split())
    except (OSError, ValueError):  # not there, or not whole yet
        return False, False
    here = Path("/proc/self/ns/pid").stat().st_ino
    if namespace != here or number not in {each.pid for each in _job_of(watchdog)}:
        raise CannotAlternateError("cannot-alternate", "The job cannot be stopped from here.")
    return True, bool(on_device)


def _job_of(watchdog: int) -> list[psutil.Process]:
    """All that a watchdog's job has started, the parents first."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process(watchdog).children(recursive=True)
    return []


def _send(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):  # it has ended; psutil knows a number that was given anew
            process.send_signal(number)
