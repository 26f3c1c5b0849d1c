"""The work of one operator call, from the shapes and types that the trace holds: FLOPs and bytes.

FLOPs: those of matrix products, convolutions and attention, a multiply and an add counted as two, as
torch.utils.flop_counter counts them; zero for operators whose arithmetic never binds. Bytes: each input read once and
each output written once, which is the least that must move when nothing stays in a cache; temporaries of an operator do
not count.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from math import prod

ELEMENT_BYTES = {
    "float": 4, "double": 8, "long int": 8, "long": 8, "int": 4, "short int": 2, "short": 2, "signed char": 1,
    "unsigned char": 1, "bool": 1, "c10::Half": 2, "c10::BFloat16": 2, "c10::complex<float>": 8,
    "c10::complex<double>": 16, "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1, "TensorList": 4,
}  # fmt: skip
"""Kineto names C++ types. The tensors of a list are taken for float32: the trace does not say."""
FORMATS = {"float": "float32", "double": "float64", "c10::Half": "float16", "c10::BFloat16": "bfloat16"}
"""C++ types to the number formats of `Machine.matrix`."""


@dataclass(frozen=True, slots=True)
class Work:
    """flops, bytes: of one call. number_format: as in `Machine.matrix_rate`, of the matrix product."""

    flops: float
    bytes: float
    number_format: str = "float32"


@dataclass(frozen=True, slots=True)
class Tensor:
    """An argument that is a tensor."""

    shape: tuple[int, ...]
    type: str

    @property
    def elements(self) -> int:
        """Numbers in it."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Its size; an unknown type is taken for four bytes."""
        return self.elements * ELEMENT_BYTES.get(self.type, 4)


@dataclass(frozen=True, slots=True)
class Call:
    """Arguments by position. tensors: lists, empty for what is no tensor. texts: the values of the others."""

    tensors: tuple[tuple[Tensor, ...], ...]
    texts: tuple[str, ...]

    def tensor(self, position: int) -> Tensor:
        """The tensor at a position. Raises LookupError when there is none."""
        return self.tensors[position][0]

    def numbers(self, position: int) -> tuple[int, ...]:
        """A list of integers at a position, "[1, 1]". Raises LookupError or ValueError when it is not known."""
        return tuple(int(each) for each in json.loads(self.texts[position].lower()))

    def number(self, position: int) -> int:
        """An integer or a truth value at a position."""
        return int(json.loads(self.texts[position].lower()))

    @property
    def read(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.bytes for listed in self.tensors for tensor in listed)

    @property
    def largest(self) -> int:
        """Bytes of the largest tensor: what an elementwise operator writes, broadcast apart."""
        return max((tensor.bytes for listed in self.tensors for tensor in listed), default=0)


def work_of(name: str, shapes: str, types: str, inputs: str) -> Work | None:
    """The work of one call, None without a model or without the shapes it needs. The texts are raw JSON ("" for
    none)."""
    model = _model(name)
    if model is None or not shapes:
        return None
    try:
        return model(_call(shapes, types, inputs))
    except (LookupError, ValueError, TypeError, AttributeError):
        return None


def _call(shapes: str, types: str, inputs: str) -> Call:
    dimensions, kinds = json.loads(shapes), json.loads(types) if types else []
    texts = json.loads(inputs) if inputs else []
    tensors = tuple(_tensors(shape, kind) for shape, kind in zip(dimensions, kinds, strict=False))
    return Call(tensors, tuple(str(text) for text in texts))


def _tensors(shape: list[object], kind: str) -> tuple[Tensor, ...]:
    if kind in ("", "Scalar", "ScalarList"):
        return ()
    if kind == "TensorList":
        return tuple(Tensor(tuple(each), kind) for each in shape if isinstance(each, list))
    return (Tensor(tuple(shape), kind),)  # type: ignore[arg-type]


def _model(name: str) -> Callable[[Call], Work] | None:
    """The model of an operator, by its name without namespace, in-place mark and overload."""
    base = name.rsplit("::", 1)[-1].split(".", 1)[0]
    found = MODELS.get(base) or MODELS.get(base.rstrip("_"))
    if found is None and base.startswith("_foreach_"):
        return _list_update
    return found


def _product(first: Tensor, second: Tensor, read: int) -> Work:
    """[…, m, k] @ […, k, n] with as many dimensions."""
    flops = 2 * first.elements * second.shape[-1]
    written = first.elements // max(first.shape[-1], 1) * second.shape[-1] * ELEMENT_BYTES.get(first.type, 4)
    return Work(flops, read + written, FORMATS.get(first.type, first.type))


def _matrix_product(call: Call) -> Work:
    return _product(call.tensor(0), call.tensor(1), call.read)


