"""Ranges around module calls while torch's profiler records, so that operators can be assigned to modules. They cover
the modules known at the start of the window, in the training thread."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from threading import get_ident
from typing import Any

import torch

from steptime.probe import calls
from steptime.probe.objects import updated_by
from steptime.probe.ours import suppressed

GRADIENT, LEAF, NUMBERS = torch._C.TensorBase.grad, torch._C.TensorBase.is_leaf, torch._C.TensorBase.numel
MOST = 2_000
"""Most modules with a range; operators of further ones count for the module around them."""
RANGE = "nn.Module: {} ({})"
"""Name of a range, from path and class."""


def named_modules(top_modules: Iterable[torch.nn.Module]) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yields the modules of these trees with their paths ("Net.layer1.0"), each once, largest tree first. Reads
    nn.Module's tables, because `named_modules()` may be the user's own method."""
    trees = sorted(
        (list(_tree(type(top_module).__name__, top_module)) for top_module in top_modules), key=len, reverse=True
    )
    seen: set[int] = set()
    for path, module in (each for tree in trees for each in tree):
        if id(module) not in seen:
            seen.add(id(module))
            yield path, module


def named_parameters(top_module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """Yields the parameters of a top module with torch's names ("layer1.0.weight"), read from nn.Module's tables."""
    for path, module in _tree("", top_module):
        scripted = isinstance(module, torch.jit.ScriptModule)
        own = module.named_parameters() if scripted else module.__dict__.get("_parameters", {}).items()
        for name, parameter in list(own):
            if parameter is not None:
                yield f"{path}.{name}".removeprefix("."), parameter


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
    """Returns path, class, elements and bytes of the module's own parameters, each parameter counted once."""
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
    """Returns (path, elements) of modules whose own parameters have a gradient but are in no optimizer. Empty if the
    optimizers hold mostly other parameters (float32 copies, flat ones, none of torch's optimizers): that proves
    nothing."""
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
    """True if a leaf has a gradient. Runs no method of the job's own classes; torch warns about non-leaves."""
    return bool(LEAF.__get__(parameter)) and GRADIENT.__get__(parameter) is not None


class ModuleRanges(calls.CallObserver):
    """Ranges around module calls in a window. `end` closes open ones, because the profiler then frees its events."""

    def __init__(self, named: Iterable[tuple[str, torch.nn.Module]]) -> None:
        self._names = {
            id(module): (weakref.ref(module), RANGE.format(path, type(module).__name__)) for path, module in named
        }
        self._thread = get_ident()
        self._open: list[Any] = []

    def start(self) -> None:
        if self._names:
            calls.observe_all(self)

    def end(self) -> None:
        calls.unobserve_all(self)
        calls.remove_if_idle()
        while self._open:
            with suppressed(RuntimeError):  # one that was about to start
                self._open.pop().__exit__(None, None, None)

    def starts(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        known = self._names.get(id(module))
        if known is None or known[0]() is not module or get_ident() != self._thread:
            return None
        made = torch._C._profiler._RecordFunctionFast(known[1])
        self._open.append(made)
        made.__enter__()
        return made

    def ends(self, begun: Any) -> None:
        if begun in self._open:  # else the window has ended in between, and closed it
            self._open.remove(begun)
            begun.__exit__(None, None, None)
