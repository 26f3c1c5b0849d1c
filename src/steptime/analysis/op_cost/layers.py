"""The cost of convolutions (of one to three dimensions, with strides, dilation, groups, transposed) and of recurrent
layers in one operator (cuDNN's, MIOpen's, oneDNN's), with their gradients.

FLOPs: every number of a convolution's output meets weight.elements / (channels out) numbers of the weight; of a
transposed one every number of the input does. Each gradient costs as much as the forward. A fast algorithm (Winograd,
FFT) does less: its rate is then that of the direct one, and may exceed the peak. Every weight matrix of a recurrent
layer meets every time step of every sample once; backward twice, for the gradients of what goes in and of the weights.
Bytes: its weights once for the whole sequence, as if they stayed in the cache.
"""

from __future__ import annotations

import json
from math import prod

from steptime.analysis.op_cost.call import Call, Model, OpCost, Tensor, named


def _setting(call: Call, position: int | None, spatial: int, default: int) -> tuple[int, ...]:
    if position is None:
        return (default,) * spatial
    found = call.numbers(position)
    return found * spatial if len(found) == 1 else found


def _channels(weight: Tensor, groups: int, *, transposed: bool = False) -> tuple[tuple[str, int], ...]:
    """Channels of one group: the sides of its matrices on a Tensor Core."""
    first, second = weight.shape[0] // groups, weight.shape[1]
    return (("channels in", first if transposed else second), ("channels out", second if transposed else first))


