"""One column that grows block by block without ever being held twice.

A reallocation moves large arrays by their pages, not by copying, so growing costs no second copy and the peak is the
column itself with at most a sixteenth more. Ids are held in 32 bits until one does not fit; a column that no event
fills takes no memory at all.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
LEAST_ROOM = 1 << 14
"""Rows; below that growing step by step would be felt."""
GROWTH = 16
"""A column grows by one part in so many, which is the most that is reserved in vain."""
NARROW = np.iinfo(np.int32)


class Growing:
    """A column of one type. narrow: 32 bits for as long as the values fit, else 64. absent: the value of rows without
    one."""

    def __init__(self, kind: type[np.generic], absent: int, *, narrow: bool = False) -> None:
        self._kind: np.dtype[Any] = np.dtype(np.int32 if narrow else kind)
        self._absent = absent
        self._narrow = narrow
        self._array: Array | None = None
        self._length = 0

    def skip(self, count: int) -> None:
        """Appends `count` rows without a value."""
        if self._array is not None:
            self._room(count)[:] = self._absent
        self._length += count

    def extend(self, values: Array) -> None:
        """Appends values, of any integer type that the column's type can hold."""
        if self._array is None:
            self._array = np.empty(0, self._kind)
            before, self._length = self._length, 0
            self._room(before)[:] = self._absent
            self._length = before
        if self._narrow and len(values) and not (NARROW.min <= values.min() and values.max() <= NARROW.max):
            self._array, self._narrow = self._array.astype(np.int64), False
        self._room(len(values))[:] = values
        self._length += len(values)

    def _room(self, count: int) -> Array:
        """A view of the next `count` rows, whatever they hold."""
        assert self._array is not None
        needed = self._length + count
        if needed > len(self._array):
            # No other reference exists: views of the array never outlive the line that made them.
            self._array.resize(max(needed, needed + needed // GROWTH, LEAST_ROOM), refcheck=False)
        return self._array[self._length : needed]

    def finished(self) -> Array:
        """The column, writable where it has values; a constant of no size where it has none."""
        if self._array is None:
            return np.broadcast_to(np.asarray(self._absent, self._kind), (self._length,))
        array, self._array = self._array, None
        array.resize(self._length, refcheck=False)
        return array
