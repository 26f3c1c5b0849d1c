"""What autocast does with the operator that asked for an allocation: its results in 16 bits, or kept in 32.

Operators are known from the C++ frames of a snapshot (`context="all"`, `stacks="all"`) and from a trace; a stack of
Python alone tells of torch's own modules and functions by their names, and of nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import IntEnum

import numpy as np

from steptime.arrays import Bool, Int8
from steptime.quantities import SourceLine
from steptime.snapshots.snapshot import Stacks

Policies = Int8


class Policy(IntEnum):
    """Of an allocation under autocast. UNKNOWN: no operator and no module of torch's is in its stack."""

    UNKNOWN = 0
    HALVED = 1
    KEPT = 2


OPERATOR = re.compile(r"^(?:at::_ops::(?P<call>\w+?)::(?:call|redispatch)|aten::(?P<traced>\w+))")
CAST = re.compile(r"^at::autocast::cached_cast")
_PRODUCTS = """
addbmm addmm addmv addr baddbmm bmm chain_matmul conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d
conv_transpose3d convolution _convolution einsum gru_cell linear linalg_multi_dot lstm_cell matmul mm mv prelu
rnn_tanh_cell scaled_dot_product_attention
"""
PRODUCTS = frozenset(_PRODUCTS.split())
"""Cast to 16 bits (at/autocast_mode.h: AT_FORALL_LOWER_PRECISION_FP), with what they are made of."""
_KEEPERS = """
exp expm1 log log10 log1p log2 logsumexp pow reciprocal rsqrt sqrt softmax _softmax log_softmax _log_softmax softplus
layer_norm native_layer_norm group_norm native_group_norm rms_norm _fused_rms_norm cross_entropy_loss nll_loss
nll_loss_nd mse_loss l1_loss smooth_l1_loss kl_div binary_cross_entropy_with_logits norm cumsum cumprod prod sum mean
var var_mean std embedding index index_select gather add add_ sub rsub
"""
KEEPERS = frozenset(_KEEPERS.split())
"""Cast to 32 bits there (AT_FORALL_FP32), or fed by what is not halved."""
STREAM = frozenset(["add", "add_", "sub", "rsub"])
NORMS = frozenset(["layer_norm", "native_layer_norm", "group_norm", "native_group_norm", "rms_norm", "_fused_rms_norm"])
ROUNDED_ON_CPU = frozenset(["exp", "expm1", "softmax", "_softmax", "log_softmax", "_log_softmax", "logsumexp", "sum"])
"""No part of the list of a CPU's autocast (at/autocast_mode.h: AT_FORALL_FP32 is of CUDA's alone)."""
SPREADS = frozenset(["rsqrt", "sqrt", "var", "var_mean", "std", "norm", "linalg_vector_norm"])
"""What every normalisation that is written by hand computes; its products by the scale stay in 32 bits, too."""
NORM_PRODUCTS = frozenset(["mul", "div"])
FULL_MODULES = re.compile(r"(^|/)torch/nn/modules/(normalization|loss|sparse)\.py$")
HALVED_MODULES = re.compile(r"(^|/)torch/nn/modules/(linear|conv|activation|batchnorm|dropout|pooling)\.py$")
FULL_FUNCTIONS = re.compile(r"(softmax|layer_norm|group_norm|rms_norm|cross_entropy|nll_loss|mse_loss|embedding)$")
"""Also of the user's own: a softmax by hand is of exponentials, which stay in 32 bits."""
GATHERED = frozenset(
    ["embedding", "embedding_backward", "embedding_dense_backward", "index_put", "index_put_", "_index_put_impl_"]
)
"""Rows of a weight, or the gradient of them: such a weight is looked up, and never cast."""
LOOKUPS = GATHERED | {"index", "index_select"}
"""The same, also where it is written by hand."""


def policies_of(stacks: Stacks, cpu: bool) -> Policies:
    """Of every stack. cpu: it is a CPU's, whose autocast leaves norms, softmax and exponentials to what comes in.

    A model that begins with an embedding has its residual stream in float32, and the sums and norms on it; in one that
    begins with a product they are in 16 bits."""
    names = tuple(operator_name(frame) for frame in stacks.frames)
    kept = KEEPERS - (ROUNDED_ON_CPU if cpu else frozenset())
    if LOOKUPS.isdisjoint(names):
        kept -= STREAM | (NORMS if cpu else frozenset())
    normalising = _normalising(stacks, names)
    return np.array([_policy(stacks, stack, names, kept, normalising) for stack in range(len(stacks))], np.int8)


