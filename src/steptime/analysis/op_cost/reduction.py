"""Reductions, normalisations, losses and pooling: what they read, and what they write. FLOPs are zero."""

from __future__ import annotations

import json
from math import prod

from steptime.analysis.op_cost.call import Call, Model, OpCost, Tensor, named
from steptime.analysis.op_cost.pointwise import output_bytes


def _reduced(item: int = 0, *, position: int = 1) -> Model:
    """Reads a tensor, writes what is left of it. item: bytes of an index that is written with each value."""

    def model(call: Call) -> OpCost:
        image = call.all_tensors[0]
        left = _left(call, image, position)
        return OpCost(0.0, image.bytes + left * (image.item + item), image.dtype)

    return model


def _left(call: Call, image: Tensor, position: int) -> int:
    """Numbers of the result: the sides that the reduction leaves; one where the trace does not say which."""
    text = call.texts[position] if position < len(call.texts) else ""
    found = json.loads(text) if text[:1] in "[-0123456789" and text else []
    sides = found if isinstance(found, list) else [found]
    gone = {int(side) % len(image.shape) for side in sides} if image.shape else set()
    return prod(side for number, side in enumerate(image.shape) if number not in gone) if gone else 1


def _index_only(call: Call) -> OpCost:
    """argmax, argmin: eight bytes each."""
    image = call.tensor(0)
    return OpCost(0.0, image.bytes + 8 * _left(call, image, 1), image.dtype)


def _truth(call: Call) -> OpCost:
    image = call.tensor(0)
    return OpCost(0.0, image.bytes + _left(call, image, 1), image.dtype)


def _sorted(call: Call) -> OpCost:
    """Values and indices, read and written once: a sort that needs more passes is slower than its roofline."""
    image = call.tensor(0)
    return OpCost(0.0, 2 * image.bytes + 8 * image.elements, image.dtype)


def _selected(call: Call) -> OpCost:
    """topk(input, k, dimension)"""
    image = call.tensor(0)
    dimension = call.numbers(2)[0] if len(call.texts) > 2 and call.texts[2] else -1
    chosen = image.elements // image.shape[dimension] * call.number(1)
    return OpCost(0.0, image.bytes + chosen * (image.item + 8), image.dtype)


def _normalised(call: Call) -> OpCost:
    """Layer, batch, group and RMS norms: statistics are a small part of the rest and left out."""
    image = call.all_tensors[0]
    return OpCost(0.0, call.read + image.bytes, image.dtype)


def _normalised_and_added(call: Call) -> OpCost:
    """fused_add_rms_norm(input, residual, weight) in place: writes both."""
    return OpCost(0.0, call.read + call.size(0, 1), call.tensor(0).dtype)


def _normalised_into(call: Call) -> OpCost:
    """rms_norm(out, input, weight) of inference servers; torch's (input, shape, weight) has one tensor in front."""
    return OpCost(0.0, call.read, call.tensor(0).dtype) if call.has(1) else _normalised(call)


def _normalised_backward(call: Call) -> OpCost:
    """Reads the gradient and the input, writes the input's gradient; weights' are small."""
    return OpCost(0.0, call.read + call.largest.bytes, call.largest.dtype)


def _loss(call: Call) -> OpCost:
    """(input, target, reduction) to one number, or to one each."""
    image, target = call.tensor(0), call.tensor(1)
    kept = len(call.texts) > 2 and call.texts[-1] == "0"
    written = output_bytes(call, (image, target)) if kept else image.item
    return OpCost(0.0, call.size(0, 1) + written, image.dtype)


def _picked(call: Call) -> OpCost:
    """nll_loss_forward(log-probabilities, target, …): only the targets' numbers are read."""
    image, target = call.tensor(0), call.tensor(1)
    return OpCost(0.0, target.bytes + target.elements * image.item, image.dtype)


def _picked_backward(call: Call) -> OpCost:
    """(grad, log-probabilities, target, …): writes a gradient that is zero but for the targets."""
    image, target = call.tensor(1), call.tensor(2)
    return OpCost(0.0, image.bytes + target.bytes, image.dtype)


