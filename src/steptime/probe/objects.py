"""The user's objects, held weakly: parameters, read without running the user's code; optimizers and iterators.

If only one optimizer or iterator can have opened a range, its frame need not be read: reading `self` from it costs 2 µs
per step. Every optimizer passes through `Optimizer._patch_step_function` when it is made (also unpickled and copied
ones), every iterator through `loader._constructed`; torch 2.4 to 2.13.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import GetSetDescriptorType, ModuleType
from typing import Any, Generic, TypeVar

import torch

T = TypeVar("T")


unasked = torch._C.DisableTorchFunction
"""Context in which reading a tensor's properties runs no torch function mode and no class of the job's."""


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """Context manager in which our operators on tensors reach no mode of the job's, of functions or of dispatch."""
    with unasked():
        if not torch._C._len_torch_dispatch_stack():
            yield
            return
        with torch.utils._python_dispatch._disable_current_modes():
            yield


being_traced = torch._C._get_tracing_state
"""True if torch.jit.trace runs in this thread: it would write every property that we read, even a shape, into a
graph."""


def tensors_in(value: Any) -> Iterator[Any]:
    """Yields the tensors in arguments, batches and results, through mappings, lists and tuples."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from tensors_in(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors_in(each)


def attributes(owner: Any) -> list[tuple[Any, Any]]:
    """Returns (name, value) of an object's dictionary; [] if a class of the user's would run code to give it."""
    mro = type(owner).__mro__
    descriptor = next((kind.__dict__["__dict__"] for kind in mro if "__dict__" in kind.__dict__), None)
    if type(descriptor) is not GetSetDescriptorType:
        return []
    entries = descriptor.__get__(owner)
    return list(entries.items()) if type(entries) is dict else []


ENTRIES: Any = vars(ModuleType)["__dict__"]


def files_of_modules() -> list[str]:
    """Returns the files of the imported modules, without importing a lazy one (importlib.util.LazyLoader), as any other
    access would do."""
    modules = [each for each in list(sys.modules.values()) if issubclass(type(each), ModuleType)]
    files = (ENTRIES.__get__(each).get("__file__") for each in modules)
    return [file for file in files if type(file) is str]


def modules_of(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Yields the module and its submodules, each once. Reads nn.Module's tables (torch 2.4 to 2.13), because
    `module.modules()` may be the user's own method; scripted modules have no such tables."""
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
    """Yields the parameters of the module's tree, each once. `module.parameters()` may be the user's own method: Keras
    creates a layer's parameters in it, on the current device. Scripted modules use torch's own method."""
    seen: set[int] = set()
    for current in modules_of(module):
        scripted = isinstance(current, torch.jit.ScriptModule)
        own = current.parameters() if scripted else current.__dict__.get("_parameters", {}).values()
        for parameter in list(own):
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                yield parameter


def updated_by(optimizer: Any) -> Iterator[Any]:
    """Yields the parameters of an optimizer, from torch's groups; skips anything that is no tensor of torch's."""
    groups = getattr(optimizer, "__dict__", {}).get("param_groups")
    for group in groups if type(groups) is list else ():
        parameters = group.get("params") if type(group) is dict else None
        for each in parameters if type(parameters) is list else ():
            if torch._C.TensorBase in type(each).__mro__:
                yield each


def torch_optimizer(owner: Any) -> Any:
    """Returns the torch optimizer inside a wrapper such as Accelerate's, so that scaler and step agree on one."""
    inner = getattr(owner, "optimizer", None)
    return inner if isinstance(inner, torch.optim.Optimizer) else owner


def each_once(*several: Iterable[Any]) -> Iterator[Any]:
    seen: set[int] = set()
    for each in itertools.chain(*several):
        if id(each) not in seen:
            seen.add(id(each))
            yield each


def local_values(gradient: Any) -> Any:
    """Returns the numbers of a gradient without its graph: this rank's part of a sharded one, the values of a sparse
    one."""
    if gradient.requires_grad:  # of a backward that can be differentiated again
        gradient = gradient.detach()
    if hasattr(gradient, "to_local"):
        gradient = gradient.to_local()
    return gradient.coalesce().values() if gradient.is_sparse else gradient


class Gone:
    """Weak references to the user's objects, and a list of those whose object has died.

    The callback of a dead object is C from end to end. A signal handler that runs in a Python callback of the garbage
    collector would raise where Python can only print and drop the exception."""

    def __init__(self) -> None:
        self._gone: list[weakref.KeyedRef[int, Any]] = []

    def reference(self, owner: Any) -> weakref.KeyedRef[int, Any]:
        """Returns a weak reference, with the object's id as key. Raises TypeError if the object cannot be held
        weakly."""
        return weakref.KeyedRef(owner, self._gone.append, id(owner))

    def __bool__(self) -> bool:
        return bool(self._gone)

    def taken(self) -> Iterator[weakref.KeyedRef[int, Any]]:
        """Yields the references that died since the last call."""
        while self._gone:
            with contextlib.suppress(IndexError):  # another thread has taken it
                yield self._gone.pop()


class SideTable(Generic[T]):
    """Table of values for the user's objects, by id, each kept while its object lives. The objects stay unchanged."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], T]] = {}
        self._gone = Gone()

    def keep(self, owner: Any, value: T) -> None:
        """Stores a value, except for objects that cannot be held weakly."""
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
        """Removes and returns the value of an object; None if it has none."""
        value = self.of(owner)
        self._known.pop(id(owner), None)
        return value


class Owners:
    """Objects of the user's, held weakly. changed: function called for each new one."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._known: dict[int, weakref.ref[Any]] = {}
        self._countable = True
        self.added = 0

    def add(self, owner: Any) -> None:
        """Adds an object; forgets dead ones."""
        self.added += 1
        self._known = {key: reference for key, reference in self._known.items() if reference() is not None}
        try:
            self._known[id(owner)] = weakref.ref(owner)
        except TypeError:  # no weak references to it: it could not be counted
            self._countable = False
        self._changed()

    def only(self, owner: Any) -> bool:
        """True if no other living object has a class of this name, since ranges show only names."""
        name = type(owner).__name__
        alike = [found for found in self.living() if type(found).__name__ == name]
        return self._countable and len(alike) == 1 and alike[0] is owner

    def living(self) -> list[Any]:
        return [found for reference in list(self._known.values()) if (found := reference()) is not None]


class ConstructionObserver:
    """Descriptor in place of an optimizer's constructor: calls `made` for every new optimizer and returns the original
    method, so that no frame of ours is on the stack."""

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
    """Small numbers for the user's objects, which are held weakly. No number is used twice."""

    def __init__(self) -> None:
        self.kinds: dict[int, tuple[str, ...]] = {}  # types of optimizers by number: each training may make another
        self.known: dict[int, tuple[int, Any]] = {}
        self._last = 0
        self._latest: dict[Any, tuple[int, Any, int]] = {}

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

    def in_place(self, owner: Any, site: Any) -> tuple[int, int]:
        """Returns (number, count of objects that had it) for an object made at a place. It gets the number of the
        previous object from that place, if that one is gone."""
        number, _ = self.of(owner)
        before, reference, made = self._latest.get(site, (0, None, 0))
        if reference is not None and reference() is None:
            number, made = before, made + 1
            self.known[id(owner)] = number, weakref.ref(owner)
        else:
            made = 1
        self._latest[site] = number, self.known[id(owner)][1], made
        return number, made
