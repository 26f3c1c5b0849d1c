"""The cost of pointwise operators, of data movement, and of optimisers over lists of tensors.

Elementwise operators: every input once at its own size (a broadcast one is small), every output once.

FLOPs are zero: their arithmetic never binds, and torch's counter does not count it either.

Operators over lists of tensors: _foreach_* and the fused optimisers. FLOPs are zero.

A trace does not say the type of a list's tensors; `parse` is told what the kernel's name says.
"""

from __future__ import annotations

from math import prod

from steptime.analysis.op_cost.call import ELEMENT_BYTES, SCALAR_TYPES, Call, Model, OpCost, Tensor, named
from steptime.analysis.op_cost.products import broadcast


def output_bytes(call: Call, inputs: tuple[Tensor, ...], *, truth: bool = False) -> int:
    """Of the result: the broadcast shape in the widest type of the inputs that have dimensions; in place, the first."""
    if call.in_place:
        return inputs[0].bytes
    wide = [tensor for tensor in inputs if tensor.shape] or list(inputs)
    return prod(broadcast(*(tensor.shape for tensor in inputs))) * (1 if truth else max(each.item for each in wide))


def _pointwise(inputs: int, *, truth: bool = False) -> Model:
    """Reads its first tensors and writes their broadcast; a further one is where `out=` wants it."""

    def model(call: Call) -> OpCost:
        tensors = call.all_tensors[:inputs]
        if not tensors:
            raise LookupError("no tensor")
        read = sum(tensor.bytes for tensor in tensors)
        return OpCost(0.0, read + output_bytes(call, tensors, truth=truth), tensors[0].dtype)

    return model


def _filled(call: Call) -> OpCost:
    """Writes the first tensor, reads nothing of its size."""
    return OpCost(0.0, call.all_tensors[0].bytes, call.all_tensors[0].dtype)


def _dropped(call: Call) -> OpCost:
    """native_dropout(input, p, train): writes the result and a mask of a byte each."""
    image = call.tensor(0)
    return OpCost(0.0, 2 * image.bytes + image.elements, image.dtype)


def _filled_where(call: Call) -> OpCost:
    """masked_fill(input, mask, value): the value may be a tensor without dimensions."""
    image, mask = call.tensor(0), call.tensor(1)
    return OpCost(0.0, image.bytes + mask.bytes + output_bytes(call, (image, mask)), image.dtype)


UNARY = """
neg abs sign sgn exp exp2 expm1 log log2 log10 log1p sqrt rsqrt square reciprocal sin cos tan asin acos atan sinh cosh
tanh asinh acosh atanh erf erfc erfinv sigmoid silu gelu relu relu6 leaky_relu elu selu celu hardtanh hardswish
hardsigmoid hardshrink softshrink softplus mish log_sigmoid log_sigmoid_forward clamp clamp_min clamp_max floor ceil
round trunc frac threshold nan_to_num logit lgamma digamma i0 sinc deg2rad rad2deg bitwise_not tril triu
cumsum cumprod logcumsumexp _softmax _log_softmax positive fake_quantize_per_tensor_affine
"""
BINARY = """
add sub rsub mul div true_divide divide multiply subtract floor_divide remainder fmod pow maximum minimum fmax fmin
atan2 hypot copysign logaddexp logaddexp2 xlogy bitwise_and bitwise_or bitwise_xor bitwise_left_shift
bitwise_right_shift nextafter heaviside mul_out
threshold_backward gelu_backward silu_backward sigmoid_backward tanh_backward leaky_relu_backward elu_backward
hardtanh_backward hardswish_backward hardsigmoid_backward softplus_backward mish_backward logit_backward
hardshrink_backward softshrink_backward log_sigmoid_backward native_dropout_backward _softmax_backward_data
_log_softmax_backward_data masked_scale
"""
TERNARY = "addcmul addcdiv where lerp _addcmul _addcdiv mse_loss_backward l1_loss_backward smooth_l1_loss_backward"
TRUTH_UNARY = "logical_not isnan isinf isfinite isposinf isneginf signbit"
TRUTH_BINARY = "eq ne lt le gt ge logical_and logical_or logical_xor isclose"
FILLING = """
fill zero normal uniform bernoulli random exponential geometric cauchy log_normal arange linspace full ones zeros
randperm eye range
"""

ELEMENTWISE: dict[str, Model] = {
    **named(_pointwise(1), UNARY),
    **named(_pointwise(2), BINARY),
    **named(_pointwise(3), TERNARY),
    **named(_pointwise(1, truth=True), TRUTH_UNARY),
    **named(_pointwise(2, truth=True), TRUTH_BINARY),
    **named(_filled, FILLING),
    **named(_dropped, "native_dropout _fused_dropout"),
    **named(_filled_where, "masked_fill"),
}


def _moved(call: Call) -> OpCost:
    """copy_(target, source): reads one, writes the other."""
    return OpCost(0.0, call.size(0, 1), call.tensor(0).dtype)


def _copied(call: Call) -> OpCost:
    """Writes as much as it reads; tensors behind the first argument are where `out=` wants it."""
    read = call.size(0)
    return OpCost(0.0, 2 * read, call.tensors[0][0].dtype)


def _cast(call: Call) -> OpCost:
    """_to_copy(input, dtype, …)"""
    image = call.tensor(0)
    known = len(call.texts) > 1 and call.texts[1].isdigit()
    item = ELEMENT_BYTES[SCALAR_TYPES[int(call.texts[1])]] if known else image.item
    return OpCost(0.0, image.bytes + image.elements * item, image.dtype)


