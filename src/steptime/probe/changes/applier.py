"""An applier: one change, put in force in this process, and what became of it.

A change never harms the job. What fails in an applier makes the change not exercised, with its reason.
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
from steptime.probe.objects import SideTable, being_traced, parameters_of


class Applier:
    """One change. Subclasses override what they need; what they learn stands in the fields.

    applied: it was put in force. exercised: a training step ran under it. detail: one sentence: how much, or why not.
    seconds: what it took to prepare (compilation). order: of those that wrap a root, the larger one lies outside.

    A switchable one is put in force and taken back at the boundary of any step: after `off` the job's state is what it
    would be had `on` never been called, apart from what was trained. in_force: whether it is on. optimizers: those of
    the job, told by who switches.
    """

    switchable = False
    order = 0
    applied = exercised = in_force = False
    detail = ""
    seconds = 0.0

    def __init__(self, target: str, arguments: dict[str, Any]) -> None:
        self.target, self.arguments = target, arguments
        self.optimizers: Callable[[], list[Any]] = list

    def install(self) -> None:
        """Right after torch has been imported, before the user's program goes on: in force from here on."""
        self.prepare()
        self.on()

    def prepare(self) -> None:
        """What a switchable one needs there, and which changes nothing before it is on."""

    def on(self) -> None:
        """Puts it in force, between two steps."""
        self.in_force = True

    def off(self) -> None:
        """Takes it back, between two steps."""
        self.in_force = False

    def root(self, module: torch.nn.Module) -> None:
        """Before the first training forward of a root module."""

    def before_backward(self, tensors: Any) -> Any:
        """Before an outermost backward. Returns what it is called on."""
        return tensors

    def after_backward(self) -> None:
        """After an outermost backward."""

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Before an optimiser's step."""

    def boundary(self, steps: int) -> None:
        """After a training step; `steps`: how many there were."""

    def works(self, detail: str) -> None:
        self.exercised, self.detail = True, detail

    def failed(self, error: Exception) -> None:
        """Something of ours has raised: the change counts as not exercised."""
        first, *_ = str(error).strip().splitlines() or [""]
        self.exercised, self.detail = False, f"it failed: {type(error).__name__}: {first[:300]}"


def with_arguments(
    applier: Applier, original: Callable[..., Any], decide: Callable[[inspect.BoundArguments], None]
) -> Callable[..., Any]:
    """`original` with its arguments changed by `decide`, which edits what the caller has bound."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def changed(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = signature.bind(*args, **kwargs)
            decide(bound)
            args, kwargs = bound.args, bound.kwargs
        except Exception as error:  # noqa: BLE001 - the probe's boundary: the call goes on as the user wrote it
            applier.failed(error)
        return original(*args, **kwargs)

    return changed


def wrap_root(module: torch.nn.Module, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Puts `wrap(call)` around every later call of a module, outside of its hooks, and never in the module: a copy of
    it is called as torch calls it, and so is the module itself inside compiled regions. `wrap` must not hold it."""
    reference = weakref.ref(module)

    def around(call: calls.Call) -> calls.Call:
        wrapped = wrap(lambda *args, **kwargs: call(reference(), args, kwargs))
        return lambda _, args, kwargs: wrapped(*args, **kwargs)

    calls.change(module, around)


def count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


unscaled: SideTable[torch.Tensor] = SideTable()
"""Of a tensor that GradScaler.scale has returned, the loss before it."""


def keep_unscaled(seen: Callable[[Any], None] | None = None) -> None:
    """From now on `unscaled` is kept. seen: told of the scaler."""

    def returned(scaler: Any, outputs: Any, result: Any) -> Any:
        if isinstance(outputs, torch.Tensor) and result is not outputs:
            unscaled.keep(result, outputs.detach())
            if seen is not None:
                seen(scaler)
        return result

    Inlay(torch.amp.GradScaler.scale, THROUGH.format("self, outputs"), returned=returned).install()


def losses_of(tensors: Any) -> list[torch.Tensor]:
    """What a backward begins on. None of what torch can go through once only."""
    found = [tensors] if isinstance(tensors, torch.Tensor) else tensors
    return [each for each in found if isinstance(each, torch.Tensor)] if isinstance(found, list | tuple) else []


class RootWatch(calls.CallWatch):
    """Tells `found` of each outermost called module with parameters to learn, right before it is called with gradients
    for the first time, in no loader's worker: what acts on a model must be there by then. Only for the first steps."""

    def __init__(self, found: Callable[[torch.nn.Module], None]) -> None:
        self._found = found
        self._seen: SideTable[bool] = SideTable()
        self._depth: dict[int, int] = {}
        """Calls that are open, by thread: what is called in one is no root."""
        self.in_backward = False
        """What is called in a backward is computed again (checkpointing), and no root."""

    def begins(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        thread = get_ident()
        depth = self._depth[thread] = self._depth.get(thread, 0) + 1
        if depth > 1 or self.in_backward or torch.utils.data.get_worker_info() is not None:
            return thread
        unknown = torch.is_grad_enabled() and not being_traced() and not self._seen.of(module)
        if unknown and any(parameter.requires_grad for parameter in parameters_of(module)):
            self._seen.keep(module, True)
            self._found(module)
        return thread

    def ends(self, begun: int) -> None:
        self._depth[begun] -= 1

    def install(self) -> None:
        calls.watch_all(self)

    def remove(self) -> None:
        calls.unwatch_all(self)
