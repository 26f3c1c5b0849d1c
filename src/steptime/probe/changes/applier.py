"""Applier: one change in this process, and its outcome.

A change never harms the job. An applier that fails is not exercised, with its reason.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable
from threading import get_ident
from typing import Any

import torch

from steptime.probe import calls
from steptime.probe.inlay import THROUGH, Inlay
from steptime.probe.objects import SideTable, being_traced, parameters_of, unasked, unseen
from steptime.probe.ours import pass_on


class Applier:
    """Change of a trial in this process. Subclasses override the methods they need.

    applied: True if it is in force. exercised: True if a training step ran under it. detail: one sentence with its
    extent, or the obstacle. seconds: preparation time (compilation). order: rank among the wrappers of a top module;
    the larger one is the outer.

    A switchable one can be switched at any step boundary: after `off` the job's state, except for the training itself,
    is as if `on` had never been called. in_force: True if it is on. optimizers: function that returns the job's
    optimizers, set by the switcher."""

    switchable = False
    order = 0
    applied = exercised = in_force = False
    detail = ""
    seconds = 0.0

    def __init__(self, target: str, arguments: dict[str, Any]) -> None:
        self.target, self.arguments = target, arguments
        self.optimizers: Callable[[], list[Any]] = list

    def install(self) -> None:
        """Puts the change in force right after torch's import, before the user's program goes on."""
        self.prepare()
        self.on()

    def prepare(self) -> None:
        """Prepares a switchable change right after torch's import, without an effect before `on`."""

    def on(self) -> None:
        """Puts the change in force, between two steps."""
        self.in_force = True

    def off(self) -> None:
        """Takes the change back, between two steps."""
        self.in_force = False

    def top_module(self, module: torch.nn.Module) -> None:
        """Called before the first training forward of a top module."""

    def before_backward(self, tensors: Any) -> Any:
        """Called before an outermost backward. Returns the tensors to start on."""
        return tensors

    def after_backward(self) -> None:
        """Called after an outermost backward."""

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Called before an optimizer's step."""

    def boundary(self, steps: int) -> None:
        """Called after a training step; `steps`: number of steps so far."""

    def works(self, detail: str) -> None:
        self.exercised, self.detail = True, detail

    def failed(self, error: Exception) -> None:
        """Records an error of ours: the change counts as not exercised."""
        first, *_ = str(error).strip().splitlines() or [""]
        self.exercised, self.detail = False, f"it failed: {type(error).__name__}: {first[:300]}"


def with_arguments(
    applier: Applier, original: Callable[..., Any], decide: Callable[[inspect.BoundArguments], None]
) -> Callable[..., Any]:
    """Wraps `original` so that `decide` edits the bound arguments of each call."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def changed(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = signature.bind(*args, **kwargs)
            decide(bound)
            args, kwargs = bound.args, bound.kwargs
        except Exception as error:  # noqa: BLE001 - the probe's boundary: the call goes on as the user wrote it
            pass_on(error)
            applier.failed(error)
        return original(*args, **kwargs)

    return changed


def wrap_top_module(module: torch.nn.Module, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Puts `wrap(call)` around every later call of a module, outside of its hooks, without changing the module: copies
    of it, and calls inside compiled regions, run as torch runs them. `wrap` must not hold the module."""
    reference = weakref.ref(module)

    def around(call: calls.Call) -> calls.Call:
        wrapped = wrap(lambda *args, **kwargs: call(reference(), args, kwargs))
        return lambda _, args, kwargs: wrapped(*args, **kwargs)

    calls.change(module, around)


def count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


unscaled: SideTable[torch.Tensor] = SideTable()
"""Unscaled loss of each tensor that GradScaler.scale has returned."""


def keep_unscaled(seen: Callable[[Any], None] | None = None) -> None:
    """Fills `unscaled` from now on. seen: function called with each scaler."""

    def returned(scaler: Any, outputs: Any, result: Any) -> Any:
        if isinstance(outputs, torch.Tensor) and result is not outputs:
            with unseen():
                unscaled.keep(result, outputs.detach())
            if seen is not None:
                seen(scaler)
        return result

    Inlay(torch.amp.GradScaler.scale, THROUGH.format("self, outputs"), returned=returned).install()


def losses_of(tensors: Any) -> list[torch.Tensor]:
    """Returns the tensors of a backward; none if they are in an iterator, which can be read only once."""
    found = [tensors] if isinstance(tensors, torch.Tensor) else tensors
    return [each for each in found if isinstance(each, torch.Tensor)] if isinstance(found, list | tuple) else []


class TopModuleObserver(calls.CallObserver):
    """Finder of top modules with trainable parameters, in the first steps. Calls `found` right before a module's first
    outermost call with gradients, outside of loader workers, so that changes of the model come in time."""

    def __init__(self, found: Callable[[torch.nn.Module], None]) -> None:
        self._found = found
        self._seen: SideTable[bool] = SideTable()
        self._depth: dict[int, int] = {}
        """Open calls by thread: modules called inside of one are no top modules."""
        self.in_backward = False
        """True in a backward, which computes checkpointed modules again: these are no top modules."""

    def starts(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        thread = get_ident()
        depth = self._depth[thread] = self._depth.get(thread, 0) + 1
        if depth > 1 or self.in_backward or torch.utils.data.get_worker_info() is not None:
            return thread
        if torch.is_grad_enabled() and not being_traced() and not self._seen.of(module):
            with unasked():
                trained = any(parameter.requires_grad for parameter in parameters_of(module))
            if trained:
                self._seen.keep(module, True)
                self._found(module)
        return thread

    def ends(self, begun: int) -> None:
        self._depth[begun] -= 1

    def install(self) -> None:
        calls.observe_all(self)

    def remove(self) -> None:
        calls.unobserve_all(self)
