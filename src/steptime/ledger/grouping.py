"""Rows of a trace by what they have in common, and the user's function behind a group of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from steptime.arrays import Int64
from steptime.kineto.table import Trace
from steptime.links.frames import source_line
from steptime.links.links import UNKNOWN, Links
from steptime.quantities import SourceLine


def grouped(*keys: npt.NDArray[Any]) -> list[Int64]:
    """Positions by equal values in all of the columns, each group in its order."""
    if not len(keys[0]):
        return []
    order = np.lexsort(keys[::-1])
    differs = np.zeros(len(order) - 1, np.bool_)
    for key in keys:
        differs |= np.diff(key[order]) != 0
    return np.split(order, np.flatnonzero(differs) + 1)


def per_step(step: Int64, amount: Int64, steps: int) -> Int64:
    """(steps,) int64: the amounts by step; UNKNOWN steps do not count."""
    found = np.zeros(steps, np.int64)
    np.add.at(found, step[step != UNKNOWN], amount[step != UNKNOWN])
    return found


def step_at(windows: Int64, times: Int64) -> Int64:
    """The step in which each time lies, UNKNOWN outside all."""
    step = np.searchsorted(windows[:, 0], times, side="right") - 1
    inside = (step >= 0) & (times < np.append(windows[:, 1], 0)[step])
    return np.where(inside, step, UNKNOWN)


def time_inside(begin: Int64, end: Int64, windows: Int64) -> Int64:
    """(n,) ns of the intervals, each counted for itself, that lie in each window. begin <= end; windows: (n, 2) ns."""
    if not len(begin):
        return np.zeros(len(windows), np.int64)
    origin = begin.min()  # sums of absolute times would not fit
    found = _capped(end - origin, windows - origin) - _capped(begin - origin, windows - origin)
    spent: Int64 = found[:, 1] - found[:, 0]
    return spent


def _capped(sides: Int64, times: Int64) -> Int64:
    """For each time the sum of all sides, none counted beyond it."""
    ordered = np.sort(sides)
    at = np.searchsorted(ordered, times)
    found: Int64 = np.append(0, np.cumsum(ordered))[at] + times * (len(ordered) - at)
    return found


def source_of(trace: Trace, links: Links, rows: Int64, weight: Int64) -> SourceLine | None:
    """The user's function with most of the weight of these rows (UNKNOWN among them has none); None without one."""
    known = rows != UNKNOWN
    function = links.function[rows[known]]
    weight = weight[known][function != UNKNOWN]
    names = trace.events.name[function[function != UNKNOWN]]
    if not len(names):
        return None
    return source_line(trace.symbols[int(np.bincount(names, weight).argmax())])
