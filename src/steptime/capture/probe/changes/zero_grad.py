"""The change "zero-grad": gradients are dropped (set_to_none) where the job fills them with zeros."""

from __future__ import annotations

import inspect

import torch

from steptime.capture.probe.changes.applier import Applier, count, with_arguments

ARGUMENT = "set_to_none"


class ZeroGrad(Applier):
    """No arguments."""

    def install(self) -> None:
        """Wraps zero_grad of optimisers and modules."""
        self._calls = 0
        self.detail = "the job does not ask for zeros"

        def edit(bound: inspect.BoundArguments) -> None:
            if bound.arguments.get(ARGUMENT, True) is False:
                bound.arguments[ARGUMENT] = True
                self._calls += 1

        for owner in (torch.optim.Optimizer, torch.nn.Module):
            owner.zero_grad = with_arguments(self, owner.zero_grad, edit)
        self.applied = True

    def border(self, steps: int) -> None:
        """Says how often zeros were asked for."""
        if self._calls:
            self.exercised = True
            self.detail = f"{count(self._calls, 'call')} of zero_grad changed"
