"""Results about a trace, computed once for all who ask: several rooms need the same launches, tracks and operators.

Results are kept for as long as the trace itself lives, or until they are forgotten. They are read-only: whoever
changed one would change it for all.
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
"""By function under `once`."""


def cached_per_trace(
    function: Callable[Concatenate[Owner, Parameters], Result],
) -> Callable[Concatenate[Owner, Parameters], Result]:
    """For a pure function of a trace (or of some steps of it) and more: the same arguments give the same result without
    computing it again.

    Arguments that cannot be hashed (arrays) are the same only when they are the same object."""
    signature = inspect.signature(function)
    kept: dict[int, tuple[weakref.ref[Owner], dict[Hashable, tuple[object, Result]]]] = {}

    def remembering(owner: Owner, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        number = id(owner)
        if number not in kept:
            kept[number] = weakref.ref(owner, lambda _: kept.pop(number, None)), {}
        results = kept[number][1]
        given = signature.bind(owner, *args, **kwargs)
        given.apply_defaults()  # what is said is the same as what is left out
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
    """Lets go of what functions under `once` found out about a trace; whoever asks them later has them look anew."""
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
