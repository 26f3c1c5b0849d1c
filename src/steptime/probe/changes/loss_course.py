"""When a loss has reached a level: the one rule for the process that trains and for those who read what it left."""

from __future__ import annotations

import math


class LossCourse:
    """The losses of a training, one after the other, as a mean over the last tenth of them, FEWEST at least: what a
    single batch does by chance reaches nothing, and a mean lags behind by the same part of any training."""

    FEWEST, PART = 10, 10

    def __init__(self) -> None:
        self._sums = [0.0]
        self._wild = [0]

    def add(self, loss: float) -> float:
        """The mean with this loss; infinite while there are too few of them, or where one is not finite."""
        finite = math.isfinite(loss)
        self._sums.append(self._sums[-1] + (loss if finite else 0.0))
        self._wild.append(self._wild[-1] + (not finite))
        count = len(self._sums) - 1
        start = count - max(self.FEWEST, -(-count // self.PART))
        if start < 0 or self._wild[start] != self._wild[-1]:
            return math.inf
        return (self._sums[-1] - self._sums[start]) / (count - start)
