"""Which steps are replayed, and the part of the trace that they need."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from steptime.arrays import Bool, Int64
from steptime.kineto.table import EventTable, Trace
from steptime.replay.graph import NONE
from steptime.replay.scope import DEVICE

MOST_STEPS = 5
MOST_EVENTS = 1_500_000
"""Of all replayed steps together: a second or two of work. One step is replayed, however long it is."""


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """trace: the rows that the steps need, and no others. rows: where each is in the whole trace. launch: of each row,
    as in `Links`, in the part's rows. steps: indices of the borders."""

    trace: Trace
    rows: Int64
    launch: Int64
    steps: Int64


def window_of(trace: Trace, borders: Int64, launch: Int64) -> Window:
    """The steps in the middle, at most `MOST_STEPS` of them."""
    begin, end = trace.events.begin, trace.events.end
    count = min(len(borders), MOST_STEPS)
    while True:
        first = (len(borders) - count) // 2
        steps = np.arange(first, first + count)
        since, until = int(borders[first, 0]), int(borders[first + count - 1, 1])
        chosen = (end > since) & (begin < until)
        if chosen.sum() <= MOST_EVENTS or count == 1:
            return _part(trace, launch, steps, chosen, since, until)
        count -= 1


def _part(trace: Trace, launch: Int64, steps: Int64, chosen: Bool, since: int, until: int) -> Window:
    """The chosen rows, what of the device was launched before the end and ended after the begin, and the launches."""
    events = trace.events
    device = np.isin(events.category, DEVICE)
    called = launch != NONE
    chosen = chosen | (device & called & (events.begin[launch] < until) & (events.end > since))
    needed = launch[device & called & chosen]
    chosen[needed] = True
    rows = np.flatnonzero(chosen)
    place = np.full(len(events) + 1, NONE)
    place[rows] = np.arange(len(rows))
    columns = {field.name: getattr(events, field.name)[rows] for field in fields(EventTable)}
    return Window(replace(trace, events=EventTable(**columns)), rows, place[launch[rows]], steps)
