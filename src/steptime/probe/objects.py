"""The user's objects, held weakly: parameters, read without asking anything of them; optimizers and iterators.

Where only one optimizer or iterator can have opened a range, nobody needs to be asked: to ask the frame that opened it
for its `self` costs 2 microseconds at every step. All optimizers pass through `Optimizer._patch_step_function` when
they are made (also unpickled and copied ones), all iterators through `loader._constructed`; torch 2.4 to 2.13.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

import torch

T = TypeVar("T")


unasked = torch._C.DisableTorchFunction
"""Context in which tensors tell their properties without a word to torch function modes or classes of the job's."""
being_traced = torch._C._get_tracing_state
"""True if torch.jit.trace runs in this thread: it would write what is asked of a tensor, its shape too, into its
graph."""


def tensors_in(value: Any) -> Iterator[Any]:
    """Those of arguments, batches and results, whatever they are packed in."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from tensors_in(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors_in(each)


def modules_of(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The module and those in it, each once, from the tables in which nn.Module keeps them (torch 2.4 to 2.13), as
    `module.modules()` may be the user's own method. Scripted modules keep no such tables."""
    seen = {id(module)}
    waiting = [module]
    while waiting:
        current = waiting.pop()
        yield current
        if isinstance(current, torch.jit.ScriptModule):
            continue
        for child in reversed(current.__dict__.get("_modules", {}).values()):
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                waiting.append(child)


def parameters_of(module: torch.nn.Module) -> Iterator[Any]:
    """Parameters of the module's tree, each once. `module.parameters()` may be the user's own method: Keras creates the
    parameters of a layer in it, on the device of the moment. Methods of scripted modules are torch's own.
    """
    seen: set[int] = set()
    for current in modules_of(module):
        scripted = isinstance(current, torch.jit.ScriptModule)
        own = current.parameters() if scripted else current.__dict__.get("_parameters", {}).values()
        for parameter in list(own):
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                yield parameter


def updated_by(optimizer: Any) -> Iterator[Any]:
    """Parameters of an optimizer, from the groups in which torch keeps them; what is none of torch's types is passed
    over."""
    groups = getattr(optimizer, "__dict__", {}).get("param_groups")
    for group in groups if type(groups) is list else ():
        parameters = group.get("params") if type(group) is dict else None
        for each in parameters if type(parameters) is list else ():
            if torch._C.TensorBase in type(each).__mro__:
                yield each


def torch_optimizer(owner: Any) -> Any:
    """The torch optimizer behind a wrapper such as Accelerate's, so that scaler and step agree on one."""
    inner = getattr(owner, "optimizer", None)
    return inner if isinstance(inner, torch.optim.Optimizer) else owner


def each_once(*several: Iterable[Any]) -> Iterator[Any]:
    seen: set[int] = set()
    for each in itertools.chain(*several):
        if id(each) not in seen:
            seen.add(id(each))
            yield each


def local_values(gradient: Any) -> Any:
    """The numbers of a gradient without its graph: of a sharded parameter this rank's part, of a sparse one its
    values."""
    if gradient.requires_grad:  # of a backward that can be differentiated again
        gradient = gradient.detach()
    if hasattr(gradient, "to_local"):
        gradient = gradient.to_local()
    return gradient.coalesce().values() if gradient.is_sparse else gradient


class Gone:
    """Objects of the user's that are no more, of those that are held weakly by a `reference`.

    The callback that Python calls when an object goes is C from end to end: a signal's handler that ran in a function
    of ours, called by the garbage collector, would raise where Python can only print and drop it.
    """

    def __init__(self) -> None:
        self._gone: list[weakref.KeyedRef[int, Any]] = []

    def reference(self, owner: Any) -> weakref.KeyedRef[int, Any]:
        """Its key is the object's identity. Raises TypeError for what cannot be held weakly."""
        return weakref.KeyedRef(owner, self._gone.append, id(owner))

    def __bool__(self) -> bool:
        return bool(self._gone)

    def taken(self) -> Iterator[weakref.KeyedRef[int, Any]]:
        """References of those that went since the last call."""
        while self._gone:
            with contextlib.suppress(IndexError):  # another thread has taken it
                yield self._gone.pop()


class SideTable(Generic[T]):
    """Side table about single objects of the user's, as long as they live: by identity, and never in the objects."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], T]] = {}
        self._gone = Gone()

    def keep(self, owner: Any, value: T) -> None:
        """Objects that cannot be held weakly are not kept."""
        for reference in self._gone.taken():
            if (found := self._known.get(reference.key)) is not None and found[0] is reference:
                del self._known[reference.key]
        try:
            self._known[id(owner)] = self._gone.reference(owner), value
        except TypeError:
            self._known.pop(id(owner), None)

    def of(self, owner: Any) -> T | None:
        found = self._known.get(id(owner))
        return found[1] if found is not None and found[0]() is owner else None

    def take(self, owner: Any) -> T | None:
        """The same, and forgets it."""
        value = self.of(owner)
        self._known.pop(id(owner), None)
        return value


class Owners:
    """Objects of the user's, held weakly. `changed` is called when there is a new one."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._known: dict[int, weakref.ref[Any]] = {}
        self._countable = True
        self.added = 0

    def add(self, owner: Any) -> None:
        """A new one; what is gone is forgotten."""
        self.added += 1
        self._known = {key: reference for key, reference in self._known.items() if reference() is not None}
        try:
            self._known[id(owner)] = weakref.ref(owner)
        except TypeError:  # no weak references to it: it could not be counted
            self._countable = False
        self._changed()

    def only(self, owner: Any) -> bool:
        """True if no other of a class of this name is alive: names are all that ranges say."""
        name = type(owner).__name__
        alike = [found for found in self.living() if type(found).__name__ == name]
        return self._countable and len(alike) == 1 and alike[0] is owner

    def living(self) -> list[Any]:
        return [found for reference in list(self._known.values()) if (found := reference()) is not None]


class ConstructionObserver:
    """Tells `made` of every optimizer, by a descriptor that hands out the original method: no frame of ours."""

    def __init__(self, made: Callable[[Any], None]) -> None:
        self._original = torch.optim.Optimizer.__dict__["_patch_step_function"]
        self._made = made

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self._original
        self._made(instance)
        return self._original.__get__(instance, owner)  # another one may lie beneath

    def install(self) -> None:
        torch.optim.Optimizer._patch_step_function = self

    def remove(self) -> None:
        if torch.optim.Optimizer.__dict__["_patch_step_function"] is self:
            torch.optim.Optimizer._patch_step_function = self._original


class ObjectNumbers:
    """Small numbers for objects of the user, which are held weakly; a number is never given twice."""

    def __init__(self) -> None:
        self.known: dict[int, tuple[int, Any]] = {}
        self._last = 0

    def of(self, owner: Any) -> tuple[int, bool]:
        key = id(owner)
        known = self.known.get(key)
        if known is not None and known[1]() is owner:
            return known[0], False
        self._last += 1
        try:
            self.known[key] = (self._last, weakref.ref(owner))
        except TypeError:  # no weak references to it: the next call gives it a new number
            self.known.pop(key, None)
        return self._last, True
