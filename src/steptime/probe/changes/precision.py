"""Changes of the model's compute dtype, and removal of dropout."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch

from steptime.probe.changes import traceable
from steptime.probe.changes.applier import Applier, count, wrap_top_module
from steptime.probe.objects import modules_of, parameters_of
from steptime.probe.ours import pass_on

FIRST_SCALE, LARGEST_SCALE = 2.0**16, 2.0**24
GROWTH_INTERVAL = 2000
"""Constants of GradScaler: first scale, and backwards without overflow until it doubles."""


class LossScale:
    """Loss scaling for float16 around each backward, as torch.amp.GradScaler does it, without the job's help.

    Existing gradients (accumulation) are scaled with the loss, and all are scaled back after it. Scales are powers of
    two, so nothing is rounded. Overflowed gradients become zero, and the scale is halved. parameters: parameters with
    scaled gradients. overflows: number of backwards whose gradients were lost."""

    def __init__(self) -> None:
        self.parameters: list[Any] = []
        self.overflows = 0
        self._scale = FIRST_SCALE
        self._good = 0
        self._pending = False

    def scaled(self, tensors: Any) -> Any:
        self._multiply(self._scale)
        self._pending = True
        if isinstance(tensors, torch.Tensor):
            return tensors * self._scale
        return [each * self._scale if isinstance(each, torch.Tensor) else each for each in tensors]

    def restore(self) -> None:
        """Removes the scale from the gradients. Waits for the device, as GradScaler does."""
        if not self._pending:
            return
        self._pending = False
        self._multiply(1 / self._scale)
        gradients = self._gradients()
        if not gradients or bool(torch.stack([each.isfinite().all() for each in gradients]).all()):
            self._good += 1
            if self._good % GROWTH_INTERVAL == 0:
                self._scale = min(self._scale * 2, LARGEST_SCALE)
            return
        self.overflows += 1
        self._good, self._scale = 0, max(self._scale / 2, 1.0)
        torch._foreach_zero_(gradients)

    def _gradients(self) -> list[Any]:
        return [each.grad for each in self.parameters if each.grad is not None and not each.grad.is_sparse]

    def _multiply(self, factor: float) -> None:
        gradients = self._gradients()
        if gradients:
            torch._foreach_mul_(gradients, factor)


PRECISIONS = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class Autocast(Applier):
    """Change that puts the training forward under autocast. arguments: dtype ("bfloat16" or "float16"); device (the
    only device to change).

    It stays on after the forward until backward starts, as in `with autocast: loss = criterion(model(x), y)`.
    Evaluations stay the same, as an edit of the training loop does not reach them either."""

    switchable = True
    order = 2
    detail = "no model has been trained"

    def __init__(self, target: str, arguments: dict[str, Any]) -> None:
        super().__init__(target, arguments)
        self._dtype = PRECISIONS[str(arguments.get("dtype", "bfloat16"))]
        self._scale = LossScale() if self._dtype is torch.float16 else None
        self._open: Any = None
        self._top_modules: set[int] = set()
        self._refused = False

    def top_module(self, module: torch.nn.Module) -> None:
        """Wraps the calls of a module, unless the job has its own autocast or lower precision."""
        parameters = list(parameters_of(module))
        device = parameters[0].device.type
        if self.arguments.get("device") not in (None, device):
            if not self.applied:
                self.detail = f"the model is on {device}, not on {self.arguments['device']}"
        elif torch.is_autocast_enabled(device) and self._open is None:
            self._refuse()
        elif all(each.dtype in (torch.float16, torch.bfloat16) for each in parameters if each.is_floating_point()):
            if not self.applied:
                self.detail = "the parameters already have a lower precision"
        elif not self._refused:
            self.applied = True
            if self._scale is not None:
                self._scale.parameters.extend(parameters)
            wrap_top_module(module, functools.partial(self._around, device, id(module), weakref.ref(module)))

    def _around(self, device: str, key: int, module: Any, inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self.in_force or self._open is not None:
                return inner(*args, **kwargs)
            if torch.is_autocast_enabled(device):
                self._refuse()
                return inner(*args, **kwargs)
            if torch.is_grad_enabled() and module().training:
                self._open = torch.autocast(device, self._dtype)
                self._open.__enter__()
                self._top_modules.add(key)
            return inner(*args, **kwargs)

        return call

    def off(self) -> None:
        super().off()
        self._leave()

    def _refuse(self) -> None:
        self._refused, self.exercised, self.detail = True, False, "the job has autocast on"

    def _leave(self) -> None:
        context, self._open = self._open, None
        if context is not None:
            context.__exit__(None, None, None)

    def before_backward(self, tensors: Any) -> Any:
        if self._open is None:
            return tensors
        self._leave()
        return tensors if self._scale is None else self._scale.scaled(tensors)

    def after_backward(self) -> None:
        if self._scale is not None:
            self._scale.restore()

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Ends the autocast of a forward without a backward."""
        self._leave()

    def boundary(self, steps: int) -> None:
        """Ends the autocast of a forward without a backward, and updates the outcome."""
        self._leave()
        if self.applied and not self._refused:
            self.exercised = bool(self._top_modules)
            skipped = f", {self._scale.overflows} overflows" if self._scale is not None else ""
            dtype = str(self._dtype).removeprefix("torch.")
            self.detail = f"{dtype} in {count(len(self._top_modules), 'top module')}{skipped}"


