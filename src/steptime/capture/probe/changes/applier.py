"""An applier: one change, put in force in this process, and what became of it.

One law: a change never harms the job. What fails in an applier makes the change not exercised, with its reason.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch


class Applier:
    """One change. Subclasses override what they need; what they learn stands in the fields.

    applied: it was put in force. exercised: a training step ran under it. detail: one sentence: how much, or why not.
    seconds: what it took to prepare (compilation). order: of those that wrap a root, the larger one lies outside.
    """

    order = 0

    def __init__(self, target: str, arguments: dict[str, Any]) -> None:
        self.target, self.arguments = target, arguments
        self.applied = self.exercised = False
        self.detail = ""
        self.seconds = 0.0

    def install(self) -> None:
        """Right after torch has been imported, before the user's program goes on."""

    def root(self, module: torch.nn.Module) -> None:
        """Before the first training forward of a root module."""

    def before_backward(self, tensors: Any) -> Any:
        """Before an outermost backward. Returns what it is called on."""
        return tensors

    def after_backward(self) -> None:
        """After an outermost backward."""

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Before an optimiser's step."""

    def border(self, steps: int) -> None:
        """After a training step; `steps`: how many there were."""

    def finish(self) -> None:
        """At the end of the process, or of the arm."""

    def failed(self, error: Exception) -> None:
        """Something of ours has raised: the change counts as not exercised."""
        self.exercised = False
        self.detail = f"it failed: {type(error).__name__}: {_first_line(error)}"

    def refused(self, reason: str) -> None:
        """It cannot be applied here."""
        self.detail = reason


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else ""


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
        except Exception as error:  # noqa: BLE001 - the probe's border: the call goes on as the user wrote it
            applier.failed(error)
        return original(*args, **kwargs)

    return changed


def wrap_root(module: torch.nn.Module, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Puts `wrap(call)` around every later call of a module, in its slot `_compiled_call_impl`: outside of its hooks,
    never pickled or copied, passed by inside compiled regions (torch 2.4 to 2.13)."""
    inner = module.__dict__.get("_compiled_call_impl") or module._call_impl
    module.__dict__["_compiled_call_impl"] = wrap(inner)


def count(number: int, what: str) -> str:
    """As in: 1 block, 3 blocks."""
    return f"{number} {what}" + ("" if number == 1 else "s")
