"""Scaled dot-product attention, fused: flash, memory-efficient, cuDNN's, the CPU's, and flash_attn's own operators.

FLOPs: forward two products of the score matrix's size, backward five (the scores again, and the gradients of value,
scores, query and key). A causal mask halves the score matrix, and the fused kernels skip the half that it hides: a
causal call is counted with the pairs that the mask leaves, as torch aligns it (query i sees the keys up to i). torch's
FlopCounterMode counts the whole matrix; so does attention by separate products, which does the whole. Sequences packed
without padding (cumulative lengths) have no model: their lengths are not in the trace.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from steptime.work.arguments import Call
from steptime.work.model import Model, Work, named

FORWARD, BACKWARD = 2, 5
"""Products of the size of the score matrix."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where an operator has its arguments. causal: position of the flag, or of the number of a mask (0 is none).

    bias: position of what is added to the scores. packed: of cumulative lengths. length: dimension of the sequence.
    window: of how far back a query sees (-1: to the first key). last: a causal mask is aligned with the last keys.
    """

    causal: int
    bias: int | None = None
    packed: int | None = None
    length: int = -2
    window: int | None = None
    last: bool = False


def pairs(queries: int, keys: int, *, last: bool = False) -> int:
    """Pairs of a query and a key that a causal mask leaves: query i sees the keys up to i; with `last` the last query
    sees them all, and the ones before it one less each."""
    seen = min(queries, keys)
    triangle = seen * (seen + 1) // 2
    return triangle + (queries - seen) * (0 if last else keys) + (seen * (keys - seen) if last else 0)


def _attention(call: Call, layout: Layout, first: int, products: int) -> Work:
    """query, key, value from position `first`."""
    query, key, value = (call.tensor(first + offset) for offset in range(3))
    queries, keys = query.shape[layout.length], key.shape[layout.length]
    heads = prod(query.shape[:-1]) // max(queries, 1)
    scores = heads * _pairs(call, layout, queries, keys)
    width, depth = query.shape[-1], value.shape[-1]
    # forward q·k and p·v; backward q·k again, p·dO and dO·v over the value's width, ds·k and ds·q over the query's
    across = width + depth if products == FORWARD else 3 * width + 2 * depth
    output = query.elements // width * depth * query.item
    written = output if products == FORWARD else query.bytes + key.bytes + value.bytes
    inputs = range(first, first + 3) if products == FORWARD else (0, *range(first, first + 3))
    bias = call.size(layout.bias) if layout.bias is not None else 0
    read = call.size(*inputs) + bias + (output if products == BACKWARD else 0)
    return Work(2 * scores * across, read + written, query.number_format, (("head", width),))


def _pairs(call: Call, layout: Layout, queries: int, keys: int) -> int:
    """By the flag, or by the number of a mask: 1 is causal, 2 is causal aligned with the last keys. Raises LookupError
    where the trace does not say (half or whole is no detail), and for what depends on lengths or a window."""
    if layout.packed is not None and call.has(layout.packed):
        raise LookupError("the lengths of packed sequences are not in the trace")
    if layout.window is not None and call.number(layout.window) >= 0:
        raise LookupError("a sliding window")
    mask = call.text(layout.causal).lower()
    if mask in ("false", "0"):
        return queries * keys
    return pairs(queries, keys, last=layout.last or mask == "2")


def _forward(layout: Layout) -> Model:
    return lambda call: _attention(call, layout, 0, FORWARD)


def _backward(layout: Layout) -> Model:
    return lambda call: _attention(call, layout, 1, BACKWARD)


def _modelled(make: Callable[[Layout], Model], layouts: dict[str, Layout]) -> dict[str, Model]:
    return {name: make(layout) for name, layout in layouts.items()}


def _undivided(call: Call) -> Work:
    """scaled_dot_product_attention itself, where a device has it in one kernel (query, key, value, mask, p, causal)."""
    return _attention(call, Layout(5, bias=3), 0, FORWARD)


MODELS: dict[str, Model] = {
    **named(_undivided, "scaled_dot_product_attention"),
    **_modelled(
        _forward,
        {
            "_scaled_dot_product_flash_attention": Layout(4),
            "_scaled_dot_product_flash_attention_for_cpu": Layout(4, bias=5),
            "_scaled_dot_product_efficient_attention": Layout(6, bias=3),
            "_scaled_dot_product_cudnn_attention": Layout(6, bias=3),
            "_scaled_dot_product_fused_attention_overrideable": Layout(5, bias=3),
            "_flash_attention_forward": Layout(8, packed=3, length=-3),
            "_efficient_attention_forward": Layout(9, bias=3, packed=4, length=-3),
            "_cudnn_attention_forward": Layout(10, bias=3, packed=4),
            "_flash_attn_forward": Layout(5, length=-3, window=6, last=True),
        },
    ),
    **_modelled(
        _backward,
        {
            "_scaled_dot_product_flash_attention_backward": Layout(11, packed=6),
            "_scaled_dot_product_flash_attention_for_cpu_backward": Layout(7, bias=8),
            "_scaled_dot_product_efficient_attention_backward": Layout(11, bias=4),
            "_scaled_dot_product_cudnn_attention_backward": Layout(14, bias=8, packed=9),
            "_flash_attention_backward": Layout(11, packed=6, length=-3),
            "_efficient_attention_backward": Layout(14, bias=4, packed=6, length=-3),
            "_cudnn_attention_backward": Layout(14, bias=8, packed=9),
            "_flash_attn_backward": Layout(11, length=-3, window=12, last=True),
        },
    ),
}
