"""What a call stack says of an allocation: whose code asked for it, and in which part of the step.

Everything that this room knows of PyTorch's own files by name stands here.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from steptime.arrays import Bool
from steptime.links.frames import is_user_file
from steptime.memory.operators import GATHERED, casts_of, operator_name
from steptime.quantities import SourceLine
from steptime.snapshots.snapshot import Stacks

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
CHECKPOINT = re.compile(r"(^|/)torch/utils/checkpoint\.py$")
LOADER = re.compile(r"(^|/)torch/utils/data/")
ZERO_GRAD = re.compile(r"^(Optimizer\.)?zero_grad(#|$)")
OPERATORS = ("aten::", "autograd::engine::")
NO_PYTHON = re.compile(r"^<|^$|^\?\?$|\.(c|cc|cpp|cu|cuh|h|hpp)$")
"""A frame of no file, or of C, C++ or CUDA: torch writes those with lines where the interpreter has debug symbols."""


@dataclass(frozen=True, slots=True, eq=False)
class Signs:
    """By stack. python: it holds a frame of Python. optimizer: inside an optimiser's step. backward: run by autograd.
    module: inside a module's call. build: a module is made or moved. checkpoint: inside torch.utils.checkpoint.
    loader: inside a DataLoader. zero_grad: inside a zero_grad. line: the innermost line of the user's code, else of a
    library's outside torch, else an operator without file or line; None without. operators: it holds an operator of
    torch's, in C++ or in a trace. cast: autocast converts a tensor. gather: an embedding, or its gradient. made: inside
    an `__init__`. module_path: the modules that were
    being called, see account.ModuleUse; "" where the stack names none."""

    python: Bool
    optimizer: Bool
    backward: Bool
    module: Bool
    build: Bool
    checkpoint: Bool
    loader: Bool
    zero_grad: Bool
    operators: Bool
    cast: Bool
    gather: Bool
    made: Bool
    line: tuple[SourceLine | None, ...]
    module_path: tuple[str, ...]

    def at(self, column: Bool, stacks: np.ndarray[tuple[int], np.dtype[np.int32]]) -> Bool:
        """A column for stacks; False for NO_STACK."""
        found: Bool = np.append(column, False)[stacks]
        return found


def signs_of(stacks: Stacks) -> Signs:
    """Looks at every stack once, and at every frame once."""
    frames = _FrameSigns(stacks.frames)
    begin, end = stacks.begin[:-1], stacks.begin[1:]

    def anywhere(marked: Bool) -> Bool:
        total = np.concatenate(([0], np.cumsum(marked[stacks.member])))
        found: Bool = total[end] > total[begin]
        return found

    return Signs(
        python=anywhere(frames.python),
        optimizer=anywhere(frames.optimizer),
        backward=anywhere(frames.backward),
        module=anywhere(frames.module),
        build=anywhere(frames.build),
        checkpoint=anywhere(frames.checkpoint),
        loader=anywhere(frames.loader),
        zero_grad=anywhere(frames.zero_grad),
        operators=anywhere(frames.names_operator),
        cast=casts_of(stacks),
        gather=anywhere(frames.gather),
        made=anywhere(frames.made),
        line=tuple(_line(stacks, frames, stack) for stack in range(len(stacks))),
        module_path=_module_paths(stacks),
    )


class _FrameSigns:
    """The same by frame."""

    def __init__(self, frames: tuple[SourceLine, ...]) -> None:
        self.python = _marks(frames, _is_python)
        self.optimizer = _marks(frames, _is_optimizer)
        self.backward = _marks(frames, _is_backward)
        self.module = _marks(frames, _is_module_call)
        self.build = _marks(frames, _is_build)
        self.checkpoint = _marks(frames, lambda frame: bool(CHECKPOINT.search(frame.file)))
        self.loader = _marks(frames, lambda frame: bool(LOADER.search(frame.file)))
        self.operator = _marks(frames, lambda frame: frame.function.startswith(OPERATORS))
        self.names_operator = _marks(frames, lambda frame: bool(operator_name(frame)))
        self.gather = _marks(frames, lambda frame: operator_name(frame) in GATHERED)
        self.made = _marks(frames, lambda frame: frame.function == "__init__" and _is_python(frame))
        self.zero_grad = _marks(frames, lambda frame: bool(ZERO_GRAD.match(frame.function)))
        self.user = _marks(frames, lambda frame: _is_python(frame) and is_user_file(frame.file))
        self.torch = _marks(frames, lambda frame: bool(re.search(r"(^|/)torch/", frame.file)))


def _marks(frames: tuple[SourceLine, ...], test: Callable[[SourceLine], bool]) -> Bool:
    return np.fromiter(map(test, frames), np.bool_, len(frames))


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


def _module_paths(stacks: Stacks) -> tuple[str, ...]:
    """Of every stack; an allocator's snapshot has no names of modules."""
    names = [
        MODULE_RANGE.sub("", frame.function) if MODULE_RANGE.match(frame.function) else "" for frame in stacks.frames
    ]
    if not any(names):
        return ("",) * len(stacks)
    members = [stacks.member[begin:end].tolist() for begin, end in itertools.pairwise(stacks.begin.tolist())]
    return tuple("/".join(names[member] for member in reversed(inner) if names[member]) for inner in members)


def _line(stacks: Stacks, frames: _FrameSigns, stack: int) -> SourceLine | None:
    members = stacks.member[stacks.begin[stack] : stacks.begin[stack + 1]]
    for wanted in (frames.user, frames.python & ~frames.torch, frames.python, frames.operator):
        found = np.flatnonzero(wanted[members])
        if len(found):
            return _as_far_as_known(stacks, stacks.frames[int(members[found[0]])])
    return None


def _as_far_as_known(stacks: Stacks, frame: SourceLine) -> SourceLine:
    """A line that is a definition says so: it is not the one that was running."""
    if not stacks.definitions or not frame.line:
        return frame
    return SourceLine(frame.file, frame.line, f"def {frame.function}")
