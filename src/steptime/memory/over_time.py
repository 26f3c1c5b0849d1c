"""Memory over time by owner: what a picture of it needs, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steptime.memory.history import History, allocated
from steptime.memory.owners import LABELS, Codes, Owner

MOST_POINTS = 240
"""Each is the highest instant of a stretch, so no peak is lost."""
FREE = "free in the allocator"


@dataclass(frozen=True, slots=True)
class OverTime:
    """place: where (a device, a process). times: of the points; clock: what they count in ("ns", "event", "step").
    owners: names, from the bottom of a stack upwards; bytes: by owner, of each point. peak: number of the point with
    most bytes."""

    place: str
    clock: str
    times: tuple[int, ...]
    owners: tuple[str, ...]
    bytes: tuple[tuple[int, ...], ...]
    peak: int


def over_time(history: History, owners: Codes, most: int = MOST_POINTS) -> OverTime | None:
    """The owners of a history; what the allocator held beyond tensors comes last. None for an empty history."""
    live = allocated(history)
    count = len(live)
    edges = np.unique(np.linspace(0, count, min(most, count) + 1).astype(np.int64))
    pairs = zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    chosen = np.array([begin + int(np.argmax(live[begin:end])) for begin, end in pairs], np.int64)
    if not len(chosen):
        return None
    rows = [(LABELS[owner], allocated(history, owners == owner)[chosen]) for owner in Owner]
    held = sum(row for _, row in rows)
    rows.append((FREE, np.maximum(history.reserved[chosen] - held, 0)))
    shown = [(name, row) for name, row in rows if row.any()]
    timed = bool(history.time.any())
    events = np.maximum(chosen - 1, 0)
    times = history.time[events] - history.time[0] if timed else events
    return OverTime(
        place=history.device,
        clock="ns" if timed else "event",
        times=tuple(np.maximum(times, 0).tolist()),
        owners=tuple(name for name, _ in shown),
        bytes=tuple(tuple(row.tolist()) for _, row in shown),
        peak=int(np.argmax(live[chosen])),
    )
