"""What arrays leave behind in the heap goes back to the system, where it is much."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import numpy as np
import pytest

from steptime.arrays import MANY, give_back

STATUS = Path("/proc/self/statm")
PAGE = 4096


def resident() -> int:
    """Bytes of the process."""
    return int(STATUS.read_text().split()[1]) * PAGE


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="glibc"
)
@pytest.mark.parametrize(("rows", "given"), [(MANY + 1, True), (MANY, False)])
def test_freed_arrays_of_a_large_table_leave_the_process(rows: int, given: bool) -> None:
    size, count = 64 * 1024, 1000  # below what the C library asks the system for one by one
    give_back(MANY + 1)
    arrays = [np.ones(size, np.uint8) for _ in range(count)]
    whole = resident()
    arrays = arrays[-1:]  # the last one holds the end of the heap
    give_back(rows)
    assert (whole - resident() > size * count // 2) == given
    assert arrays[0].all()
