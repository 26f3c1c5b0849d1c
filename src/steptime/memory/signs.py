"""Signs in a call stack about an allocation: whose code asked for it, in which part of the step, and what autocast does
with the operator that asked.

All that this room knows of PyTorch's own files by name is here. Operators are known from the C++ frames of a snapshot
(`context="all"`, `stacks="all"`) and from a trace. A stack of Python alone shows only torch's own modules and functions
by name.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial

import numpy as np

from steptime.arrays import Bool, Int8, Int32
from steptime.memory.snapshot import Stacks
from steptime.quantities import SourceLine
from steptime.trace.links import is_user_file


class Policy(IntEnum):
    """dtype policy of autocast for an allocation. UNKNOWN: its stack contains no operator and no module of torch's."""

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
"""Operators that autocast runs in 16 bits (at/autocast_mode.h: AT_FORALL_LOWER_PRECISION_FP), and their parts."""
_HOLDERS = """
exp expm1 log log10 log1p log2 logsumexp pow reciprocal rsqrt sqrt softmax _softmax log_softmax _log_softmax softplus
layer_norm native_layer_norm group_norm native_group_norm rms_norm _fused_rms_norm cross_entropy_loss nll_loss
nll_loss_nd mse_loss l1_loss smooth_l1_loss kl_div binary_cross_entropy_with_logits norm cumsum cumprod prod sum mean
var var_mean std embedding index index_select gather add add_ sub rsub
"""
HOLDERS = frozenset(_HOLDERS.split())
"""Operators that autocast runs in 32 bits (AT_FORALL_FP32), or whose inputs are not halved."""
STREAM = frozenset(["add", "add_", "sub", "rsub"])
NORMS = frozenset(["layer_norm", "native_layer_norm", "group_norm", "native_group_norm", "rms_norm", "_fused_rms_norm"])
ROUNDED_ON_CPU = frozenset(["exp", "expm1", "softmax", "_softmax", "log_softmax", "_log_softmax", "logsumexp", "sum"])
"""Operators that a CPU's autocast does not keep in 32 bits (at/autocast_mode.h: AT_FORALL_FP32 is for CUDA only)."""
SPREADS = frozenset(["rsqrt", "sqrt", "var", "var_mean", "std", "norm", "linalg_vector_norm"])
"""Operators of every hand-written normalisation, whose products by the scale stay in 32 bits too."""
NORM_PRODUCTS = frozenset(["mul", "div"])
FULL_MODULES = re.compile(r"(^|/)torch/nn/modules/(normalization|loss|sparse)\.py$")
HALVED_MODULES = re.compile(r"(^|/)torch/nn/modules/(linear|conv|activation|batchnorm|dropout|pooling)\.py$")
FULL_FUNCTIONS = re.compile(r"(softmax|layer_norm|group_norm|rms_norm|cross_entropy|nll_loss|mse_loss|embedding)$")
"""Functions that stay in 32 bits, including the user's own: a hand-written softmax consists of exponentials."""
GATHERED = frozenset(
    ["embedding", "embedding_backward", "embedding_dense_backward", "index_put", "index_put_", "_index_put_impl_"]
)
"""Operators on rows of a weight, or on their gradient: such a weight is looked up and never cast."""
LOOKUPS = GATHERED | {"index", "index_select"}
"""Operators that look up a weight, including hand-written lookups."""
KNOWN = HOLDERS | PRODUCTS | GATHERED


def policies_of(stacks: Stacks, cpu: bool) -> Int8:
    """Autocast policy of every stack. cpu: True for stacks of a CPU, where autocast runs norms, softmax and
    exponentials in the dtype of their inputs.

    A model that starts with an embedding has its residual stream in float32, with sums and norms on it; if it starts
    with a matmul, they are in 16 bits."""
    names = tuple(map(operator_name, stacks.frames))
    kept = HOLDERS - (ROUNDED_ON_CPU if cpu else frozenset())
    if LOOKUPS.isdisjoint(names):
        kept -= STREAM | (NORMS if cpu else frozenset())
    operators = _operators(stacks, names)
    callers = [_caller(stacks, stack) for stack in range(len(stacks))]
    normalising = {caller for caller, inner in zip(callers, operators, strict=True) if not SPREADS.isdisjoint(inner)}
    normalising.discard(())

    def policy(stack: int) -> Policy:
        inner = operators[stack]
        if not inner:
            return _by_module(stacks.of(stack))
        if not PRODUCTS.isdisjoint(inner):
            return Policy.HALVED
        in_norm = callers[stack] in normalising and not NORM_PRODUCTS.isdisjoint(inner)
        return Policy.KEPT if in_norm or not kept.isdisjoint(inner) else Policy.HALVED

    return np.array([policy(stack) for stack in range(len(stacks))], np.int8)


