"""Matrix products: FLOPs are 2 · m · n · k, a multiply and an add counted as two; a bias adds none."""

from __future__ import annotations

from math import prod

from steptime.work.arguments import ELEMENT_BYTES, SCALAR_TYPES, Call, Tensor
from steptime.work.model import Model, Work, named


def product(first: Tensor, second: Tensor, read: int, *, result: int | None = None) -> Work:
    """[…, m, k] @ […, k, n] with equal leading dimensions. read: bytes of all inputs; result: bytes of an element of
    the product, by default the first factor's. Raises ValueError for shapes that do not fit."""
    *batch, rows, inner = first.shape
    columns = second.shape[-1]
    if second.shape[-2] != inner:
        raise ValueError("the inner dimensions differ")
    written = prod(batch) * rows * columns * (first.item if result is None else result)
    flops = 2 * first.elements * columns
    return Work(flops, read + written, first.number_format, (("m", rows), ("n", columns), ("k", inner)))


def _matrix_product(call: Call) -> Work:
    return product(call.tensor(0), call.tensor(1), call.size(0, 1))


def _general(call: Call) -> Work:
    """matmul of any dimensions: leading ones are broadcast, a vector is a row or a column."""
    first, second = call.tensor(0), call.tensor(1)
    left = first.shape if len(first.shape) > 1 else (1, *first.shape)
    right = second.shape if len(second.shape) > 1 else (*second.shape, 1)
    batch = broadcast(left[:-2], right[:-2])
    whole = Tensor((*batch, *left[-2:]), first.type, first.item)
    return product(whole, Tensor((*batch, *right[-2:]), second.type, second.item), call.size(0, 1))


def _added_product(call: Call) -> Work:
    return product(call.tensor(1), call.tensor(2), call.size(0, 1, 2))


def _summed_product(call: Call) -> Work:
    """addbmm: the products of a batch are added up."""
    first, second = call.tensor(1), call.tensor(2)
    work = product(first, second, 0)
    written = first.shape[-2] * second.shape[-1] * first.item
    return Work(work.flops, call.size(0, 1, 2) + written, work.number_format, work.dimensions)


def linear(call: Call, first: int = 0, weight: int = 1) -> Work:
    """x […, k] with a weight [n, k] and a bias behind it."""
    image, matrix = call.tensor(first), call.tensor(weight)
    rows = Tensor((image.elements // image.shape[-1], image.shape[-1]), image.type, image.item)
    transposed = Tensor((matrix.shape[1], matrix.shape[0]), matrix.type, matrix.item)
    return product(rows, transposed, call.size(first, weight, weight + 1))


def _packed_linear(call: Call) -> Work:
    """_mkl_linear(x, packed weight, weight, bias, …): only one of the weights is read."""
    return linear(call, 0, 2)


def _vector_product(call: Call) -> Work:
    """Matrix by vector, vector by vector, with or without a vector that is added first."""
    largest = max(call.all_tensors, key=lambda tensor: tensor.elements)
    written = largest.elements // max(largest.shape[-1], 1) * largest.item
    return Work(2 * largest.elements, call.read + written, largest.number_format)


def _outer(call: Call) -> Work:
    """ger, outer: a column times a row."""
    first, second = call.tensor(-2 + len(call.tensors)), call.tensor(-1 + len(call.tensors))
    elements = first.elements * second.elements
    return Work(2 * elements, call.read + elements * first.item, first.number_format)


def _scaled(call: Call) -> Work:
    """_scaled_mm(a, b, scales, …, out_dtype): eight-bit factors, a wider product."""
    return product(call.tensor(0), call.tensor(1), call.size(0, 1, 2, 3, 4), result=_item(call, 6))


def _item(call: Call, position: int) -> int:
    """Bytes of an element of the dtype at a position; bfloat16's where it is not recorded, torch's usual answer."""
    known = position < len(call.texts) and call.texts[position].isdigit()
    return ELEMENT_BYTES[SCALAR_TYPES[int(call.texts[position])]] if known else 2


def _integers(call: Call) -> Work:
    """_int_mm: eight-bit factors, int32 products."""
    return product(call.tensor(0), call.tensor(1), call.size(0, 1), result=4)


def _grouped(call: Call, result: int | None = None) -> Work:
    """_grouped_mm(a, b, offsets): each row of a [m, k] meets the one matrix of b [groups, k, n] that it belongs to;
    with both of two dimensions each column of a [m, k] meets its row of b, and every group writes its own product."""
    first, second = call.tensor(0), call.tensor(1)
    if len(first.shape) == len(second.shape) == 3:
        return product(first, second, call.size(0, 1), result=result)
    rows, inner = first.shape[-2:]
    columns = second.shape[-1]
    groups = call.tensor(2).elements if len(first.shape) == len(second.shape) == 2 else 1
    written = groups * rows * columns * (first.item if result is None else result)
    return Work(2 * rows * inner * columns, call.size(0, 1) + written, first.number_format)


def _scaled_grouped(call: Call) -> Work:
    return _grouped(call, _item(call, 7))


def _into(call: Call) -> Work:
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


MODELS: dict[str, Model] = {
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
