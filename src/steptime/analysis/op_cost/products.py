"""The cost of matmuls, and of scaled dot-product attention where it is fused: flash, memory-efficient, cuDNN's, the
CPU's, and flash_attn's own operators.

FLOPs of attention: forward two products of the score matrix's size, backward five (the scores again, and the gradients
of value, scores, query and key). A causal mask halves the score matrix, and the fused kernels skip the masked half. A
causal call counts with the remaining pairs, as torch aligns them (query i sees the keys up to i). torch's
FlopCounterMode counts the whole matrix; so does attention by separate matmuls, which does the whole. Sequences packed
without padding (cumulative lengths) have no model: their lengths are not in the trace.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod

from steptime.analysis.op_cost.call import Call, Model, OpCost, Tensor, item_of, named


def product(first: Tensor, second: Tensor, read: int, *, result: int | None = None) -> OpCost:
    """Cost of the matmul […, m, k] @ […, k, n] with equal leading dimensions. read: bytes of all inputs; result: bytes
    per element of the product, by default the first factor's. Raises ValueError for shapes that do not fit."""
    *batch, rows, inner = first.shape
    columns = second.shape[-1]
    if second.shape[-2] != inner:
        raise ValueError("the inner dimensions differ")
    written = prod(batch) * rows * columns * (first.item if result is None else result)
    flops = 2 * first.elements * columns
    return OpCost(flops, read + written, first.dtype, (("m", rows), ("n", columns), ("k", inner)))


def _general(call: Call) -> OpCost:
    """Cost of matmul with any dimensions: leading ones are broadcast, a vector is a row or a column."""
    first, second = call.tensor(0), call.tensor(1)
    left = first.shape if len(first.shape) > 1 else (1, *first.shape)
    right = second.shape if len(second.shape) > 1 else (*second.shape, 1)
    batch = broadcast(left[:-2], right[:-2])
    whole = Tensor((*batch, *left[-2:]), first.type, first.item)
    return product(whole, Tensor((*batch, *right[-2:]), second.type, second.item), call.size(0, 1))


def _summed_product(call: Call) -> OpCost:
    """Cost of addbmm: the products of a batch are summed."""
    first, second = call.tensor(1), call.tensor(2)
    work = product(first, second, 0)
    written = first.shape[-2] * second.shape[-1] * first.item
    return OpCost(work.flops, call.size(0, 1, 2) + written, work.dtype, work.dimensions)


