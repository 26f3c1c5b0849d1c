"""The work of many calls of a trace: those of equal arguments are modelled once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from steptime.arrays import Bool, Float64, Int64
from steptime.kineto.table import ABSENT, Trace
from steptime.work.arguments import LIST
from steptime.work.model import Work
from steptime.work.work import depends_on_values, work_of

ITEM = 4
"""Bytes of an element of tensor lists where nothing says otherwise."""


@dataclass(frozen=True, slots=True, eq=False)
class Modelled:
    """The work of each call: works[kind[call]]."""

    works: tuple[Work | None, ...]
    kind: Int64

    @property
    def flops(self) -> Float64:
        """Of each call; nan without a model."""
        return self._column([work.flops if work is not None else None for work in self.works])

    @property
    def bytes(self) -> Float64:
        """Of each call; nan without a model."""
        return self._column([work.bytes if work is not None else None for work in self.works])

    def _column(self, values: list[float | None]) -> Float64:
        return np.array([np.nan if value is None else value for value in values], np.float64)[self.kind]


def model(trace: Trace, rows: Int64, items: Int64 | None = None) -> Modelled:
    """The work of the operators at `rows` of the event table (a negative one has none). items: bytes of an element of
    each one's tensor lists."""
    known = rows >= 0
    at, events = np.where(known, rows, 0), trace.events
    if not len(events):
        return Modelled((), np.empty(0, np.int64))
    names, types = events.name[at], events.dtypes[at]
    valued = _flags(trace.symbols, depends_on_values)[names]
    listed = _flags((*trace.dtypes, ""), lambda text: LIST in text)[np.where(types == ABSENT, -1, types)]
    inputs = np.where(valued, events.inputs[at], ABSENT)
    widths = np.where(listed, ITEM if items is None else items, ITEM)
    first, kind = distinct(np.where(known, names, -1), events.shapes[at], types, inputs, widths)
    works = [_work(trace, int(at[one]), int(widths[one])) if known[one] else None for one in first]
    return Modelled(tuple(works), kind)


def distinct(*columns: npt.NDArray[np.integer]) -> tuple[Int64, Int64]:
    """Rows that are equal in all columns: the first position of each kind, and the kind of each row. Numbers below zero
    are one and the same: none."""
    key, size = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        codes = np.maximum(column, -1).astype(np.int64) + 1
        width = int(codes.max(initial=0)) + 1
        if size * width >= 2**62:
            key = np.unique(key, return_inverse=True)[1].astype(np.int64)
            size = int(key.max(initial=0)) + 1
        key, size = key * width + codes, size * width
    _, first, kind = np.unique(key, return_index=True, return_inverse=True)
    return first.astype(np.int64), kind.astype(np.int64)


def _flags(texts: tuple[str, ...], test: Callable[[str], bool]) -> Bool:
    return np.fromiter(map(test, texts), np.bool_, len(texts))


def _work(trace: Trace, row: int, item: int) -> Work | None:
    events = trace.events
    columns = ((trace.shapes, events.shapes), (trace.dtypes, events.dtypes), (trace.inputs, events.inputs))
    texts = ["" if column[row] == ABSENT else table[column[row]] for table, column in columns]
    return work_of(trace.symbols[events.name[row]], *texts, list_item=item)
