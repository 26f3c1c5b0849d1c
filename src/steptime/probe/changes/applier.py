"""An applier: one change, put in force in this process, and what became of it.

A change never harms the job. What fails in an applier makes the change not exercised, with its reason.
"""

from __future__ import annotations

import functools
import inspect
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from steptime.probe.objects import parameters_of


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
    """Puts `wrap(call)` around every later call of a module, in its slot `_compiled_call_impl`: outside of its hooks,
    never pickled or copied, passed by inside compiled regions (torch 2.4 to 2.13)."""
    inner = module.__dict__.get("_compiled_call_impl") or module._call_impl
    module.__dict__["_compiled_call_impl"] = wrapper = wrap(inner)
    _OURS.add(wrapper)


_OURS: weakref.WeakSet[Callable[..., Any]] = weakref.WeakSet()


def is_ours(call: Any) -> bool:
    """Whether `wrap_root` has put it into a slot."""
    return isinstance(call, types.FunctionType) and call in _OURS


def count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


UNSCALED = "_steptime_unscaled"
"""Attribute of a tensor that GradScaler.scale has returned: the loss before it."""


def keep_unscaled(seen: Callable[[Any], None] | None = None) -> None:
    """GradScaler.scale remembers the loss that it scales. seen: told of the scaler."""
    original = torch.amp.GradScaler.scale

    @functools.wraps(original)
    def scale(scaler: Any, outputs: Any) -> Any:
        scaled = original(scaler, outputs)
        if isinstance(outputs, torch.Tensor) and scaled is not outputs:
            setattr(scaled, UNSCALED, outputs.detach())
            if seen is not None:
                seen(scaler)
        return scaled

    torch.amp.GradScaler.scale = scale


def losses_of(tensors: Any) -> list[torch.Tensor]:
    """What a backward begins on. None of what torch can go through once only."""
    found = [tensors] if isinstance(tensors, torch.Tensor) else tensors
    return [each for each in found if isinstance(each, torch.Tensor)] if isinstance(found, list | tuple) else []


class RootWatch:
    """Tells `found` of each outermost called module with parameters to learn, right before it is called with gradients
    for the first time, in no loader's worker: what acts on a model must be there by then.

    A descriptor in the place of nn.Module.__call__, only for the first steps: afterwards calls cost what they did.
    """

    def __init__(self, found: Callable[[torch.nn.Module], None]) -> None:
        self._original = torch.nn.Module.__dict__["__call__"]
        self._found = found
        self._seen: dict[int, torch.nn.Module] = {}
        self._over = False
        self.in_backward = False
        """What is called in a backward is computed again (checkpointing), and no root."""
        self._call = self._make_call()

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self._original
        passed_by = self._over or self.in_backward or torch.utils.data.get_worker_info() is not None
        return types.MethodType(self._original if passed_by else self._call, instance)

    def _make_call(self) -> Callable[..., Any]:
        """A function, no method: TorchDynamo would look into that."""

        def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            # What is called from here on is no root, and TorchDynamo makes no graph of a replaced __call__.
            outermost = torch.nn.Module.__dict__["__call__"]
            torch.nn.Module.__call__ = self._original
            try:
                unknown = torch.is_grad_enabled() and id(module) not in self._seen
                if unknown and any(parameter.requires_grad for parameter in parameters_of(module)):
                    self._seen[id(module)] = module
                    self._found(module)
                return self._original(module, *args, **kwargs)
            finally:
                if not self._over:
                    torch.nn.Module.__call__ = outermost

        return call

    def install(self) -> None:
        torch.nn.Module.__call__ = self

    def remove(self) -> None:
        """Restores the method; where another descriptor lies on top of this one, it only looks no more."""
        self._over = True
        self._seen.clear()
        if torch.nn.Module.__dict__["__call__"] is self:
            torch.nn.Module.__call__ = self._original
