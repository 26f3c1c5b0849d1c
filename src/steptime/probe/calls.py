"""Calls of the user's modules, seen inside of torch's own `nn.Module.__call__`: nothing of ours lies in a module.

Who is to be looked at stands in tables of ours, by identity; modules are held weakly. What a look needs is done before
and after the call, by lines inside of torch's function (see `inlay`): no frame of ours lies around it, and no copy and
no pickle of a module can hold anything of ours.

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


class CallWatch:
    """Told of calls of modules. What it raises reaches the user's program: it guards itself."""

    def begins(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call begins. Returns what `ends` is to get; None where it is not to be told."""

    def ends(self, begun: Any) -> None:
        """The call has ended, or raised."""


class _Watched(LaidTable[int, tuple[CallWatch, ...]]):
    """Who is told of the calls of one module, by its identity."""


class _Everyone(_Watched):
    """The same table while somebody is told of all modules: `id(module) in table` is all that torch's code asks."""

    def __contains__(self, key: object) -> bool:
        return True


_watched = _Watched()
_everyone: list[CallWatch] = []
"""Who is told of the calls of all modules."""
_changed: LaidTable[int, Call] = LaidTable()
"""What is called in the place of a module: changes of a trial. Its identity is in `_watched`, too."""
_known: dict[int, weakref.ref[torch.nn.Module]] = {}
_gone = Gone()


class _OpenCall(Reported):
    """A call that is under way."""

    __slots__ = ()

    def __init__(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._begun = None
        if _gone:  # a module may have the identity of one that is no more
            _forget()
        for watch in _everyone.copy() if _everyone else ():
            self._add(watch, watch.begins(module, args, kwargs))
        for watch in _watched.get(id(module), ()):  # which those before may have filled
            self._add(watch, watch.begins(module, args, kwargs))

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
    id=id, watched=_watched, changed=_changed, Open=_OpenCall,
)  # fmt: skip


def install() -> None:
    """From now on calls are seen, until `remove`. Raises what `Inlay` raises."""
    _INLAY.install()


def remove_if_idle() -> None:
    """torch's function is as it was before, if nobody is told of anything any more."""
    _forget()
    if not _everyone and not _changed and not any(_watched.values()):
        _INLAY.remove()


def watch_all(watch: CallWatch) -> None:
    """From now on `watch` is told of the calls of all modules."""
    install()
    if watch not in _everyone:
        _everyone.append(watch)
    _watched.__class__ = _Everyone


def unwatch_all(watch: CallWatch) -> None:
    if watch in _everyone:
        _everyone.remove(watch)
    _watched.__class__ = _Everyone if _everyone else _Watched


def watch(module: torch.nn.Module, watch: CallWatch) -> None:
    """From now on `watch` is told of this module's calls, as the innermost of those who are, unless one of its kind is
    already."""
    install()
    _know(module)
    if not any(type(each) is type(watch) for each in _watched[id(module)]):
        _watched[id(module)] += (watch,)


def unwatch(module: torch.nn.Module, watch: CallWatch) -> None:
    number = id(module)
    if number in _known and _known[number]() is module:
        _watched[number] = left = tuple(each for each in _watched[number] if each is not watch)
        if not left and number not in _changed:
            del _watched[number], _known[number]


def is_watched(module: torch.nn.Module, watch: CallWatch) -> bool:
    known = _known.get(id(module))
    return known is not None and known() is module and watch in _watched[id(module)]


def change(module: torch.nn.Module, around: Callable[[Call], Call]) -> None:
    """Puts `around(call)` in the place of every later call of a module, outside of its hooks; who watches it is told
    around that. A copy of the module is called as torch calls it. What is put there must not hold the module."""
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
        _known[id(module)], _watched[id(module)] = _gone.reference(module), ()


def _forget() -> None:
    """What is known of modules that are no more."""
    for reference in _gone.taken():
        if _known.get(reference.key) is reference:
            for table in (_known, _watched, _changed):
                table.pop(reference.key, None)