def casts_of(stacks: Stacks) -> Bool:
    """Stacks of casts that autocast made: in C++ by its own function, in a trace as a conversion that a product calls
    itself."""
    names = tuple(operator_name(frame) for frame in stacks.frames)
    return np.array([_is_cast(stacks, stack, names) for stack in range(len(stacks))], np.bool_)


def operator_name(frame: SourceLine) -> str:
    """ "mul" of at::_ops::mul_Tensor::call and of aten::mul; "" for what is no operator."""
    found = OPERATOR.match(frame.function)
    if not found:
        return ""
    if found["traced"]:
        return found["traced"]
    name = found["call"]
    return name if name in KEEPERS or name in PRODUCTS or name in GATHERED else _without_overload(name)


def _without_overload(name: str) -> str:
    """at::_ops names an overload behind the operator: sum_dim_IntList, mul_Tensor."""
    parts = name.split("_")
    for end in range(len(parts) - 1, 0, -1):
        shorter = "_".join(parts[:end])
        if shorter in KEEPERS or shorter in PRODUCTS or shorter in NORM_PRODUCTS or shorter in GATHERED:
            return shorter
    return name


def _operators(stacks: Stacks, stack: int, names: tuple[str, ...]) -> Iterator[str]:
    """The operators of a stack inside its innermost line of Python, the innermost first."""
    for member in stacks.member[stacks.begin[stack] : stacks.begin[stack + 1]].tolist():
        if names[member]:
            yield names[member]
        elif _named(stacks.frames[member]):
            return


def _named(frame: SourceLine) -> bool:
    return frame.file.endswith(".py")


def _caller(stacks: Stacks, stack: int) -> tuple[object, ...]:
    """The call of a function of Python that a stack is in: its callers, its file and its name."""
    members = stacks.member[stacks.begin[stack] : stacks.begin[stack + 1]].tolist()
    python = [member for member in members if _named(stacks.frames[member])]
    if not python:
        return ()
    inner = stacks.frames[python[0]]
    return (inner.file, inner.function, *python[1:])


def _normalising(stacks: Stacks, names: tuple[str, ...]) -> frozenset[tuple[object, ...]]:
    """Calls of functions that compute a spread: normalisations by hand."""
    found = set()
    for stack in range(len(stacks)):
        if any(name in SPREADS for name in _operators(stacks, stack, names)):
            found.add(_caller(stacks, stack))
    return frozenset(found - {()})


def _policy(
    stacks: Stacks,
    stack: int,
    names: tuple[str, ...],
    kept: frozenset[str],
    normalising: frozenset[tuple[object, ...]],
) -> Policy:
    operators = tuple(_operators(stacks, stack, names))
    if operators:
        if any(name in PRODUCTS for name in operators):
            return Policy.HALVED
        if any(name in kept for name in operators):
            return Policy.KEPT
        in_norm = any(name in NORM_PRODUCTS for name in operators) and _caller(stacks, stack) in normalising
        return Policy.KEPT if in_norm else Policy.HALVED
    return _by_module(stacks.of(stack))


def _by_module(frames: tuple[SourceLine, ...]) -> Policy:
    for frame in frames:
        if FULL_MODULES.search(frame.file) or FULL_FUNCTIONS.search(frame.function):
            return Policy.KEPT
        if HALVED_MODULES.search(frame.file):
            return Policy.HALVED
        if _named(frame) and "/torch/" not in frame.file:
            return Policy.UNKNOWN
    return Policy.UNKNOWN


def _is_cast(stacks: Stacks, stack: int, names: tuple[str, ...]) -> bool:
    if any(CAST.match(frame.function) for frame in stacks.of(stack)):
        return True
    operators = tuple(_operators(stacks, stack, names))
    if "to" not in operators[:-1] or "_to_copy" not in operators:
        return False
    return operators[operators.index("to") + 1] in PRODUCTS  # what a product is composed of may convert scalars
