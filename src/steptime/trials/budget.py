"""The user's budget: what is left of it, and what may be begun with that."""

from __future__ import annotations

import time
from math import inf, isfinite

SHARE = 1 / 3
"""Of the budget, at most: what the remedies one by one leave to their combination and to the patch."""


class Spent(Exception):
    """A process was ended because the budget was spent: nothing of it counts, and no other one is begun."""


class Budget:
    """Seconds from now on. clock: as time.monotonic."""

    def __init__(self, seconds: float = inf, used: float = 0.0) -> None:
        self.seconds = seconds
        self._end = self.now() + seconds - used

    def now(self) -> float:
        """Seconds of a clock that only goes forward."""
        return time.monotonic()

    def left(self) -> float:
        """Seconds; negative where it was overrun."""
        return self._end - self.now()

    def until(self) -> float | None:
        """When it is spent, in seconds since the epoch; None for one without an end."""
        left = self.left()
        return time.time() + left if isfinite(left) else None

    def reserve(self, wanted: float) -> float:
        """Seconds of it that are kept for later stages, which want so many."""
        return min(wanted, SHARE * self.seconds)
