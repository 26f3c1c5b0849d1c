"""Functions of ours that run inside compiled regions, so that TorchDynamo must trace them.

All other code of the probe is hidden from it (`compiler.hide_from_dynamo`); hidden code here would break the graph.
"""

from __future__ import annotations

import copyreg
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def called(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Calls the module from a function that torch compiles. torch silently does not compile modules with a forward of
    torch's own (Sequential …) in place (pytorch issue 150915), but does compile a function that calls them."""
    return module._call_impl(*args, **kwargs)


registry: Any = copyreg
"""The copyreg module as Any: the standard library's stubs lack its unpickling function."""
dropped: list[float] = []
"""Probabilities of the dropouts that had no effect, outside of compiled regions."""


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Replacement of torch.nn.functional.dropout and its variants, without any effect."""
    if training and not torch.compiler.is_compiling():
        dropped.append(p)
    return input


@functools.cache
def recomputing(kind: Any) -> Any:
    """Returns a subclass of `kind` whose forward keeps no activations: the backward computes them again. Copies and
    pickles are of class `kind`."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return inner(self, *args, **kwargs)
        return checkpoint(inner, self, *args, use_reentrant=False, **kwargs)

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        made, arguments, *rest = kind.__reduce_ex__(self, protocol)
        if made is registry.__newobj__ and arguments == (type(self),):  # pickle wants that class, and no other
            return registry._reconstructor, (kind, object, None), *rest
        return made, tuple(kind if each is type(self) else each for each in arguments), *rest

    inner = kind.forward
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind,), {**names, "forward": forward, "__reduce_ex__": __reduce_ex__})


def counted_attention(attention: Callable[..., Any], calls: list[int]) -> Callable[..., Any]:
    """Returns scaled_dot_product_attention with its calls counted, outside of compiled regions."""

    def scaled_dot_product_attention(*args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            calls.append(1)
        return attention(*args, **kwargs)

    return scaled_dot_product_attention


def attention_without_dropout(attention: Callable[..., Any]) -> Callable[..., Any]:
    """Returns scaled_dot_product_attention with dropout_p=0."""

    def scaled_dot_product_attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, *args: Any, **kwargs: Any
    ) -> Any:
        if dropout_p and not torch.compiler.is_compiling():
            dropped.append(dropout_p)
        return attention(query, key, value, attn_mask, 0.0, *args, **kwargs)

    return scaled_dot_product_attention
