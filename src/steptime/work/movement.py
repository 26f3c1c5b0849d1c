"""Operators that move numbers: copies, concatenation, look-ups, scattering. FLOPs are zero."""

from __future__ import annotations

from math import prod

from steptime.work.arguments import ELEMENT_BYTES, SCALAR_TYPES, Call
from steptime.work.model import Model, Work, named


def _moved(call: Call) -> Work:
    """copy_(target, source): reads one, writes the other."""
    return Work(0.0, call.size(0, 1), call.tensor(0).number_format)


def _copied(call: Call) -> Work:
    """Writes as much as it reads; tensors behind the first argument are where `out=` wants it."""
    read = call.size(0)
    return Work(0.0, 2 * read, call.tensors[0][0].number_format)


def _cast(call: Call) -> Work:
    """_to_copy(input, dtype, …)"""
    image = call.tensor(0)
    known = len(call.texts) > 1 and call.texts[1].isdigit()
    item = ELEMENT_BYTES[SCALAR_TYPES[int(call.texts[1])]] if known else image.item
    return Work(0.0, image.bytes + image.elements * item, image.number_format)


def _quantised(call: Call) -> Work:
    """(out, input, scale)"""
    return Work(0.0, call.read, call.tensor(1).number_format)


def _looked_up(call: Call) -> Work:
    """index_select(table, 0, indices), embedding(table, indices): rows of the table's first dimension. index_select
    along another one takes as much of each."""
    table = call.tensor(0)
    indices = next(listed[0] for listed in reversed(call.tensors) if listed)
    dimension = _dimension(call, len(table.shape))
    taken = indices.elements * table.elements // max(table.shape[dimension], 1)
    return Work(0.0, 2 * taken * table.item + indices.bytes, table.number_format)


def _dimension(call: Call, dimensions: int) -> int:
    """Argument 1 of index_select; embeddings have a tensor there and look up rows."""
    if call.has(1) or len(call.texts) < 2 or not call.texts[1]:
        return 0
    return call.number(1) % max(dimensions, 1)


def _gathered(call: Call) -> Work:
    """gather(input, dimension, index)"""
    image, index = call.tensor(0), call.tensor(2)
    return Work(0.0, index.bytes + 2 * index.elements * image.item, image.number_format)


def _scattered(call: Call) -> Work:
    """scatter_(target, dimension, index, source or value): in place; else the target is copied first."""
    target, index = call.tensor(0), call.tensor(2)
    source = index.elements * target.item if call.has(3) else 0
    copied = 0 if call.in_place else 2 * target.bytes
    return Work(0.0, copied + index.bytes + source + index.elements * target.item, target.number_format)


def _scattered_on(call: Call) -> Work:
    """scatter_add_, scatter_reduce_: what is there is read too."""
    work, target = _scattered(call), call.tensor(0)
    return Work(0.0, work.bytes + call.tensor(2).elements * target.item, target.number_format)


def _added_at(call: Call) -> Work:
    """index_add_, index_copy_(target, dimension, index, source): reads the source, writes as much (and reads it)."""
    target, source = call.tensor(0), call.tensor(3)
    copied = 0 if call.in_place else 2 * target.bytes
    return Work(0.0, copied + call.size(2) + 3 * source.bytes, target.number_format)


def _copied_at(call: Call) -> Work:
    target, source = call.tensor(0), call.tensor(3)
    copied = 0 if call.in_place else 2 * target.bytes
    return Work(0.0, copied + call.size(2) + 2 * source.bytes, target.number_format)


def _indexed(call: Call) -> Work:
    """index(table, [indices]) where the trace has the indices' shapes: rows by one list of indices."""
    table, indices = call.tensor(0), call.tensors[1]
    if len(indices) != 1 or not table.shape:
        raise LookupError("which dimensions are indexed is not in the trace")
    taken = indices[0].elements * prod(table.shape[1:])
    return Work(0.0, 2 * taken * table.item + 8 * indices[0].elements, table.number_format)


def _embedding_backward(call: Call) -> Work:
    """(grad, indices, rows, …): the whole table is zeroed, then the rows of the batch are added to it."""
    gradient = call.tensor(0)
    table = call.number(2) * gradient.shape[-1] * gradient.item
    return Work(0.0, call.size(0, 1) + 2 * gradient.bytes + table, gradient.number_format)


def _bag(call: Call) -> Work:
    """_embedding_bag(table, indices, offsets, …): a row for each index, summed into one for each bag."""
    table, indices, offsets = call.tensor(0), call.tensor(1), call.tensor(2)
    row = table.shape[-1] * table.item
    return Work(0.0, call.size(1, 2) + (indices.elements + offsets.elements) * row, table.number_format)


MODELS: dict[str, Model] = {
    **named(_moved, "copy"),
    **named(_copied, "clone cat _cat concat contiguous stack _chunk_cat roll flip _to_dense _pin_memory"),
    **named(_cast, "_to_copy"),
    **named(_quantised, "static_scaled_fp8_quant dynamic_scaled_fp8_quant"),
    **named(_looked_up, "embedding index_select"),
    **named(_gathered, "gather"),
    **named(_scattered, "scatter"),
    **named(_scattered_on, "scatter_add scatter_reduce"),
    **named(_added_at, "index_add"),
    **named(_copied_at, "index_copy"),
    **named(_indexed, "index"),
    **named(_embedding_backward, "embedding_dense_backward"),
    **named(_bag, "_embedding_bag _embedding_bag_forward_only"),
}
