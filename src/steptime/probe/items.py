"""Size of a dataset's items, and whether making them draws random numbers.

A few batches are examined, right before and after their items are read. No method of the user's runs again: the states
of the generators of torch, numpy and Python are compared, and the sizes of well-known types are added up. A generator
of the dataset's own stays unseen.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import torch

from steptime.probe.free_memory import free_memory
from steptime.probe.main_memory import bytes_at

LOOKED = 2
"""Batches examined per iterator."""
MOST_ITERATORS = 8
"""Iterators examined per process: each epoch and each evaluation starts another one."""
DEPTH = 4
"""Depth of the dictionaries, lists and tuples in an item that are opened."""
MOST_PARTS = 4096
"""Most entries of one of them."""
OBJECT = 56
"""Bytes of a small Python object with the pointer to it (CPython 3.10 to 3.14: int 28, float 24, str 49 and more)."""
TENSOR = 400
"""Bytes of a tensor besides its numbers: Python object, TensorImpl, StorageImpl and its allocation (torch 2.13)."""
SMALL = (int, float, bool, complex, type(None))


class ItemLook:
    """Examination of items in one process. The reading thread calls `start` before items are read and `end` after;
    `take` returns the facts of an iterator after its last examined batch."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[Any, ...]] = {}
        self._found: dict[int, dict[str, Any]] = {}
        self._pending: dict[int, dict[str, Any]] = {}

    def wanted(self, iterator: int) -> bool:
        """True if an iterator's next batch is to be examined."""
        known = self._found.get(iterator)
        return known["batches"] < LOOKED if known is not None else len(self._found) < MOST_ITERATORS

    def start(self, thread: int) -> None:
        self._before[thread] = random_states()

    def end(self, thread: int, items: Any) -> None:
        """Examines the items. items: a list if the loader makes batches, else a single item."""
        before = self._before.pop(thread, None)
        if before is None:
            return
        several = items if isinstance(items, list) else [items]
        sizes = [size_of(each) for each in several[:64]]
        known = [size for size in sizes if size is not None]
        self._pending[thread] = {
            "drawn": random_states() != before,
            "bytes": sum(known) / len(known) if known and len(known) == len(sizes) else None,
        }

    def take(self, thread: int, iterator: int) -> dict[str, Any] | None:
        """Returns the facts of an iterator once, after its last examined batch; else None."""
        seen = self._pending.pop(thread, None)
        if seen is None:
            return None
        known = self._found.setdefault(iterator, {"batches": 0, "drawn": False, "bytes": seen["bytes"]})
        known["batches"] += 1
        known["drawn"] |= seen["drawn"]
        known["bytes"] = None if seen["bytes"] is None or known["bytes"] is None else max(known["bytes"], seen["bytes"])
        return {**known, "available": free_memory()} if known["batches"] == LOOKED else None


def random_states() -> tuple[Any, ...]:
    """Returns the states of the shared random generators: Python's, torch's on the CPU, and numpy's if it is loaded."""
    with torch._C.DisableTorchFunction():
        state = torch.default_generator.get_state()
        numbers = bytes_at(state.data_ptr(), state.numel())
    numpy = sys.modules.get("numpy.random")
    legacy: tuple[Any, ...] = getattr(numpy, "get_state", tuple)()
    of_numpy = tuple(each.tobytes() if hasattr(each, "tobytes") else each for each in legacy)
    return random.getstate(), numbers, of_numpy


def size_of(item: Any, depth: int = DEPTH) -> int | None:
    """Returns the bytes that an item keeps; None if it holds anything unknown. Opens exact types only: subclasses would
    run code of the user's."""
    kind = type(item)
    if kind in SMALL:
        return OBJECT
    if kind in (str, bytes, bytearray):
        return OBJECT + len(item)
    if kind is torch.Tensor:
        own = item.layout is torch.strided and item.device.type == "cpu"
        return TENSOR + item.numel() * item.element_size() if own else None
    if kind.__module__ == "numpy":
        return None if item.dtype.hasobject else OBJECT + int(item.nbytes)
    if kind not in (dict, list, tuple) or not depth or len(item) > MOST_PARTS:
        return None
    parts = [*item.keys(), *item.values()] if kind is dict else item
    sizes = [size_of(each, depth - 1) for each in parts]
    known = [size for size in sizes if size is not None]
    return OBJECT + sum(known) if len(known) == len(sizes) else None
