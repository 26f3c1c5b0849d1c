"""The cost of matmuls and of attention.

Scaled dot-product attention, fused: flash, memory-efficient, cuDNN's, the CPU's, and flash_attn's own operators.

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

from steptime.analysis.op_cost.call import ELEMENT_BYTES, SCALAR_TYPES, Call, Model, OpCost, Tensor, named


def product(first: Tensor, second: Tensor, read: int, *, result: int | None = None) -> OpCost:
    """[…, m, k] @ […, k, n] with equal leading dimensions. read: bytes of all inputs; result: bytes of an element of
    the product, by default the first factor's. Raises ValueError for shapes that do not fit."""
    *batch, rows, inner = first.shape
    columns = second.shape[-1]
    if second.shape[-2] != inner:
        raise ValueError("the inner dimensions differ")
    written = prod(batch) * rows * columns * (first.item if result is None else result)
    flops = 2 * first.elements * columns
    return OpCost(flops, read + written, first.dtype, (("m", rows), ("n", columns), ("k", inner)))


def _matrix_product(call: Call) -> OpCost:
    return product(call.tensor(0), call.tensor(1), call.size(0, 1))


def _general(call: Call) -> OpCost:
    """matmul of any dimensions: leading ones are broadcast, a vector is a row or a column."""
    first, second = call.tensor(0), call.tensor(1)
    left = first.shape if len(first.shape) > 1 else (1, *first.shape)
    right = second.shape if len(second.shape) > 1 else (*second.shape, 1)
    batch = broadcast(left[:-2], right[:-2])
    whole = Tensor((*batch, *left[-2:]), first.type, first.item)
    return product(whole, Tensor((*batch, *right[-2:]), second.type, second.item), call.size(0, 1))


def _added_product(call: Call) -> OpCost:
    return product(call.tensor(1), call.tensor(2), call.size(0, 1, 2))


def _summed_product(call: Call) -> OpCost:
    """addbmm: the products of a batch are added up."""
    first, second = call.tensor(1), call.tensor(2)
    work = product(first, second, 0)
    written = first.shape[-2] * second.shape[-1] * first.item
    return OpCost(work.flops, call.size(0, 1, 2) + written, work.dtype, work.dimensions)


