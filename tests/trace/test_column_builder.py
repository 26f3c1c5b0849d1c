"""A column grows to what was put into it, whatever the order of values and gaps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from examples import examples
from steptime.trace import columns
from steptime.trace.columns import ColumnBuilder
from steptime.trace.table import ABSENT

WIDTHS = (8, 16, 32, 64)
numbers = st.sampled_from(WIDTHS).flatmap(
    lambda width: st.lists(st.integers(-(2 ** (width - 1)), 2 ** (width - 1) - 1), max_size=9)
)


@given(parts=st.lists(st.integers(0, 9) | numbers, max_size=12))
@settings(max_examples=examples(300))
def test_values_and_gaps_stay_in_their_order(parts: list[int | list[int]]) -> None:
    column, expected = ColumnBuilder(np.int8, ABSENT, growing=True), []
    piece, columns.PIECE = columns.PIECE, 8
    try:
        for part in parts:
            if isinstance(part, int):
                column.skip(part)
                expected += [ABSENT] * part
            else:
                column.extend(np.array(part, np.int64))
                expected += part
        found = column.finished()
    finally:
        columns.PIECE = piece
    assert found.tolist() == expected
    fitting = (width for width in WIDTHS if all(-(2 ** (width - 1)) <= value < 2 ** (width - 1) for value in expected))
    assert found.dtype == f"int{next(fitting)}"


@pytest.mark.parametrize("count", [0, 1, columns.PIECE - 1, columns.PIECE, columns.PIECE + 1, 3 * columns.PIECE])
def test_pieces_are_joined_without_a_seam(count: int) -> None:
    column = ColumnBuilder(np.int64, 0)
    column.extend(np.arange(count))
    column.skip(2)
    assert np.array_equal(column.finished(), [*range(count), 0, 0])


def test_a_column_without_a_value_takes_no_memory() -> None:
    column = ColumnBuilder(np.int8, ABSENT, growing=True)
    column.skip(10**12)
    found = column.finished()
    assert len(found) == 10**12
    assert found[10**11] == ABSENT
    assert found.strides == (0,)


def test_a_type_that_is_never_narrowed_stays() -> None:
    column = ColumnBuilder(np.uint8, 0)
    column.extend(np.array([3, 4], np.uint8))
    assert column.finished().dtype == np.uint8
