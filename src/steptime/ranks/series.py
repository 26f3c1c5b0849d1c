"""The late rank over all steps of a recording: from the watch alone, which every rank keeps at next to no cost.

Ranks that train together end their steps together. What a rank does of its own in a step (input, host, forward) is what
the others wait for behind it; the phases in which it waits itself (backward, as a rule) are left out. So a lateness
inside backward is not in the series: the collectives of the profiled steps show that one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from steptime.arrays import Int64
from steptime.ranks.comparison import LateSeries
from steptime.ranks.late import Waiting
from steptime.ranks.summary import RankSummary, widened

MOST_ROWS = 32
LEAST_LATE = 50_000
"""ns: steps in which the ranks' own work differs by less say nothing about who is late."""


def aligned(summaries: Sequence[RankSummary]) -> tuple[int, Int64, Int64] | None:
    """(steps of a column, numbers of the columns' first steps, (ranks, columns) own ns, -1 where not known), over the
    columns that all ranks have; None where some rank has no series."""
    found = [summary.series for summary in summaries]
    series = [each for each in found if each is not None]
    if len(series) < len(found) or len(series) < 2 or len({each.first for each in series}) > 1:
        return None
    width = max(each.width for each in series)
    columns = [widened(each, width).own for each in series]
    count = min(map(len, columns))
    if not count:
        return None
    own = np.stack([each[:count] for each in columns])
    return width, series[0].first + width * np.arange(count), own


def late_series(summaries: Sequence[RankSummary]) -> LateSeries | None:
    """How far each rank is behind the first one of each column; None where not all ranks have a series."""
    found = aligned(summaries)
    if found is None:
        return None
    width, steps, own = found
    whole = (own >= 0).all(axis=0)
    behind = np.where(whole, own - own.min(axis=0), 0)
    order = np.argsort(-behind.sum(axis=1), kind="stable")[:MOST_ROWS]
    return LateSeries(
        width,
        tuple(steps[whole].tolist()),
        tuple(summaries[index].rank for index in order.tolist()),
        tuple(tuple(map(float, behind[index][whole].tolist())) for index in order.tolist()),
    )


def waiting_in_series(summaries: Sequence[RankSummary]) -> Waiting | None:
    """Who waits for whom, where the ranks have no collectives in common to tell it."""
    found = aligned(summaries)
    if found is None:
        return None
    own = found[2]
    own = own[:, (own >= 0).all(axis=0)]
    if not own.shape[1]:
        return None
    waits = own.max(axis=0) - own
    longest = np.where(waits.max(axis=0) >= LEAST_LATE, waits.max(axis=0), 0)
    last = np.bincount(own.argmax(axis=0), longest, len(summaries)) / max(1, int(longest.sum()))
    times = np.bincount(own.argmax(axis=0)[longest > 0], minlength=len(summaries))
    return Waiting(waits.mean(axis=1), last, times, int((longest > 0).sum()), waits.astype(np.float64))
