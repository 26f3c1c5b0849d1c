"""A history: every allocation of one device with its life, whatever it was recorded by. The room's central type."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steptime.arrays import Bool, Int8, Int32, Int64
from steptime.snapshots.snapshot import Stacks

CPU_PLACE = "CPU"
"""The device of a history of the CPU's allocations."""
BEFORE = -1
"""Born before the history begins."""


@dataclass(frozen=True, slots=True, eq=False)
class Lives:
    """One row for each allocation. Columns of one length, read-only.

    born, died: indexes of events; BEFORE, and the number of events for what lives on. released: event at which its
    memory could be used again (>= died: another stream may have used it). size: bytes asked for; taken: bytes that the
    allocator gave for it (exact where the block was still there at the end, else rounded up to ROUNDING).
    stack: of the allocation; ended_by: of what freed it. NO_STACK where nothing was recorded.
    """

    born: Int64
    died: Int64
    released: Int64
    size: Int64
    taken: Int64
    address: Int64
    stack: Int32
    ended_by: Int32

    def __len__(self) -> int:
        return len(self.born)


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that failed. event: its index. asked: bytes; free: bytes that the driver had left, None where unknown.
    stack: of the request."""

    event: int
    asked: int
    free: int | None
    stack: int


@dataclass(frozen=True, slots=True, eq=False)
class Extents:
    """Segments of the allocator at one instant: address and size in bytes."""

    address: Int64
    size: Int64
    large: Bool


@dataclass(frozen=True, slots=True, eq=False)
class SegmentEvents:
    """What the driver gave and took. event: index in the history; action: `snapshots.snapshot.Action`."""

    event: Int64
    action: Int8
    address: Int64
    size: Int64


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """What happened on one device. kind: "snapshot" or "trace".

    time: ns of each event, 0 where unknown. stack: of each event. reserved: (events + 1,) bytes that the process held
    before the first event and after each. complete: every live byte is known (an allocator's snapshot), not only those
    that were handed out while somebody looked (a trace). extents: the segments at the end, None for a trace.
    borders: indexes of the events that are the first of a new step. border_source: what they were found from.
    cut: what is missing at one of its ends, a clause; "" where it is whole.
    """

    device: str
    kind: str
    lives: Lives
    stacks: Stacks
    time: Int64
    stack: Int32
    reserved: Int64
    complete: bool
    failures: tuple[Failure, ...] = ()
    extents: Extents | None = None
    segment_events: SegmentEvents | None = None
    borders: tuple[int, ...] = ()
    border_source: str = ""
    settings: tuple[tuple[str, str], ...] = ()
    cut: str = ""
    problems: tuple[str, ...] = ()

    @property
    def events(self) -> int:
        """Number of events."""
        return len(self.time)


def allocated(history: History, chosen: Bool | None = None) -> Int64:
    """(events + 1,) bytes asked for and not yet freed, before the first event and after each; of all lives or some."""
    return summed(history, history.lives.size if chosen is None else np.where(chosen, history.lives.size, 0))


def summed(history: History, size: Int64) -> Int64:
    """The same of sizes that are given, one for each life."""
    lives, count = history.lives, history.events
    change = np.zeros(count + 2, np.int64)
    np.add.at(change, lives.born + 1, size)
    np.subtract.at(change, np.minimum(lives.died + 1, count + 1), size)
    return np.cumsum(change[: count + 1])


def alive_at(history: History, event: int) -> Bool:
    """The lives that had memory right after an event (BEFORE: before the first)."""
    lives = history.lives
    alive: Bool = (lives.born <= event) & (lives.died > event)
    return alive