def operator_name(frame: SourceLine) -> str:
    """Operator that a frame runs: "mul" for at::_ops::mul_Tensor::call and for aten::mul; "" if none."""
    found = OPERATOR.match(frame.function)
    if not found:
        return ""
    if found["traced"]:
        return found["traced"]
    name, parts = found["call"], found["call"].split("_")
    if name in KNOWN:
        return name
    # at::_ops names an overload behind the operator: sum_dim_IntList, mul_Tensor.
    shorter = ("_".join(parts[:end]) for end in range(len(parts) - 1, 0, -1))
    return next((each for each in shorter if each in KNOWN or each in NORM_PRODUCTS), name)


def _operators(stacks: Stacks, names: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Operators inside the innermost Python line of every stack, the innermost first."""
    python = [_in_python(frame) for frame in stacks.frames]
    found = []
    for members in _members(stacks):
        inner = itertools.takewhile(lambda member: names[member] or not python[member], members)
        found.append(tuple(names[member] for member in inner if names[member]))
    return found


def _members(stacks: Stacks) -> Iterator[list[int]]:
    """Numbers of the frames of every stack, the innermost first."""
    for start, end in itertools.pairwise(stacks.start.tolist()):
        yield stacks.member[start:end].tolist()


def _in_python(frame: SourceLine) -> bool:
    return frame.file.endswith(".py")


def _caller(stacks: Stacks, stack: int) -> tuple[object, ...]:
    """Call of a Python function that a stack is in: its file, its name and its callers."""
    python = [frame for frame in stacks.of(stack) if _in_python(frame)]
    return (python[0].file, python[0].function, *python[1:]) if python else ()


def _by_module(frames: tuple[SourceLine, ...]) -> Policy:
    for frame in frames:
        if FULL_MODULES.search(frame.file) or FULL_FUNCTIONS.search(frame.function):
            return Policy.KEPT
        if HALVED_MODULES.search(frame.file):
            return Policy.HALVED
        if _in_python(frame) and "/torch/" not in frame.file:
            break
    return Policy.UNKNOWN


def _casts(stacks: Stacks) -> Bool:
    """Mask of the stacks in a cast by autocast: of its C++ function, or in a trace of a conversion inside a matmul."""
    by_function = _anywhere(stacks, lambda frame: CAST.match(frame.function))
    operators = _operators(stacks, tuple(map(operator_name, stacks.frames)))
    converted = [
        "to" in inner[:-1] and "_to_copy" in inner and inner[inner.index("to") + 1] in PRODUCTS for inner in operators
    ]  # what a matmul is composed of may convert scalars
    casts: Bool = by_function | np.array(converted, np.bool_)
    return casts


MODULE_RANGE = re.compile(r"^nn\.Module: ")
MODULE_FILE = r"(^|/)torch/nn/modules/module\.py$"
PLACES = {
    "optimizer": (
        (r"(^|/)(torch/optim|bitsandbytes/optim|apex/optimizers|deepspeed/ops/adam)/(?!lr_scheduler)", ""),
        ("", r"^Optimizer\.step(#|$)"),
    ),
    "backward": (
        (r"(^|/)torch/(autograd/(graph|__init__)|_tensor)\.py$", r"^(_engine_run_backward|backward|grad)$"),
        ("", r"^(torch::autograd::(Engine|Node|python::PythonEngine)|autograd::engine::)"),
    ),
    "module": ((MODULE_FILE, r"^(_call_impl|_wrapped_call_impl|_slow_forward)$"), ("", MODULE_RANGE.pattern)),
    "build": (
        (MODULE_FILE, r"^(_apply|to|cuda|to_empty|half|bfloat16|float|double)$"),
        (r"(^|/)torch/nn/(modules/(?!module\.py)|parameter\.py)", r"^(__init__|__new__|reset_parameters)$"),
        (r"(^|/)torch/nn/init\.py$", ""),
    ),
    "zero_grad": (("", r"^(Optimizer\.)?zero_grad(#|$)"),),
}
"""(file, function) patterns by sign: a stack has the sign if one of its frames matches both."""
TORCH = re.compile(r"(^|/)torch/")
OPERATORS = ("aten::", "autograd::engine::")
NO_PYTHON = re.compile(r"^<|^$|^\?\?$|\.(c|cc|cpp|cu|cuh|h|hpp)$")
"""Files of frames outside of Python: none, or C, C++ or CUDA, which torch writes with lines if the interpreter has
debug symbols."""


@dataclass(frozen=True, slots=True, eq=False)
class Signs:
    """Masks and texts on each call stack. python: it contains a Python frame. optimizer: it is in an optimizer's step.
    backward: autograd runs it. module: it is in a module's call. build: it makes or moves a module. zero_grad: it is in
    zero_grad. operators: it contains an operator of torch's, in C++ or in a trace. cast: autocast converts a tensor.
    gather: it runs an embedding or its gradient. made: it is in an `__init__`. line: innermost line of the user's code,
    else of a library outside torch, else an operator without file or line. module_path: modules being called, as in
    `breakdown.ModuleMemory`; "" if unknown."""

    python: Bool
    optimizer: Bool
    backward: Bool
    module: Bool
    build: Bool
    zero_grad: Bool
    operators: Bool
    cast: Bool
    gather: Bool
    made: Bool
    line: tuple[SourceLine | None, ...]
    module_path: tuple[str, ...]

    def at(self, column: Bool, stacks: Int32) -> Bool:
        """Values of a column (one of the masks) at some stacks; False for NO_STACK."""
        found: Bool = np.append(column, False)[stacks]
        return found


def signs_of(stacks: Stacks) -> Signs:
    """Signs of all stacks, found in one pass over the frames."""
    columns = {name: _anywhere(stacks, test) for name, test in SIGNS.items()}
    for name, places in PLACES.items():
        patterns = [(re.compile(file), re.compile(function)) for file, function in places]
        columns[name] = _anywhere(stacks, partial(_is_at, patterns))
    return Signs(cast=_casts(stacks), line=_lines(stacks), module_path=_module_paths(stacks), **columns)


def _is_at(patterns: Sequence[tuple[re.Pattern[str], re.Pattern[str]]], frame: SourceLine) -> bool:
    return any(file.search(frame.file) and function.search(frame.function) for file, function in patterns)


def _anywhere(stacks: Stacks, test: Callable[[SourceLine], object]) -> Bool:
    """Mask of the stacks with a frame that passes a test."""
    total = np.concatenate(([0], np.cumsum(_marks(stacks.frames, test)[stacks.member])))
    found: Bool = total[stacks.start[1:]] > total[stacks.start[:-1]]
    return found


def _marks(frames: tuple[SourceLine, ...], test: Callable[[SourceLine], object]) -> Bool:
    return np.fromiter((bool(test(frame)) for frame in frames), np.bool_, len(frames))


def _is_python(frame: SourceLine) -> bool:
    return (frame.line > 0 or frame.file.endswith(".py")) and not NO_PYTHON.search(frame.file)


SIGNS: dict[str, Callable[[SourceLine], object]] = {
    "python": _is_python,
    "operators": operator_name,
    "gather": lambda frame: operator_name(frame) in GATHERED,
    "made": lambda frame: frame.function == "__init__" and _is_python(frame),
}
"""Tests of one frame for further signs of its stacks."""


def _module_paths(stacks: Stacks) -> tuple[str, ...]:
    """Module path of every stack; an allocator's snapshot has no module names."""
    names = [
        MODULE_RANGE.sub("", frame.function) if MODULE_RANGE.match(frame.function) else "" for frame in stacks.frames
    ]
    if not any(names):
        return ("",) * len(stacks)
    return tuple("/".join(names[member] for member in reversed(inner) if names[member]) for inner in _members(stacks))


def _lines(stacks: Stacks) -> tuple[SourceLine | None, ...]:
    """Line of every stack, from the first kind of frame that it has: user's, library's, torch's, operator."""
    frames = stacks.frames
    python = _marks(frames, _is_python)
    user = python & _marks(frames, lambda frame: is_user_file(frame.file))
    torch = _marks(frames, lambda frame: TORCH.search(frame.file))
    operator = _marks(frames, lambda frame: frame.function.startswith(OPERATORS))

    def line(members: list[int]) -> SourceLine | None:
        for wanted in (user, python & ~torch, python, operator):
            found = next((member for member in members if wanted[member]), None)
            if found is not None:
                frame = frames[found]
                # A line that is a definition says so: it is not the one that was running.
                defined = stacks.definitions and frame.line
                return SourceLine(frame.file, frame.line, f"def {frame.function}") if defined else frame
        return None

    return tuple(map(line, _members(stacks)))
