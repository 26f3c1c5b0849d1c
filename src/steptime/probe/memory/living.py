"""Living tensors in Python, found without calling the user's code."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import torch

from steptime.probe.ours import pass_on

TENSOR = torch._C.TensorBase
GRADIENT_FUNCTION = TENSOR.grad_fn
MOST_OBJECTS = 3_000_000
"""Most objects of a process that are searched, which takes half a second; with more, none is."""
MOST_NODES = 20_000
"""Most nodes of one graph that are counted."""


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
    """Returns how often the garbage collector has collected an older generation so far."""
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


def nodes_behind(tensor: Any) -> int:
    """Returns the number of graph nodes that a tensor keeps alive, up to MOST_NODES."""
    first = gradient_function(tensor)
    if first is None:
        return 0
    seen, waiting = {first}, [first]
    while waiting and len(seen) < MOST_NODES:
        for node, _ in waiting.pop().next_functions:
            if node is not None and node not in seen:
                seen.add(node)
                waiting.append(node)
    return len(seen)