def _convolved(call: Call, stride: int, padding: int, dilation: int | None, *read: int) -> OpCost:
    """Cost of a convolution of argument 0 with argument 1. stride, padding, dilation: positions of the settings; read:
    positions of further inputs."""
    image, weight = call.tensor(0), call.tensor(1)
    spatial = len(weight.shape) - 2
    settings = (_setting(call, each, spatial, usual) for each, usual in ((stride, 1), (padding, 0), (dilation, 1)))
    sides = zip(image.shape[-spatial:], weight.shape[2:], *settings, strict=True)
    windows = ((size + 2 * pad - spread * (kernel - 1) - 1) // step + 1 for size, kernel, step, pad, spread in sides)
    out = prod(windows) * prod(image.shape[: -spatial - 1])
    written = out * weight.shape[0] * image.item
    groups = image.shape[-spatial - 1] // weight.shape[1]
    moved = call.size(0, 1, *read) + written
    return OpCost(2 * out * weight.elements, moved, image.dtype, _channels(weight, groups))


def _convolution(call: Call) -> OpCost:
    """Cost of (input, weight, bias, stride, padding, dilation, transposed, output padding, groups)."""
    if call.number(6):
        return _transposed(call, (3, 4, 7, 5), 8, 2)
    return _convolved(call, 3, 4, 5, 2)


def _at(stride: int, padding: int, dilation: int | None, *read: int) -> Model:
    return lambda call: _convolved(call, stride, padding, dilation, *read)


def _transposed(call: Call, positions: tuple[int, int, int, int], groups: int | None, bias: int | None) -> OpCost:
    """Cost of a transposed convolution. positions: of stride, padding, output padding and dilation."""
    image, weight = call.tensor(0), call.tensor(1)
    spatial = len(weight.shape) - 2
    stride, padding, extra, dilation = (_setting(call, each, spatial, 0) for each in positions)
    sides = zip(image.shape[-spatial:], weight.shape[2:], stride, padding, dilation, extra, strict=True)
    parts = call.number(groups) if groups is not None else 1
    spread = (
        (size - 1) * step - 2 * pad + wide * (kernel - 1) + 1 + more for size, kernel, step, pad, wide, more in sides
    )
    written = prod(spread) * prod(image.shape[: -spatial - 1]) * weight.shape[1] * parts
    moved = call.size(0, 1, *(() if bias is None else (bias,))) + written * image.item
    flops = 2 * image.elements * prod(weight.shape[1:])
    return OpCost(flops, moved, image.dtype, _channels(weight, parts, transposed=True))


def from_output(image: Tensor, weight: Tensor, output: Tensor) -> OpCost:
    """Cost of a convolution, or of its weight's gradient, from the shapes of all three tensors without settings.

    Raises ValueError if the channels fit no ordinary convolution, or may be those of a transposed one."""
    groups = image.shape[1] // weight.shape[1]
    ordinary = output.shape[1] == weight.shape[0] and groups * weight.shape[1] == image.shape[1]
    if not ordinary or prod(output.shape[2:]) > prod(image.shape[2:]):
        raise ValueError("no ordinary convolution")
    flops = 2 * output.elements * weight.elements // weight.shape[0]
    moved = image.bytes + weight.bytes + output.bytes
    return OpCost(flops, moved, image.dtype, _channels(weight, groups))


def _backward(call: Call) -> OpCost:
    """Cost of (grad, input, weight, bias sizes, stride, padding, dilation, transposed, …, groups, mask): one matmul
    each for the gradients of input and weight, if the mask asks for them."""
    gradient, image, weight = call.tensor(0), call.tensor(1), call.tensor(2)
    wanted = json.loads(call.text(10).lower())
    transposed = bool(call.number(7))
    meeting = image if transposed else gradient
    flops = 2 * meeting.elements * weight.elements // weight.shape[0] * sum(map(bool, wanted[:2]))
    written = sum(each.bytes for each, asked in zip((image, weight), wanted, strict=False) if asked)
    moved = gradient.bytes + wanted[0] * weight.bytes + wanted[1] * image.bytes + written
    parts = call.number(9)
    return OpCost(flops, moved, gradient.dtype, _channels(weight, parts, transposed=transposed))


def _input_gradient(call: Call) -> OpCost:
    """Cost of cudnn_convolution_backward_input(sizes, grad, weight, …), before torch 1.11."""
    gradient, weight = call.tensor(1), call.tensor(2)
    flops = 2 * gradient.elements * weight.elements // weight.shape[0]
    return OpCost(flops, call.size(1, 2), gradient.dtype)


CONVOLUTION: dict[str, Model] = {
    **named(_convolution, "convolution _convolution convolution_overrideable"),
    # of input, weight, bias, stride, padding, dilation, groups
    **named(_at(3, 4, 5, 2), "conv1d conv2d conv3d"),
    **named(_at(3, 4, 5, 2), "cudnn_convolution_relu miopen_convolution_relu _convolution_pointwise"),
    # of input, weight, bias, padding, stride, dilation, groups
    **named(_at(4, 3, 5, 2), "mkldnn_convolution miopen_convolution miopen_depthwise_convolution"),
    # of input, weight, padding, stride, dilation, groups
    **named(_at(3, 2, 4), "cudnn_convolution"),
    # of input, weight, z, alpha, bias, stride, padding, dilation, groups
    **named(_at(5, 6, 7, 2, 4), "cudnn_convolution_add_relu miopen_convolution_add_relu"),
    # of input, weight, kernel size, bias, stride, padding, dilation
    **named(_at(4, 5, 6, 3), "_conv_depthwise2d conv_depthwise3d slow_conv_dilated2d slow_conv_dilated3d"),
    **named(_at(4, 5, None, 3), "_slow_conv2d_forward thnn_conv2d slow_conv3d_forward slow_conv3d"),
    **named(lambda call: _transposed(call, (4, 5, 6, 7), None, 3), "slow_conv_transpose2d slow_conv_transpose3d"),
    **named(lambda call: _transposed(call, (4, 2, 3, 5), 6, None), "cudnn_convolution_transpose"),
    **named(lambda call: _transposed(call, (5, 3, 4, 6), 7, 2), "miopen_convolution_transpose"),
    **named(_backward, "convolution_backward"),
    **named(_input_gradient, "cudnn_convolution_backward_input"),
}


def _layers(call: Call, weights: tuple[Tensor, ...], times: int) -> OpCost:
    image = call.tensor(0)
    steps = image.elements // image.shape[-1]
    matrices = [weight for weight in weights if len(weight.shape) == 2]
    if not matrices:
        raise LookupError("the shapes of the weights were not recorded")
    weighed = sum(matrix.elements for matrix in matrices)
    hidden = matrices[-1].shape[-1]
    moved = times * (image.bytes + weighed * image.item + steps * hidden * image.item)
    return OpCost(2 * times * steps * weighed, moved, image.dtype)


def _cell(call: Call) -> OpCost:
    """Cost of _thnn_fused_lstm_cell(input gates, state gates, cell, biases): writes gates, a state and a cell."""
    gates = call.tensor(0)
    state = call.tensor(2).bytes
    return OpCost(0.0, call.read + gates.bytes + 2 * state)


RECURRENT: dict[str, Model] = {
    # of input, weights, …
    **named(lambda call: _layers(call, call.tensors[1], 1), "_cudnn_rnn miopen_rnn"),
    **named(lambda call: _layers(call, call.tensors[1], 2), "_cudnn_rnn_backward miopen_rnn_backward"),
    # of input, weight of the input, weight of the state, two biases, …
    **named(lambda call: _layers(call, (call.tensor(1), call.tensor(2)), 1), "mkldnn_rnn_layer"),
    **named(lambda call: _layers(call, (call.tensor(1), call.tensor(2)), 2), "mkldnn_rnn_layer_backward"),
    **named(_cell, "_thnn_fused_lstm_cell _thnn_fused_gru_cell"),
}