def linear(call: Call, first: int = 0, weight: int = 1) -> OpCost:
    """x […, k] with a weight [n, k] and a bias behind it."""
    image, matrix = call.tensor(first), call.tensor(weight)
    rows = Tensor((image.elements // image.shape[-1], image.shape[-1]), image.type, image.item)
    transposed = Tensor((matrix.shape[1], matrix.shape[0]), matrix.type, matrix.item)
    return product(rows, transposed, call.size(first, weight, weight + 1))


def _packed_linear(call: Call) -> OpCost:
    """_mkl_linear(x, packed weight, weight, bias, …): only one of the weights is read."""
    return linear(call, 0, 2)


def _vector_product(call: Call) -> OpCost:
    """Matrix by vector, vector by vector, with or without a vector that is added first."""
    largest = max(call.all_tensors, key=lambda tensor: tensor.elements)
    written = largest.elements // max(largest.shape[-1], 1) * largest.item
    return OpCost(2 * largest.elements, call.read + written, largest.dtype)


def _outer(call: Call) -> OpCost:
    """ger, outer: a column times a row."""
    first, second = call.tensor(-2 + len(call.tensors)), call.tensor(-1 + len(call.tensors))
    elements = first.elements * second.elements
    return OpCost(2 * elements, call.read + elements * first.item, first.dtype)


def _scaled(call: Call) -> OpCost:
    """_scaled_mm(a, b, scales, …, out_dtype): eight-bit factors, a wider product."""
    return product(call.tensor(0), call.tensor(1), call.size(0, 1, 2, 3, 4), result=_item(call, 6))


def _item(call: Call, position: int) -> int:
    """Bytes of an element of the dtype at a position; bfloat16's where it is not recorded, torch's usual answer."""
    known = position < len(call.texts) and call.texts[position].isdigit()
    return ELEMENT_BYTES[SCALAR_TYPES[int(call.texts[position])]] if known else 2


def _integers(call: Call) -> OpCost:
    """_int_mm: eight-bit factors, int32 products."""
    return product(call.tensor(0), call.tensor(1), call.size(0, 1), result=4)


def _grouped(call: Call, result: int | None = None) -> OpCost:
    """_grouped_mm(a, b, offsets): each row of a [m, k] meets the one matrix of b [groups, k, n] that it belongs to;
    with both of two dimensions each column of a [m, k] meets its row of b, and every group writes its own product."""
    first, second = call.tensor(0), call.tensor(1)
    if len(first.shape) == len(second.shape) == 3:
        return product(first, second, call.size(0, 1), result=result)
    rows, inner = first.shape[-2:]
    columns = second.shape[-1]
    groups = call.tensor(2).elements if len(first.shape) == len(second.shape) == 2 else 1
    written = groups * rows * columns * (first.item if result is None else result)
    return OpCost(2 * rows * inner * columns, call.size(0, 1) + written, first.dtype)


def _scaled_grouped(call: Call) -> OpCost:
    return _grouped(call, _item(call, 7))


def _into(call: Call) -> OpCost:
    """Custom operators (out, a, b, …) of inference servers, with b as [k, n]."""
    return product(call.tensor(1), call.tensor(2), call.read - call.size(0), result=call.tensor(0).item)


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that tensors of these shapes have together. Raises ValueError where they do not fit."""
    length = max(map(len, shapes), default=0)
    padded = [(1,) * (length - len(shape)) + shape for shape in shapes]
    sides = []
    for each in zip(*padded, strict=True):
        wide = {side for side in each if side != 1}
        if len(wide) > 1:
            raise ValueError("the shapes do not broadcast")
        sides.append(wide.pop() if wide else 1)
    return tuple(sides)


MATMUL: dict[str, Model] = {
    **named(_matrix_product, "mm bmm"),
    **named(_general, "matmul"),
    **named(_added_product, "addmm baddbmm _addmm_activation"),
    **named(_summed_product, "addbmm"),
    **named(linear, "linear mkldnn_linear _linear_pointwise rocm_unquantized_gemm"),
    **named(_packed_linear, "_mkl_linear"),
    **named(_vector_product, "mv addmv dot vdot"),
    **named(_outer, "addr ger outer"),
    **named(_scaled, "_scaled_mm"),
    **named(_integers, "_int_mm"),
    **named(_grouped, "_grouped_mm"),
    **named(_scaled_grouped, "_scaled_grouped_mm"),
    **named(_into, "cutlass_scaled_mm"),
}


FORWARD, BACKWARD = 2, 5
"""Products of the size of the score matrix."""


@dataclass(frozen=True, slots=True)
class ArgumentPositions:
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


def _attention(call: Call, layout: ArgumentPositions, first: int, products: int) -> OpCost:
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
    return OpCost(2 * scores * across, read + written, query.dtype, (("head", width),))


def _pairs(call: Call, layout: ArgumentPositions, queries: int, keys: int) -> int:
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


def _forward(layout: ArgumentPositions) -> Model:
    return lambda call: _attention(call, layout, 0, FORWARD)


def _backward(layout: ArgumentPositions) -> Model:
    return lambda call: _attention(call, layout, 1, BACKWARD)


def _modelled(make: Callable[[ArgumentPositions], Model], layouts: dict[str, ArgumentPositions]) -> dict[str, Model]:
    return {name: make(layout) for name, layout in layouts.items()}


def _undivided(call: Call) -> OpCost:
    """scaled_dot_product_attention itself, where a device has it in one kernel (query, key, value, mask, p, causal)."""
    return _attention(call, ArgumentPositions(5, bias=3), 0, FORWARD)


ATTENTION: dict[str, Model] = {
    **named(_undivided, "scaled_dot_product_attention"),
    **_modelled(
        _forward,
        {
            "_scaled_dot_product_flash_attention": ArgumentPositions(4),
            "_scaled_dot_product_flash_attention_for_cpu": ArgumentPositions(4, bias=5),
            "_scaled_dot_product_efficient_attention": ArgumentPositions(6, bias=3),
            "_scaled_dot_product_cudnn_attention": ArgumentPositions(6, bias=3),
            "_scaled_dot_product_fused_attention_overrideable": ArgumentPositions(5, bias=3),
            "_flash_attention_forward": ArgumentPositions(8, packed=3, length=-3),
            "_efficient_attention_forward": ArgumentPositions(9, bias=3, packed=4, length=-3),
            "_cudnn_attention_forward": ArgumentPositions(10, bias=3, packed=4),
            "_flash_attn_forward": ArgumentPositions(5, length=-3, window=6, last=True),
        },
    ),
    **_modelled(
        _backward,
        {
            "_scaled_dot_product_flash_attention_backward": ArgumentPositions(11, packed=6),
            "_scaled_dot_product_flash_attention_for_cpu_backward": ArgumentPositions(7, bias=8),
            "_scaled_dot_product_efficient_attention_backward": ArgumentPositions(11, bias=4),
            "_scaled_dot_product_cudnn_attention_backward": ArgumentPositions(14, bias=8, packed=9),
            "_flash_attention_backward": ArgumentPositions(11, packed=6, length=-3),
            "_efficient_attention_backward": ArgumentPositions(14, bias=4, packed=6, length=-3),
            "_cudnn_attention_backward": ArgumentPositions(14, bias=8, packed=9),
            "_flash_attn_backward": ArgumentPositions(11, length=-3, window=12, last=True),
        },
    ),
}
