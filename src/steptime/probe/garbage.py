"""Times Python's garbage collections without a Python function of ours among gc.callbacks.

A signal that arrives while the collector runs is handled at the first bytecode that follows. If that lies in a
callback, the user's KeyboardInterrupt is raised there, where the collector can only print and drop it. So the callback
is made of C functions alone: `getattr(stamps, "start", info)` reads a property whose getter is `next`, which takes a
reading of the clock and appends it.
"""

from __future__ import annotations

import functools
import gc
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from steptime.journal import Kind

GARBAGE = int(Kind.GARBAGE)
LEAST = 20_000
"""ns: collections of the youngest generation come by the hundred a step and cost microseconds; not worth a record."""
KEPT = 8192
"""Readings kept between two boundaries; of more, the oldest are dropped. Even: readings come in pairs."""


class GarbageWatch:
    """`interval(kind, identity, begin, end)` takes the collections at every `write`; the generation is not told."""

    def __init__(self, interval: Callable[[int, int, int, int], None]) -> None:
        self._interval = interval
        self._readings: deque[int] = deque(maxlen=KEPT)
        self._callback = _stamper(self._readings)

    def install(self) -> None:
        gc.callbacks.append(self._callback)

    def remove(self) -> None:
        if self._callback in gc.callbacks:
            gc.callbacks.remove(self._callback)

    def write(self) -> None:
        """Called at a boundary, outside of any collection."""
        readings = self._readings
        while len(readings) >= 2:
            begin, end = readings.popleft(), readings.popleft()
            if end - begin >= LEAST:
                self._interval(GARBAGE, 0, begin, end)


def _stamper(readings: deque[int]) -> Callable[[str, dict[str, int]], Any]:
    """A callback for the collector that appends the clock's reading, in C from end to end."""
    take = map(readings.append, iter(time.perf_counter_ns, None))

    class Stamps:
        start = stop = property(next)
        __next__ = take.__next__

    return functools.partial(getattr, Stamps())