AMPERE = (8, 0)
"""Compute capability of the first devices with TensorFloat-32."""


class MatmulPrecision(Applier):
    """Change to TensorFloat-32 in matmuls of float32 matrices. arguments: precision ("high", "medium").

    Only by the older interface: torch refuses to mix it with the newer one (fp32_precision)."""

    switchable = True
    detail = "no model has been trained"

    def prepare(self) -> None:
        self._precision = str(self.arguments.get("precision", "high"))
        self._before = torch.get_float32_matmul_precision()

    def on(self) -> None:
        super().on()
        self._before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(self._precision)
        self.applied = True

    def off(self) -> None:
        super().off()
        torch.set_float32_matmul_precision(self._before)

    def top_module(self, module: torch.nn.Module) -> None:
        """Checks for a device with TensorFloat-32, and sets the precision again while it is in force."""
        try:
            theirs = torch.get_float32_matmul_precision()
            if self.in_force:
                torch.set_float32_matmul_precision(self._precision)
            else:
                self._before = theirs
        except RuntimeError as error:
            self.applied = False
            self.detail = "the job uses the newer interface (fp32_precision), which must not be mixed with this one"
            pass_on(error)
            return
        devices = {parameter.device for parameter in parameters_of(module)}
        capable = [each for each in devices if each.type == "cuda" and torch.cuda.get_device_capability(each) >= AMPERE]
        if not capable:
            names = ", ".join(sorted({device.type for device in devices})) or "this device"
            self.detail = f"{names} has no TensorFloat-32"
        elif self._before == self._precision:
            self.detail = f"the precision was already {self._precision}"
        else:
            again = " (set once more: the job had set it itself)" if self.in_force and theirs != self._precision else ""
            self.works(f"{self._before} → {self._precision}{again}")


FUNCTIONS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")


def switch_off() -> None:
    """Removes dropout: replaces the functions of torch.nn.functional that modules and user code call."""
    functional = torch.nn.functional
    for name in FUNCTIONS:
        setattr(functional, name, traceable.dropout)
    functional.scaled_dot_product_attention = traceable.attention_without_dropout(
        functional.scaled_dot_product_attention
    )


def switch_off_in(top_module: torch.nn.Module) -> None:
    """Removes the dropout of recurrent layers, which is inside their kernels."""
    for module in modules_of(top_module):
        if isinstance(module, torch.nn.RNNBase):
            module.dropout = 0.0
