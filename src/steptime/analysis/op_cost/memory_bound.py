"""The cost of operators whose arithmetic never binds: pointwise ones, data movement, optimizers over lists of tensors,
reductions, normalisations, losses and pooling. FLOPs are zero, and torch's counter does not count them either.

Elementwise operators read every input once at its own size (a broadcast one is small) and write every output once. A
trace does not say the type of a list's tensors; `parse` gets what the kernel's name says.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from math import prod

from steptime.analysis.op_cost.call import Call, Model, OpCost, Tensor, item_of, named
from steptime.analysis.op_cost.products import broadcast


def _moving(moved: Callable[[Call], float], tensor: int = 0) -> Model:
    """Model without FLOPs. moved: bytes of a call; tensor: position of the argument whose dtype counts."""
    return lambda call: OpCost(0.0, moved(call), call.tensor(tensor).dtype)


def _output_bytes(call: Call, inputs: tuple[Tensor, ...], *, truth: bool = False) -> int:
    """Bytes of the result: the broadcast shape in the widest type of the inputs with dimensions; in place, the first
    input. truth: the result is boolean."""
    if call.in_place:
        return inputs[0].bytes
    return _written(call, inputs) * (1 if truth else max(each.item for each in _wide(inputs)))


def _written(call: Call, inputs: tuple[Tensor, ...]) -> int:
    """Number of elements of a pointwise operator's output."""
    return inputs[0].elements if call.in_place else prod(broadcast(*(tensor.shape for tensor in _wide(inputs))))


def _wide(inputs: tuple[Tensor, ...]) -> list[Tensor]:
    return [tensor for tensor in inputs if tensor.shape] or list(inputs)


def _pointwise(inputs: int, *, truth: bool = False) -> Model:
    """Model of an operator that reads its first tensors and writes their broadcast; a further tensor is `out=`."""

    def model(call: Call) -> OpCost:
        tensors = call.all_tensors[:inputs]
        if not tensors:
            raise LookupError("no tensor")
        read = sum(tensor.bytes for tensor in tensors)
        operations = _written(call, tensors)
        return OpCost(0.0, read + _output_bytes(call, tensors, truth=truth), tensors[0].dtype, operations=operations)

    return model


def _filled(call: Call) -> OpCost:
    """Cost of writing the first tensor without reading anything of its size."""
    return OpCost(0.0, call.all_tensors[0].bytes, call.all_tensors[0].dtype)


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
    # native_dropout(input, p, train): writes the result and a mask of a byte each
    **named(_moving(lambda call: 2 * call.tensor(0).bytes + call.tensor(0).elements), "native_dropout _fused_dropout"),
    # masked_fill(input, mask, value): the value may be a tensor without dimensions
    **named(
        _moving(lambda call: call.size(0, 1) + _output_bytes(call, (call.tensor(0), call.tensor(1)))), "masked_fill"
    ),
}


def _cast(call: Call) -> float:
    """Bytes of _to_copy(input, dtype, …)."""
    image = call.tensor(0)
    return image.bytes + image.elements * item_of(call, 1, image.item)


def _looked_up(call: Call) -> float:
    """Bytes of index_select(table, 0, indices) or embedding(table, indices): rows of the table's first dimension. Along
    another dimension, index_select moves as much; embeddings have a tensor in place of the dimension."""
    table = call.tensor(0)
    indices = next(listed[0] for listed in reversed(call.tensors) if listed)
    selecting = not call.has(1) and len(call.texts) > 1 and call.texts[1]
    dimension = call.number(1) % max(len(table.shape), 1) if selecting else 0
    taken = indices.elements * table.elements // max(table.shape[dimension], 1)
    return 2 * taken * table.item + indices.bytes


def _copy_first(call: Call) -> int:
    """Bytes of copying the target first, if the operator is not in place."""
    return 0 if call.in_place else 2 * call.tensor(0).bytes


def _scattered(call: Call) -> float:
    """Bytes of scatter_(target, dimension, index, source or value)."""
    index, item = call.tensor(2), call.tensor(0).item
    return _copy_first(call) + index.bytes + index.elements * item * (2 if call.has(3) else 1)


def _put_at(times: int) -> Model:
    """Model of index_add_, index_copy_(target, dimension, index, source). times: passes over the source's bytes: read
    and written, and also the target's old values if it adds."""
    return _moving(lambda call: _copy_first(call) + call.size(2) + times * call.tensor(3).bytes)


def _indexed(call: Call) -> float:
    """Bytes of index(table, [indices]) if the trace has the indices' shapes: rows by one list of indices."""
    table, indices = call.tensor(0), call.tensors[1]
    if len(indices) != 1 or not table.shape:
        raise LookupError("which dimensions are indexed is not in the trace")
    taken = indices[0].elements * prod(table.shape[1:])
    return 2 * taken * table.item + 8 * indices[0].elements


