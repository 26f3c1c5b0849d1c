"""The ranges (torch.profiler.record_function) that are open when a window of the profiler ends: they are ended with it.

torch keeps the address of a range's event in the range, and frees the events when the profiler stops. A range that
began in one window and ends in another, as one around `optimizer.step()` does where the second follows at once, writes
its end into memory that is somebody else's by then (torch 2.13, onFunctionExit in profiler_kineto.cpp): the job dies of
it, some time later, or computes with it. A range that has ended once ends a second time without effect.
"""

from __future__ import annotations

from itertools import starmap
from threading import get_ident
from typing import Any

import torch


class OpenRanges:
    """Keeps the ranges that this thread opens between `begin` and `end`; the profiler sees those of no other thread.
    In between it stands for torch's own function that opens them, as whose equal it is taken."""

    def __init__(self) -> None:
        self._thread = get_ident()
        self._ranges: list[Any] = []
        self._original: Any = None

    def begin(self) -> None:
        """Listens. Raises AttributeError where torch opens its ranges in another way."""
        packet = torch.ops.profiler._record_function_enter_new
        self._original, packet._op = packet._op, self

    def __call__(self, *arguments: Any) -> Any:
        """Opens a range. It is kept in the same step of the interpreter: a window may be ended between two."""
        if get_ident() != self._thread:
            return self._original(*arguments)
        ranges = self._ranges
        ranges.extend(starmap(self._original, (arguments,)))
        return ranges[-1]

    def __hash__(self) -> int:
        return hash(self._original)

    def __eq__(self, other: object) -> bool:
        return self is other or bool(self._original == other)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def end(self) -> None:
        """Ends every range that is still open, and listens no more. The profiler must still be on."""
        packet = torch.ops.profiler._record_function_enter_new
        if packet._op is self:
            packet._op = self._original
        for opened in self._ranges:
            torch.ops.profiler._record_function_exit._RecordFunction(opened)
        self._ranges = []
