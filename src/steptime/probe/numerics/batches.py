"""Current batch of the job: its tensors, the indices of its samples, and input values that are not finite.

Only in the instrumented run, where it adds a frame of ours to the loader's next.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from torch.utils.data import dataloader as torch_dataloader

from steptime.probe.numerics.values import is_finite, is_floating, largest_by_row, range_of, rows_not_finite, storage_of
from steptime.probe.objects import SideTable, tensors_in, unseen
from steptime.probe.ours import pass_on

MOST_PENDING = 4096
"""Most batches whose indices are kept until they arrive."""
OUTLIER = 1e3
"""Ratio of a sample's largest magnitude to the median sample's above which it is reported. Inputs of a network are
scaled, so a factor of a thousand within a batch is a broken record or a wrong unit."""


class Batches:
    """Newest batch of each loader. size: first dimension of the newest one, 0 without any."""

    def __init__(self) -> None:
        self.size = 0
        self.indices: list[Any] = []
        self.loading = False
        self._storages: dict[int, tuple[str, weakref.ref[Any]]] = {}
        self._pending: SideTable[deque[Any]] = SideTable()

    def install(self) -> None:
        """Wraps the loader's next, and the call that reads a batch's indices from the sampler."""
        base = torch_dataloader._BaseDataLoaderIter
        base.__next__ = self._next(base.__next__)
        base._next_index = self._next_index(base._next_index)

    def _next_index(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def _next_index(iterator: Any) -> Any:
            indices = original(iterator)
            if (pending := self._pending.of(iterator)) is None:
                self._pending.keep(iterator, pending := deque(maxlen=MOST_PENDING))
            pending.append(indices)
            return indices

        return _next_index

    def _next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def __next__(iterator: Any) -> Any:
            self.loading = True
            try:
                batch = original(iterator)
            finally:
                self.loading = False
            try:
                with unseen():
                    self._arrived(iterator, batch)
            except Exception as error:  # noqa: BLE001 - the probe's boundary: a batch that cannot be looked at has no samples to name
                self.indices = []
                pass_on(error)
            return batch

        return __next__

    def _arrived(self, iterator: Any, batch: Any) -> None:
        pending = self._pending.of(iterator)
        indices = pending.popleft() if pending else None
        tensors = list(tensors_in(batch))
        self.indices = [_plain(index) for index in indices] if isinstance(indices, list | tuple) else []
        if all(index == "None" for index in self.indices):  # an iterable data set has no indices
            self.indices = []
        self.size = next((int(tensor.shape[0]) for tensor in tensors if tensor.dim()), 0)
        self._storages = {key: known for key, known in self._storages.items() if known[1]() is not None}
        for position, tensor in enumerate(tensors):
            if tensor.numel():
                self._storages[storage_of(tensor)] = (f"tensor {position}", weakref.ref(tensor))

    def holds(self, tensor: Any) -> bool:
        """True if a tensor shares memory with one from a loader."""
        known = self._storages.get(storage_of(tensor))
        return known is not None and known[1]() is not None

    def samples(self, rows: list[int]) -> list[Any]:
        """Returns the sampler's indices of these rows; [] if the rows are not the batch's samples."""
        if self.size != len(self.indices) or any(row >= len(self.indices) for row in rows):
            return []
        return [self.indices[row] for row in rows]

    def describe(self) -> dict[str, Any]:
        """Returns `BatchFacts` of the newest batch. Waits for the device."""
        tensors = [known() for _, known in self._storages.values()]
        floating = [tensor for tensor in tensors if tensor is not None and is_floating(tensor) and tensor.numel()]
        bad: list[int] = []
        outliers: list[int] = []
        for tensor in floating:
            if not is_finite(tensor) and not is_mask(tensor):
                bad += rows_not_finite(tensor)
            elif tensor.dim() and tensor.shape[0] == self.size > 2:
                outliers += _outliers(largest_by_row(tensor))
        bad, outliers = sorted(set(bad)), sorted(set(outliers) - set(bad))
        return {
            "size": self.size,
            "indices": self.indices[:4096],
            "rows_not_finite": bad,
            "samples_not_finite": self.samples(bad),
            "rows_outlying": outliers,
            "samples_outlying": self.samples(outliers),
            "tensors": [range_of(tensor, f"tensor {position}") for position, tensor in enumerate(floating[:8])],
        }


def is_mask(tensor: Any) -> bool:
    """True if all values are 0 or -inf: a mask to add to scores."""
    return bool(((tensor == 0) | (tensor == -math.inf)).all())


def _outliers(largest: list[float]) -> list[int]:
    median = sorted(largest)[len(largest) // 2]
    return [row for row, value in enumerate(largest) if median > 0 and value > OUTLIER * median]


def _plain(index: Any) -> Any:
    if isinstance(index, bool | int | str):
        return index
    try:
        return int(index)
    except (TypeError, ValueError) as error:
        pass_on(error)
        return str(index)[:80]
