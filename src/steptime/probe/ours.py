"""Origin of an exception caught in the job: our code, or a signal handler of the job's.

Python runs handlers between two bytecodes of the main thread, so the exception of a handler (a time limit, a request to
end) may come out of our code. It belongs to the job and must reach it: our code that may catch it calls `pass_on`, or
catches with `suppressed`.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import signal
from traceback import walk_tb
from types import CodeType, FrameType, TracebackType
from typing import Any

HERE = os.path.join(os.path.dirname(__file__), "")
"""Folder of the probe, whose handlers are ours, too (`standby.wake`)."""


def pass_on(error: BaseException) -> None:
    """Raises the error again if a signal handler of the job's raised it."""
    if handler_of(error):
        raise error


class suppressed(contextlib.suppress):
    """Context manager that suppresses errors of these types, but not those that a handler of the job's raised."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return bool(super().__exit__(kind, error, trace)) and not (error is not None and handler_of(error))


def handler_of(error: BaseException) -> int:
    """Returns the signal whose Python handler raised this error; 0 if none did."""
    trace = error.__traceback__
    if trace is None or trace.tb_next is None:  # who catches it has raised it: the usual case, and this one is cheap
        return 0
    handlers = [(number, _code_of(signal.getsignal(number))) for number in signal.valid_signals()]
    handlers = [(number, code) for number, code in handlers if code and not code.co_filename.startswith(HERE)]
    for frame, _ in walk_tb(trace):
        known = [number for number, code in handlers if code is frame.f_code]
        if known:
            return int(next((value for value in _arguments(frame) if value in known), known[0]))
    return 0


def _code_of(handler: Any) -> CodeType | None:
    """Returns the code that runs in a function, a method, a partial or a callable object; None for others."""
    function = getattr(handler, "func", handler)
    if not hasattr(function, "__code__"):
        function = inspect.getattr_static(type(function), "__call__", None)
    return getattr(function, "__code__", None)


def _arguments(frame: FrameType) -> list[int]:
    """Returns the integers among a handler's arguments: one handler may serve several signals, and gets the number."""
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + bool(code.co_flags & inspect.CO_VARARGS)]
    values = (frame.f_locals.get(name) for name in names)
    flat = [each for value in values for each in (value if isinstance(value, tuple) else (value,))]
    return [each for each in flat if isinstance(each, int)]
