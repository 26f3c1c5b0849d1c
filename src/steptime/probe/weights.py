"""Changes of parameters since the last backward pass, in a job without optimizers. Several passes with the same
parameters are parts of one step (conjugate gradients, a line search, a penalty). And models whose weights are written
in the run: a copy that follows a trained model every n steps is not frozen.

The first bytes of a few small parameters in main memory are compared; no object is kept alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from steptime.probe.main_memory import NATIVE, bytes_at, readable
from steptime.probe.objects import parameters_of, unasked

TENSOR = torch._C.TensorBase
WATCHED, MOST_WATCHED, BYTES = 4, 16, 64
"""Parameters that are looked at, the smallest of a pass; of all; and bytes of each: a look at four takes ten
microseconds."""
MOST_UNCHANGED = 64
"""Passes in a row without a change: then nothing is trained here, and each pass is a step."""


class Weights:
    """Observer of some parameters for changes between passes, until `stop`."""

    def __init__(self) -> None:
        self._open = True
        self._watched: tuple[weakref.ref[Any], ...] = ()
        self._seen: list[tuple[int, bytes] | None] = []
        self._unchanged = 0

    @property
    def wanted(self) -> bool:
        """True while further parameters may be added."""
        return self._open and len(self._watched) < MOST_WATCHED

    def add(self, parameters: Iterable[Any]) -> None:
        """Adds the smallest of these parameters; none if one of them cannot be read."""
        with unasked():
            found = [each for each in parameters if type(each) in NATIVE and each.requires_grad]
            chosen = smallest(found) if all(map(first_bytes, found)) else []
            living = [known for reference in self._watched if (known := reference()) is not None]
            new = [each for each in chosen if not any(each is known for known in living)]
            self._watched = tuple(map(weakref.ref, [*living, *new]))

    def stop(self) -> None:
        self._open, self._watched = False, ()

    def unchanged(self) -> bool:
        """True if the parameters are as they were at the last look."""
        if not self._watched:
            return False
        with unasked():
            now = [first_bytes(each) for reference in self._watched if (each := reference()) is not None]
        same, self._seen = bool(now) and None not in now and now == self._seen, now
        self._unchanged = self._unchanged + 1 if same else 0
        if self._unchanged > MOST_UNCHANGED:
            self.stop()
        return same


FIRST, TIMES = 200_000_000, 1.5
"""Time between the first two looks, ns, and the factor by which later ones lie further apart: twenty in ten minutes."""
MOST_MODELS = 16
"""Models that are looked at: a look at one takes some fifty microseconds."""


class WrittenModels:
    """Observer of models' weights. written: called once with the number of a model whose weights have changed."""

    def __init__(self, written: Callable[[int], None]) -> None:
        self._written = written
        self._seen: dict[int, tuple[bytes, ...] | None] = {}
        self._due = self._apart = 0

    def look(self, now: int, models: Iterable[tuple[int, torch.nn.Module | None]]) -> None:
        """Compares the weights with the last look, if a look is due. now: ns; models: (number, model) pairs."""
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


def smallest(parameters: Iterable[Any]) -> list[Any]:
    """Returns the WATCHED parameters with the fewest elements, except those of a class of the job's."""
    return sorted((each for each in parameters if type(each) in NATIVE and each.numel()), key=TENSOR.numel)[:WATCHED]


def first_bytes(parameter: Any) -> tuple[int, bytes] | None:
    """(address, first bytes) of a parameter; None if they cannot be read."""
    if not readable(parameter) or not parameter.is_contiguous():
        return None
    start, size = parameter.data_ptr(), parameter.numel() * parameter.element_size()
    return start, bytes_at(start, min(BYTES, size))