def _embedding_backward(call: Call) -> float:
    """Bytes of embedding_backward(grad, indices, rows, …): the table is zeroed, then the batch's rows are added."""
    gradient = call.tensor(0)
    return call.size(0, 1) + 2 * gradient.bytes + call.number(2) * gradient.shape[-1] * gradient.item


def _bag(call: Call) -> float:
    """Bytes of _embedding_bag(table, indices, offsets, …): a row per index, summed into one per bag."""
    table = call.tensor(0)
    rows = call.tensor(1).elements + call.tensor(2).elements
    return call.size(1, 2) + rows * table.shape[-1] * table.item


MOVEMENT: dict[str, Model] = {
    **named(_moving(lambda call: call.size(0, 1)), "copy"),  # of target, source
    # tensors behind the first argument are where `out=` wants the result
    **named(
        _moving(lambda call: 2 * call.size(0)),
        "clone cat _cat concat contiguous stack _chunk_cat roll flip _to_dense _pin_memory",
    ),
    **named(_moving(_cast), "_to_copy"),
    **named(_moving(lambda call: call.read, 1), "static_scaled_fp8_quant dynamic_scaled_fp8_quant"),
    **named(_moving(_looked_up), "embedding index_select"),
    # of input, dimension, index
    **named(_moving(lambda call: call.size(2) + 2 * call.tensor(2).elements * call.tensor(0).item), "gather"),
    **named(_moving(_scattered), "scatter"),
    # what is there is read too
    **named(
        _moving(lambda call: _scattered(call) + call.tensor(2).elements * call.tensor(0).item),
        "scatter_add scatter_reduce",
    ),
    **named(_put_at(3), "index_add"),
    **named(_put_at(2), "index_copy"),
    **named(_moving(_indexed), "index"),
    **named(_moving(_embedding_backward), "embedding_dense_backward"),
    **named(_moving(_bag), "_embedding_bag _embedding_bag_forward_only"),
}


def foreach(name: str) -> Model | None:
    """Cost model of a _foreach_ operator, by its name without namespace; None for any other operator."""
    if not name.startswith("_foreach_"):
        return None
    if name.rstrip("_") == "_foreach_zero":
        return lambda call: OpCost(0.0, call.size(0))
    if name in ("_foreach_norm", "_foreach_max"):
        return lambda call: OpCost(0.0, call.size(0) + sum(tensor.item for tensor in call.tensors[0]))
    if name.rstrip("_") == "_foreach_copy":
        return lambda call: OpCost(0.0, call.size(0, 1))
    return lambda call: OpCost(0.0, call.read + call.size(0))  # reads all lists, writes one like the first


OPTIMIZER: dict[str, Model] = {
    # of gradients, …: reads and writes them
    **named(lambda call: OpCost(0.0, 2 * call.size(0)), "_amp_foreach_non_finite_check_and_unscale"),
    # of parameters, gradients, states, …: reads all, writes all but the gradients
    **named(
        lambda call: OpCost(0.0, 2 * call.read - call.size(1)), "_fused_adam _fused_adamw _fused_sgd _fused_adagrad"
    ),
}


def _reduced(item: int = 0, *, position: int = 1, value: bool = True) -> Model:
    """Model of a reduction: it reads a tensor and writes the remaining values. item: further bytes written with each
    value, or instead of it (an index, a boolean). position: of the dimensions to reduce."""

    def model(call: Call) -> OpCost:
        image = call.all_tensors[0]
        written = _left(call, image, position) * (item + (image.item if value else 0))
        return OpCost(0.0, image.bytes + written, image.dtype)

    return model


def _left(call: Call, image: Tensor, position: int) -> int:
    """Number of values in the result: the sides that the reduction leaves; 1 if the trace does not say which."""
    text = call.texts[position] if position < len(call.texts) else ""
    found = json.loads(text) if text[:1] in "[-0123456789" and text else []
    sides = found if isinstance(found, list) else [found]
    gone = {int(side) % len(image.shape) for side in sides} if image.shape else set()
    return prod(side for number, side in enumerate(image.shape) if number not in gone) if gone else 1


def _selected(call: Call) -> float:
    """Bytes of topk(input, k, dimension)."""
    image = call.tensor(0)
    dimension = call.numbers(2)[0] if len(call.texts) > 2 and call.texts[2] else -1
    chosen = image.elements // image.shape[dimension] * call.number(1)
    return image.bytes + chosen * (image.item + 8)


def _normalised(call: Call) -> OpCost:
    """Cost of layer, batch, group and RMS norms. Their statistics are small and ignored."""
    image = call.all_tensors[0]
    return OpCost(0.0, call.read + image.bytes, image.dtype)


def _normalised_into(call: Call) -> OpCost:
    """Cost of rms_norm(out, input, weight) of inference servers; torch's (input, shape, weight) has one tensor less."""
    return OpCost(0.0, call.read, call.tensor(0).dtype) if call.has(1) else _normalised(call)


