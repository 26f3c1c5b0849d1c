"""Keeps TorchDynamo out of the probe's own functions.

While a compiled function runs, Dynamo compiles every called Python frame that is not torch's or the standard library's.
For ours that would add graphs to the user's job and warnings about the clock to its stderr. Dynamo runs a marked code
object as it is, and still looks at the functions that it calls.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from steptime.probe.sites import codes_in

OURS = ("steptime.probe", "steptime.journal")
TRACED = "steptime.probe.changes.traceable"
"""The one module of ours that runs inside compiled regions and should be compiled with them."""
AMONG_THEMSELVES = tuple(f"steptime.probe.{name}" for name in ("discovery", "lines", "sampling", "sites"))
"""Modules whose functions Python calls in the middle of compiled ones, and which call nothing of the job's. Dynamo must
not count the standard library functions that they call among the job's frames."""


def hide_from_dynamo() -> None:
    """Marks the code of all loaded modules of ours. Does nothing if torch has no way to mark code.

    Works without importing torch._dynamo, which takes a second (torch 2.4 to 2.13)."""
    mark = _marker()
    if mark is None:
        return
    for name, module in list(sys.modules.items()):
        if name.startswith(OURS) and name != TRACED:
            for code in _codes(module):
                mark(code, name in AMONG_THEMSELVES)


def in_compiled_call() -> bool:
    """True if a compiled function runs in this thread, and Dynamo looks at called frames. torch keeps a range of its
    own open around it, which no window of the profiler may outlast (see `profiling`)."""
    frames: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    switch = getattr(frames, "set_eval_frame", None)
    if switch is None or "torch._dynamo" not in sys.modules:
        return False
    callback = switch(None)
    switch(callback)
    return callback is not None


def _marker() -> Callable[[types.CodeType, bool], Any] | None:
    """Returns a function that marks a code object and, if torch can and the flag is set, all that it calls; None if
    torch cannot mark code."""
    frames: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    older: Callable[[types.CodeType], Any] | None = getattr(frames, "skip_code", None)
    if older is not None:  # torch < 2.7
        return lambda code, _: older(code)
    if not hasattr(frames, "set_code_exec_strategy"):
        return None
    skip, usual = frames._FrameAction.SKIP, frames._FrameAction.DEFAULT
    strategies = [frames._FrameExecStrategy(skip, called) for called in (usual, skip)]
    return lambda code, whole: frames.set_code_exec_strategy(code, strategies[whole])


def _codes(module: types.ModuleType) -> Iterator[types.CodeType]:
    for value in list(vars(module).values()):
        members = list(vars(value).values()) if isinstance(value, type) else [value]
        for member in members:
            function = getattr(member, "fget", None) or getattr(member, "__func__", None) or member
            function = getattr(function, "__wrapped__", function)  # of functools.cache
            if isinstance(function, types.FunctionType) and function.__module__ == module.__name__:
                yield from codes_in(function.__code__)
