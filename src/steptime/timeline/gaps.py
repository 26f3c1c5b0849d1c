"""What lies between the instrumented parts of a step, and how much of it is the user's own batch preparation.

One law: in steps with line records it is exact; in others it is what the lined steps showed, at most the gap itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steptime.arrays import Bool, Int64
from steptime.intervals import Intervals, measure
from steptime.timeline.lane import Lane
from steptime.timeline.lines import LineRoles, Role

MOST = 0.9
"""Where preparing lines take at least this share of a gap in the lined steps, they take that share in others too."""


@dataclass(frozen=True, slots=True, eq=False)
class Gaps:
    """What lies between the instrumented parts of the steps: step's index, (kind before, kind after) as one number,
    begin and end; segments are not taken out yet."""

    step: Int64
    neighbours: Int64
    begin: Int64
    end: Int64


def estimate(gaps: Gaps, segments: Intervals, lines: LineRoles, lined: Int64, count: int) -> tuple[Int64, Int64]:
    """(input, transfer) ns of `count` steps' gaps: exact in the steps with line records, estimated in the others.

    An estimate is the median of what the lined steps spent in gaps of the same neighbours, at most the gap itself.
    """
    gap = (gaps.end - gaps.begin) - measure(segments, gaps.begin, gaps.end)
    result = np.zeros((2, count), np.int64)
    is_lined = np.isin(gaps.step, lined)
    free = gap.copy()
    for row, role in enumerate((Role.INPUT, Role.TRANSFER)):
        instants = lines.of(role)
        exact = measure(instants, gaps.begin, gaps.end) if len(instants) else np.zeros(len(gap), np.int64)
        exact = np.minimum(exact, free)
        guess = _guess(gaps, gap, exact, is_lined)
        value = np.where(is_lined, exact, np.minimum(guess, free))
        free -= value
        np.add.at(result[row], gaps.step, value)
    return result[0], result[1]


def _guess(gaps: Gaps, gap: Int64, exact: Int64, lined: Bool) -> Int64:
    guess = np.zeros(len(gap), np.int64)
    for neighbours in np.unique(gaps.neighbours[lined & (exact > 0)]):
        same = gaps.neighbours == neighbours
        known = same & lined
        share = exact[known].sum() / max(1, gap[known].sum())
        guess[same] = gap[same] * share if share >= MOST else np.median(exact[known])
    return guess


def find_gaps(top: Lane, begin: Int64, end: Int64) -> Gaps:
    """Gaps between the top intervals, cut at the borders of the steps [begin, end)."""
    if not len(begin):
        nothing = np.zeros(0, np.int64)
        return Gaps(nothing, nothing, nothing, nothing)
    starts = np.concatenate((begin[:1], top.end))
    stops = np.concatenate((top.begin, end[-1:]))
    kinds = np.concatenate(([0], top.kind.astype(np.int64), [0]))
    neighbours = kinds[:-1] * 256 + kinds[1:]
    step = np.searchsorted(end, starts, side="right")
    inside = (stops > starts) & (step < len(end)) & (starts >= begin[0])
    step, starts, stops, neighbours = step[inside], starts[inside], stops[inside], neighbours[inside]
    return Gaps(step, neighbours, starts, np.minimum(stops, end[step]))
