"""Cheap monitor of each step's losses, gradient norm, the outputs of some modules and the updates of some weights.

Nothing waits for the device, nothing of a step is kept beyond it, and no random number is drawn. The monitor measures
its own cost: above MOST_SHARE of a step it checks fewer modules, or the gradients of fewer steps.
"""

from __future__ import annotations

import inspect
import math
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from time import perf_counter_ns as now, thread_time_ns
from typing import Any

import torch

from steptime.probe import calls
from steptime.probe.changes.variant import ProcessVariant
from steptime.probe.inlay import THROUGH, Inlay
from steptime.probe.numerics.job import GrowingNumerics, Role
from steptime.probe.numerics.values import ModuleNames, has_values, is_floating
from steptime.probe.objects import being_traced, local_values, modules_of, unseen
from steptime.probe.ours import pass_on
from steptime.probe.recorder import json_number

MODULE, SIZE, UPDATE = "module ", "size ", "update "
"""Before the names of readings: an output's sum, its root mean square in the first step, and an update over its
weight."""
KEPT_UPDATES = 16
"""Steps with the largest update that are written."""
MOST_MODULES = 16
"""Most modules of a tree that are checked, from the outside in."""
FIRST_STRIDE = MOST_MODULES
"""Initial stride of module checks: one per step until the step time is known, as a check with a cold cache takes up to
40 us on a CPU."""


