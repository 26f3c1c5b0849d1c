"""A snapshot as columns: what the allocator wrote, nothing derived."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import TypeVar

from steptime.arrays import Bool, Int8, Int32, Int64
from steptime.quantities import SourceLine

NO_STACK = -1
"""No frames were recorded."""


class Action(IntEnum):
    """What an event of the history is: `action` of c10::cuda::CUDACachingAllocator::TraceEntry (torch 2.1 to 2.13)."""

    OTHER = 0
    ALLOC = 1
    """A tensor's memory was handed out. size: as it was asked for."""
    FREE_REQUESTED = 2
    """The tensor is gone; other streams may still use its memory."""
    FREE_COMPLETED = 3
    """The memory can be handed out again."""
    SEGMENT_ALLOC = 4
    """The driver gave a segment."""
    SEGMENT_FREE = 5
    SEGMENT_MAP = 6
    """An expandable segment grew."""
    SEGMENT_UNMAP = 7
    OUT_OF_MEMORY = 8
    """A request failed. size: what was asked for; address: what the driver had free, in bytes."""
    SNAPSHOT = 9


ACTIONS = {action.name.lower(): action for action in Action} | {
    "free": Action.FREE_REQUESTED,
    "oom": Action.OUT_OF_MEMORY,
}


class State(IntEnum):
    """What a block of a segment is."""

    INACTIVE = 0
    """Free: in the cache."""
    ALLOCATED = 1
    AWAITING_FREE = 2
    """Freed by its owner; another stream may still use it."""


STATES = {
    "active_allocated": State.ALLOCATED,
    "active_awaiting_free": State.AWAITING_FREE,
    "active_pending_free": State.AWAITING_FREE,
}


@dataclass(frozen=True, slots=True, eq=False)
class Stacks:
    """Call stacks, each once. Stack i is frames[member[begin[i]:begin[i + 1]]], the innermost first.

    frames: as torch wrote them; a C++ frame has no line (0). definitions: a frame's line is where its function begins,
    not the one that was running; 0 where even that is not known.
    """

    frames: tuple[SourceLine, ...]
    begin: Int64
    member: Int32
    definitions: bool = False

    def __len__(self) -> int:
        return len(self.begin) - 1

    def of(self, stack: int) -> tuple[SourceLine, ...]:
        """The frames of a stack, the innermost first; none for NO_STACK."""
        if stack < 0:
            return ()
        return tuple(self.frames[frame] for frame in self.member[self.begin[stack] : self.begin[stack + 1]])


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """What the driver gave and the process held at one instant. Bytes."""

    device: Int32
    address: Int64
    size: Int64


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """The pieces of the segments at the end. segment: row of Segments. size: bytes taken; requested: bytes asked for
    (equal where the snapshot does not say). state: `State`. stack: that of the allocation."""

    segment: Int32
    address: Int64
    size: Int64
    requested: Int64
    state: Int8
    stack: Int32


@dataclass(frozen=True, slots=True, eq=False)
class Events:
    """The history, by device and in order. action: `Action`. time: ns since the epoch, 0 where it was not recorded."""

    device: Int32
    action: Int8
    address: Int64
    size: Int64
    time: Int64
    stack: Int32

    def __len__(self) -> int:
        return len(self.action)


Columns = TypeVar("Columns", Segments, Events)


def selected(table: Columns, rows: Bool) -> Columns:
    """Some rows of a table; without copies where they are all."""
    if rows.all():
        return table
    return type(table)(**{field.name: getattr(table, field.name)[rows] for field in fields(table)})


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """A file of `torch.cuda.memory._dump_snapshot`. truncated: it ends in the middle.

    settings: of the allocator, by name. problems: a sentence for each thing that was left out.
    """

    segments: Segments
    blocks: Blocks
    events: Events
    stacks: Stacks
    settings: tuple[tuple[str, str], ...] = ()
    truncated: bool = False
    problems: tuple[str, ...] = ()
