"""Instrumentation of backward passes at the entry of torch's autograd engine. The functions above it,
torch.autograd.backward and torch.autograd.grad, stay untouched: TorchScript knows them by name, and user code holds
references to them (torch 2.4 to 2.13)."""

from __future__ import annotations

import sys
from typing import Any

import torch

from steptime.probe import sites
from steptime.probe.inlay import Inlay, Reported
from steptime.probe.ours import suppressed


class BackwardObserver:
    """Callbacks for backward passes, nested ones too. Exceptions reach the user's program: subclasses catch their
    own."""

    def starts(self, tensors: Any, partial: bool) -> tuple[Any, Any]:
        """Called when a pass starts on `tensors`. partial: True for torch.autograd.grad. Returns the tensors to start
        on, and a token for `ends`, or None if `ends` is not to be called."""
        return tensors, None

    def ends(self, begun: Any) -> None:
        """Called when the pass has ended or raised. begun: token from `starts`."""


CREATES_GRAPH, MOST_CYCLES = 2, 8
"""Place of create_graph among the engine's arguments after the tensors, and lines that are kept."""
cycles: dict[tuple[str, int, str] | None, None] = {}
"""Lines that call backward(create_graph=True): the gradient in .grad keeps the graph that keeps its tensor."""
_observers: list[BackwardObserver] = []


class _Pass(Reported):
    """Context manager around one pass. `__enter__` returns the tensors to start on."""

    __slots__ = ("_partial", "_tensors")

    def __init__(self, tensors: Any, given: tuple[Any, ...], settings: dict[str, Any]) -> None:
        self._tensors, self._partial = tensors, settings.get("accumulate_grad") is False
        self._begun = None
        if not self._partial and given[CREATES_GRAPH : CREATES_GRAPH + 1] == (True,) and len(cycles) < MOST_CYCLES:
            with suppressed(Exception):  # in the user's call
                cycles[sites.user_frame(sys._getframe(1))] = None

    def __enter__(self) -> Any:
        for observer in reversed(_observers):  # who came last is outside
            self._tensors, begun = observer.starts(self._tensors, self._partial)
            self._add(observer, begun)
        return self._tensors


_INLAY = Inlay(
    torch.autograd.graph._engine_run_backward,
    """
if not torch.compiler.is_dynamo_compiling():
    with "Pass"(t_outputs, args, kwargs) as t_outputs:
        BODY
else:
    BODY
""",
    Pass=_Pass,
)


def install() -> None:
    """Installs the inlay: observers see passes from now on. Raises the errors of `Inlay`."""
    _INLAY.install()


def remove_if_idle() -> None:
    """Restores torch's function if no observer is left."""
    if not _observers:
        _INLAY.remove()


def observe(observer: BackwardObserver) -> None:
    if observer not in _observers:
        _observers.append(observer)


def unobserve(observer: BackwardObserver) -> None:
    if observer in _observers:
        _observers.remove(observer)