def _loss(call: Call) -> float:
    """Bytes of (input, target, reduction), reduced to one value or to one per sample."""
    image, target = call.tensor(0), call.tensor(1)
    kept = len(call.texts) > 2 and call.texts[-1] == "0"
    return call.size(0, 1) + (_output_bytes(call, (image, target)) if kept else image.item)


def _pooled(item: int = 0) -> Model:
    """Model of (input, kernel, stride, padding, …) over as many last dimensions as the kernel has. item: index
    bytes."""

    def moved(call: Call) -> int:
        image, kernel = call.tensor(0), call.numbers(1)
        stride, padding = call.numbers(2) or kernel, call.numbers(3)
        sides = image.shape[-len(kernel) :]
        steps = (each if len(each) == len(kernel) else each * len(kernel) for each in (stride, padding))
        windows = zip(sides, kernel, *steps, strict=True)
        out: int = prod((side + 2 * pad - size) // step + 1 for side, size, step, pad in windows)
        return image.bytes + out * (image.elements // max(prod(sides), 1)) * (image.item + item)

    return _moving(moved)


def _resized(call: Call) -> float:
    """Bytes of pooling or interpolation to a size that argument 1 gives."""
    image, size = call.tensor(0), call.numbers(1)
    return image.bytes + image.elements // prod(image.shape[-len(size) :]) * prod(size) * image.item


REDUCTION: dict[str, Model] = {
    **named(_reduced(), "sum mean prod amin amax nansum logsumexp var std std_mean var_mean"),
    **named(_reduced(8), "max min median mode kthvalue cummax cummin"),
    **named(_reduced(position=2), "norm linalg_vector_norm"),
    **named(_reduced(8, value=False), "argmax argmin"),
    **named(_reduced(1, value=False), "all any"),
    **named(_reduced(position=99), "count_nonzero nonzero masked_select aminmax _is_all_true trace unique _unique2"),
    # values and indices, read and written once: a sort that needs more passes is slower than its roofline
    **named(_moving(lambda call: 2 * call.tensor(0).bytes + 8 * call.tensor(0).elements), "sort argsort"),
    **named(_moving(_selected), "topk"),
    **named(
        _normalised,
        """native_layer_norm native_batch_norm native_group_norm cudnn_batch_norm miopen_batch_norm _fused_rms_norm
        _native_batch_norm_legit _native_batch_norm_legit_no_training _batch_norm_with_update""",
    ),
    # of input, residual, weight in place: writes both
    **named(_moving(lambda call: call.read + call.size(0, 1)), "fused_add_rms_norm"),
    **named(_normalised_into, "rms_norm"),
    # reads the gradient and the input, writes the input's gradient; weights' are small
    **named(
        lambda call: OpCost(0.0, call.read + call.largest.bytes, call.largest.dtype),
        """native_layer_norm_backward native_batch_norm_backward native_group_norm_backward batch_norm_backward
        cudnn_batch_norm_backward miopen_batch_norm_backward _fused_rms_norm_backward""",
    ),
    **named(
        _moving(_loss),
        "mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy kl_div binary_cross_entropy_with_logits",
    ),
    # of log-probabilities, target, …: only the targets' numbers are read
    **named(
        _moving(lambda call: call.tensor(1).bytes + call.tensor(1).elements * call.tensor(0).item),
        "nll_loss_forward nll_loss2d_forward",
    ),
    # of grad, log-probabilities, target, …: writes a gradient that is zero except the targets
    **named(
        _moving(lambda call: call.tensor(1).bytes + call.tensor(2).bytes, 1), "nll_loss_backward nll_loss2d_backward"
    ),
    **named(_pooled(8), "max_pool2d_with_indices max_pool3d_with_indices"),
    **named(_pooled(), "avg_pool2d avg_pool3d mkldnn_max_pool2d"),
    **named(
        _moving(_resized),
        """_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool2d upsample_nearest1d upsample_nearest2d
        upsample_nearest3d upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d _upsample_nearest_exact2d
        _upsample_bilinear2d_aa _upsample_bicubic2d_aa""",
    ),
    # of grad, output size, input size
    **named(
        _moving(lambda call: call.tensor(0).bytes + prod(call.numbers(2)) * call.tensor(0).item),
        """upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward
        upsample_bilinear2d_backward upsample_bicubic2d_backward upsample_trilinear3d_backward""",
    ),
    # of grad, input, …, indices: reads the gradient and the indices, writes a gradient of the input's size
    **named(
        _moving(lambda call: call.read),
        """max_pool2d_with_indices_backward max_pool3d_with_indices_backward _adaptive_avg_pool2d_backward
        _adaptive_avg_pool3d_backward avg_pool2d_backward avg_pool3d_backward""",
    ),
}
