"""Finds root modules before their first training forward: what acts on a model must be there by then.

A descriptor in the place of nn.Module.__call__, only for the first steps: afterwards calls cost what they always did.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch

from steptime.capture.probe.parameters import parameters_of


class RootWatch:
    """Tells `found` of each outermost called module with parameters to learn, right before it is called with gradients
    for the first time, in no loader's worker."""

    def __init__(self, found: Callable[[torch.nn.Module], None]) -> None:
        self._original = torch.nn.Module.__dict__["__call__"]
        self._found = found
        self._seen: dict[int, torch.nn.Module] = {}
        self._over = False
        self.in_backward = False
        """What is called in a backward is computed again (checkpointing), and no root."""
        self._call = self._make_call()

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self._original
        if self._over or self.in_backward or _in_worker():
            return types.MethodType(self._original, instance)
        return types.MethodType(self._call, instance)

    def _make_call(self) -> Callable[..., Any]:
        def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            # What is called from here on is no root, and TorchDynamo makes no graph of a replaced __call__.
            outermost = torch.nn.Module.__dict__["__call__"]
            torch.nn.Module.__call__ = self._original
            try:
                if torch.is_grad_enabled() and id(module) not in self._seen and _learns(module):
                    self._seen[id(module)] = module
                    self._found(module)
                return self._original(module, *args, **kwargs)
            finally:
                if not self._over:
                    torch.nn.Module.__call__ = outermost

        return call

    def install(self) -> None:
        """Puts the descriptor in place."""
        torch.nn.Module.__call__ = self

    def remove(self) -> None:
        """Restores the method; where another descriptor lies on top of this one, it only looks no more."""
        self._over = True
        self._seen.clear()
        if torch.nn.Module.__dict__["__call__"] is self:
            torch.nn.Module.__call__ = self._original


def _in_worker() -> bool:
    return torch.utils.data.get_worker_info() is not None


def _learns(module: torch.nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in parameters_of(module))
