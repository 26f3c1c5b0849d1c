"""The cheap watch: of each step the losses, the norm of the gradients and the outputs of some modules.

Nothing waits for the device, nothing of a step is kept beyond it, and no random number is drawn. The watch knows what
it costs: above MOST_SHARE of a step it looks at fewer modules, then at the gradients of fewer steps.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from time import perf_counter_ns as now
from time import thread_time_ns
from typing import Any

import torch

from steptime.probe.numerics.account import GrowingNumerics
from steptime.probe.numerics.ending import Ending
from steptime.probe.numerics.history import LossHistory
from steptime.probe.numerics.outputs import OutputWatch
from steptime.probe.numerics.places import ModuleNames
from steptime.probe.numerics.readings import Readings
from steptime.probe.numerics.values import number

MOST_SHARE, LEAST_SHARE = 0.015, 0.004
"""Of the step time, for what a step leaves us to do: above the first the looks become fewer, below the second more."""
PERIOD = 8
"""Steps between two such decisions."""
FIRST_STRIDE, LARGEST_STRIDE = 4, 64
"""Of every so manieth step the gradients are looked at. What is missed shows in the next step's loss."""
HOPELESS = 20
"""Steps in a row that a scaler skips: GradScaler begins at 2**16 and halves at each, so that by then the scale is a
sixteenth, and what overflows still does so by itself."""
LOSS, GRADIENT, FOUND, SKIPPED = "loss", "gradient", "found_inf", "skipped"
MODULE = "module "