def _linear(call: Call, weight: int = 1) -> OpCost:
    """Cost of x […, k] with a weight [n, k] and an optional bias after it."""
    image, matrix = call.tensor(0), call.tensor(weight)
    rows = Tensor((image.elements // image.shape[-1], image.shape[-1]), image.type, image.item)
    transposed = Tensor((matrix.shape[1], matrix.shape[0]), matrix.type, matrix.item)
    return product(rows, transposed, call.size(0, weight, weight + 1))


def _vector_product(call: Call) -> OpCost:
    """Cost of matrix by vector or vector by vector, with or without a vector that is added first."""
    largest = max(call.all_tensors, key=lambda tensor: tensor.elements)
    written = largest.elements // max(largest.shape[-1], 1) * largest.item
    return OpCost(2 * largest.elements, call.read + written, largest.dtype)


def _outer(call: Call) -> OpCost:
    """Cost of ger and outer: a column times a row."""
    first, second = call.tensor(-2 + len(call.tensors)), call.tensor(-1 + len(call.tensors))
    elements = first.elements * second.elements
    return OpCost(2 * elements, call.read + elements * first.item, first.dtype)


def _grouped(call: Call, result: int | None = None) -> OpCost:
    """Cost of _grouped_mm(a, b, offsets). Each row of a [m, k] meets one matrix of b [groups, k, n]. If both have two
    dimensions, each column of a [m, k] meets its row of b, and every group writes its own product."""
    first, second = call.tensor(0), call.tensor(1)
    if len(first.shape) == len(second.shape) == 3:
        return product(first, second, call.size(0, 1), result=result)
    rows, inner = first.shape[-2:]
    columns = second.shape[-1]
    groups = call.tensor(2).elements if len(first.shape) == len(second.shape) == 2 else 1
    written = groups * rows * columns * (first.item if result is None else result)
    return OpCost(2 * rows * inner * columns, call.size(0, 1) + written, first.dtype)


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Broadcast shape of these shapes. Raises ValueError if they do not fit."""
    length = max(map(len, shapes), default=0)
    padded = [(1,) * (length - len(shape)) + shape for shape in shapes]
    sides = []
    for each in zip(*padded, strict=True):
        wide = {side for side in each if side != 1}
        if len(wide) > 1:
            raise ValueError("the shapes do not broadcast")
        sides.append(wide.pop() if wide else 1)
    return tuple(sides)


def _product_of(first: int, *read: int, result: Callable[[Call], int | None] = lambda call: None) -> Model:
    """Model of a product of the tensors at `first` and after it. read: positions of inputs; result: see `product`."""
    return lambda call: product(call.tensor(first), call.tensor(first + 1), call.size(*read), result=result(call))


MATMUL: dict[str, Model] = {
    **named(_product_of(0, 0, 1), "mm bmm"),
    **named(_general, "matmul"),
    **named(_product_of(1, 0, 1, 2), "addmm baddbmm _addmm_activation"),
    **named(_summed_product, "addbmm"),
    **named(_linear, "linear mkldnn_linear _linear_pointwise rocm_unquantized_gemm"),
    # of x, packed weight, weight, bias, …: only one of the weights is read
    **named(lambda call: _linear(call, 2), "_mkl_linear"),
    **named(_vector_product, "mv addmv dot vdot"),
    **named(_outer, "addr ger outer"),
    # of a, b, scales, …, out_dtype: eight-bit factors, a wider product, usually bfloat16
    **named(_product_of(0, 0, 1, 2, 3, 4, result=lambda call: item_of(call, 6, 2)), "_scaled_mm"),
    **named(_product_of(0, 0, 1, result=lambda call: 4), "_int_mm"),  # eight-bit factors, int32 products
    **named(_grouped, "_grouped_mm"),
    **named(lambda call: _grouped(call, item_of(call, 7, 2)), "_scaled_grouped_mm"),
    # custom operators (out, a, b, …) of inference servers, with b as [k, n]
    **named(
        lambda call: product(call.tensor(1), call.tensor(2), call.read - call.size(0), result=call.tensor(0).item),
        "cutlass_scaled_mm",
    ),
}


FORWARD, BACKWARD = 2, 5
"""Number of products of the score matrix's size."""


@dataclass(frozen=True, slots=True)
class ArgumentPositions:
    """Positions of an attention operator's arguments. causal: flag or number that makes the mask causal (0 for none).
    bias: tensor added to the scores. packed: cumulative lengths. window: how far back a query sees (-1: to the first
    key). length: dimension of the sequence. last: True if a causal mask is aligned with the last keys."""

    causal: int
    bias: int | None = None
    packed: int | None = None
    length: int = -2
    window: int | None = None
    last: bool = False


def _attention(call: Call, at: ArgumentPositions, products: int) -> OpCost:
    """Cost of attention. Query, key and value come first; in backward, after the output's gradient."""
    first = 0 if products == FORWARD else 1
    query, key, value = (call.tensor(first + offset) for offset in range(3))
    queries, keys = query.shape[at.length], key.shape[at.length]
    heads = prod(query.shape[:-1]) // max(queries, 1)
    scores = heads * _pairs(call, at, queries, keys)
    width, depth = query.shape[-1], value.shape[-1]
    output = query.elements // width * depth * query.item
    read = call.size(*range(first + 3)) + (call.size(at.bias) if at.bias is not None else 0)
    if products == FORWARD:  # q·k and p·v
        across, moved = width + depth, read + output
    else:  # q·k again, p·dO and dO·v over the value's width, ds·k and ds·q over the query's
        across, moved = 3 * width + 2 * depth, read + output + query.bytes + key.bytes + value.bytes
    return OpCost(2 * scores * across, moved, query.dtype, (("head", width),))


def _pairs(call: Call, at: ArgumentPositions, queries: int, keys: int) -> int:
    """Number of (query, key) pairs that the mask leaves. Causal: query i sees the keys up to i; aligned with the last
    keys, the last query sees all, and each query before it one less. The mask comes from the flag or from its number: 1
    is causal, 2 is causal aligned with the last keys. Raises LookupError if the trace does not say (half or whole is no
    detail), or if the number depends on lengths or a window."""
    if at.packed is not None and call.has(at.packed):
        raise LookupError("the lengths of packed sequences are not in the trace")
    if at.window is not None and call.number(at.window) >= 0:
        raise LookupError("a sliding window")
    mask = call.text(at.causal).lower()
    if mask in ("false", "0"):
        return queries * keys
    seen = min(queries, keys)
    triangle = seen * (seen + 1) // 2
    return triangle + (seen * (keys - seen) if at.last or mask == "2" else (queries - seen) * keys)


FORWARD_POSITIONS = {
    # where a device has it in one kernel (query, key, value, mask, p, causal)
    "scaled_dot_product_attention": ArgumentPositions(5, bias=3),
    "_scaled_dot_product_flash_attention": ArgumentPositions(4),
    "_scaled_dot_product_flash_attention_for_cpu": ArgumentPositions(4, bias=5),
    "_scaled_dot_product_efficient_attention": ArgumentPositions(6, bias=3),
    "_scaled_dot_product_cudnn_attention": ArgumentPositions(6, bias=3),
    "_scaled_dot_product_fused_attention_overrideable": ArgumentPositions(5, bias=3),
    "_flash_attention_forward": ArgumentPositions(8, packed=3, length=-3),
    "_efficient_attention_forward": ArgumentPositions(9, bias=3, packed=4, length=-3),
    "_cudnn_attention_forward": ArgumentPositions(10, bias=3, packed=4),
    "_flash_attn_forward": ArgumentPositions(5, length=-3, window=6, last=True),
}
BACKWARD_POSITIONS = {
    "_scaled_dot_product_flash_attention_backward": ArgumentPositions(11, packed=6),
    "_scaled_dot_product_flash_attention_for_cpu_backward": ArgumentPositions(7, bias=8),
    "_scaled_dot_product_efficient_attention_backward": ArgumentPositions(11, bias=4),
    "_scaled_dot_product_cudnn_attention_backward": ArgumentPositions(14, bias=8, packed=9),
    "_flash_attention_backward": ArgumentPositions(11, packed=6, length=-3),
    "_efficient_attention_backward": ArgumentPositions(14, bias=4, packed=6, length=-3),
    "_cudnn_attention_backward": ArgumentPositions(14, bias=8, packed=9),
    "_flash_attn_backward": ArgumentPositions(11, length=-3, window=12, last=True),
}
ATTENTION: dict[str, Model] = {
    **{name: partial(_attention, at=at, products=FORWARD) for name, at in FORWARD_POSITIONS.items()},
    **{name: partial(_attention, at=at, products=BACKWARD) for name, at in BACKWARD_POSITIONS.items()},
}
