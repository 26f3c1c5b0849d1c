"""Who keeps an object alive: a list, a dictionary, a hook, a closure, a variable; by name and line.

Types are asked, never objects: `isinstance` asks an object for its class, which makes a lazy one do its work.
"""

from __future__ import annotations

import gc
import linecache
import sys
from collections import Counter, deque
from collections.abc import Iterator
from types import CellType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any, NamedTuple

from steptime.probe import sites

MOST_LEVELS = 5
"""From a tensor up to what has a name: tensor, tuple, list, dictionary, instance."""
GROWING = frozenset({"append", "extend", "add", "insert", "appendleft", "setdefault", "update"})
CONTAINERS = (list, dict, set, deque, tuple)
READS_LOCALS = frozenset({"locals", "vars", "dir", "eval", "exec"})
"""Functions through which a job may hold its own dictionary of locals. Up to Python 3.12 there is one for a frame, and
to ask the frame for it brings it up to date: the job would find variables in it that were not there."""
ONLY_THE_FRAME = 3
"""References to a dictionary of locals that nobody else holds: the frame's, ours, and the one that counts them."""


class Holder(NamedTuple):
    """kind: "list", "dict", …, "hook", "closure", "variable", "attribute". name: of what keeps; site: its line."""

    kind: str
    name: str
    site: dict[str, Any] | None


def holder_of(objects: list[Any], frame: FrameType | None) -> Holder | None:
    """What keeps most of the objects, climbing until something has a name. frame: where user code is running."""
    path = [objects[0]]
    current, ours = objects, {id(objects), id(path)}
    for _ in range(MOST_LEVELS):
        named = _named(current, path, frame)
        if named is not None:
            return named
        # Frames of ours and iterators over our own lists keep nothing.
        referrers = [
            each
            for each in gc.get_referrers(*current)
            if id(each) not in ours and type(each) is not FrameType and not type(each).__name__.endswith("iterator")
        ]
        current = _common(current, referrers)
        if not current:
            return None
        ours |= {id(current), id(referrers)}
        referrers.clear()
        path.append(current[0])
    return _named(current, path, frame)


def _common(objects: list[Any], referrers: list[Any]) -> list[Any]:
    """The referrer that holds most of the objects; where each has its own, all of them (of one kind)."""
    if not referrers:
        return []
    wanted = {id(each) for each in objects}
    held = [sum(id(each) in wanted for each in gc.get_referents(referrer)) for referrer in referrers]
    best = max(range(len(referrers)), key=held.__getitem__)
    if held[best] > 1 or len(objects) == 1:
        return [referrers[best]]
    kinds = Counter(type(referrer) for referrer in referrers)
    kind, _ = kinds.most_common(1)[0]
    return [referrer for referrer in referrers if type(referrer) is kind]


def _named(current: list[Any], path: list[Any], frame: FrameType | None) -> Holder | None:
    if len(current) > 1 and type(current[0]) is FunctionType:
        return _function(current[0], path)
    if len(current) != 1:
        return None
    (one,) = current
    if type(one) is FunctionType:
        return _function(one, path)
    if type(one) is ModuleType or (type(one) is dict and _is_module(one)):
        return _variable(path, one if type(one) is dict else vars(one), frame)
    attribute = _attribute(one, path)
    local = _local(one, frame) if attribute is None else None
    if local is not None:
        name, code = local
        return _found(_kind(one), name, name, [code])
    return attribute


def _found(kind: str, shown: str, name: str, codes: list[CodeType]) -> Holder:
    """A holder with the line at which it grows; a hook where that line is in a function that is one."""
    line = _line(name, codes)
    if line is None:
        return Holder(kind, shown, None)
    site, code = line
    hooked = any(type(each) is FunctionType and _is_hook(each) for each in gc.get_referrers(code))
    return Holder("hook" if hooked else kind, shown, site)


def _kind(value: Any) -> str:
    return type(value).__name__ if issubclass(type(value), CONTAINERS) else "variable"


def _is_module(entries: dict[Any, Any]) -> bool:
    name = entries.get("__name__")
    return isinstance(name, str) and getattr(sys.modules.get(name), "__dict__", None) is entries


def _variable(path: list[Any], entries: dict[Any, Any], frame: FrameType | None) -> Holder | None:
    below = path[-2] if len(path) > 1 else None
    for name, value in list(entries.items()):
        if value is below and isinstance(name, str) and below is not None:
            return _found(_kind(below), name, name, list(_codes(entries, frame)))
    return None


