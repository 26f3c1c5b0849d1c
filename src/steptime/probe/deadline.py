"""Time limit for instrumentation that a step boundary may never end: the training may be over, or an evaluation may
take minutes.

A thread waits, then has the interpreter call us in the main thread between two bytecodes (Py_AddPendingCall, Python/C
API, "Asynchronous Notifications"). That neither interrupts a system call nor sends a signal that the job could see.
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
"""Seconds until the next try if the block could not be ended."""
BACKWARD = os.path.join("torch", "autograd", "graph.py"), os.path.join("torch", "autograd", "__init__.py")
"""Files whose functions run while gradients are computed. The engine saves the thread's profiler state and restores it
(ATen/ThreadLocalState.h), so nothing may be switched off there."""

TORCH, MOST_FRAMES = b"libtorch", 1 << 14
"""Libraries of torch's, and how many frames of a stack are looked through."""

_due: deque[Deadline] = deque()
_free: deque[bool] = deque([True])
"""Empty while our call is queued or runs, so that only one is queued. With two, Python 3.11 never gets beyond the first
instruction of a function that is called from one while a profile function is on (DO_TRACING in Python/ceval.c first
checks for queued calls)."""


class Deadline:
    """Context manager that calls `overdue` once in the main thread if the block lasts longer than `limit`, ns; its
    exceptions go to `failed`. Does nothing in other threads."""

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
        """Calls `overdue` in the main thread; in a backward or a compiled function, the thread retries later."""
        self._asked = False
        if self._over or os.getpid() != self._process or not may_end():
            return
        self._call_off()
        try:
            self._overdue()
        except Exception as error:  # noqa: BLE001 - the probe's boundary: nothing of ours may raise into the user's program
            self._failed(error)
            pass_on(error)


def may_end() -> bool:
    """True if this thread is between two operators of the job's, where instrumentation may be switched off."""
    return not (_is_in_backward(sys._getframe()) or in_compiled_call() or _is_in_torch())


def _is_in_backward(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.endswith(BACKWARD):
            return True
        frame = frame.f_back
    return False


def _is_in_torch() -> bool:
    """True if this thread is in the middle of an operator of torch's that has called Python, or may be. If the profiler
    records an operator's inputs, it asks tensor subclasses for their device, through Python (`__torch_dispatch__`).
    Stopping the profiler inside kills the job (torch 2.13, collection.cpp)."""
    frames = (ctypes.c_void_p * MOST_FRAMES)()
    try:
        count = _library.backtrace(frames, MOST_FRAMES)
        with open("/proc/self/maps", "rb") as file:
            lines = [line for line in file if TORCH in line.rpartition(b"/")[2] and b"x" in line.split()[1]]
    except (AttributeError, OSError) as error:  # a C library, or a system, without them
        pass_on(error)
        return False
    code = [range(*(int(each, 16) for each in line.split()[0].split(b"-"))) for line in lines]
    return count == MOST_FRAMES or any(address in each for address in frames[:count] if address for each in code)


def _have_called() -> None:
    """Queues a call of `_ask_all` in the main thread, unless one is queued or runs."""
    with suppressed(IndexError):
        free = _free.pop()
        if _add_pending(_CALL, None):  # its queue is full
            _free.append(free)


def _ask_all(_: Any) -> int:
    try:
        while _due:
            _due.popleft().ask()
    except BaseException as error:  # noqa: BLE001 - of a signal's handler: nobody but ctypes would hear of it in here
        _add_pending(_trip, handler_of(error) or signal.SIGINT)
    _free.append(True)
    return 0


_PENDING = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_library = ctypes.PyDLL(None)
_CALL = _PENDING(_ask_all)
_trip = ctypes.cast(_library.PyErr_SetInterruptEx, _PENDING)
_add_pending = _library.Py_AddPendingCall
_add_pending.argtypes = [_PENDING, ctypes.c_void_p]
