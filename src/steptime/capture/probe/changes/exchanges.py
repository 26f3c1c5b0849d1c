"""The change "no-sync": gradients under DistributedDataParallel are exchanged with the last backward of an update only.

How many backwards an update has is learned from the first one. One that comes earlier (the rest of an epoch) finds its
gradients exchanged by hand: no rank ever updates by its own ones alone.
"""

from __future__ import annotations

from typing import Any

import torch

from steptime.capture.probe.changes.applier import Applier

Distributed = torch.nn.parallel.DistributedDataParallel


class FewerExchanges(Applier):
    """No arguments. A job that has no_sync of its own is left alone."""

    def __init__(self, target: str, arguments: dict[str, Any]) -> None:
        super().__init__(target, arguments)
        self._models: list[Any] = []
        self._every = self._backwards = self._skipped = self._total = 0
        self._quiet = self._refused = False
        self.detail = "no model is trained under DistributedDataParallel"

    def root(self, module: torch.nn.Module) -> None:
        """Models under it, at any depth."""
        self._models += [each for each in module.modules() if isinstance(each, Distributed)]
        if self._models:
            self.detail = "no update has been made"

    def after_backward(self) -> None:
        """Decides about the next one: DistributedDataParallel looks at its switch in the forward."""
        if not self._models or self._refused:
            return
        if not self._quiet and not all(each.require_backward_grad_sync for each in self._models):
            self._refused, self.exercised = True, False
            self.refused("the job has no_sync() of its own")
            return
        self._total += 1
        self._skipped += self._quiet
        self._backwards += 1
        self._set(self._every > 1 and (self._backwards + 1) % self._every != 0)

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """The first optimiser of a step; the others find no backward since."""
        if not self._backwards or self._refused:
            return
        if not self._every:
            self._every = self._backwards
        elif self._every > 1 and self._backwards % self._every:
            self._exchange()
        self._backwards = 0
        self._set(self._every > 1)

    def _set(self, quiet: bool) -> None:
        self._quiet = quiet
        for model in self._models:
            model.require_backward_grad_sync = not quiet

    def _exchange(self) -> None:
        """As the last backward would have done it: the mean over the ranks."""
        for model in self._models:
            group = model.process_group
            for parameter in model.parameters():
                if parameter.grad is not None:
                    torch.distributed.all_reduce(parameter.grad, group=group)
                    parameter.grad.div_(torch.distributed.get_world_size(group))

    def border(self, steps: int) -> None:
        """Says what was saved."""
        if self._refused or not self._every:
            return
        if self._every == 1:
            self.refused("an update has one backward, whose gradients must be exchanged")
            return
        self.applied = True
        self.exercised = self._skipped > 0
        self.detail = f"{self._skipped} of {self._total} backwards without an exchange"
