"""Types of numpy arrays, by what their elements are. Times are Int64, in nanoseconds."""

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
"""A width that the values decide."""
Float64 = npt.NDArray[np.float64]
Row: TypeAlias = int | np.integer[Any]
Rows: TypeAlias = npt.NDArray[Any] | slice | list[int]

LARGEST = 2**62
MANY = 1_000_000
"""Rows. Smaller analyses leave too little behind in the heap to be worth a look."""
Scalar = TypeVar("Scalar", bound=np.generic)


def give_back(rows: int) -> None:
    """Gives the memory that arrays left free in the heap back to the system, where a table has so many rows that it
    counts: what comes next needs arrays of other sizes, and would take more next to it. Only glibc keeps that much."""
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
    """A column in which few rows have a value: rows, their numbers in order, and values, what they have. absent: what
    all the others have; size: of the column. It is asked as an array is."""

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
    """The same of a whole column."""
    rows = np.flatnonzero(column != absent).astype(np.int32)
    return Few(len(column), absent, rows, column[rows])


PIECE = 1 << 17
"""Rows per look, of millions, so that temporary columns take no memory for all."""


def looked_up(table: npt.NDArray[Scalar], numbers: Numbers) -> npt.NDArray[Scalar]:
    """table[numbers]: numpy makes 8 bytes of each number first."""
    found = np.empty(len(numbers), table.dtype)
    for first in range(0, len(numbers), PIECE):
        found[first : first + PIECE] = table[numbers[first : first + PIECE]]
    return found


def unique(values: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
    """The values, each once, in order; numpy's own hashes them first, and imports masked arrays to ask for them."""
    ordered = np.sort(values, axis=None)
    first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


def median(values: npt.NDArray[Scalar]) -> float:
    """The median of at least one number; numpy's own imports masked arrays for floats."""
    ordered = np.sort(values, axis=None)
    return float(ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def among(values: npt.NDArray[Scalar], known: npt.NDArray[Scalar]) -> Bool:
    """Which of the values are among the known ones; numpy's own imports masked arrays where these lie far apart."""
    if not len(known):
        return np.zeros(len(values), np.bool_)
    ordered = np.sort(known, axis=None)
    found: Bool = ordered[np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)] == values
    return found


def quartiles(values: npt.NDArray[Scalar]) -> tuple[float, float, float]:
    """A quarter, half and three quarters of at least one number lie below; numpy's own imports masked arrays."""
    ordered = np.sort(values, axis=None).astype(np.float64)
    lower, middle, upper = np.interp(np.array((0.25, 0.5, 0.75)) * (len(ordered) - 1), np.arange(len(ordered)), ordered)
    return float(lower), float(middle), float(upper)


def distinct(*columns: npt.NDArray[np.integer[Any]]) -> tuple[Int64, Int64]:
    """Distinct rows of integers, given as columns of one length: a position of each, the first that has it, by the
    columns in their order; and by position the number of its row among these.

    The columns are packed into one, which is sorted: many times as fast as np.unique along an axis.
    """
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
