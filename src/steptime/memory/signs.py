"""What a call stack says of an allocation: whose code asked for it, and in which part of the step.

Everything that this room knows of PyTorch's own files by name stands here.

What autocast does with the operator that asked for an allocation: its results in 16 bits, or kept in 32.

Operators are known from the C++ frames of a snapshot (`context="all"`, `stacks="all"`) and from a trace; a stack of
Python alone tells of torch's own modules and functions by their names, and of nothing else.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from steptime.arrays import Bool, Int8, Int32
from steptime.memory.snapshot import Stacks
from steptime.quantities import SourceLine
from steptime.trace.links import is_user_file

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


OPTIMIZER = re.compile(r"(^|/)(torch/optim|bitsandbytes/optim|apex/optimizers|deepspeed/ops/adam)/(?!lr_scheduler)")
OPTIMIZER_RANGE = re.compile(r"^Optimizer\.step(#|$)")
BACKWARD = re.compile(r"(^|/)torch/autograd/(graph|__init__)\.py$|(^|/)torch/_tensor\.py$")
BACKWARD_FUNCTIONS = frozenset({"_engine_run_backward", "backward", "grad"})
ENGINE = re.compile(r"^(torch::autograd::(Engine|Node|python::PythonEngine)|autograd::engine::)")
MODULE = re.compile(r"(^|/)torch/nn/modules/module\.py$")
MODULE_CALLS = frozenset({"_call_impl", "_wrapped_call_impl", "_slow_forward"})
MODULE_RANGE = re.compile(r"^nn\.Module: ")
MOVES = frozenset({"_apply", "to", "cuda", "to_empty", "half", "bfloat16", "float", "double"})
BUILDS = re.compile(r"(^|/)torch/(nn/modules/(?!module\.py)|nn/parameter\.py|nn/init\.py)")
TORCH = re.compile(r"(^|/)torch/")
ZERO_GRAD = re.compile(r"^(Optimizer\.)?zero_grad(#|$)")
OPERATORS = ("aten::", "autograd::engine::")
NO_PYTHON = re.compile(r"^<|^$|^\?\?$|\.(c|cc|cpp|cu|cuh|h|hpp)$")
"""A frame of no file, or of C, C++ or CUDA: torch writes those with lines where the interpreter has debug symbols."""


@dataclass(frozen=True, slots=True, eq=False)
class Signs:
    """What is known of each stack."""

    python: Bool
    """It holds a frame of Python."""
    optimizer: Bool
    """Inside an optimiser's step."""
    backward: Bool
    """Run by autograd."""
    module: Bool
    """Inside a module's call."""
    build: Bool
    """A module is made or moved."""
    zero_grad: Bool
    operators: Bool
    """It holds an operator of torch's, in C++ or in a trace."""
    cast: Bool
    """Autocast converts a tensor."""
    gather: Bool
    """An embedding, or its gradient."""
    made: Bool
    """Inside an `__init__`."""
    line: tuple[SourceLine | None, ...]
    """The innermost of the user's code, else of a library's outside torch, else an operator without file or line."""
    module_path: tuple[str, ...]
    """The modules that were being called, see `breakdown.ModuleUse`; "" where the stack names none."""

    def at(self, column: Bool, stacks: np.ndarray[tuple[int], np.dtype[np.int32]]) -> Bool:
        """A column for stacks; False for NO_STACK."""
        found: Bool = np.append(column, False)[stacks]
        return found


def signs_of(stacks: Stacks) -> Signs:
    """Looks at every stack once, and at every frame once."""
    begin, end = stacks.begin[:-1], stacks.begin[1:]

    def anywhere(marked: Bool) -> Bool:
        total = np.concatenate(([0], np.cumsum(marked[stacks.member])))
        found: Bool = total[end] > total[begin]
        return found

    columns = {name: anywhere(_marks(stacks.frames, test)) for name, test in SIGNS.items()}
    return Signs(cast=casts_of(stacks), line=_lines(stacks), module_path=_module_paths(stacks), **columns)


def _marks(frames: tuple[SourceLine, ...], test: Callable[[SourceLine], object]) -> Bool:
    return np.fromiter((bool(test(frame)) for frame in frames), np.bool_, len(frames))


def _is_python(frame: SourceLine) -> bool:
    return (frame.line > 0 or frame.file.endswith(".py")) and not NO_PYTHON.search(frame.file)


def _is_optimizer(frame: SourceLine) -> bool:
    return bool(OPTIMIZER.search(frame.file) or OPTIMIZER_RANGE.match(frame.function))


def _is_backward(frame: SourceLine) -> bool:
    in_python = frame.function in BACKWARD_FUNCTIONS and BACKWARD.search(frame.file)
    return bool(in_python or ENGINE.match(frame.function))


def _is_module_call(frame: SourceLine) -> bool:
    called = frame.function in MODULE_CALLS and MODULE.search(frame.file)
    return bool(called or MODULE_RANGE.match(frame.function))


def _is_build(frame: SourceLine) -> bool:
    moved = frame.function in MOVES and MODULE.search(frame.file)
    made = frame.function in ("__init__", "__new__", "reset_parameters") and BUILDS.search(frame.file)
    return bool(moved or made or re.search(r"(^|/)torch/nn/init\.py$", frame.file))


SIGNS: dict[str, Callable[[SourceLine], object]] = {
    "python": _is_python,
    "optimizer": _is_optimizer,
    "backward": _is_backward,
    "module": _is_module_call,
    "build": _is_build,
    "zero_grad": lambda frame: ZERO_GRAD.match(frame.function),
    "operators": operator_name,
    "gather": lambda frame: operator_name(frame) in GATHERED,
    "made": lambda frame: frame.function == "__init__" and _is_python(frame),
}
"""What one frame says of the stacks that it is in."""


def _module_paths(stacks: Stacks) -> tuple[str, ...]:
    """Of every stack; an allocator's snapshot has no names of modules."""
    names = [
        MODULE_RANGE.sub("", frame.function) if MODULE_RANGE.match(frame.function) else "" for frame in stacks.frames
    ]
    if not any(names):
        return ("",) * len(stacks)
    members = [stacks.member[begin:end].tolist() for begin, end in itertools.pairwise(stacks.begin.tolist())]
    return tuple("/".join(names[member] for member in reversed(inner) if names[member]) for inner in members)


def _lines(stacks: Stacks) -> tuple[SourceLine | None, ...]:
    """The line of every stack, by the first kind of frame that it has."""
    frames = stacks.frames
    python = _marks(frames, _is_python)
    user = python & _marks(frames, lambda frame: is_user_file(frame.file))
    torch = _marks(frames, lambda frame: TORCH.search(frame.file))
    operator = _marks(frames, lambda frame: frame.function.startswith(OPERATORS))

    def line(members: Int32) -> SourceLine | None:
        for wanted in (user, python & ~torch, python, operator):
            found = np.flatnonzero(wanted[members])
            if len(found):
                return _as_far_as_known(stacks, frames[int(members[found[0]])])
        return None

    return tuple(line(stacks.member[begin:end]) for begin, end in itertools.pairwise(stacks.begin.tolist()))


def _as_far_as_known(stacks: Stacks, frame: SourceLine) -> SourceLine:
    """A line that is a definition says so: it is not the one that was running."""
    if not stacks.definitions or not frame.line:
        return frame
    return SourceLine(frame.file, frame.line, f"def {frame.function}")
