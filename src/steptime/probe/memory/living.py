"""The tensors that live in Python, found without calling anything of the user's."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import torch

from steptime.probe.ours import pass_on

TENSOR = torch._C.TensorBase
GRADIENT_FUNCTION = TENSOR.grad_fn
MOST_OBJECTS = 3_000_000
"""Objects of a process that are looked through: half a second; beyond, nothing is looked for."""
MOST_NODES = 20_000
"""Of one graph that are counted."""


def tensors(*, young: bool = False) -> Iterator[Any]:
    """Every living tensor; none where the process has too many objects. Only types are asked, for their bases:
    `isinstance` would ask the object, which may be anybody's. young: only those in no old generation yet, which takes
    microseconds where all take a tenth of a second."""
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
    """How often the garbage collector has moved young objects to its old generation so far."""
    return sum(int(generation["collections"]) for generation in gc.get_stats()[1:])


def size_of(tensor: Any) -> int:
    """Bytes of the storage behind a tensor, which views share; 0 for one without."""
    try:
        return int(TENSOR.untyped_storage(tensor).nbytes())
    except (RuntimeError, NotImplementedError, TypeError, AttributeError) as error:
        pass_on(error)
        return 0


def storage_of(tensor: Any) -> int:
    """Which storage it has: the same for views of one. Where that lies is not asked, as torch warns of the question for
    some (FakeTensor)."""
    try:
        return int(TENSOR.untyped_storage(tensor)._cdata)
    except (RuntimeError, NotImplementedError, TypeError, AttributeError) as error:
        pass_on(error)
        return 0


def gradient_function(tensor: Any) -> Any:
    """The node of autograd's graph that made it; None for a leaf."""
    try:
        return GRADIENT_FUNCTION.__get__(tensor)
    except (RuntimeError, TypeError) as error:
        pass_on(error)
        return None


def nodes_behind(tensor: Any) -> int:
    """Nodes of autograd's graph that a tensor keeps alive, up to MOST_NODES."""
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