class Watch:
    """A role (`job.Role`): looks until something is not finite, then ends the job unless `go_on`."""

    def __init__(self, plan: dict[str, Any], account: GrowingNumerics, ending: Ending) -> None:
        self._go_on = bool(plan["go_on"])
        self._account, self._ending = account, ending
        self._readings = Readings()
        self._outputs = OutputWatch(self._readings, self._guarded)
        self._names = ModuleNames()
        self._history = LossHistory()
        self._skips: set[int] = set()
        self._in_a_row = self._skipped = self._found = 0
        self._gradient_stride = FIRST_STRIDE
        self._clipped = False
        self._spent = self._looked = 0
        self._begin = 0
        account.facts.update(trigger=None, skipped_steps=0, steps_not_finite=0)

    def install(self) -> None:
        """Before the user's program goes on: the norm that clipping computes is the one that we need."""
        clip = torch.nn.utils.clip_grad
        clip.clip_grad_norm_ = torch.nn.utils.clip_grad_norm_ = self._clip(clip.clip_grad_norm_)

    def _clip(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(inner)
        def clip_grad_norm_(*args: Any, **kwargs: Any) -> Any:
            norm = inner(*args, **kwargs)
            if not torch.compiler.is_compiling():
                self._guarded(self._clipped_to, norm)
            return norm

        clip_grad_norm_._torchdynamo_disable = True  # type: ignore[attr-defined]
        return clip_grad_norm_

    def _clipped_to(self, norm: Any) -> None:
        if isinstance(norm, torch.Tensor) and norm.numel() == 1 and type(norm) is torch.Tensor:
            self._readings.add(GRADIENT, norm.detach())
            self._clipped = True

    # -- what is told ----------------------------------------------------------------------------------------------

    def root(self, module: torch.nn.Module) -> None:
        """See job.Role."""
        self._names.root(module)
        self._outputs.root(module, lambda each: MODULE + self._names.of(each))

    def losses(self, step: int, tensors: list[Any]) -> None:
        """See job.Role."""
        self._account.open()
        for tensor in tensors:
            value = tensor.detach()
            self._readings.add(LOSS, value if value.numel() == 1 else value.sum())

    def update(self, step: int, optimizer: Any) -> None:
        """See job.Role."""

    def updated(self, step: int, optimizer: Any) -> None:
        """Here gradients are whole also where a closure, or a backward's hook, has made the update."""
        found = getattr(optimizer, "found_inf", None)
        if isinstance(found, torch.Tensor):  # an optimiser that leaves updates out by itself (fused)
            self._readings.add(FOUND, found.detach())
        elif not self._clipped and self._gradient_stride and step % self._gradient_stride == 0:
            begin = now()
            norm = gradient_norm([each.grad for group in optimizer.param_groups for each in group["params"]])
            if norm is not None:
                self._readings.add(GRADIENT, norm)
            self._spent += now() - begin

    def scaled_update(self, step: int, optimizer: Any) -> None:
        """See job.Role."""

    def skipped(self, step: int, optimizer: Any) -> None:
        """See job.Role."""
        self._skips.add(step)

    def boundary(self, step: int) -> None:
        """See job.Role."""
        begin = now()
        self._readings.close(step)
        self._account.facts["steps"] = step
        for done, values in self._readings.ready():
            self._judge(done, values)
        self._spent += now() - begin
        self._economise(step)
        self._ending.boundary(step)
        if self._found and not self._go_on:
            self._finish()
            self._ending.end(step)

    def finish(self) -> None:
        """See job.Role. A step that was begun and never ended counts, too: the job may have left because of it."""
        if self._account.folder:
            self._readings.close(self._account.facts["steps"] + 1)
            for step, values in self._readings.ready(wait=True):
                self._judge(step, values)
            self._finish()

    def failed(self, error: Exception) -> None:
        """See job.Role."""
        self._account.give_up("the watch was switched off", error)

    def forked(self) -> None:
        """In a child."""
        self._readings.forget()
        self._account.forget()
        self._history = LossHistory()

    # -- what it means ---------------------------------------------------------------------------------------------

    def _judge(self, step: int, values: list[tuple[str, float]]) -> None:
        losses, norms = [], []
        skipped = step in self._skips
        for name, value in values:
            if name == LOSS:
                losses.append(value)
            elif name == GRADIENT:
                norms.append(value)
            elif name == FOUND:
                skipped = skipped or value > 0
        self._skips.discard(step)
        self._skipped += skipped
        self._in_a_row = self._in_a_row + 1 if skipped else 0
        bad_loss = next((value for value in losses if not math.isfinite(value)), None)
        bad_norm = next((value for value in norms if not math.isfinite(value)), None)
        if bad_loss is not None:
            self._trigger(step, LOSS, bad_loss, values)
        elif bad_norm is not None and not skipped:
            self._trigger(step, GRADIENT, bad_norm, values)
        elif self._in_a_row == HOPELESS:
            self._trigger(step, SKIPPED, math.inf, values)
        norm = math.hypot(*norms) if norms else None
        self._history.add(step, sum(losses) / len(losses) if losses else None, norm)

    def _trigger(self, step: int, kind: str, value: float, values: list[tuple[str, float]]) -> None:
        self._found += 1
        if self._found > 1:
            return
        outputs = [(name.removeprefix(MODULE), value) for name, value in values if name.startswith(MODULE)]
        bad = next((position for position, (_, each) in enumerate(outputs) if not math.isfinite(each)), None)
        self._account.facts["trigger"] = {
            "kind": kind,
            "step": step,
            "value": number(value),
            "first_module": outputs[bad][0] if bad is not None else "",
            "modules_looked_at": len(outputs),
            "steps_before": max(1, self._gradient_stride),
        }
        self._account.facts["history"] = self._history.last()

    def _finish(self) -> None:
        facts = self._account.facts
        facts["skipped_steps"], facts["steps_not_finite"] = self._skipped, self._found
        facts.setdefault("history", self._history.last())
        facts["spread"] = self._history.spread()
        self._account.write()

    # -- what it costs ---------------------------------------------------------------------------------------------

    def _economise(self, step: int) -> None:
        self._clipped = False
        self._outputs.turn += 1
        if step % PERIOD:
            return
        # The thread's own time: while others have the processor a step grows longer, and a look does not.
        time, outputs, gradients = thread_time_ns(), self._outputs.spent(), self._spent
        self._spent = 0
        if self._begin:
            share = (outputs + gradients) / (time - self._begin)
            if share > MOST_SHARE and outputs >= gradients:
                self._outputs.stride = min(self._outputs.stride * 2, LARGEST_STRIDE)
            elif share > MOST_SHARE:
                self._gradient_stride = min(self._gradient_stride * 2, LARGEST_STRIDE)
            elif share < LEAST_SHARE:
                self._outputs.stride = max(1, self._outputs.stride // 2)
                self._gradient_stride = max(1, self._gradient_stride // 2)
        self._begin = time

    def _guarded(self, method: Callable[..., None], *arguments: Any) -> None:
        try:
            method(*arguments)
        except Exception as error:  # noqa: BLE001 - the probe's boundary: without this look the others go on
            self._outputs.stride = 0
            self._account.note(f"module outputs were not looked at: {type(error).__name__}: {error}")


def gradient_norm(gradients: list[Any]) -> Any:
    """The 2-norm of all gradients as a tensor without dimensions; None where there are none."""
    dense = [_dense(gradient) for gradient in gradients if gradient is not None]
    if not dense:
        return None
    if any(gradient.element_size() < 4 for gradient in dense):
        norm = _together([torch.linalg.vector_norm(gradient, dtype=torch.float32) for gradient in dense])
    else:
        norm = _together(list(torch._foreach_norm(dense)))
    if norm.device.type == "cpu" and not math.isfinite(float(norm)):
        # Squares above 1e38 overflow although the gradients do not; on a device nobody waits to find out.
        return _together([torch.linalg.vector_norm(gradient, dtype=torch.float64) for gradient in dense])
    return norm


def _together(norms: list[Any]) -> Any:
    device = norms[0].device
    return torch.linalg.vector_norm(torch.stack([norm if norm.device == device else norm.to(device) for norm in norms]))


def _dense(gradient: Any) -> Any:
    if gradient.requires_grad:  # of a backward that can be differentiated again
        gradient = gradient.detach()
    if hasattr(gradient, "to_local"):  # of a sharded parameter: this rank's part
        gradient = gradient.to_local()
    return gradient.coalesce().values() if gradient.is_sparse else gradient
