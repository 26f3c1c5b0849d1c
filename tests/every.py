"""`for_every`: one test over many values, where a parametrized one would be hundreds of tests of a millisecond each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any


def for_every(name: str, values: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Calls the test with each of the values under this name. pytest and xdist take 6 ms of CPU for a test of its own.
    The value that fails is the last one that is printed. For tests whose fixtures bear to be used again."""

    def over_all(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def each_in_turn(**others: Any) -> None:
            for value in values:
                print(f"{name}: {getattr(value, 'name', value)}")  # noqa: T201 - pytest shows it if the test fails
                test(**{name: value}, **others)

        own = inspect.signature(test)
        kept = [parameter for parameter in own.parameters.values() if parameter.name != name]
        each_in_turn.__signature__ = own.replace(parameters=kept)  # type: ignore[attr-defined]
        return each_in_turn

    return over_all
