"""One column that grows block by block and is hardly ever held twice.

It grows in pieces that are large enough for the system to take each back at once when it is freed, so joining them
costs a piece more than the column. Ids are held in 32 bits until one does not fit; a column that no event fills takes
no memory at all.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
PIECE = 1 << 17
"""Rows: half a megabyte and more. Smaller pieces would leave holes in the heap, which stay with the process."""
NARROW = np.iinfo(np.int32)


class Growing:
    """A column of one type. narrow: 32 bits for as long as the values fit, else 64. absent: the value of rows without
    one."""

    def __init__(self, kind: type[np.generic], absent: int, *, narrow: bool = False) -> None:
        self._kind: np.dtype[Any] = np.dtype(np.int32 if narrow else kind)
        self._absent = absent
        self._narrow = narrow
        self._pieces: list[Array] = []
        self._used = 0
        self._skipped = 0

    def skip(self, count: int) -> None:
        """Appends `count` rows without a value."""
        if not self._pieces:
            self._skipped += count
            return
        while count:
            room = self._room(count)
            room[:] = self._absent
            count -= len(room)

    def extend(self, values: Array) -> None:
        """Appends values, of any integer type that the column's type can hold."""
        if self._narrow and len(values) and not (NARROW.min <= values.min() and values.max() <= NARROW.max):
            self._widen()
        if not self._pieces:
            self._begin()
        done = 0
        while done < len(values):
            room = self._room(len(values) - done)
            room[:] = values[done : done + len(room)]
            done += len(room)

    def finished(self) -> Array:
        """The column, writable where it has values; a constant of no size where it has none. It is given away."""
        if not self._pieces:
            return np.broadcast_to(np.asarray(self._absent, self._kind), (self._skipped,))
        rows = PIECE * (len(self._pieces) - 1) + self._used
        column, filled = np.empty(rows, self._kind), 0
        self._pieces.reverse()
        while self._pieces:
            piece = self._pieces.pop()[: rows - filled]
            column[filled : filled + len(piece)] = piece
            filled += len(piece)
        return column

    def _begin(self) -> None:
        """The first value: what was skipped before it gets its place."""
        skipped, self._skipped = self._skipped, 0
        self._pieces.append(np.empty(PIECE, self._kind))
        self.skip(skipped)

    def _widen(self) -> None:
        """From here on with 64 bits; the pieces before follow when they are joined."""
        self._kind, self._narrow = np.dtype(np.int64), False
        if self._pieces:
            self._pieces[-1] = self._pieces[-1].astype(np.int64)

    def _room(self, count: int) -> Array:
        """A view of at most `count` rows that follow, whatever they hold; at least one."""
        if self._used == PIECE:
            self._pieces.append(np.empty(PIECE, self._kind))
            self._used = 0
        begin, self._used = self._used, min(PIECE, self._used + count)
        return self._pieces[-1][begin : self._used]
