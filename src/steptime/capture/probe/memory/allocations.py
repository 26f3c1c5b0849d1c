"""Recording allocations for a moment: by torch's profiler on a CPU, by the allocator's own history on a CUDA device."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

ERRORS = 2
"""GLOG's level of errors, as c10 has it (c10/util/Logging.h)."""
MOST_PARAMETERS = 900
"""Blocks from before that may be freed while torch's profiler counts memory: it warns at the first and at every
thousandth, on the user's stderr."""
MOST_ENTRIES = 100_000
"""Of the allocator's history: a few kilobytes each."""


def _level() -> Any:
    """c10's log level, as a variable in memory; None where the library does not show it."""
    library = os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so")
    try:
        return ctypes.c_int.in_dll(ctypes.CDLL(library), "FLAGS_caffe2_log_level")
    except (OSError, ValueError):
        return None


def quiet() -> bool:
    """Whether memory can be recorded without a warning of torch's on the user's stderr."""
    return _level() is not None


@contextmanager
def errors_only() -> Iterator[None]:
    """For a moment torch's libraries log nothing below errors."""
    level = _level()
    before = level.value
    level.value = max(before, ERRORS)
    try:
        yield
    finally:
        level.value = before


def begin_history() -> bool:
    """Starts the CUDA allocator's history with stacks of Python; False where there is none, or the user's own is on."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return False
    enabled = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    if enabled is None or enabled():
        return False
    torch.cuda.memory._record_memory_history(enabled="all", context="all", stacks="python", max_entries=MOST_ENTRIES)
    return True


def end_history(path: str) -> None:
    """Writes the history to `path`, if there is one, and ends it. Raises OSError."""
    try:
        if path:
            torch.cuda.memory._dump_snapshot(path + ".partial")
            os.replace(path + ".partial", path)
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
