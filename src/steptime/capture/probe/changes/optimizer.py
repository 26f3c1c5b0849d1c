"""The change "optimizer": the fused or the foreach implementation of torch's own optimisers."""

from __future__ import annotations

import functools
import inspect
import weakref
from typing import Any

import torch

from steptime.capture.probe.changes.applier import Applier, count

VARIANTS = ("fused", "foreach")


class OptimizerVariant(Applier):
    """arguments: fused or foreach, True or False. Optimisers of a class of the user's own are left alone."""

    def __init__(self, target: str, arguments: dict[str, Any]) -> None:
        super().__init__(target, arguments)
        self._name = next(name for name in VARIANTS if arguments.get(name) is not None)
        self._wanted = bool(arguments[self._name])
        self._made: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._used: dict[int, str] = {}
        self._reason = ""

    def install(self) -> None:
        """Wraps the constructors of the classes that know the variant."""
        classes: list[Any] = [each for each in vars(torch.optim).values() if isinstance(each, type)]
        for cls in classes:
            if issubclass(cls, torch.optim.Optimizer) and cls is not torch.optim.Optimizer:
                signature = inspect.signature(cls.__init__)
                if self._name in signature.parameters:
                    cls.__init__ = self._changed(cls, cls.__init__, signature)

    def _changed(self, cls: type, original: Any, signature: inspect.Signature) -> Any:
        @functools.wraps(original)
        def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            if type(optimizer) is not cls:
                original(optimizer, *args, **kwargs)
                return
            try:
                bound = signature.bind(optimizer, *args, **kwargs)
                given = bound.arguments.get(self._name)
                bound.arguments["params"] = _list(bound.arguments["params"])
                args, kwargs = (optimizer, *bound.args[1:]), bound.kwargs
                edited = {**bound.arguments, self._name: self._wanted}
                for other in VARIANTS:
                    if other != self._name and other in signature.parameters and self._wanted:
                        edited[other] = None  # torch allows one of them
                bound.arguments.update(edited)
                original(*bound.args, **bound.kwargs)
            except (RuntimeError, TypeError, ValueError) as error:
                self._reason = f"{cls.__name__} has no {self._name} variant here: {error}"
                original(*(args if args and args[0] is optimizer else (optimizer, *args)), **kwargs)
                return
            if given is self._wanted:
                self._reason = f"{cls.__name__} was made with {self._name}={given} already"
            else:
                self.applied = True
                self._made.add(optimizer)

        return __init__

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Looks whether it holds where a step is taken."""
        if optimizer in self._made and all(each.get(self._name) is self._wanted for each in optimizer.param_groups):
            self._used[id(optimizer)] = type(optimizer).__name__

    def border(self, steps: int) -> None:
        """Says what was seen."""
        self.exercised = bool(self._used)
        names = ", ".join(sorted(set(self._used.values())))
        if self.exercised:
            self.detail = f"{self._name}={self._wanted} in {count(len(self._used), 'optimiser')} ({names})"
        else:
            self.detail = self._reason or f"no optimiser of torch's own with the option {self._name}"


def _list(parameters: Any) -> Any:
    """A generator can be read once, and the constructor may be called twice."""
    return parameters if isinstance(parameters, list | tuple | torch.Tensor | dict) else list(parameters)