class OutputObserver:
    """Observer of module outputs, which adds one value per checked output to the readings.

    stride: every n-th module is checked in a step, in turns; 0 switches the checks off."""

    def __init__(self, readings: Readings, guard: Callable[..., None]) -> None:
        self.stride = FIRST_STRIDE
        self.turn = 0
        self._readings, self._guard = readings, guard
        self._spent = 0
        self._count = 0

    def top_module(self, module: torch.nn.Module, name_of: Callable[[Any], str]) -> None:
        """Wraps modules of a tree. A compiled top module is checked as a whole."""
        for each in _chosen(module):
            self._wrap(each, name_of(each), self._count)
            self._count += 1

    def spent(self) -> int:
        """Returns the ns of the checks since the last call."""
        spent, self._spent = self._spent, 0
        return spent

    def _due(self, position: int) -> bool:
        first = self.turn == 0  # all of them once: how large outputs are when nothing has been learnt
        return bool(self.stride) and (first or (position + self.turn) % self.stride == 0) and torch.is_grad_enabled()

    def _wrap(self, module: torch.nn.Module, name: str, position: int) -> None:
        def changed(call: calls.Call) -> calls.Call:
            def looked_at(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
                if being_traced():  # torch.jit.trace names values by variables, ours too
                    return call(module, args, kwargs)
                try:
                    output = call(module, args, kwargs)
                except BaseException as error:
                    # A bare raise adds no frame, so this takes ours out of the user's traceback (Python >= 3.11).
                    error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
                    raise
                if self._due(position):
                    self._guard(self._look, name, output)
                return output

            return looked_at

        calls.change(module, changed)

    def _look(self, name: str, output: Any) -> None:
        start = now()
        tensor = _tensor_of(output)
        if tensor is not None:
            values = tensor.detach()
            self._readings.add(name, values.sum(dtype=torch.float32) if values.element_size() < 4 else values.sum())
            if self.turn == 0 and values.numel():
                size = norm_of(values) / math.sqrt(values.numel())
                self._readings.add(f"{SIZE}{name.removeprefix(MODULE)}", size)
        self._spent += now() - start


def _tensor_of(output: Any) -> Any:
    """Returns the output, or the first of several, if it is a tensor that can be summed; else None."""
    while isinstance(output, list | tuple) and output:
        output = output[0]
    plain = isinstance(output, torch.Tensor) and type(output).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
    return output if plain and is_floating(output) and not output.is_complex() else None


def _chosen(top_module: torch.nn.Module) -> list[torch.nn.Module]:
    """Returns the modules nearest to the top module, itself included; none inside of a compiled or scripted one."""
    found: list[torch.nn.Module] = []
    waiting = deque([top_module])
    while waiting and len(found) < MOST_MODULES:
        module = waiting.popleft()
        if isinstance(module, torch.jit.ScriptModule) or any(module is each for each in found):
            continue
        found.append(module)
        compiled = module._compiled_call_impl is not None or type(module).__name__ == "OptimizedModule"
        if not compiled:
            waiting.extend(child for child in module._modules.values() if child is not None)
    return found


MOST_WEIGHTS = 8
"""Weights that are looked at, spread over the model."""
ELEMENTS = 4096
"""Of each, from its start: read and written in a few microseconds."""


class UpdateObserver:
    """Observer of an optimizer's step, by `before` and `after`: the size of the change relative to the size of the
    weights. add: function that takes (name, ratio as a tensor), and does not wait for the ratio."""

    def __init__(self, add: Callable[[str, Any], None]) -> None:
        self._add = add
        self._weights: list[tuple[str, weakref.ref[Any]]] = []
        self._kept: list[tuple[str, Any, torch.Tensor]] = []

    def top_module(self, module: torch.nn.Module, name_of: Callable[[Any], str]) -> None:
        """Chooses matrices of a model that lie far apart in it."""
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


LAST = 64
"""Latest steps whose loss and gradient norm are kept, to show how a gradient exploded."""
SPREAD = 48
"""Most steps kept of the whole run: when they are full, every second one is dropped, and the stride doubles."""


class LossHistory:
    """Losses of one process, thinned over a long run. Entries: (step, loss, gradient norm), None if unknown."""

    def __init__(self) -> None:
        self.last: deque[list[Any]] = deque(maxlen=LAST)
        self.spread: list[list[Any]] = []
        """Steps of the whole run with a gradient norm, for the result."""
        self._stride, self._norms = 1, 0

    def add(self, step: int, loss: float | None, norm: float | None) -> None:
        entry = [step, json_number(loss), json_number(norm)]
        self.last.append(entry)
        if norm is None:
            return
        if len(self.spread) == SPREAD:
            self.spread = self.spread[::2]
            self._stride *= 2
        if self._norms % self._stride == 0:
            self.spread.append(entry)
        self._norms += 1


MOST_PENDING = 8
"""Most steps whose values are still being copied; then it waits for the oldest."""


class Readings:
    """Queue of (name, tensor) pairs by step, which returns (step, [(name, value), …]) in the same order."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._tensors: list[Any] = []
        self._pending: deque[tuple[int, list[str], Any, Any]] = deque()

    def add(self, name: str, tensor: Any) -> None:
        """Adds a value of the current step, if it can be read. tensor: detached, one element."""
        if not has_values(tensor):
            return
        self._names.append(name)
        self._tensors.append(tensor.abs() if tensor.is_complex() else tensor)

    def close(self, step: int) -> None:
        if self._names:
            names, tensors = self._names, self._tensors
            self._names, self._tensors = [], []
            self._pending.append((step, names, *_sent(tensors)))

    def ready(self, wait: bool = False) -> Iterator[tuple[int, list[tuple[str, float]]]]:
        """Yields the steps whose values have arrived; all steps with `wait`."""
        while self._pending:
            step, names, values, event = self._pending[0]
            if event is not None and not event.query():
                if not wait and len(self._pending) < MOST_PENDING:
                    return
                event.synchronize()
            self._pending.popleft()
            yield step, list(zip(names, values if event is None else values.tolist(), strict=True))

    def forget(self) -> None:
        self._names, self._tensors = [], []
        self._pending.clear()


def _sent(tensors: list[Any]) -> tuple[Any, Any]:
    """Returns (values, None) of tensors on a CPU; else (their copies in pinned memory, the CUDA event after the
    copy)."""
    device = next((tensor.device for tensor in tensors if tensor.device.type == "cuda"), None)
    if device is None:
        return [float(tensor) for tensor in tensors], None
    with torch.no_grad(), torch.cuda.device(device):
        together = torch.stack([tensor.reshape(()).to(device, torch.float32, non_blocking=True) for tensor in tensors])
        host = torch.empty(together.shape, dtype=torch.float32, pin_memory=True)
        host.copy_(together, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
    return host, event


MOST_SHARE, LEAST_SHARE = 0.015, 0.004
"""Fractions of the training thread's CPU time: above the first, checks become fewer, below the second more."""
PERIOD = 8
"""Steps between two decisions about the strides."""
FIRST_GRADIENT_STRIDE, LARGEST_STRIDE = 4, 64
"""First and largest stride of gradient checks; the largest is also that of module checks. The loss of the next step
shows a fault that was missed."""
HOPELESS = 20
"""Skipped steps in a row that count as a fault. GradScaler starts at 2**16 and halves each time, so the scale is then a
sixteenth, and the values overflow without it."""
LOSS, GRADIENT, FOUND, SKIPPED = "loss", "gradient", "found_inf", "skipped"


class Monitor(Role):
    """Role of the monitored run, which ends the job at the first value that is not finite, unless `go_on`."""

    def __init__(self, plan: dict[str, Any], numerics: GrowingNumerics, ending: ProcessVariant) -> None:
        self._go_on = bool(plan["go_on"])
        self._numerics, self._ending = numerics, ending
        self._readings = Readings()
        self._outputs = OutputObserver(self._readings, self._guarded)
        self._names = ModuleNames()
        self._history = LossHistory()
        self._updates = UpdateObserver(lambda name, ratio: self._readings.add(f"{UPDATE}{name}", ratio))
        self._largest: deque[list[Any]] = deque(maxlen=KEPT_UPDATES)
        self._sizes: dict[str, Any] = {}
        self._skips: set[int] = set()
        self._in_a_row = self._skipped = self._found = 0
        self._gradient_stride = FIRST_GRADIENT_STRIDE
        self._clipped = False
        self._spent = 0
        self._start = 0
        numerics.facts.update(trigger=None, skipped_steps=0, steps_not_finite=0)

    def install(self) -> None:
        """Reads the norms that the job's own clipping computes, from now on."""
        clip = inspect.unwrap(torch.nn.utils.clip_grad_norm_)
        Inlay(clip, THROUGH.format(""), returned=self._clip).install()

    def _clip(self, norm: Any) -> Any:
        self._guarded(self._clipped_to, norm)
        return norm

    def _clipped_to(self, norm: Any) -> None:
        if isinstance(norm, torch.Tensor) and norm.numel() == 1 and type(norm) is torch.Tensor:
            self._readings.add(GRADIENT, norm.detach())
            self._clipped = True

    # -- reports -------------------------------------------------------------------------------------------------------

    def top_module(self, module: torch.nn.Module) -> None:
        self._names.top_module(module)
        self._outputs.top_module(module, lambda each: MODULE + self._names.of(each))
        self._guarded(self._updates.top_module, module, self._names.of)

    def losses(self, step: int, tensors: list[Any]) -> None:
        self._numerics.open()
        for tensor in tensors:
            value = tensor.detach()
            self._readings.add(LOSS, value if value.numel() == 1 else value.sum())

    def update(self, step: int, optimizer: Any) -> None:
        if self._gradient_stride and (step % self._gradient_stride == 0 or step <= FIRST_GRADIENT_STRIDE):
            start = now()
            self._guarded(self._updates.before)
            self._spent += now() - start

    def updated(self, step: int, optimizer: Any) -> None:
        start = now()
        self._guarded(self._updates.after)
        self._spent += now() - start
        found = getattr(optimizer, "found_inf", None)
        if isinstance(found, torch.Tensor):  # an optimizer that leaves updates out by itself (fused)
            self._readings.add(FOUND, found.detach())
        elif not self._clipped and self._gradient_stride and step % self._gradient_stride == 0:
            start = now()
            norm = gradient_norm([each.grad for group in optimizer.param_groups for each in group["params"]])
            if norm is not None:
                self._readings.add(GRADIENT, norm)
            self._spent += now() - start

    def skipped(self, step: int, optimizer: Any) -> None:
        self._skips.add(step)

    def boundary(self, step: int) -> None:
        start = now()
        self._readings.close(step)
        self._numerics.facts["steps"] = step
        for done, values in self._readings.ready():
            self._judge(done, values)
        self._spent += now() - start
        self._economise(step)
        self._ending.boundary(step)
        if self._found and not self._go_on:
            self._finish()
            self._ending.end(step)

    def finish(self) -> None:
        if self._numerics.folder:
            self._readings.close(self._numerics.facts["steps"] + 1)
            for step, values in self._readings.ready(wait=True):
                self._judge(step, values)
            self._finish()

    def failed(self, error: Exception) -> None:
        self._numerics.give_up("the watch was switched off", error)

    def forked(self) -> None:
        self._readings.forget()
        self._numerics.forget()
        self._history = LossHistory()
        self._largest.clear()
        self._sizes.clear()

    # -- what it means ---------------------------------------------------------------------------------------------

    def _judge(self, step: int, values: list[tuple[str, float]]) -> None:
        losses, norms = [], []
        updates = [(value, name.removeprefix(UPDATE)) for name, value in values if name.startswith(UPDATE)]
        finite = [each for each in updates if math.isfinite(each[0])]
        if finite:
            most, weight = max(finite)
            self._largest.append([step, weight, json_number(most)])
        self._sizes |= {name.removeprefix(SIZE): json_number(value) for name, value in values if name.startswith(SIZE)}
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
        self._numerics.facts["trigger"] = {
            "kind": kind,
            "step": step,
            "value": json_number(value),
            "first_module": outputs[bad][0] if bad is not None else "",
            "modules_looked_at": len(outputs),
            "steps_before": max(1, self._gradient_stride),
        }
        self._numerics.facts["history"] = list(self._history.last)

    def _finish(self) -> None:
        facts = self._numerics.facts
        facts["skipped_steps"], facts["steps_not_finite"] = self._skipped, self._found
        facts.setdefault("history", list(self._history.last))
        facts["spread"] = list(self._history.spread)
        facts["updates"], facts["sizes"] = list(self._largest), list(self._sizes.items())
        self._numerics.write()

    # -- what it costs ---------------------------------------------------------------------------------------------

    def _economise(self, step: int) -> None:
        self._clipped = False
        self._outputs.turn += 1
        if step % PERIOD:
            return
        # The thread's own time: while others have the processor a step grows longer, and a look does not.
        time, outputs, gradients = thread_time_ns(), self._outputs.spent(), self._spent
        self._spent = 0
        if self._start:
            share = (outputs + gradients) / (time - self._start)
            if share > MOST_SHARE and outputs >= gradients:
                self._outputs.stride = min(self._outputs.stride * 2, LARGEST_STRIDE)
            elif share > MOST_SHARE:
                self._gradient_stride = min(self._gradient_stride * 2, LARGEST_STRIDE)
            elif share < LEAST_SHARE:
                self._outputs.stride = max(1, self._outputs.stride // 2)
                self._gradient_stride = max(1, self._gradient_stride // 2)
        self._start = time

    def _guarded(self, method: Callable[..., None], *arguments: Any) -> None:
        try:
            with unseen():
                method(*arguments)
        except Exception as error:  # noqa: BLE001 - the probe's boundary: without this look the others go on
            self._outputs.stride = 0
            self._numerics.note(f"module outputs were not looked at: {type(error).__name__}: {error}")
            pass_on(error)


def gradient_norm(gradients: list[Any]) -> Any:
    """Returns the 2-norm of all gradients that can be read, as a 0-D tensor; None without any."""
    dense = [local_values(gradient) for gradient in gradients if gradient is not None]
    dense = [gradient for gradient in dense if has_values(gradient)]
    dense = [torch.view_as_real(each.resolve_conj()) if each.is_complex() else each for each in dense]
    if not dense:
        return None
    if any(gradient.element_size() < 4 for gradient in dense):
        norm = _together([norm_of(gradient) for gradient in dense])
    else:
        norm = _together(list(torch._foreach_norm(dense)))
    if norm.device.type == "cpu" and not math.isfinite(float(norm)):
        # Squares above 1e38 overflow although the gradients do not; on a device nobody waits to find out.
        return _together([torch.linalg.vector_norm(gradient, dtype=torch.float64) for gradient in dense])
    return norm


def norm_of(values: Any) -> Any:
    """Returns the 2-norm of real values, in 32 bits at least."""
    return torch.linalg.vector_norm(values, dtype=torch.float32 if values.element_size() < 4 else None)


def _together(norms: list[Any]) -> Any:
    device = norms[0].device
    return torch.linalg.vector_norm(torch.stack([norm if norm.device == device else norm.to(device) for norm in norms]))
