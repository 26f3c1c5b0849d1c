"""Containers of the user's that become longer with every step: lists, dictionaries, sets and deques that variables and
attributes name, and results that functools.lru_cache keeps of functions. Only their numbers and lengths are kept from
one look to the next, and no container."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from itertools import islice, pairwise
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import torch

from steptime.probe import sites
from steptime.probe.memory.leaks import CACHE, first_line, growing_line
from steptime.probe.objects import attributes, modules_of

GROW = (list, dict, set, deque, OrderedDict)
"""Exact types, whose length runs no code of the user's; compared by identity, as a metaclass may have a hash of its
own."""
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""Attributes of modules with the hooks that are registered."""
MOST_GROWING = 4
"""Containers that are reported, those that grow fastest first."""
DEEP, MOST_ATTRIBUTES = 3, 4_000
"""Attributes of attributes that are looked through; of one variable so many at most: what lies below torch's modules is
counted, too."""

Lengths = dict[tuple[str, int], int]
"""Length by (name, number of the object)."""


def lengths(frame: FrameType | None) -> Lengths:
    """Lengths of the containers that the user's running frames name. frame: innermost frame of user code."""
    return {(name, id(value)): _length(value) for name, value, _ in _named(frame)}


def _length(value: Any) -> int:
    return int(value.cache_info().currsize if type(value) is CACHE else len(value))


def _most(value: Any) -> int | None:
    """Entries that a container takes at most, None without a limit."""
    return value.cache_parameters()["maxsize"] if type(value) is CACHE else getattr(value, "maxlen", None)


def growing(looks: list[Lengths], steps: list[int], frame: FrameType | None) -> list[dict[str, Any]]:
    """Fields of `GrowingFacts` for containers that grew by an entry per step or more between any two consecutive looks.
    steps: step number of each look."""
    apart = [max(1, after - before) for before, after in pairwise(steps)]
    found: dict[str, tuple[float, str, list[CodeType], int | None]] = {}
    for name, value, codes in _named(frame):
        known = [look.get((name, id(value))) for look in looks]
        grown = [after - before for before, after in pairwise(known) if before is not None and after is not None]
        rates = [more / each for more, each in zip(grown, apart, strict=False)]
        if len(rates) == len(apart) and min(rates) >= 1:
            kind = "cache" if type(value) is CACHE else type(value).__name__
            found.setdefault(name, (min(rates), kind, codes, _most(value)))
    fastest = sorted(found.items(), key=lambda each: -each[1][0])[:MOST_GROWING]
    return [
        {
            "kind": kind,
            "name": name,
            "entries": rate,
            "site": first_line(codes[0]) if kind == "cache" else growing_line(name.rpartition(".")[2], codes),
            "most": most,
        }
        for name, (rate, kind, codes, most) in fastest
    ]


def _named(frame: FrameType | None) -> Iterator[tuple[str, Any, list[CodeType]]]:
    """Each container with its name (`Buffer.items` for an attribute) and the code that may make it longer."""
    modules: set[int] = set()
    for running in sites.frames_of(frame):
        code, entries = [running.f_code], running.f_globals
        if id(entries) not in modules:
            modules.add(id(entries))
            functions = [each.__code__ for each in list(entries.values()) if type(each) is FunctionType]
            yield from _of_variables(list(entries.items()), [*code, *functions])
        if running.f_code.co_name != "<module>":
            yield from _of_variables(list(sites.variables(running).items()), code)


def _of_variables(entries: list[tuple[Any, Any]], codes: list[CodeType]) -> Iterator[tuple[str, Any, list[CodeType]]]:
    for name, value in entries:
        kind = type(value)
        if _grows(kind):
            yield str(name), value, codes
        elif kind is CACHE:
            if type(value.__wrapped__) is FunctionType:
                yield str(name), value, [value.__wrapped__.__code__]
        elif kind is not ModuleType and not issubclass(kind, type):
            yield from _of_attributes(value)
            yield from _hooks(value) if issubclass(kind, torch.nn.Module) else ()


def _hooks(module: torch.nn.Module) -> Iterator[tuple[str, Any, list[CodeType]]]:
    """Hooks of a module and those below it."""
    for each in islice(modules_of(module), MOST_ATTRIBUTES):
        for name in HOOKS:
            if _grows(type(hooks := each.__dict__.get(name))):
                yield f"{type(each).__name__}.{name}", hooks, []


def _grows(kind: type) -> bool:
    return any(kind is each for each in GROW)


def _of_attributes(value: Any) -> Iterator[tuple[str, Any, list[CodeType]]]:
    """Containers that are attributes of an object, or of an object of the user's below it."""
    level, seen = [value], {id(value)}
    for _ in range(DEEP):
        below = []
        for owner in level:
            entries = attributes(owner)
            held = [(name, each) for name, each in entries if _grows(type(each))]
            kinds = type(owner).__mro__ if held else ()
            codes = [each.__code__ for kind in kinds for each in kind.__dict__.values() if type(each) is FunctionType]
            for name, each in held:
                yield f"{type(owner).__name__}.{name}", each, codes
            new = [each for _, each in entries if id(each) not in seen and _is_users(type(each))]
            seen.update(id(each) for _, each in entries)
            below += new
        level = below if len(seen) < MOST_ATTRIBUTES else []


def _is_users(kind: type) -> bool:
    """True for a class whose methods are in a file of the user's."""
    first = next((each for each in kind.__dict__.values() if type(each) is FunctionType), None)
    return first is not None and sites.whose(first.__code__.co_filename) == sites.USER
