"""The launcher between the terminal and the job: it outlives signals, and passes on those that the job did not get.

A signal reaches the launcher in one of two ways. Ctrl-C, a closed terminal and `kill -- -GROUP` send it to the whole
process group: the job has it already, and a second one would cut short the job's own way of ending. `kill PID` sends
it to the launcher alone: then the job must get it. The system does not tell which it was, so a witness does: a tiny
process in the same group.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any

PASSED_ON = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)
GROUP_DELIVERY = 0.002
"""Seconds given to the system to deliver a signal to the rest of the group, which takes it microseconds."""
WITNESS_PATIENCE = 2.0
"""Seconds to wait for the witness's word on a machine that is overloaded."""


class Witness:
    """A forked process that keeps the group's signals pending and tells on request which ones it got."""

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
        """Whether the whole group got this signal; asking forgets it. Without a living witness: only what terminals
        send."""
        time.sleep(GROUP_DELIVERY)
        try:
            os.write(self._ask, bytes([number]))
            if select.select([self._answer], [], [], WITNESS_PATIENCE)[0]:
                answer = os.read(self._answer, 1)
                if answer:
                    return answer == b"\x01"
        except OSError:
            pass  # the witness was killed
        return number == signal.SIGINT

    def close(self) -> None:
        """Lets the witness go and collects it."""
        os.close(self._ask)
        os.close(self._answer)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _testify(asked: int, answers: int) -> None:
    """The witness's life, all these signals blocked: ends when the launcher does, however that happens, because then
    `asked` ends."""
    try:
        while question := os.read(asked, 1):
            pending = question[0] in signal.sigpending()
            if pending:
                signal.sigwait({question[0]})
            os.write(answers, b"\x01" if pending else b"\x00")
    finally:
        os._exit(0)


class Switchboard:
    """Catches signals while a job runs. Use as a context around the job's whole life; `wait` between looks at it.

    Signals that were ignored when we started stay ignored, here and in the job, as under nohup. Outside of the main
    thread, where Python allows no handlers, nothing is caught.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Any] = {}
        self._witness: Witness | None = None
        self._read = self._write = -1
        self._wakeup = -1

    def __enter__(self) -> Switchboard:
        self._read, self._write = os.pipe()
        if threading.current_thread() is threading.main_thread():
            os.set_blocking(self._write, False)
            os.set_blocking(self._read, False)
            self._witness = Witness()
            self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
            for number in (*PASSED_ON, signal.SIGCHLD):
                if number == signal.SIGCHLD or signal.getsignal(number) is not signal.SIG_IGN:
                    self._handlers[number] = signal.signal(number, _take_note)
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
        """Returns after `seconds`, or as soon as a child ends; passes on to `send` what came to us alone meanwhile."""
        if not select.select([self._read], [], [], max(0.0, seconds))[0]:
            return
        for number in sorted(set(os.read(self._read, 4096))):
            if number != signal.SIGCHLD and self._witness is not None and not self._witness.saw(number):
                send(number)

    def interrupted(self) -> None:
        """The job is the user's: it goes on to its own end."""


def _take_note(number: int, frame: FrameType | None) -> None:
    """Does nothing: Python has already written the number to the wakeup pipe."""
