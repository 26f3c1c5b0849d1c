"""Instrumentation of module calls, inside torch's own `nn.Module.__call__`: the modules hold nothing of ours.

Tables by identity hold the observers of each module; modules are held weakly. Lines inside torch's function (see
`inlay`) run the observers before and after the call. So there is no frame of ours around it, and no copy or pickle of a
module holds anything of ours.

Measured with an empty module, whose call takes 780 ns (Python 3.11): 40 to 60 ns for a module without observers. A
descriptor for `_compiled_call_impl` on nn.Module takes 100 ns, and TorchDynamo guards on it; one for `__call__` takes
180 ns; global forward hooks take 1150 ns and another path through `_call_impl`. A wrapper in the class of a top module
would go into cloudpickle's copies of that class; `sys.monitoring` exists only from Python 3.12 on.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from steptime.probe.inlay import Inlay, LaidTable, Reported
from steptime.probe.objects import Gone

Call = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
"""Function that calls a module with arguments."""


class CallObserver:
    """Callbacks for module calls. Exceptions reach the user's program, so subclasses catch their own."""

    def starts(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Called when a module call starts. Returns a token for `ends`, or None if `ends` is not to be called."""

    def ends(self, begun: Any) -> None:
        """Called when the module call has ended or raised. begun: token from `starts`."""


class _Observed(LaidTable[int, tuple[CallObserver, ...]]):
    """Observers of single modules, by the module's identity."""


class _Everyone(_Observed):
    """The class of the same table while somebody observes all modules: torch's code only asks `id(module) in table`."""

    def __contains__(self, key: object) -> bool:
        return True


_observed = _Observed()
_everyone: list[CallObserver] = []
"""Observers of all modules."""
_changed: LaidTable[int, Call] = LaidTable()
"""Functions of a trial that replace a module's call, by the module's identity. Each is a key of `_observed`, too."""
_known: dict[int, weakref.ref[torch.nn.Module]] = {}
_gone = Gone()


class _OpenCall(Reported):
    """Context manager around one call."""

    __slots__ = ()

    def __init__(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._begun = None
        if _gone:  # a module may have the identity of one that is no more
            _forget()
        for observer in _everyone.copy() if _everyone else ():
            self._add(observer, observer.starts(module, args, kwargs))
        for observer in _observed.get(id(module), ()):  # which those before may have filled
            self._add(observer, observer.starts(module, args, kwargs))

    def __enter__(self) -> None:
        return None


_INLAY = Inlay(
    torch.nn.Module._wrapped_call_impl,
    """
if not torch.compiler.is_dynamo_compiling() and "id"(self) in "observed":
    with "Open"(self, args, kwargs):
        if "id"(self) in "changed":
            return "changed"["id"(self)](self, args, kwargs)
        BODY
else:
    BODY
""",
    id=id, observed=_observed, changed=_changed, Open=_OpenCall,
)  # fmt: skip


def install() -> None:
    """Installs the inlay: observers see calls until `remove_if_idle`. Raises the errors of `Inlay`."""
    _INLAY.install()


def remove_if_idle() -> None:
    """Restores torch's function if no observer and no change is left."""
    _forget()
    if not _everyone and not _changed and not any(_observed.values()):
        _INLAY.remove()


def observe_all(observer: CallObserver) -> None:
    """Adds an observer of the calls of all modules."""
    install()
    if observer not in _everyone:
        _everyone.append(observer)
    _observed.__class__ = _Everyone


def unobserve_all(observer: CallObserver) -> None:
    if observer in _everyone:
        _everyone.remove(observer)
    _observed.__class__ = _Everyone if _everyone else _Observed


def observe(module: torch.nn.Module, observer: CallObserver) -> None:
    """Adds the innermost observer of this module's calls, unless it has one of the same type."""
    install()
    _know(module)
    if not any(type(each) is type(observer) for each in _observed[id(module)]):
        _observed[id(module)] += (observer,)


def unobserve(module: torch.nn.Module, observer: CallObserver) -> None:
    number = id(module)
    if number in _known and _known[number]() is module:
        _observed[number] = left = tuple(each for each in _observed[number] if each is not observer)
        if not left and number not in _changed:
            del _observed[number], _known[number]


def is_observed(module: torch.nn.Module, observer: CallObserver) -> bool:
    known = _known.get(id(module))
    return known is not None and known() is module and observer in _observed[id(module)]


def change(module: torch.nn.Module, around: Callable[[Call], Call]) -> None:
    """Replaces every later call of a module by `around(call)`, outside of its hooks; its observers stay around that.
    Copies of the module are called as torch calls them. The new function must not hold the module."""
    install()
    _know(module)
    _changed[id(module)] = around(_changed.get(id(module), _as_torch))


def _as_torch(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    compiled = module._compiled_call_impl
    try:
        return (module._call_impl if compiled is None else compiled)(*args, **kwargs)
    except BaseException as error:
        # A bare raise adds no frame, so this takes ours out of the user's traceback (Python >= 3.11).
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
        raise


def _know(module: torch.nn.Module) -> None:
    _forget()
    if id(module) not in _known:
        _known[id(module)], _observed[id(module)] = _gone.reference(module), ()


def _forget() -> None:
    """Drops the entries of modules that were deleted."""
    for reference in _gone.taken():
        if _known.get(reference.key) is reference:
            for table in (_known, _observed, _changed):
                table.pop(reference.key, None)
