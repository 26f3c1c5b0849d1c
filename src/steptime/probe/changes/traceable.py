"""What TorchDynamo shall look into: the few functions of ours that run inside a compiled region.

All other code of the probe is hidden from it (`compiler.hide_from_dynamo`); hidden code would break the graph here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def caller_of(module: torch.nn.Module) -> Callable[..., Any]:
    """A function that calls the module. Modules whose forward is torch's own (Sequential …) are silently not compiled
    in place (pytorch issue 150915); a function of somebody else's that calls them is."""

    def run(*args: Any, **kwargs: Any) -> Any:
        return module._call_impl(*args, **kwargs)

    return run


dropped: list[float] = []
"""Probabilities of the dropouts that had no effect, outside of compiled regions."""


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """torch.nn.functional.dropout and its kin without any effect."""
    if training and not torch.compiler.is_compiling():
        dropped.append(p)
    return input


def recomputed(forward: Callable[..., Any]) -> Callable[..., Any]:
    """A forward whose activations are computed again in the backward instead of being kept."""

    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return checkpointed


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
