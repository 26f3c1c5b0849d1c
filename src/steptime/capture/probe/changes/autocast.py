"""The change "autocast": lower precision from the root's training forward to the backward, so around the loss too."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from steptime.capture.probe.changes.applier import Applier, count, wrap_root
from steptime.capture.probe.changes.loss_scale import LossScale
from steptime.capture.probe.parameters import parameters_of

PRECISIONS = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class Autocast(Applier):
    """arguments: dtype ("bfloat16" or "float16"); device (the only one on which it is wanted).

    It stays on behind the forward until backward is entered, as in `with autocast: loss = criterion(model(x), y)`.
    Evaluations go on as they are: an edit of the training loop does not reach them either.
    """

    order = 2

    def __init__(self, target: str, arguments: dict[str, Any]) -> None:
        super().__init__(target, arguments)
        self._dtype = PRECISIONS[str(arguments.get("dtype", "bfloat16"))]
        self._scale = LossScale() if self._dtype is torch.float16 else None
        self._open: Any = None
        self._roots: set[int] = set()
        self._refused = False
        self.detail = "no model has been trained"

    def root(self, module: torch.nn.Module) -> None:
        """Wraps its calls, unless the job has autocast or lower precision of its own."""
        parameters = list(parameters_of(module))
        device = parameters[0].device.type
        if self.arguments.get("device") not in (None, device):
            if not self.applied:
                self.refused(f"the model is on {device}, not on {self.arguments['device']}")
        elif torch.is_autocast_enabled(device) and self._open is None:
            self.refused("the job has autocast on")
            self._refused = True
        elif all(each.dtype in (torch.float16, torch.bfloat16) for each in parameters if each.is_floating_point()):
            if not self.applied:
                self.refused("the parameters have a lower precision already")
        elif not self._refused:
            self.applied = True
            if self._scale is not None:
                self._scale.parameters.extend(parameters)
            wrap_root(module, functools.partial(self._around, device, id(module), module))

    def _around(self, device: str, key: int, module: torch.nn.Module, inner: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(inner)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._open is not None:
                return inner(*args, **kwargs)
            if torch.is_autocast_enabled(device):
                self._refused, self.exercised = True, False
                self.refused("the job has autocast on")
                return inner(*args, **kwargs)
            if torch.is_grad_enabled() and module.training:
                self._enter(device)
                self._roots.add(key)
            return inner(*args, **kwargs)

        return call

    def _enter(self, device: str) -> None:
        context = torch.autocast(device, self._dtype)
        context.__enter__()
        self._open = context

    def _leave(self) -> None:
        context, self._open = self._open, None
        if context is not None:
            context.__exit__(None, None, None)

    def before_backward(self, tensors: Any) -> Any:
        """The loss is there."""
        if self._open is None:
            return tensors
        self._leave()
        return tensors if self._scale is None else self._scale.scaled(tensors)

    def after_backward(self) -> None:
        """The gradients are there."""
        if self._scale is not None:
            self._scale.restore()

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """A forward whose backward never came."""
        self._leave()

    def border(self, steps: int) -> None:
        """The same; and says what was seen."""
        self._leave()
        if self.applied and not self._refused:
            self.exercised = bool(self._roots)
            skipped = f", {self._scale.overflows} overflows" if self._scale is not None else ""
            self.detail = (
                f"{str(self._dtype).removeprefix('torch.')} in {count(len(self._roots), 'root module')}{skipped}"
            )
