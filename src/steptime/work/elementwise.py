"""Elementwise operators: every input once at its own size (a broadcast one is small), every output once.

FLOPs are zero: their arithmetic never binds, and torch's counter does not count it either.
"""

from __future__ import annotations

from math import prod

from steptime.work.arguments import Call, Tensor
from steptime.work.matmul import broadcast
from steptime.work.model import Model, Work, named


def output_bytes(call: Call, inputs: tuple[Tensor, ...], *, truth: bool = False) -> int:
    """Of the result: the broadcast shape in the widest type of the inputs that have dimensions; in place, the first."""
    if call.in_place:
        return inputs[0].bytes
    wide = [tensor for tensor in inputs if tensor.shape] or list(inputs)
    return prod(broadcast(*(tensor.shape for tensor in inputs))) * (1 if truth else max(each.item for each in wide))


def _pointwise(inputs: int, *, truth: bool = False) -> Model:
    """Reads its first tensors and writes their broadcast; a further one is where `out=` wants it."""

    def model(call: Call) -> Work:
        tensors = call.all_tensors[:inputs]
        if not tensors:
            raise LookupError("no tensor")
        read = sum(tensor.bytes for tensor in tensors)
        return Work(0.0, read + output_bytes(call, tensors, truth=truth), tensors[0].number_format)

    return model


def _filled(call: Call) -> Work:
    """Writes the first tensor, reads nothing of its size."""
    return Work(0.0, call.all_tensors[0].bytes, call.all_tensors[0].number_format)


def _dropped(call: Call) -> Work:
    """native_dropout(input, p, train): writes the result and a mask of a byte each."""
    image = call.tensor(0)
    return Work(0.0, 2 * image.bytes + image.elements, image.number_format)


def _filled_where(call: Call) -> Work:
    """masked_fill(input, mask, value): the value may be a tensor without dimensions."""
    image, mask = call.tensor(0), call.tensor(1)
    return Work(0.0, image.bytes + mask.bytes + output_bytes(call, (image, mask)), image.number_format)


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

MODELS: dict[str, Model] = {
    **named(_pointwise(1), UNARY),
    **named(_pointwise(2), BINARY),
    **named(_pointwise(3), TERNARY),
    **named(_pointwise(1, truth=True), TRUTH_UNARY),
    **named(_pointwise(2, truth=True), TRUTH_BINARY),
    **named(_filled, FILLING),
    **named(_dropped, "native_dropout _fused_dropout"),
    **named(_filled_where, "masked_fill"),
}
