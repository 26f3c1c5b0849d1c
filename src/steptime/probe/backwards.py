"""Backward passes, seen where torch enters its autograd engine: below torch.autograd.backward and torch.autograd.grad,
which stay as they are: TorchScript knows both by name, and user code holds references to them (torch 2.4 to 2.13).
"""

from __future__ import annotations

from typing import Any

import torch

from steptime.probe.inlay import Inlay, Reported


class BackwardObserver:
    """Told of backward passes, nested ones too. Its exceptions reach the user's program: it guards itself."""

    def starts(self, tensors: Any, partial: bool) -> tuple[Any, Any]:
        """A pass starts on `tensors`; partial: for torch.autograd.grad. Returns the tensors that it is to start on, and
        what `ends` is to get; None where it is not to be told."""
        return tensors, None

    def ends(self, begun: Any) -> None:
        """The pass has ended, or raised."""


_observers: list[BackwardObserver] = []


class _Pass(Reported):
    """A pass that is under way. Entered, it is the tensors to start on."""

    __slots__ = ("_partial", "_tensors")

    def __init__(self, tensors: Any, settings: dict[str, Any]) -> None:
        self._tensors, self._partial = tensors, settings.get("accumulate_grad") is False
        self._begun = None

    def __enter__(self) -> Any:
        for observer in reversed(_observers):  # who came last lies outside
            self._tensors, begun = observer.starts(self._tensors, self._partial)
            self._add(observer, begun)
        return self._tensors


_INLAY = Inlay(
    torch.autograd.graph._engine_run_backward,
    """
if not torch.compiler.is_dynamo_compiling():
    with "Pass"(t_outputs, kwargs) as t_outputs:
        BODY
else:
    BODY
""",
    Pass=_Pass,
)


def install() -> None:
    """From now on passes are seen. Raises what `Inlay` raises."""
    _INLAY.install()


def remove_if_idle() -> None:
    """torch's function is as it was before, if nobody is told of anything any more."""
    if not _observers:
        _INLAY.remove()


def observe(observer: BackwardObserver) -> None:
    if observer not in _observers:
        _observers.append(observer)


def unobserve(observer: BackwardObserver) -> None:
    if observer in _observers:
        _observers.remove(observer)
