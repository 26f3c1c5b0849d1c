"""Living tensors in Python, found without calling the user's code."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Any

import torch

from steptime.probe.ours import pass_on

TENSOR = torch._C.TensorBase
GRADIENT_FUNCTION = TENSOR.grad_fn
MOST_OBJECTS = 3_000_000
"""Most objects of a process that are searched, which takes half a second; with more, none is."""
MOST_NODES = 20_000
"""Most nodes of all graphs that are counted in one look."""
LEAF = -1
"""In place of the number of a walk: no more nodes are behind this one."""


def tensors(*, young: bool = False) -> Iterator[Any]:
    """Yields every living tensor; none if the process has too many objects. Reads only the bases of types, because
    `isinstance` would ask the object, which may be anybody's. young: only young generations, which takes microseconds
    instead of a tenth of a second."""
    known: dict[type, bool] = {}
    for generation in (0, 1) if young else (None,):  # never two lists in one: it would hold itself
        objects = gc.get_objects(generation)
        if len(objects) > MOST_OBJECTS:
            return
        for each in objects:
            kind = type(each)
            is_tensor = known.get(kind)
            if is_tensor is None:
                is_tensor = known[kind] = TENSOR in kind.__mro__
            if is_tensor:
                yield each


def promotions() -> int:
    """Returns the number of collections of an older generation by the garbage collector so far."""
    return sum(int(generation["collections"]) for generation in gc.get_stats()[1:])


def size_of(tensor: Any) -> int:
    """Returns the bytes of the tensor's storage, which views share; 0 without one."""
    try:
        return int(TENSOR.untyped_storage(tensor).nbytes())
    except (RuntimeError, NotImplementedError, TypeError, AttributeError) as error:
        pass_on(error)
        return 0


def storage_of(tensor: Any) -> int:
    """Returns the identity of the tensor's storage, the same for views. Its address is not read, because torch warns
    about that for some tensors (FakeTensor)."""
    try:
        return int(TENSOR.untyped_storage(tensor)._cdata)
    except (RuntimeError, NotImplementedError, TypeError, AttributeError) as error:
        pass_on(error)
        return 0


def gradient_function(tensor: Any) -> Any:
    """Returns the node of autograd's graph that made the tensor; None for a leaf."""
    try:
        return GRADIENT_FUNCTION.__get__(tensor)
    except (RuntimeError, TypeError) as error:
        pass_on(error)
        return None


class Graphs:
    """Sizes of the autograd graphs behind tensors. Each node is visited once, and MOST_NODES of them at most: if steps
    leave their graphs behind, walking each tensor's graph by itself takes longer than a step."""

    def __init__(self) -> None:
        self._walks: dict[Any, int] = {}
        self._sizes: list[int] = []

    def behind(self, tensor: Any) -> int:
        """Returns the number of nodes that a tensor keeps alive: its own, and the largest of the graphs of earlier
        tensors that it leads to. Leaves join no graphs, because a parameter is behind all of them."""
        first = gradient_function(tensor)
        if first is None:
            return 0
        number, joined, size, waiting = len(self._sizes), set[int](), 0, [first]
        while waiting:
            node = waiting.pop()
            walk = self._walks.get(node)
            if walk is not None:
                joined.add(walk)
            elif len(self._walks) < MOST_NODES:
                below = [each for each, _ in node.next_functions if each is not None]
                self._walks[node] = number if below else LEAF
                waiting += below
                size += 1
        size += max((self._sizes[each] for each in joined - {LEAF, number}), default=0)
        self._sizes.append(size)
        return size

    @property
    def full(self) -> bool:
        """True if there were more nodes than are counted."""
        return len(self._walks) >= MOST_NODES


def reaches_back(tensor: Any, number: int) -> bool:
    """True if the graph behind a tensor has a node that was made before the node with this number. It visits at most
    MOST_NODES, the oldest first: a sum over steps is a chain of such nodes. Leaves have the largest of all numbers."""
    first = gradient_function(tensor)
    seen, waiting = {first}, [(0, 0, first)] if first is not None else []
    while waiting and len(seen) < MOST_NODES:
        _, _, node = heappop(waiting)
        if node._sequence_nr() < number:
            return True
        for each in {each for each, _ in node.next_functions if each is not None} - seen:
            seen.add(each)
            heappush(waiting, (each._sequence_nr(), len(seen), each))
    return False