def _quantised(call: Call) -> OpCost:
    """(out, input, scale)"""
    return OpCost(0.0, call.read, call.tensor(1).dtype)


def _looked_up(call: Call) -> OpCost:
    """index_select(table, 0, indices), embedding(table, indices): rows of the table's first dimension. index_select
    along another one takes as much of each."""
    table = call.tensor(0)
    indices = next(listed[0] for listed in reversed(call.tensors) if listed)
    dimension = _dimension(call, len(table.shape))
    taken = indices.elements * table.elements // max(table.shape[dimension], 1)
    return OpCost(0.0, 2 * taken * table.item + indices.bytes, table.dtype)


def _dimension(call: Call, dimensions: int) -> int:
    """Argument 1 of index_select; embeddings have a tensor there and look up rows."""
    if call.has(1) or len(call.texts) < 2 or not call.texts[1]:
        return 0
    return call.number(1) % max(dimensions, 1)


def _gathered(call: Call) -> OpCost:
    """gather(input, dimension, index)"""
    image, index = call.tensor(0), call.tensor(2)
    return OpCost(0.0, index.bytes + 2 * index.elements * image.item, image.dtype)


def _scattered(call: Call) -> OpCost:
    """scatter_(target, dimension, index, source or value): in place; else the target is copied first."""
    target, index = call.tensor(0), call.tensor(2)
    source = index.elements * target.item if call.has(3) else 0
    copied = 0 if call.in_place else 2 * target.bytes
    return OpCost(0.0, copied + index.bytes + source + index.elements * target.item, target.dtype)


def _scattered_on(call: Call) -> OpCost:
    """scatter_add_, scatter_reduce_: what is there is read too."""
    work, target = _scattered(call), call.tensor(0)
    return OpCost(0.0, work.bytes + call.tensor(2).elements * target.item, target.dtype)


def _added_at(call: Call) -> OpCost:
    """index_add_, index_copy_(target, dimension, index, source): reads the source, writes as much (and reads it)."""
    target, source = call.tensor(0), call.tensor(3)
    copied = 0 if call.in_place else 2 * target.bytes
    return OpCost(0.0, copied + call.size(2) + 3 * source.bytes, target.dtype)


def _copied_at(call: Call) -> OpCost:
    target, source = call.tensor(0), call.tensor(3)
    copied = 0 if call.in_place else 2 * target.bytes
    return OpCost(0.0, copied + call.size(2) + 2 * source.bytes, target.dtype)


def _indexed(call: Call) -> OpCost:
    """index(table, [indices]) where the trace has the indices' shapes: rows by one list of indices."""
    table, indices = call.tensor(0), call.tensors[1]
    if len(indices) != 1 or not table.shape:
        raise LookupError("which dimensions are indexed is not in the trace")
    taken = indices[0].elements * prod(table.shape[1:])
    return OpCost(0.0, 2 * taken * table.item + 8 * indices[0].elements, table.dtype)


def _embedding_backward(call: Call) -> OpCost:
    """(grad, indices, rows, …): the whole table is zeroed, then the rows of the batch are added to it."""
    gradient = call.tensor(0)
    table = call.number(2) * gradient.shape[-1] * gradient.item
    return OpCost(0.0, call.size(0, 1) + 2 * gradient.bytes + table, gradient.dtype)


def _bag(call: Call) -> OpCost:
    """_embedding_bag(table, indices, offsets, …): a row for each index, summed into one for each bag."""
    table, indices, offsets = call.tensor(0), call.tensor(1), call.tensor(2)
    row = table.shape[-1] * table.item
    return OpCost(0.0, call.size(1, 2) + (indices.elements + offsets.elements) * row, table.dtype)


MOVEMENT: dict[str, Model] = {
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


FOREACH = "_foreach_"
REDUCING = ("_foreach_norm", "_foreach_max")
REPLACING = ("_foreach_copy",)


def foreach(name: str) -> Model | None:
    """The model of a _foreach_ operator, by its name without namespace; None for another operator."""
    if not name.startswith(FOREACH):
        return None
    if name.rstrip("_") == "_foreach_zero":
        return lambda call: OpCost(0.0, call.size(0))
    if name in REDUCING:
        return lambda call: OpCost(0.0, call.size(0) + sum(tensor.item for tensor in call.tensors[0]))
    if name.rstrip("_") in REPLACING:
        return lambda call: OpCost(0.0, call.size(0, 1))
    return _updated


def _updated(call: Call) -> OpCost:
    """Reads all lists, writes one like the first."""
    return OpCost(0.0, call.read + call.size(0))


def _unscaled(call: Call) -> OpCost:
    """_amp_foreach_non_finite_check_and_unscale_(gradients, …): reads and writes them."""
    return OpCost(0.0, 2 * call.size(0))


def _fused(call: Call) -> OpCost:
    """_fused_*(parameters, gradients, states, …): reads all, writes all but the gradients."""
    return OpCost(0.0, 2 * call.read - call.size(1))


OPTIMIZER: dict[str, Model] = {
    **named(_unscaled, "_amp_foreach_non_finite_check_and_unscale"),
    **named(_fused, "_fused_adam _fused_adamw _fused_sgd _fused_adagrad"),
}
