"""Rule for when a loss has reached a level, shared by the training process and the readers of its recording."""

from __future__ import annotations

import math


class LossCourse:
    """Losses of a training, averaged over the last tenth of them, at least FEWEST. A single lucky batch reaches no
    target, and the mean lags by the same fraction in any training."""

    FEWEST, PART = 10, 10

    def __init__(self) -> None:
        self._sums = [0.0]
        self._wild = [0]

    def add(self, loss: float) -> float:
        """Adds a loss and returns the mean; infinite with too few losses or one that is not finite."""
        finite = math.isfinite(loss)
        self._sums.append(self._sums[-1] + (loss if finite else 0.0))
        self._wild.append(self._wild[-1] + (not finite))
        count = len(self._sums) - 1
        start = count - max(self.FEWEST, -(-count // self.PART))
        if start < 0 or self._wild[start] != self._wild[-1]:
            return math.inf
        return (self._sums[-1] - self._sums[start]) / (count - start)
