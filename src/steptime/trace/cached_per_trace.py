"""Cache of results about a trace: several modules need the same launches, tracks and operators.

Results are kept for as long as the trace itself lives, or until they are forgotten. They are read-only, since all
callers share them.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import weakref
from collections.abc import Callable, Hashable
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

Owner = TypeVar("Owner")
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_FORGETTING: dict[Callable[..., object], Callable[[int], object]] = {}
"""Function that drops an owner's results (by id), for each function under `cached_per_trace`."""


def cached_per_trace(
    function: Callable[Concatenate[Owner, Parameters], Result],
) -> Callable[Concatenate[Owner, Parameters], Result]:
    """Decorator for a pure function of a trace, or of some of its steps, and further arguments: equal arguments return
    the same result again. Unhashable ones (arrays) are equal only if they are the same object."""
    signature = inspect.signature(function)
    kept: dict[int, tuple[weakref.ref[Owner], dict[Hashable, tuple[object, Result]]]] = {}

    def remembering(owner: Owner, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        number = id(owner)
        if number not in kept:
            kept[number] = weakref.ref(owner, lambda _: kept.pop(number, None)), {}
        results = kept[number][1]
        given = signature.bind(owner, *args, **kwargs)
        given.apply_defaults()  # an argument that is given by its default is the same as one left out
        key = tuple(map(_key, list(given.arguments.values())[1:]))
        if key not in results:
            result = function(owner, *args, **kwargs)
            _freeze(result)
            results[key] = (args, kwargs), result  # the arguments too: an id is unique only while its object lives
        return results[key][1]

    functools.update_wrapper(remembering, function)
    _FORGETTING[remembering] = lambda number: kept.pop(number, None)
    return remembering


def forget(owner: object, *functions: Callable[..., object]) -> None:
    """Drops the results of functions under `cached_per_trace` for a trace; a later call computes them again."""
    for function in functions:
        _FORGETTING[function](id(owner))


def _key(argument: object) -> Hashable:
    try:
        hash(argument)
    except TypeError:
        return "object", id(argument)
    return argument


def _freeze(result: Any) -> None:
    if isinstance(result, np.ndarray):
        result.flags.writeable = False
    elif isinstance(result, tuple):
        for each in result:
            _freeze(each)
    elif dataclasses.is_dataclass(result):
        for field in dataclasses.fields(result):
            _freeze(getattr(result, field.name))