def _pooled(item: int = 0) -> Model:
    """(input, kernel, stride, padding, …), over as many last dimensions as the kernel has. item: bytes of an index."""

    def model(call: Call) -> OpCost:
        image, kernel = call.tensor(0), call.numbers(1)
        stride, padding = call.numbers(2) or kernel, call.numbers(3)
        sides = image.shape[-len(kernel) :]
        spread = len(kernel)
        steps = (each if len(each) == spread else each * spread for each in (stride, padding))
        windows = zip(sides, kernel, *steps, strict=True)
        out = prod((side + 2 * pad - size) // step + 1 for side, size, step, pad in windows)
        written = out * (image.elements // max(prod(sides), 1)) * (image.item + item)
        return OpCost(0.0, image.bytes + written, image.dtype)

    return model


def _resized(call: Call) -> OpCost:
    """Pooling and interpolation to a size that argument 1 gives."""
    image, size = call.tensor(0), call.numbers(1)
    written = image.elements // prod(image.shape[-len(size) :]) * prod(size) * image.item
    return OpCost(0.0, image.bytes + written, image.dtype)


def _resized_backward(call: Call) -> OpCost:
    """(grad, output size, input size)"""
    gradient = call.tensor(0)
    return OpCost(0.0, gradient.bytes + prod(call.numbers(2)) * gradient.item, gradient.dtype)


def _pooled_backward(call: Call) -> OpCost:
    """(grad, input, …, indices): reads the gradient and the indices, writes a gradient of the input's size."""
    read = call.read - call.size(1)
    return OpCost(0.0, read + call.size(1), call.tensor(0).dtype)


REDUCTION: dict[str, Model] = {
    **named(_reduced(), "sum mean prod amin amax nansum logsumexp var std std_mean var_mean"),
    **named(_reduced(8), "max min median mode kthvalue cummax cummin"),
    **named(_reduced(position=2), "norm linalg_vector_norm"),
    **named(_index_only, "argmax argmin"),
    **named(_truth, "all any"),
    **named(_reduced(position=99), "count_nonzero nonzero masked_select aminmax _is_all_true trace unique _unique2"),
    **named(_sorted, "sort argsort"),
    **named(_selected, "topk"),
    **named(
        _normalised,
        """native_layer_norm native_batch_norm native_group_norm cudnn_batch_norm miopen_batch_norm _fused_rms_norm
        _native_batch_norm_legit _native_batch_norm_legit_no_training _batch_norm_with_update""",
    ),
    **named(_normalised_and_added, "fused_add_rms_norm"),
    **named(_normalised_into, "rms_norm"),
    **named(
        _normalised_backward,
        """native_layer_norm_backward native_batch_norm_backward native_group_norm_backward batch_norm_backward
        cudnn_batch_norm_backward miopen_batch_norm_backward _fused_rms_norm_backward""",
    ),
    **named(
        _loss, "mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy kl_div binary_cross_entropy_with_logits"
    ),
    **named(_picked, "nll_loss_forward nll_loss2d_forward"),
    **named(_picked_backward, "nll_loss_backward nll_loss2d_backward"),
    **named(_pooled(8), "max_pool2d_with_indices max_pool3d_with_indices"),
    **named(_pooled(), "avg_pool2d avg_pool3d mkldnn_max_pool2d"),
    **named(
        _resized,
        """_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool2d upsample_nearest1d upsample_nearest2d
        upsample_nearest3d upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d _upsample_nearest_exact2d
        _upsample_bilinear2d_aa _upsample_bicubic2d_aa""",
    ),
    **named(
        _resized_backward,
        """upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward
        upsample_bilinear2d_backward upsample_bicubic2d_backward upsample_trilinear3d_backward""",
    ),
    **named(
        _pooled_backward,
        """max_pool2d_with_indices_backward max_pool3d_with_indices_backward _adaptive_avg_pool2d_backward
        _adaptive_avg_pool3d_backward avg_pool2d_backward avg_pool3d_backward""",
    ),
}
