"""Calls of the user's modules, seen inside of torch's own `nn.Module.__call__`: nothing of ours lies in a module.

Who is to be looked at is in tables of ours, by identity; modules are held weakly. The work of a look is done before and
after the call, by lines inside of torch's function (see `inlay`): no frame of ours lies around it, and no copy and no
pickle of a module can hold anything of ours.

Measured with an empty module, whose call takes 780 ns (Python 3.11): 40 to 60 ns for a module of which nothing is
known. A descriptor for `_compiled_call_impl` on nn.Module takes 100 ns, and TorchDynamo guards on it; one for
`__call__` 180 ns; global forward hooks 1150 ns, and another way through `_call_impl`. A wrapper in the class of a root
would go with cloudpickle's copies of that class; `sys.monitoring` is there from Python 3.12 on only.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from steptime.probe.inlay import Inlay, LaidTable, Reported
from steptime.probe.objects import Gone

Call = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
"""Calls a module with arguments."""


class CallObserver:
    """Told of calls of modules. Its exceptions reach the user's program: it guards itself."""

    def starts(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call starts. Returns what `ends` is to get; None where it is not to be told."""

    def ends(self, begun: Any) -> None:
        """The call has ended, or raised."""


class _Observed(LaidTable[int, tuple[CallObserver, ...]]):
    """Who is told of the calls of one module, by its identity."""


class _Everyone(_Observed):
    """The same table while somebody is told of all modules: `id(module) in table` is all that torch's code asks."""

    def __contains__(self, key: object) -> bool:
        return True


_observed = _Observed()
_everyone: list[CallObserver] = []
"""Who is told of the calls of all modules."""
_changed: LaidTable[int, Call] = LaidTable()
"""Functions that are called in the place of a module: changes of a trial. Its identity is in `_observed`, too."""
_known: dict[int, weakref.ref[torch.nn.Module]] = {}
_gone = Gone()


class _OpenCall(Reported):
    """A call that is under way."""

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
if not torch.compiler.is_dynamo_compiling() and "id"(self) in "watched":
    with "Open"(self, args, kwargs):
        if "id"(self) in "changed":
            return "changed"["id"(self)](self, args, kwargs)
        BODY
else:
    BODY
""",
    id=id, watched=_observed, changed=_changed, Open=_OpenCall,
)  # fmt: skip


def install() -> None:
    """From now on calls are seen, until `remove`. Raises what `Inlay` raises."""
    _INLAY.install()


def remove_if_idle() -> None:
    """torch's function is as it was before, if nobody is told of anything any more."""
    _forget()
    if not _everyone and not _changed and not any(_observed.values()):
        _INLAY.remove()


def observe_all(observer: CallObserver) -> None:
    """From now on `observer` is told of the calls of all modules."""
    install()
    if observer not in _everyone:
        _everyone.append(observer)
    _observed.__class__ = _Everyone


def unobserve_all(observer: CallObserver) -> None:
    if observer in _everyone:
        _everyone.remove(observer)
    _observed.__class__ = _Everyone if _everyone else _Observed


def observe(module: torch.nn.Module, observer: CallObserver) -> None:
    """From now on `observer` is told of this module's calls, as the innermost of those who are, unless one of its kind
    is already."""
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
    """Puts `around(call)` in the place of every later call of a module, outside of its hooks; who watches it is told
    around that. A copy of the module is called as torch calls it. The value must not hold the module."""
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
    """Facts of modules that are no more."""
    for reference in _gone.taken():
        if _known.get(reference.key) is reference:
            for table in (_known, _observed, _changed):
                table.pop(reference.key, None)
