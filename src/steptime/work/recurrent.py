"""Recurrent layers in one operator: cuDNN's, MIOpen's, oneDNN's; and the pointwise cells around products of their own.

FLOPs: every weight matrix meets every time step of every sample once; backward twice, for the gradients of what goes in
and of the weights. Bytes: the weights once for the whole sequence, as if they stayed in the cache.
"""

from __future__ import annotations

from steptime.work.arguments import Call, Tensor
from steptime.work.model import Model, Work, named


def _layers(call: Call, weights: tuple[Tensor, ...], times: int) -> Work:
    image = call.tensor(0)
    steps = image.elements // image.shape[-1]
    matrices = [weight for weight in weights if len(weight.shape) == 2]
    if not matrices:
        raise LookupError("the shapes of the weights were not recorded")
    weighed = sum(matrix.elements for matrix in matrices)
    hidden = matrices[-1].shape[-1]
    moved = times * (image.bytes + weighed * image.item + steps * hidden * image.item)
    return Work(2 * times * steps * weighed, moved, image.number_format)


def _fused(call: Call) -> Work:
    """(input, weights, …)"""
    return _layers(call, call.tensors[1], 1)


def _fused_backward(call: Call) -> Work:
    return _layers(call, call.tensors[1], 2)


def _separate(call: Call) -> Work:
    """mkldnn_rnn_layer(input, weight of the input, weight of the state, two biases, …)"""
    return _layers(call, (call.tensor(1), call.tensor(2)), 1)


def _separate_backward(call: Call) -> Work:
    return _layers(call, (call.tensor(1), call.tensor(2)), 2)


def _cell(call: Call) -> Work:
    """_thnn_fused_lstm_cell(input's gates, state's gates, cell, biases): writes the gates, a state and a cell."""
    gates = call.tensor(0)
    state = call.tensor(2).bytes
    return Work(0.0, call.read + gates.bytes + 2 * state)


MODELS: dict[str, Model] = {
    **named(_fused, "_cudnn_rnn miopen_rnn"),
    **named(_fused_backward, "_cudnn_rnn_backward miopen_rnn_backward"),
    **named(_separate, "mkldnn_rnn_layer"),
    **named(_separate_backward, "mkldnn_rnn_layer_backward"),
    **named(_cell, "_thnn_fused_lstm_cell _thnn_fused_gru_cell"),
}
