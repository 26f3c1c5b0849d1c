"""What a trace says of memory: an event without a duration for each allocation and each free."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from steptime.arrays import Int64
from steptime.trace.columns import Growing, Mark, Number, OfInstant, begins, integer
from steptime.trace.table import UNSAID, AllocationEvents

NAME = "[memory]"
LIMIT = 1 << 62


class Allocations:
    """Grows the columns of `AllocationEvents`."""

    def __init__(self) -> None:
        self._columns = {field.name: Growing(np.int32, UNSAID, growing=True) for field in fields(AllocationEvents)}

    def add(self, marks: Sequence[Mark], *, exactly: bool) -> None:
        """Appends those of a block that are of memory and have a time."""
        found = [mark for mark in marks if mark.name == NAME]
        if not found:
            return
        times, sound = begins(found, exactly=exactly)
        columns = {"process": [mark.pid for mark in found], "thread": [mark.tid for mark in found]}
        columns |= {name: [getattr(mark.args, name) for mark in found] for name in OfInstant.__struct_fields__}
        self._columns["time"].extend(times[sound])
        for name, values in columns.items():
            self._columns[name].extend(_integers(values)[sound])

    def table(self) -> AllocationEvents:
        """All of them."""
        columns = {name: column.finished() for name, column in self._columns.items()}
        for column in columns.values():
            column.flags.writeable = False
        return AllocationEvents(**columns)


def _integers(values: Sequence[Number]) -> Int64:
    """UNSAID where none is given, or text that is none."""
    try:
        numbers = np.frombuffer(struct.pack(f"{len(values)}q", *values), np.int64)
    except struct.error:
        numbers = np.array([integer(value, UNSAID) for value in values], np.int64)
    return np.clip(numbers, -LIMIT, LIMIT)
