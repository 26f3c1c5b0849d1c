"""The change "accumulation": one update for several backwards, and one exchange of gradients (no_sync).

The training is another one; what counts is how fast it goes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from steptime.capture.probe.changes.applier import Applier

Optimizer = torch.optim.Optimizer
Distributed = torch.nn.parallel.DistributedDataParallel


class Accumulation(Applier):
    """arguments: steps (updates that become one)."""

    def __init__(self, target: str, arguments: dict[str, Any]) -> None:
        super().__init__(target, arguments)
        self._every = int(arguments["steps"])
        self._calls: dict[int, int] = {}
        self._updates = 0
        self._inside = self._updated = False
        self._distributed: list[Any] = []
        self.detail = "no optimiser has made a step"

    def install(self) -> None:
        """Every optimiser class passes its step through `profile_hook_step` when it is first made (torch 2.4-2.13)."""
        if self._every < 2:
            self.refused("one backward for an update is what the job does")
            return
        hook = Optimizer.profile_hook_step
        Optimizer.profile_hook_step = staticmethod(lambda step: self._gated(hook(step)))
        Optimizer.zero_grad = self._only_first(Optimizer.zero_grad)
        torch.nn.Module.zero_grad = self._only_first(torch.nn.Module.zero_grad)
        scaler = torch.amp.GradScaler
        scaler.step, scaler.unscale_, scaler.update = (
            self._scaler_step(scaler.step),
            self._scaler_unscale(scaler.unscale_),
            self._scaler_update(scaler.update),
        )
        self.applied = True

    def root(self, module: torch.nn.Module) -> None:
        """Gradients are exchanged with the last backward only."""
        self._distributed += [each for each in module.modules() if isinstance(each, Distributed)]
        self._exchange(1)

    def _gated(self, step: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(step)
        def gated(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if self._inside:  # a subclass calls the step of its base
                return step(optimizer, *args, **kwargs)
            if not self._count(optimizer):
                return _evaluated(args[0] if args else kwargs.get("closure"))
            gradients = [
                each.grad for group in optimizer.param_groups for each in group["params"] if each.grad is not None
            ]
            for gradient in gradients:
                gradient.mul_(1 / self._every)
            self._inside = True
            try:
                return step(optimizer, *args, **kwargs)
            finally:
                self._inside = False
                self._updates += 1

        return gated

    def _count(self, optimizer: Any) -> bool:
        """One more call of the optimiser's step. Whether this one updates."""
        calls = self._calls[id(optimizer)] = self._calls.get(id(optimizer), 0) + 1
        self._exchange(calls + 1)
        return calls % self._every == 0

    def _exchange(self, call: int) -> None:
        for module in self._distributed:
            module.require_backward_grad_sync = call % self._every == 0

    def _only_first(self, zero_grad: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(zero_grad)
        def first(owner: Any, *args: Any, **kwargs: Any) -> Any:
            calls = [self._calls.get(id(owner), 0)] if isinstance(owner, Optimizer) else self._calls.values()
            if not any(each % self._every for each in calls):
                return zero_grad(owner, *args, **kwargs)
            return None

        return first

    # -- torch's gradient scaler: nothing is unscaled before the last backward ----------------------------------------

    def _next_updates(self, optimizer: Any) -> bool:
        return (self._calls.get(id(optimizer), 0) + 1) % self._every == 0

    def _scaler_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(step)
        def gated(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            self._updated = self._next_updates(optimizer)
            if self._updated:
                return step(scaler, optimizer, *args, **kwargs)
            self._count(optimizer)
            return None

        return gated

    def _scaler_unscale(self, unscale: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(unscale)
        def gated(scaler: Any, optimizer: Any) -> Any:
            return unscale(scaler, optimizer) if self._next_updates(optimizer) else None

        return gated

    def _scaler_update(self, update: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(update)
        def gated(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            return update(scaler, *args, **kwargs) if self._updated else None

        return gated

    def border(self, steps: int) -> None:
        """Says how many updates there were."""
        if self._updates:
            self.exercised = True
            total = sum(self._calls.values())
            synchronised = " (no_sync between them)" if self._distributed else ""
            self.detail = f"{self._updates} updates for {total} calls of step{synchronised}"


def _evaluated(closure: Callable[[], Any] | None) -> Any:
    """A closure computes the loss and calls backward: that is the micro-batch."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()
