"""The end of what a job should not carry for long, where no boundary of a step comes to end it: a training that is
over, an evaluation of minutes.

A thread waits and has the interpreter call us in the main thread, between two of its bytecodes (Py_AddPendingCall,
Python/C API, "Asynchronous Notifications"). It neither interrupts a system call nor is it a signal that the job could
see.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from _thread import allocate_lock, get_ident, start_new_thread
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any

from steptime.probe.compiler import in_compiled_call
from steptime.probe.ours import handler_of, pass_on, suppressed

RETRY = 0.05
"""Seconds until we ask again where it could not be ended."""
BACKWARD = os.path.join("torch", "autograd", "graph.py"), os.path.join("torch", "autograd", "__init__.py")
"""Files whose functions run while gradients are computed: the engine keeps the profiler's state of the thread and puts
it back (ATen/ThreadLocalState.h), so nothing may be switched off in there."""

_due: deque[Deadline] = deque()
_free: deque[bool] = deque([True])
"""Empty from the moment that our call is queued until it has run. Python 3.11 never gets beyond the first instruction
of a function that is called from one, while a profile function is on and another one is queued (DO_TRACING in
Python/ceval.c checks for queued calls before it goes on)."""


class Deadline:
    """Calls `overdue` once in the main thread when `limit` has passed before the end of a `with` block. Its exceptions
    are handed to `failed`. Does nothing in any other thread."""

    def __init__(self, limit: int, overdue: Callable[[], None], failed: Callable[[Exception], None]) -> None:
        self._limit, self._overdue, self._failed = limit, overdue, failed
        self._process = os.getpid()
        self._over = self._asked = False
        self._waiting = allocate_lock()
        self._waiting.acquire()

    def __enter__(self) -> None:
        if get_ident() == threading.main_thread().ident:
            start_new_thread(self._wait, (self._limit / 1e9,))

    def __exit__(self, *_: object) -> None:
        self._call_off()

    def _call_off(self) -> None:
        if not self._over:
            self._over = True
            self._waiting.release()

    def _wait(self, seconds: float) -> None:
        while not self._waiting.acquire(timeout=seconds):
            seconds = RETRY
            if not self._asked:
                self._asked = True
                _due.append(self)
            _have_called()

    def ask(self) -> None:
        """In the main thread: ends it, where that can be done now."""
        self._asked = False
        if self._over or os.getpid() != self._process or _is_in_backward(sys._getframe()) or in_compiled_call():
            return
        self._call_off()
        try:
            self._overdue()
        except Exception as error:  # noqa: BLE001 - the probe's boundary: nothing of ours may raise into the user's program
            self._failed(error)
            pass_on(error)


def _is_in_backward(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.endswith(BACKWARD):
            return True
        frame = frame.f_back
    return False


def _have_called() -> None:
    """Has the main thread call `_ask_all`, unless it is about to, or does."""
    with suppressed(IndexError):
        free = _free.pop()
        if _add_pending(_CALL, None):  # its queue is full
            _free.append(free)


def _ask_all(_: Any) -> int:
    try:
        while _due:
            _due.popleft().ask()
    except BaseException as error:  # noqa: BLE001 - of a signal's handler: nobody but ctypes would hear of it in here
        _add_pending(_trip, _signal_of(error))
    _free.append(True)
    return 0


def _signal_of(error: BaseException) -> int:
    """The signal whose handler has raised this. It is sent once more, to be handled in the user's own frames."""
    return handler_of(error) or signal.SIGINT  # Python's own handler is no function of Python's


_PENDING = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_library = ctypes.PyDLL(None)
_CALL = _PENDING(_ask_all)
_trip = ctypes.cast(_library.PyErr_SetInterruptEx, _PENDING)
_add_pending = _library.Py_AddPendingCall
_add_pending.argtypes = [_PENDING, ctypes.c_void_p]
