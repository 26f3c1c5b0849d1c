"""The change "cached-batch": the ceiling of what faster input could give. The training loader's first batches, then the
last of them over and over."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from steptime.capture.probe.changes.applier import count
from steptime.capture.probe.changes.loaders import Arguments, LoaderChange

REAL_BATCHES = 2
"""Batches that are really loaded: the first comes with the start of the workers."""


class CachedBatch(LoaderChange):
    """arguments: batches (real ones before the last of them is repeated). An epoch keeps its length."""

    def __init__(self, target: str, arguments: dict[str, Any]) -> None:
        super().__init__(target, arguments)
        self._real = int(arguments.get("batches") or REAL_BATCHES)
        self._caches: dict[int, tuple[Any, list[Any]]] = {}
        self.repeated = 0

    def decide(self, arguments: Arguments) -> str:
        """See LoaderChange: the construction stays as it is."""
        return ""

    def is_for(self, settings: Arguments) -> bool:
        """See LoaderChange. Evaluations may get repeated batches too: they are in no step."""
        return True

    def iterator(self, loader: Any, original: Callable[[Any], Any]) -> Any:
        """See LoaderChange. One cache for each loader, also over epochs. Where nothing learns, nothing is repeated: an
        evaluation over a loader without a length would never end."""
        if not torch.is_grad_enabled():
            return original(loader)
        _, cache = self._caches.setdefault(id(loader), (loader, []))
        return _Repeating(self, loader, original(loader) if len(cache) < self._real else None, cache, self._real)

    def border(self, steps: int) -> None:
        """Says how often a batch was repeated."""
        super().border(steps)
        if self._used:
            self.exercised = self.repeated > 0
            self.detail = f"a batch was repeated {count(self.repeated, 'time')}, of {count(len(self._used), 'loader')}"


class _Repeating:
    """Stands for a loader's iterator."""

    def __init__(self, change: CachedBatch, loader: Any, real: Any, cache: list[Any], wanted: int) -> None:
        self._change, self._real, self._cache, self._wanted = change, real, cache, wanted
        self._length = _length(loader)
        self._given = 0

    def __iter__(self) -> _Repeating:
        return self

    def __len__(self) -> int:
        return int(self._length)

    def __next__(self) -> Any:
        if self._given >= self._length:
            raise StopIteration
        if self._real is not None and len(self._cache) < self._wanted:
            self._cache.append(next(self._real))
        else:
            self._real = None  # its workers end
            self._change.repeated += 1
        self._given += 1
        return copied(self._cache[-1])

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """What a loader with persistent workers asks of its iterator at a new epoch."""
        self._given = 0


def _length(loader: Any) -> float:
    try:
        return len(loader)
    except TypeError:
        return float("inf")


def copied(batch: Any) -> Any:
    """The batch in containers of its own: jobs take items out of them, or put others in."""
    if isinstance(batch, dict) and type(batch) is dict:
        return {key: copied(value) for key, value in batch.items()}
    if type(batch) in (list, tuple):
        return type(batch)(copied(value) for value in batch)
    if hasattr(batch, "keys"):
        return copy.copy(batch)
    return batch
