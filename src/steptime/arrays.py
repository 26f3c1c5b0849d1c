"""Types of numpy arrays by element, and fast helpers on them. Times are Int64, in nanoseconds."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, overload

import numpy as np
import numpy.typing as npt

Bool = npt.NDArray[np.bool_]
Int8 = npt.NDArray[np.int8]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.signedinteger[Any]]
"""Integers of any width, as small as the values allow."""
Float64 = npt.NDArray[np.float64]
Row: TypeAlias = int | np.integer[Any]
Rows: TypeAlias = npt.NDArray[Any] | slice | list[int]

LARGEST = 2**62
MANY = 1_000_000
"""Number of rows from which on freed memory is worth returning to the system."""
Scalar = TypeVar("Scalar", bound=np.generic)


def give_back(rows: int) -> None:
    """Returns free heap memory to the system after work on tables above MANY rows: the next arrays have other sizes and
    could not reuse it. Does nothing without glibc."""
    trim = _trim() if rows > MANY else None
    if trim is not None:
        trim(0)


@functools.cache
def _trim() -> Callable[[int], int] | None:
    import ctypes  # of no use to a small table

    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library, another system
        return None
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Few:
    """Sparse column of numbers. rows: numbers of the rows that have a value, ascending; values: their values. absent:
    value of all other rows; size: length of the column. Indexing works as for an array."""

    size: int
    absent: int
    rows: Int32
    values: Numbers

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[np.signedinteger[Any]]:
        return iter(self[:])

    def __eq__(self, other: Any) -> Bool:  # type: ignore[override]
        same: Bool = self[:] == other
        return same

    def __ne__(self, other: Any) -> Bool:  # type: ignore[override]
        differing: Bool = self[:] != other
        return differing

    @overload
    def __getitem__(self, rows: Row) -> int: ...
    @overload
    def __getitem__(self, rows: Rows) -> Numbers: ...
    def __getitem__(self, rows: Rows | Row) -> Any:
        absent = self.values.dtype.type(self.absent)
        if isinstance(rows, slice):
            found = np.full(self.size, absent)
            found[self.rows] = self.values
            return found[rows]
        asked = np.asarray(rows)
        asked = np.flatnonzero(asked) if asked.dtype == np.bool_ else asked
        if not len(self.rows):
            return np.full(asked.shape, absent)[()]
        asked = np.where(asked < 0, asked + self.size, asked).astype(np.int32)
        at = np.minimum(np.searchsorted(self.rows, asked), len(self.rows) - 1)
        return np.where(self.rows[at] == asked, self.values[at], absent)[()]


def few(column: Numbers, absent: int) -> Few:
    """Sparse form of a whole column. absent: value of the rows that are left out."""
    rows = np.flatnonzero(column != absent).astype(np.int32)
    return Few(len(column), absent, rows, column[rows])


PIECE = 1 << 17
"""Rows per look-up, so that temporary columns of millions of rows stay small."""


def looked_up(table: npt.NDArray[Scalar], numbers: Numbers) -> npt.NDArray[Scalar]:
    """Elements table[numbers], without numpy's temporary copy of all numbers in 8 bytes."""
    found = np.empty(len(numbers), table.dtype)
    for first in range(0, len(numbers), PIECE):
        found[first : first + PIECE] = table[numbers[first : first + PIECE]]
    return found


def unique(values: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
    """Distinct values, ascending, quickly if they come in sorted runs. numpy hashes them, and imports masked arrays."""
    ordered = np.sort(values, axis=None, kind="stable")
    first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


def median(values: npt.NDArray[Scalar]) -> float:
    """Median of at least one number. numpy's own function imports masked arrays for floats."""
    ordered = np.sort(values, axis=None)
    return float(ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def among(values: npt.NDArray[Scalar], known: npt.NDArray[Scalar]) -> Bool:
    """Mask of the values that are among the known ones. numpy's own imports masked arrays if they are far apart."""
    if not len(known):
        return np.zeros(len(values), np.bool_)
    ordered = np.sort(known, axis=None)
    found: Bool = ordered[np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)] == values
    return found


def quartiles(values: npt.NDArray[Scalar]) -> tuple[float, float, float]:
    """(lower quartile, median, upper quartile) of at least one number. numpy's own function imports masked arrays."""
    ordered = np.sort(values, axis=None).astype(np.float64)
    lower, middle, upper = np.interp(np.array((0.25, 0.5, 0.75)) * (len(ordered) - 1), np.arange(len(ordered)), ordered)
    return float(lower), float(middle), float(upper)


def distinct(*columns: npt.NDArray[np.integer[Any]]) -> tuple[Int64, Int64]:
    """(positions, numbers) of the distinct rows of integer columns of one length. positions: first occurrence of each
    distinct row, in order of the columns; numbers: for every row, the index of its distinct row.

    The columns are packed into one, which is sorted: many times as fast as np.unique along an axis."""
    packed, size = np.zeros(len(columns[0]), np.int64), 1
    for column in columns if len(packed) else ():
        low = int(column.min())
        span = int(column.max()) - low + 1
        if size * span > LARGEST:
            first, packed = _numbered(packed)
            size = len(first)
        if size * span > LARGEST:
            first, column = _numbered(column)
            low, span = 0, len(first)
        packed, size = packed * span + (column.astype(np.int64) - low), size * span
    return _numbered(packed)


def _numbered(values: npt.NDArray[np.integer[Any]]) -> tuple[Int64, Int64]:
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    head = np.ones(len(order), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=head[1:])
    number = np.empty(len(order), np.int64)
    number[order] = np.cumsum(head) - 1
    return order[head], number