def _codes(entries: dict[Any, Any], frame: FrameType | None) -> Iterator[CodeType]:
    """The code that may name a module's variable: what is running, and the functions and methods that it defines."""
    while frame is not None:
        if sites.whose_frame(frame) == sites.USER:
            yield frame.f_code
        frame = frame.f_back
    for value in list(entries.values()):
        if type(value) is FunctionType and value.__globals__ is entries:
            yield value.__code__
        elif issubclass(type(value), type) and value.__dict__.get("__module__") == entries.get("__name__"):
            yield from (each.__code__ for each in value.__dict__.values() if type(each) is FunctionType)


def _local(value: Any, frame: FrameType | None) -> tuple[str, CodeType] | None:
    while frame is not None:
        if sites.whose_frame(frame) == sites.USER and frame.f_code.co_flags & 0x02:  # CO_NEWLOCALS: a function
            found = _variable_of(frame, value)
            if found is not None:
                return found, frame.f_code
        frame = frame.f_back
    return None


def _variable_of(frame: FrameType, value: Any) -> str | None:
    """The variable of a function's frame that holds a value. The dictionary of locals that this makes, up to Python
    3.12, is emptied again: it would keep them alive."""
    if READS_LOCALS.intersection(frame.f_code.co_names):
        return None
    entries = frame.f_locals
    found = next((name for name, each in entries.items() if each is value), None)
    if type(entries) is dict and sys.getrefcount(entries) <= ONLY_THE_FRAME:
        entries.clear()
    return found


def _function(function: FunctionType, path: list[Any]) -> Holder:
    """A closure's variable, or a hook's: the function that can reach it."""
    cell = next((each for each in path if type(each) is CellType), None)
    names = function.__code__.co_freevars
    closure = function.__closure__ or ()
    name = next((name for name, each in zip(names, closure, strict=False) if each is cell), function.__name__)
    found = _found("hook" if _is_hook(function) else "closure", name, name, [function.__code__])
    if found.site is not None:
        return found
    code = function.__code__
    return Holder(found.kind, name, sites.source_line(code.co_filename, code.co_firstlineno, code.co_name))


def _is_hook(function: FunctionType) -> bool:
    """Whether a module's or a tensor's table of hooks holds it: numbers to functions."""
    for referrer in gc.get_referrers(function):
        if issubclass(type(referrer), dict) and referrer and all(type(key) is int for key in list(referrer)[:4]):
            return True
    return False


def _attribute(one: Any, path: list[Any]) -> Holder | None:
    """An attribute of an object of the user's, whose class says in which file."""
    below = path[-2] if len(path) > 1 else None
    if below is None or issubclass(type(one), CONTAINERS) or type(one) is CellType:
        return None
    try:
        entries = object.__getattribute__(one, "__dict__")
    except AttributeError:
        return None
    name = next((name for name, value in list(entries.items()) if value is below), None)
    if not isinstance(name, str):
        return None
    methods = [
        each.__code__ for kind in type(one).__mro__ for each in kind.__dict__.values() if type(each) is FunctionType
    ]
    return _found("attribute", f"{type(one).__name__}.{name}", name, methods)


def _line(name: str, codes: list[CodeType]) -> tuple[dict[str, Any], CodeType] | None:
    """The line that makes a variable grow, and its code: it calls append and the like on it, else binds it anew from
    itself, else binds it at all."""
    best: tuple[int, dict[str, Any], CodeType] | None = None
    for code in _with_inner(codes):
        for line, (stores, loads) in sites.names_by_line(code).items():
            known = loads | {each.lstrip(".") for each in loads}
            grows = name in known and bool(known & GROWING)
            rank = 3 if grows else 2 if name in stores and name in known else int(name in stores)
            if rank and (best is None or rank > best[0]):
                text = linecache.getline(code.co_filename, line).strip()
                best = rank, sites.source_line(code.co_filename, line, code.co_name, text), code
    return best[1:] if best is not None else None


def _with_inner(codes: list[CodeType]) -> Iterator[CodeType]:
    waiting = list(codes)
    while waiting:
        code = waiting.pop(0)
        yield code
        waiting += [each for each in code.co_consts if isinstance(each, CodeType)]
