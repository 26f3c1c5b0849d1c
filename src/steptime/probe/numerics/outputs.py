"""The outputs of some modules, summed up as they come: a sum that is not finite tells of an output that is not.

A module's slot `_compiled_call_impl` holds the look: it is outside of hooks, never pickled or copied, and compiled
regions pass it by, so that nothing of the user's is recompiled or saved with something of ours.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from time import perf_counter_ns as now
from typing import Any

import torch

from steptime.probe.numerics.readings import Readings
from steptime.probe.numerics.values import is_floating

MOST_MODULES = 16
"""Modules below a root that are looked at, from the outside in."""
FIRST_STRIDE = MOST_MODULES
"""A look out of a cold cache takes up to 40 us on a CPU: one a step until it is known how long steps are."""


class OutputWatch:
    """Adds one value to the readings for each output that is looked at. spent: ns since it was last asked.

    stride: of the modules every so manieth is looked at in a step, in turns; 0 switches the look off.
    """

    def __init__(self, readings: Readings, guard: Callable[..., None]) -> None:
        self.stride = FIRST_STRIDE
        self.turn = 0
        self._readings, self._guard = readings, guard
        self._spent = 0
        self._count = 0

    def root(self, module: torch.nn.Module, name_of: Callable[[Any], str]) -> None:
        """Puts the look around modules of a root. A compiled root is looked at as a whole."""
        for each in _chosen(module):
            self._wrap(each, name_of(each), self._count)
            self._count += 1

    def spent(self) -> int:
        """ns that the looks have taken since the last call."""
        spent, self._spent = self._spent, 0
        return spent

    def _wrap(self, module: torch.nn.Module, name: str, position: int) -> None:
        reference, call = weakref.ref(module), type(module)._call_impl
        compiled = module.__dict__.get("_compiled_call_impl")

        def looked_at(*args: Any, **kwargs: Any) -> Any:
            try:
                output = compiled(*args, **kwargs) if compiled else call(reference(), *args, **kwargs)
            except BaseException as error:
                # A bare raise adds no frame, so this takes ours out of the user's traceback (Python >= 3.11).
                error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
                raise
            if self.stride and (position + self.turn) % self.stride == 0 and torch.is_grad_enabled():
                self._guard(self._look, name, output)
            return output

        module.__dict__["_compiled_call_impl"] = looked_at

    def _look(self, name: str, output: Any) -> None:
        begin = now()
        tensor = _tensor_of(output)
        if tensor is not None:
            values = tensor.detach()
            self._readings.add(name, values.sum(dtype=torch.float32) if values.element_size() < 4 else values.sum())
        self._spent += now() - begin


def _tensor_of(output: Any) -> Any:
    """The output, or the first of several, where it is a tensor that can be summed up."""
    while isinstance(output, list | tuple) and output:
        output = output[0]
    plain = isinstance(output, torch.Tensor) and type(output).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
    return output if plain and is_floating(output) and not output.is_complex() else None


def _chosen(root: torch.nn.Module) -> list[torch.nn.Module]:
    """The modules nearest to the root, itself among them; none inside of a compiled or scripted one."""
    found: list[torch.nn.Module] = []
    waiting = deque([root])
    while waiting and len(found) < MOST_MODULES:
        module = waiting.popleft()
        if isinstance(module, torch.jit.ScriptModule) or any(module is each for each in found):
            continue
        found.append(module)
        compiled = "_compiled_call_impl" in module.__dict__ or type(module).__name__ == "OptimizedModule"
        if not compiled:
            waiting.extend(child for child in module._modules.values() if child is not None)
    return found
