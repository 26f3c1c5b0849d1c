"""Sizes and contents of a dataset's items: the bytes that each takes, and whether making it draws random numbers.

A few batches are looked at, right before and right behind the reading of their items. Nothing of the user's is asked
again: of the generators of torch, numpy and Python the states are compared, of items that are of well-known types the
sizes are added up. A generator of the dataset's own is not seen.
"""

from __future__ import annotations

import ctypes
import random
import sys
from typing import Any

import torch

from steptime.probe.free_memory import free_memory

LOOKED = 2
"""Batches of an iterator."""
MOST_ITERATORS = 8
"""In a process: an epoch starts another one, and so does an evaluation."""
DEPTH = 4
"""Depth of dictionaries, lists and tuples in an item."""
MOST_PARTS = 4096
"""Entries of one of them."""
OBJECT = 56
"""Bytes of a small object of Python's (CPython 3.10 to 3.14: 28 of an int, 24 of a float, 49 and more of a str), with
the pointer to it."""
TENSOR = 400
"""Bytes of a tensor next to its numbers: the object of Python, TensorImpl, StorageImpl and its allocation (torch
2.13)."""
SMALL = (int, float, bool, complex, type(None))


class ItemLook:
    """In one process. `start` before items are read and `end` behind them are called by the thread that reads; `take`
    returns what became of an iterator once it was looked at often enough."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[Any, ...]] = {}
        self._found: dict[int, dict[str, Any]] = {}
        self._pending: dict[int, dict[str, Any]] = {}

    def wanted(self, iterator: int) -> bool:
        """True if an iterator's next batch is to be looked at."""
        known = self._found.get(iterator)
        return known["batches"] < LOOKED if known is not None else len(self._found) < MOST_ITERATORS

    def start(self, thread: int) -> None:
        self._before[thread] = random_states()

    def end(self, thread: int, items: Any) -> None:
        """items: a list where the loader makes batches, else the only one."""
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
        """The facts of an iterator, once: behind the last batch of it that is looked at."""
        seen = self._pending.pop(thread, None)
        if seen is None:
            return None
        known = self._found.setdefault(iterator, {"batches": 0, "drawn": False, "bytes": seen["bytes"]})
        known["batches"] += 1
        known["drawn"] |= seen["drawn"]
        known["bytes"] = None if seen["bytes"] is None or known["bytes"] is None else max(known["bytes"], seen["bytes"])
        return {**known, "available": free_memory()} if known["batches"] == LOOKED else None


def random_states() -> tuple[Any, ...]:
    """Of the generators that everybody shares: Python's, torch's on the CPU, and numpy's where that is loaded."""
    with torch._C.DisableTorchFunction():
        state = torch.default_generator.get_state()
        numbers = ctypes.string_at(state.data_ptr(), state.numel())
    numpy = sys.modules.get("numpy.random")
    legacy: tuple[Any, ...] = getattr(numpy, "get_state", tuple)()
    of_numpy = tuple(each.tobytes() if hasattr(each, "tobytes") else each for each in legacy)
    return random.getstate(), numbers, of_numpy


def size_of(item: Any, depth: int = DEPTH) -> int | None:
    """Bytes that an item keeps; None for what holds anything that is not known. Only exact types are opened: others
    would be asked."""
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
