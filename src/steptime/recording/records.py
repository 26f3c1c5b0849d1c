"""Columns from the bytes of a journal. One law: any bytes give a table; what makes no sense is counted and left out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from steptime.arrays import Bool
from steptime.journal import RECORD, Kind
from steptime.recording.recording import IntervalTable

LAYOUT = np.dtype(
    [("kind", "u1"), ("flags", "u1"), ("thread", "<u2"), ("identity", "<u4"), ("begin", "<i8"), ("end", "<i8")]
)
"""`journal.RECORD` as a numpy type: the same 24 bytes."""
Records = npt.NDArray[np.void]
"""Of LAYOUT."""
VALUE_KINDS = (Kind.MEMORY, Kind.GRADIENT_NORM)
"""Their second time is a value. QUEUE is one too where it is shorter than a clock reading: see `plausible`."""
CLOCK_SLACK = 120_000_000_000
"""ns by which a process's clocks may have been set against each other before a record counts as outside its life."""
LONGEST_LIFE = 400 * 86_400 * 1_000_000_000
"""ns: no job is expected to run for more than 400 days; a later time is garbage."""


@dataclass(frozen=True, slots=True)
class Life:
    """When a process can have written records, monotonic ns."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Decoded:
    """A table and what was left out of it: torn bytes at the end, records that make no sense."""

    table: IntervalTable
    torn: int
    senseless: int


def decode(blocks: Iterable[bytes], life: Life | None) -> Decoded:
    """Reads records, of which each block but the last holds whole ones. Kinds that are unknown, ends before begins and
    times outside of `life` are left out; those of another life are kept where they are most: the machine's clock was
    set while the process ran, and its life is not known."""
    kept, total, torn = [np.empty(0, LAYOUT)], 0, 0
    for data in blocks:
        whole = len(data) // RECORD.size
        records = np.frombuffer(data, LAYOUT, count=whole)
        kept.append(records[plausible(records, None)])
        total, torn = total + whole, torn + len(data) - whole * RECORD.size
    possible = np.concatenate(kept)
    sound = possible[plausible(possible, life)]
    if total - len(sound) > len(sound):
        sound = possible
    return Decoded(as_table(sound), torn, total - len(sound))


def as_table(records: npt.NDArray[np.void]) -> IntervalTable:
    """Columns sorted by (begin, -end). Of equal intervals the one written later is the parent and comes first."""
    last_first = records[::-1]
    ordered = last_first[np.lexsort((-last_first["end"], last_first["begin"]))]
    columns: dict[str, Any] = {
        name: ordered[name].astype(LAYOUT[name].newbyteorder("=")) for name in LAYOUT.names or ()
    }
    for column in columns.values():
        column.flags.writeable = False
    return IntervalTable(**columns)


def plausible(records: Records, life: Life | None) -> Bool:
    """Which records make sense: of a known kind, in time order, in this life."""
    kind, begin, end = records["kind"], records["begin"], records["end"]
    first, last = (life.begin, life.end) if life else (0, 2**62)
    in_life = np.isin(kind, list(Kind)) & (begin >= max(0, first)) & (begin <= last) & (end >= 0)
    ordered = (end >= begin) & (end <= last)
    ready = (kind == Kind.QUEUE) & (end < 2**32)
    sound: Bool = in_life & (ordered | np.isin(kind, VALUE_KINDS) | ready)
    return sound
