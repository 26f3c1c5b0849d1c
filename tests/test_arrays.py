"""What arrays leave behind in the heap goes back to the system, where it is much; columns of few values."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given as any_of, strategies as st

from steptime.arrays import MANY, few, give_back, looked_up

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


COLUMNS = st.lists(st.sampled_from([-1, -1, 3, 300]), min_size=1, max_size=20)


@any_of(COLUMNS, st.data())
def test_a_column_of_few_values_is_asked_as_an_array_is(column: list[int], data: st.DataObject) -> None:
    whole = np.array(column, np.int16)
    held = few(whole, -1)
    rows = data.draw(st.lists(st.integers(-len(column), len(column) - 1)))
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(column), max_size=len(column))))
    for asked in (slice(None), slice(1, -1), np.array(rows, np.int64), mask):
        found = held[asked]
        assert found.tolist() == whole[asked].tolist()
        assert found.dtype == whole.dtype
    assert [held[row] for row in rows] == whole[rows].tolist()
    assert (held == 3).tolist() == (whole == 3).tolist()
    assert (held != -1).tolist() == (whole != -1).tolist()
    assert [int(each) for each in held] == column
    assert len(held) == len(column)


def test_a_table_is_looked_up_beyond_one_piece() -> None:
    table, numbers = np.arange(5) * 10, np.arange(300_000, dtype=np.int8) % 5
    assert (looked_up(table, numbers) == table[numbers]).all()
