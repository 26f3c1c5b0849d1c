"""The parameters of a module or an optimiser, read without asking it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import torch


def parameters_of(module: torch.nn.Module) -> Iterator[Any]:
    """Parameters of the module's tree, each once, from the tables in which nn.Module keeps them (torch 2.4 to 2.13).

    `module.parameters()` may be the user's own method: Keras creates the parameters of a layer in it, on the device of
    the moment. Scripted modules keep no such tables; their methods are torch's own.
    """
    seen = {id(module)}
    waiting = [module]
    while waiting:
        current = waiting.pop()
        parameters: list[Any]
        children: list[Any]
        if isinstance(current, torch.jit.ScriptModule):
            parameters, children = list(current.parameters()), []
        else:
            fields = current.__dict__
            parameters, children = (
                list(fields.get("_parameters", {}).values()),
                list(fields.get("_modules", {}).values()),
            )
        for parameter in parameters:
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                yield parameter
        for child in reversed(children):
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                waiting.append(child)


def updated_by(optimizer: Any) -> Iterator[Any]:
    """Parameters of an optimiser, from the groups in which torch keeps them; what is none of torch's types is passed
    over."""
    groups = getattr(optimizer, "__dict__", {}).get("param_groups")
    for group in groups if type(groups) is list else ():
        parameters = group.get("params") if type(group) is dict else None
        for each in parameters if type(parameters) is list else ():
            if torch._C.TensorBase in type(each).__mro__:
                yield each


def each_once(*several: Iterable[Any]) -> Iterator[Any]:
    """What several have, each once."""
    seen: set[int] = set()
    for each in itertools.chain(*several):
        if id(each) not in seen:
            seen.add(id(each))
            yield each
