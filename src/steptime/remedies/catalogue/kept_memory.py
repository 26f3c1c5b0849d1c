"""RM402: memory of the CPU that is kept instead of given back."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator

from steptime.capture.before_start import PRELOAD, find_library
from steptime.changes import Change
from steptime.findings.case import Case, OperatorUse
from steptime.remedies.remedy import EnvironmentEdit, Option, Promise, remedy

LARGEST_KEPT = 32 << 20
"""Bytes: glibc asks the system for every larger block, and gives it back when it is freed, whatever it has learned from
earlier ones (DEFAULT_MMAP_THRESHOLD_MAX of malloc/malloc.c on 64 bits)."""
TENSORS = 3.0
"""Read and written by a pointwise operator, at most, of one size: its result has a third of its bytes at least."""
LEAST_SHARE = 0.1
"""Of the step in operators with such results."""
VARIABLES = (("MALLOC_MMAP_MAX_", "0"), ("MALLOC_TRIM_THRESHOLD_", "68719476736"))
"""No block comes from the system directly, and the heap is not trimmed below 64 GiB (mallopt(3))."""
LIBRARIES = ("jemalloc", "tcmalloc")


@remedy("RM402", "kept-memory", addresses={"ST401", "ST402", "ST501"}, promise=Promise.SAME_BITS, risk=3)
def kept_memory(case: Case) -> Iterator[Option]:
    """Memory of the CPU that is kept instead of given back

    What it changes
        MALLOC_MMAP_MAX_=0 and MALLOC_TRIM_THRESHOLD_: the allocator of the C library keeps large blocks for the next
        tensor; or jemalloc or tcmalloc in its place (LD_PRELOAD), where they are installed. Linux, training on the CPU.

    What it promises
        Equal losses: only addresses change.

    What it should gain
        A tensor of more than 32 MiB is new memory from the system each time, whose pages are cleared one by one as they
        are first written. A chain of operators on 64 MiB took half of the time without that; how much it is depends on
        the system (huge pages, a virtual machine), so that it is not predicted.

    When to leave it
        When memory is short: what is kept is not there for others, and holes between blocks stay.
    """
    if case.step.device != "cpu" or platform.libc_ver()[0] != "glibc":
        return
    spent = sum(use.duration for use in case.operators if _makes_large_tensors(use))
    if spent < LEAST_SHARE * case.step.duration.value:
        return
    change = Change("environment", arguments=VARIABLES)
    yield Option("large blocks kept by malloc", (change,), None, EnvironmentEdit(VARIABLES))
    for name in LIBRARIES:
        path = find_library(name)
        if path:
            path = ":".join(filter(None, (path, os.environ.get(PRELOAD))))  # as the change does it
            yield Option(f"{name} preloaded", (Change("preload", name),), None, EnvironmentEdit(((PRELOAD, path),)))


def _makes_large_tensors(use: OperatorUse) -> bool:
    return use.bound == "memory" and bool(use.bytes) and use.calls > 0 and _result(use) > LARGEST_KEPT


def _result(use: OperatorUse) -> float:
    """Bytes of what one call writes, at least."""
    return (use.bytes or 0.0) / use.calls / TENSORS