def _added_product(call: Call) -> Work:
    return _product(call.tensor(1), call.tensor(2), call.read)


def _linear(call: Call) -> Work:
    weight = call.tensor(1)
    return _product(call.tensor(0), Tensor(weight.shape[::-1], weight.type), call.read)


def _vector_product(call: Call) -> Work:
    """Matrix by vector, vector by vector, with or without a vector that is added first."""
    largest = max((tensor for listed in call.tensors for tensor in listed), key=lambda tensor: tensor.elements)
    return Work(2 * largest.elements, call.read, FORMATS.get(largest.type, largest.type))


def _windows(size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def _convolved(call: Call, stride: int, padding: int, dilation: int | None) -> Work:
    """A convolution of argument 0 with argument 1; the numbers are positions of its settings."""
    image, weight = call.tensor(0), call.tensor(1)
    spatial = len(weight.shape) - 2
    settings = [call.numbers(stride), call.numbers(padding), call.numbers(dilation) if dilation is not None else (1,)]
    strides, paddings, dilations = (each * spatial if len(each) == 1 else each for each in settings)
    sides = zip(image.shape[-spatial:], weight.shape[2:], strides, paddings, dilations, strict=True)
    out = prod(_windows(*side) for side in sides) * prod(image.shape[: -spatial - 1])
    written = out * weight.shape[0] * ELEMENT_BYTES.get(image.type, 4)
    return Work(2 * out * weight.elements, call.read + written, FORMATS.get(image.type, image.type))


def _convolution(call: Call) -> Work:
    """(input, weight, bias, stride, padding, dilation[, transposed, …])"""
    if len(call.texts) > 7 and call.number(6):
        return _transposed(call)
    return _convolved(call, 3, 4, 5)


def _transposed(call: Call) -> Work:
    """Every number of the image meets its channel's part of the weight [in, out / groups, …]."""
    image, weight = call.tensor(0), call.tensor(1)
    flops = 2 * image.elements * prod(weight.shape[1:])
    return Work(flops, call.read + call.largest, FORMATS.get(image.type, image.type))


def _convolution_backward(call: Call) -> Work:
    """(grad, input, weight, bias sizes, stride, padding, dilation, transposed, …, groups, mask): a product each for the
    gradients of input and weight, as far as the mask asks for them."""
    gradient, image, weight = call.tensor(0), call.tensor(1), call.tensor(2)
    wanted = json.loads(call.texts[-1].lower())[:2]
    pixels = image if call.number(7) else gradient
    spatial = pixels.elements // max(pixels.shape[1], 1)
    written = sum(each.bytes for each, asked in zip((image, weight), wanted, strict=True) if asked)
    flops = 2 * spatial * weight.elements * sum(map(bool, wanted))
    return Work(flops, call.read + written, FORMATS.get(gradient.type, gradient.type))


def _attention(call: Call, first: int, products: int) -> Work:
    """query, key, value [batch, heads, length, width] from position `first`; `products` of the score matrix's size."""
    query, key, value = (call.tensor(first + offset) for offset in range(3))
    scores = prod(query.shape[:-1]) * key.shape[-2]
    half = query.shape[-1] + value.shape[-1]
    written = query.bytes if products == 2 else query.bytes + key.bytes + value.bytes
    read = sum(call.tensor(position).bytes for position in range(first + 3))
    return Work(scores * half * products, read + written, FORMATS.get(query.type, query.type))


def _attention_forward(call: Call) -> Work:
    return _attention(call, 0, 2)


def _attention_backward(call: Call) -> Work:
    """Five products: scores again, the gradients of value, of scores, of query and of key."""
    return _attention(call, 1, 5)


def _elementwise(call: Call) -> Work:
    """Reads its tensors and writes one of the largest size."""
    return Work(0.0, call.read + call.largest)


def _reduction(call: Call) -> Work:
    return Work(0.0, call.read)


def _filled(call: Call) -> Work:
    return Work(0.0, call.largest)


def _moved(call: Call) -> Work:
    """copy_(target, source): reads one, writes the other."""
    return Work(0.0, call.read)


def _copied(call: Call) -> Work:
    return Work(0.0, 2 * call.read)


def _normalisation_backward(call: Call) -> Work:
    return Work(0.0, call.read + call.largest)


def _looked_up(call: Call) -> Work:
    """index_select(table, 0, indices), embedding(table, indices): rows read and written."""
    table = call.tensor(0)
    indices = next(listed[0] for listed in reversed(call.tensors) if listed)
    row = table.bytes // max(table.shape[0], 1)
    return Work(0.0, 2 * indices.elements * row + indices.bytes)


def _embedding_backward(call: Call) -> Work:
    """(grad, indices, rows, …): the whole table is zeroed, then the rows of the batch are added to it."""
    gradient = call.tensor(0)
    table = call.number(2) * gradient.shape[-1] * ELEMENT_BYTES.get(gradient.type, 4)
    return Work(0.0, call.read + 2 * gradient.bytes + table)


def _list_update(call: Call) -> Work:
    """_foreach_*: reads all lists, writes the first."""
    return Work(0.0, call.read + sum(tensor.bytes for tensor in call.tensors[0]))


def _fused_update(call: Call) -> Work:
    """_fused_*: reads parameters, gradients and states, writes all but the gradients."""
    gradients = sum(tensor.bytes for tensor in call.tensors[1])
    return Work(0.0, 2 * call.read - gradients)


def _named(model: Callable[[Call], Work], names: str) -> dict[str, Callable[[Call], Work]]:
    return dict.fromkeys(names.split(), model)


MODELS: dict[str, Callable[[Call], Work]] = {
    **_named(_matrix_product, "mm bmm _scaled_mm matmul"),
    **_named(_added_product, "addmm baddbmm addbmm _addmm_activation"),
    **_named(_linear, "linear _mkl_linear mkldnn_linear _linear_pointwise"),
    **_named(_vector_product, "mv addmv dot vdot addr ger"),
    **_named(_convolution, "conv1d conv2d conv3d convolution _convolution convolution_overrideable"),
    **_named(
        lambda call: _convolved(call, 4, 3, 5), "mkldnn_convolution miopen_convolution miopen_depthwise_convolution"
    ),
    **_named(lambda call: _convolved(call, 3, 2, 4), "cudnn_convolution"),
    **_named(lambda call: _convolved(call, 4, 5, 6), "_conv_depthwise2d conv_depthwise3d slow_conv_dilated2d"),
    **_named(lambda call: _convolved(call, 4, 5, None), "_slow_conv2d_forward thnn_conv2d slow_conv3d_forward"),
    **_named(_transposed, "slow_conv_transpose2d slow_conv_transpose3d cudnn_convolution_transpose"),
    **_named(_convolution_backward, "convolution_backward"),
    **_named(
        _attention_forward,
        """scaled_dot_product_attention _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu
        _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention""",
    ),
    **_named(
        _attention_backward,
        """_scaled_dot_product_flash_attention_backward _scaled_dot_product_flash_attention_for_cpu_backward
        _scaled_dot_product_efficient_attention_backward _scaled_dot_product_cudnn_attention_backward""",
    ),
    **_named(_looked_up, "embedding index_select"),
    **_named(_embedding_backward, "embedding_dense_backward"),
    **_named(_moved, "copy"),
    **_named(_copied, "clone cat contiguous roll flip"),
    **_named(_filled, "fill zero normal uniform bernoulli random exponential"),
    **_named(
        _reduction,
        """sum mean max min argmax argmin amax amin norm linalg_vector_norm var std var_mean prod all any
        nll_loss_forward nll_loss2d_forward mse_loss l1_loss count_nonzero logsumexp cumsum""",
    ),
    **_named(
        _elementwise,
        """native_layer_norm native_batch_norm native_group_norm cudnn_batch_norm miopen_batch_norm _softmax
        _log_softmax _native_batch_norm_legit _batch_norm_with_update _fused_rms_norm
        add sub rsub mul div pow sqrt rsqrt exp log log1p expm1 abs neg sign sin cos tanh sigmoid silu gelu relu
        leaky_relu elu selu celu hardtanh hardswish hardsigmoid softplus mish clamp clamp_min clamp_max where
        masked_fill lerp addcmul addcdiv maximum minimum eq ne lt le gt ge logical_and logical_or logical_not
        bitwise_and bitwise_or floor ceil round reciprocal square native_dropout erf threshold threshold_backward
        gelu_backward silu_backward sigmoid_backward tanh_backward leaky_relu_backward elu_backward hardtanh_backward
        hardswish_backward softplus_backward mish_backward tril triu masked_scatter remainder fmod atan2 nan_to_num""",
    ),
    **_named(
        _normalisation_backward,
        """native_layer_norm_backward native_batch_norm_backward native_group_norm_backward cudnn_batch_norm_backward
        miopen_batch_norm_backward _softmax_backward_data _log_softmax_backward_data native_dropout_backward
        mse_loss_backward nll_loss_backward nll_loss2d_backward max_pool2d_with_indices_backward
        _adaptive_avg_pool2d_backward avg_pool2d_backward upsample_nearest2d_backward""",
    ),
    **_named(_reduction, "max_pool2d_with_indices avg_pool2d _adaptive_avg_pool2d"),
    **_named(_fused_update, "_fused_adam _fused_adamw _fused_sgd _fused_adagrad"),
}
