"""Functions that TorchDynamo shall look into: the few functions of ours that run inside a compiled region.

All other code of the probe is hidden from it (`compiler.hide_from_dynamo`); hidden code would break the graph here.
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
    """Calls the module. Modules whose forward is torch's own (Sequential …) are silently not compiled in place (pytorch
    issue 150915); a function of somebody else's that calls them is."""
    return module._call_impl(*args, **kwargs)


registry: Any = copyreg
"""Unpickling function that the stubs of the standard library leave out."""
dropped: list[float] = []
"""Probabilities of the dropouts that had no effect, outside of compiled regions."""


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """torch.nn.functional.dropout and its kin without any effect."""
    if training and not torch.compiler.is_compiling():
        dropped.append(p)
    return input


@functools.cache
def recomputing(kind: Any) -> Any:
    """A class as `kind` whose forward keeps no activations: they are computed again in the backward. Copies and pickles
    are of class `kind`."""

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
    """scaled_dot_product_attention that notes its calls; inside a compiled region there is nobody to note them."""

    def scaled_dot_product_attention(*args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            calls.append(1)
        return attention(*args, **kwargs)

    return scaled_dot_product_attention


def attention_without_dropout(attention: Callable[..., Any]) -> Callable[..., Any]:
    """scaled_dot_product_attention with dropout_p=0."""

    def scaled_dot_product_attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, *args: Any, **kwargs: Any
    ) -> Any:
        if dropout_p and not torch.compiler.is_compiling():
            dropped.append(dropout_p)
        return attention(query, key, value, attn_mask, 0.0, *args, **kwargs)

    return scaled_dot_product_attention
