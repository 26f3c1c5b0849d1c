"""Whose an error is that is caught in the job: ours, or that of a signal's handler of the job's.

Python runs a handler between two bytecodes of whatever its main thread is at, so what a handler raises (a time limit, a
request to end) may come out of the middle of our code. It is the job's, and goes on to it. So whoever of us catches
what a handler may raise calls `pass_on`, or catches with `suppressed`.
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
"""Handlers from there are ours, too (`standby.wake`)."""


def pass_on(error: BaseException) -> None:
    """Raises it again if a handler of a signal's has raised it."""
    if handler_of(error):
        raise error


class suppressed(contextlib.suppress):
    """Context that catches errors of these kinds, but not what a handler of the job's has raised."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return bool(super().__exit__(kind, error, trace)) and not (error is not None and handler_of(error))


def handler_of(error: BaseException) -> int:
    """The signal whose handler, a function of Python's, has raised this; 0 if none has."""
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
    """The code that runs in a function, a method, a partial call or an object that can be called; None for any
    other."""
    function = getattr(handler, "func", handler)
    if not hasattr(function, "__code__"):
        function = inspect.getattr_static(type(function), "__call__", None)
    return getattr(function, "__code__", None)


def _arguments(frame: FrameType) -> list[int]:
    """The whole numbers among a handler's arguments: one handler may serve several signals, and is told which."""
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + bool(code.co_flags & inspect.CO_VARARGS)]
    values = (frame.f_locals.get(name) for name in names)
    flat = [each for value in values for each in (value if isinstance(value, tuple) else (value,))]
    return [each for each in flat if isinstance(each, int)]
