"""Ranges around the calls of modules while torch's profiler records: which module its operators belong to.

A descriptor in the place of nn.Module.__call__ hands out a call with a range around it, for the modules that were known
when the window began, in the training thread. Nothing of it is there outside of a window, and nothing of it is ever
part of a module: hooks, pickles and copies are the job's own. Dynamo finds the original on the class, and passes our
frame by (see `compiler`).
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Iterator
from threading import get_ident
from typing import Any

import torch

from steptime.probe.objects import updated_by

GRADIENT, LEAF, NUMBERS = torch._C.TensorBase.grad, torch._C.TensorBase.is_leaf, torch._C.TensorBase.numel
MOST = 2_000
"""Modules: what a model has beyond them is counted to the module around it."""
RANGE = "nn.Module: {} ({})"
"""The name of a range: path and class."""


def named_modules(roots: Iterable[torch.nn.Module]) -> Iterator[tuple[str, torch.nn.Module]]:
    """The modules of these trees with their paths ("Net.layer1.0"), each once, from the tables in which nn.Module keeps
    them: `named_modules()` may be the user's own method. The root with most modules comes first."""
    trees = sorted((list(_tree(type(root).__name__, root)) for root in roots), key=len, reverse=True)
    seen: set[int] = set()
    for path, module in (each for tree in trees for each in tree):
        if id(module) not in seen:
            seen.add(id(module))
            yield path, module


def _tree(path: str, module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    seen, waiting = {id(module)}, [(path, module)]
    while waiting:
        name, current = waiting.pop()
        yield name, current
        children = {} if isinstance(current, torch.jit.ScriptModule) else current.__dict__.get("_modules", {})
        for key, child in reversed(list(children.items())):
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                waiting.append((f"{name}.{key}", child))


def module_facts(named: Iterable[tuple[str, torch.nn.Module]]) -> list[list[Any]]:
    """Path, class, numbers and bytes of the parameters that are the module's own, each counted once."""
    found, seen = [], set[int]()
    for path, module in named:
        scripted = isinstance(module, torch.jit.ScriptModule)
        own = [] if scripted else list(module.__dict__.get("_parameters", {}).values())
        own = [each for each in own if each is not None and id(each) not in seen]
        seen.update(map(id, own))
        size = sum(each.numel() * each.element_size() for each in own)
        found.append([path, type(module).__name__, sum(each.numel() for each in own), size])
    return found


def without_update(named: Iterable[tuple[str, torch.nn.Module]], optimizers: Iterable[Any]) -> list[list[Any]]:
    """Path and numbers of the modules' own parameters that have a gradient and that none of the optimisers has. Nothing
    where that does not say that they are not trained: where no optimiser has any of the modules' parameters, or mostly
    others (copies in single precision, flat ones), or where there are optimisers that are none of torch's."""
    updated = {id(each): each for optimizer in optimizers for each in updated_by(optimizer)}
    owned, found = set[int](), []
    for path, module in named:
        tables = {} if isinstance(module, torch.jit.ScriptModule) else module.__dict__.get("_parameters", {})
        own = {id(each): each for each in tables.values() if each is not None and id(each) not in owned}
        owned.update(own)
        left = [each for number, each in own.items() if number not in updated and _has_gradient(each)]
        if left:
            found.append([path, sum(map(NUMBERS, left))])
    trained = sum(NUMBERS(each) for number, each in updated.items() if number in owned)
    others = sum(NUMBERS(each) for number, each in updated.items() if number not in owned)
    return found if trained > others else []


def _has_gradient(parameter: Any) -> bool:
    """Nothing is asked of the job's own classes; torch warns where the gradient of what is no leaf is asked for."""
    return bool(LEAF.__get__(parameter)) and GRADIENT.__get__(parameter) is not None


class ModuleRanges:
    """The ranges of one window. `end` closes what is open: the profiler frees its events when it stops."""

    def __init__(self, named: Iterable[tuple[str, torch.nn.Module]]) -> None:
        self._names = {
            id(module): (weakref.ref(module), RANGE.format(path, type(module).__name__)) for path, module in named
        }
        self._original: Any = None
        self._thread = get_ident()
        self._open: list[Any] = []

    def begin(self) -> None:
        if not self._names:
            return
        self._original = torch.nn.Module.__dict__["__call__"]
        torch.nn.Module.__call__ = self

    def end(self) -> None:
        if torch.nn.Module.__dict__["__call__"] is self:
            torch.nn.Module.__call__ = self._original
        while self._open:
            with contextlib.suppress(RuntimeError):  # one that was about to begin
                self._open.pop().__exit__(None, None, None)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self._original
        call = self._original.__get__(instance, owner)  # a trial may have its own descriptor beneath
        known = self._names.get(id(instance))
        if known is None or known[0]() is not instance or get_ident() != self._thread:
            return call
        return self._timed(call, known[1])

    def _timed(self, call: Any, name: str) -> Any:
        opened, make = self._open, torch._C._profiler._RecordFunctionFast

        def timed(*args: Any, **kwargs: Any) -> Any:
            made = make(name)
            opened.append(made)
            made.__enter__()
            try:
                return call(*args, **kwargs)
            except BaseException as error:
                error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
                raise
            finally:
                if made in opened:  # else the window has ended in between, and closed it
                    opened.remove(made)
                    made.__exit__(None, None, None)

        return timed
