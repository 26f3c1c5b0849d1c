"""Loss and gradient norm as the steps go by: of the last ones each, and of some that are spread over the whole run."""

from __future__ import annotations

from collections import deque
from typing import Any

from steptime.probe.numerics.values import number

LAST = 64
"""Steps whose loss and gradient norm are kept: what an exploding gradient has grown by."""
SPREAD = 48
"""At most so many of the whole run: where they are full every second one goes, and from then on every second comes."""
Entry = tuple[int, float | None, float | None]


class LossHistory:
    """Of one process. Entries: (step, loss, gradient norm), None where it was not looked at."""

    def __init__(self) -> None:
        self._last: deque[Entry] = deque(maxlen=LAST)
        self._spread: list[Entry] = []
        self._stride, self._norms = 1, 0

    def add(self, step: int, loss: float | None, norm: float | None) -> None:
        """A step has been looked at."""
        self._last.append((step, loss, norm))
        if norm is None:
            return
        if len(self._spread) == SPREAD:
            self._spread = self._spread[::2]
            self._stride *= 2
        if self._norms % self._stride == 0:
            self._spread.append((step, loss, norm))
        self._norms += 1

    def last(self) -> list[list[Any]]:
        """For the account."""
        return _plain(self._last)

    def spread(self) -> list[list[Any]]:
        """For the account; only steps with a gradient norm."""
        return _plain(self._spread)


def _plain(entries: deque[Entry] | list[Entry]) -> list[list[Any]]:
    return [[step, number(loss), number(norm)] for step, loss, norm in entries]
