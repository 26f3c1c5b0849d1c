"""Models whose weights are written in the run: a copy that follows a trained model every n steps is not frozen. The
first bytes of each model's smallest parameters are compared, at growing intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from steptime.probe.objects import parameters_of, unasked
from steptime.probe.weights import first_bytes, smallest

FIRST, TIMES = 200_000_000, 1.5
"""Time between the first two looks, ns, and the factor by which later ones lie further apart: twenty in ten minutes."""
MOST_MODELS = 16
"""Models that are looked at: a look at one takes some fifty microseconds."""


class WrittenModels:
    """Observer of models' weights. written: called with the number of a model whose weights have changed, once."""

    def __init__(self, written: Callable[[int], None]) -> None:
        self._written = written
        self._seen: dict[int, tuple[bytes, ...] | None] = {}
        self._due = self._apart = 0

    def look(self, now: int, models: Iterable[tuple[int, torch.nn.Module | None]]) -> None:
        """Looks, if that is due. now: ns; models: with their numbers."""
        if now < self._due:
            return
        self._apart = int(TIMES * self._apart) or FIRST
        self._due = now + self._apart
        for number, model in models:
            if model is None or (number not in self._seen and len(self._seen) >= MOST_MODELS):
                continue
            if (before := self._seen.setdefault(number, found := _weights(model))) and found and found != before:
                self._seen[number] = None
                self._written(number)


def _weights(model: torch.nn.Module) -> tuple[bytes, ...] | None:
    """First bytes of the smallest parameters; None without one, or where one cannot be read."""
    with unasked():
        found: list[Any] = [first_bytes(each) for each in smallest(parameters_of(model))]
    return tuple(content for _, content in found) if found and None not in found else None


__all__ = ["WrittenModels"]
