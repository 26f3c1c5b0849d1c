"""Short records of allocations: by torch's profiler on a CPU, by the allocator's own history on a CUDA device."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from steptime.probe import device
from steptime.probe.memory.living import TENSOR, gradient_function, tensors
from steptime.probe.ours import pass_on

REQUIRES = TENSOR.requires_grad
ERRORS = 2
"""GLOG's level of errors, as in c10 (c10/util/Logging.h)."""
MOST_FREED = 900
"""Most older blocks that may be freed while torch's profiler counts memory, in all windows of a process: it warns at
the first and at every thousandth, on the user's stderr (c10/core/CPUAllocator.cpp)."""
OTHERS = 100
"""Older blocks that a step frees besides its gradients: the batch, the loss, values of the step before."""
MOST_ENTRIES = 100_000
"""Entries of the allocator's history, a few kilobytes each."""


def _level() -> Any:
    """Returns c10's log level as a variable in memory; None if the library hides it."""
    library = os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so")
    try:
        return ctypes.c_int.in_dll(ctypes.CDLL(library), "FLAGS_caffe2_log_level")
    except (OSError, ValueError) as error:
        pass_on(error)
        return None


class _AllocationsState:
    """Process-wide state. freed: older blocks that windows may have freed so far."""

    freed = 0


def claim(trained: Iterable[Any]) -> bool:
    """True if a step's memory can be recorded without a warning of torch's on the user's stderr; then counts the blocks
    that the step may free. trained: known parameters; without any, all tensors are searched, which takes a tenth of a
    second."""
    gradients = _gradients(list(trained))
    if _level() is None or gradients is None or _AllocationsState.freed + gradients + OTHERS > MOST_FREED:
        return False
    _AllocationsState.freed += gradients + OTHERS
    return True


def _gradients(trained: list[Any]) -> int | None:
    """Returns the number of CPU tensors with gradients, each a block that the next step may free; None for none."""
    with torch._C.DisableTorchFunction():  # what tensors of the job's own classes would be asked by
        leaves = [each for each in trained or tensors() if REQUIRES.__get__(each) and gradient_function(each) is None]
        return sum(each.device.type == "cpu" for each in leaves) if leaves else None


@contextmanager
def errors_only() -> Iterator[None]:
    """Context manager in which torch's libraries log errors only."""
    level = _level()
    before = level.value
    level.value = max(before, ERRORS)
    try:
        yield
    finally:
        level.value = before


def start_history() -> bool:
    """Starts the CUDA allocator's history with Python stacks; False without CUDA, or if the user's own is on."""
    if not device.in_use():
        return False
    enabled = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    if enabled is None or enabled():
        return False
    torch.cuda.memory._record_memory_history(enabled="all", context="all", stacks="python", max_entries=MOST_ENTRIES)
    return True


def end_history(path: str) -> None:
    """Ends the history, after writing it to `path` unless that is "". Raises OSError."""
    try:
        if path:
            torch.cuda.memory._dump_snapshot(path + ".partial")
            os.replace(path + ".partial", path)
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
