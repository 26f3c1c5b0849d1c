"""Relative change of the weights in an update, by a few elements of some of them: it shows a learning rate that is too
high before any value is lost."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from steptime.probe.objects import local_values, modules_of

MOST_WEIGHTS = 8
"""Weights that are looked at, spread over the model."""
ELEMENTS = 4096
"""Of each, from its start: read and written in a few microseconds."""


class UpdateObserver:
    """`before` and `after` an optimizer's step: the size of what it changed over the size of what there was. add: takes
    (name, ratio as a tensor), of which nothing waits for."""

    def __init__(self, add: Callable[[str, Any], None]) -> None:
        self._add = add
        self._weights: list[tuple[str, weakref.ref[Any]]] = []
        self._kept: list[tuple[str, Any, torch.Tensor]] = []

    def top_module(self, module: torch.nn.Module, name_of: Callable[[Any], str]) -> None:
        """Chooses matrices of a model, those that lie far apart in it."""
        found = [
            (f"{name_of(part)}.{name}", weakref.ref(each))
            for part in modules_of(module)
            for name, each in part._parameters.items()
            if each is not None and each.dim() > 1 and each.requires_grad
        ]
        self._weights += found[:: -(-len(found) // MOST_WEIGHTS) or 1]

    def before(self) -> None:
        """Copies the sampled elements before an update."""
        with torch.no_grad():
            living = ((name, reference()) for name, reference in self._weights[:MOST_WEIGHTS])
            self._kept = [(name, each, _start_of(each).clone()) for name, each in living if each is not None]

    def after(self) -> None:
        with torch.no_grad():
            for name, each, old in self._kept:
                moved = torch.linalg.vector_norm((_start_of(each) - old).float())
                self._add(name, moved / torch.linalg.vector_norm(old.float()).clamp(min=1e-12))
        self._kept = []


def _start_of(weight: Any) -> torch.Tensor:
    values: torch.Tensor = local_values(weight).detach()
    return values.flatten()[:ELEMENTS]
