"""A snapshot as columns: what the allocator wrote, nothing derived."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import IntEnum
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
import psutil

from steptime.arrays import Bool, Int8, Int32, Int64
from steptime.errors import SnapshotError, no_such_file
from steptime.memory.snapshot_columns import LARGEST
from steptime.plain_pickle import BASE_MEMORY, NotPlainError, converted
from steptime.quantities import SourceLine, format_bytes

NO_STACK = -1
"""Stack number if no frames were recorded."""


class Action(IntEnum):
    """Kind of an allocator event: `action` of c10::cuda::CUDACachingAllocator::TraceEntry (torch 2.1 to 2.13)."""

    OTHER = 0
    ALLOC = 1
    """A tensor gets memory. size: as requested."""
    FREE_REQUESTED = 2
    """The tensor is gone; other streams may still use its memory."""
    FREE_COMPLETED = 3
    """The memory is reusable."""
    SEGMENT_ALLOC = 4
    """The driver allocates a segment."""
    SEGMENT_FREE = 5
    SEGMENT_MAP = 6
    """An expandable segment grows."""
    SEGMENT_UNMAP = 7
    OUT_OF_MEMORY = 8
    """A request fails. size: bytes requested; address: bytes that the driver had free."""
    SNAPSHOT = 9


ACTIONS = {action.name.lower(): action for action in Action} | {
    "free": Action.FREE_REQUESTED,
    "oom": Action.OUT_OF_MEMORY,
}


class State(IntEnum):
    """State of a block in a segment."""

    INACTIVE = 0
    """Free, in the cache."""
    ALLOCATED = 1
    AWAITING_FREE = 2
    """Freed by its owner, but another stream may still use it."""


STATES = {
    "active_allocated": State.ALLOCATED,
    "active_awaiting_free": State.AWAITING_FREE,
    "active_pending_free": State.AWAITING_FREE,
}


@dataclass(frozen=True, slots=True, eq=False)
class Stacks:
    """Distinct call stacks. Stack i is frames[member[start[i]:start[i + 1]]], the innermost first. frames: as torch
    wrote them; a C++ frame has no line (0). definitions: True if a frame's line is where its function starts, not the
    running line; 0 if unknown."""

    frames: tuple[SourceLine, ...]
    start: Int64
    member: Int32
    definitions: bool = False

    def __len__(self) -> int:
        return len(self.start) - 1

    def of(self, stack: int) -> tuple[SourceLine, ...]:
        """The frames of a stack, the innermost first; none for NO_STACK."""
        if stack < 0:
            return ()
        return tuple(self.frames[frame] for frame in self.member[self.start[stack] : self.start[stack + 1]])


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """Segments of the allocator that the process held at one instant, one row each. size: bytes."""

    device: Int32
    address: Int64
    size: Int64


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Blocks of the segments at the end, one row each. segment: row in `Segments`. size: bytes taken; requested: bytes
    requested (equal to size if the snapshot does not say). state: `State` of the block. stack: call stack of the
    allocation."""

    segment: Int32
    address: Int64
    size: Int64
    requested: Int64
    state: Int8
    stack: Int32


@dataclass(frozen=True, slots=True, eq=False)
class Events:
    """Events of the allocator's history, by device and in order. action: `Action` of the event. time: ns since the
    epoch, 0 if not recorded. stack: call stack of the event."""

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
    """Selected rows of a table, without a copy if all are selected."""
    if rows.all():
        return table
    return type(table)(**{field.name: getattr(table, field.name)[rows] for field in fields(table)})


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """Content of a snapshot file of `torch.cuda.memory._dump_snapshot`. truncated: True if the file ends early.
    settings: (name, value) of the allocator's settings. problems: a sentence for each part that could not be read."""

    segments: Segments
    blocks: Blocks
    events: Events
    stacks: Stacks
    settings: tuple[tuple[str, str], ...] = ()
    truncated: bool = False
    problems: tuple[str, ...] = ()


CONVERTER = "steptime.memory.snapshot_columns:convert"
GZIP = b"\x1f\x8b"
START = 4096
"""Bytes at the start in which JSON names its parts."""
MEMORY_PER_BYTE = 5, 12
"""Memory per byte of the file: a real pickle takes 5, JSON up to 10."""
BASE_SECONDS, BYTES_PER_SECOND = 10, 1_000_000
"""Limit of CPU time for reading: BASE_SECONDS plus size / BYTES_PER_SECOND, ten times what a real file needs."""
EXPECTED = "Give a file of torch.cuda.memory._dump_snapshot."
RECORD_LESS = (
    "record fewer events (max_entries of torch.cuda.memory._record_memory_history), or read it on a larger machine."
)


def is_snapshot(path: Path) -> bool:
    """True if a file starts like a pickle of protocol 2 to 5, is named like one, or is JSON that names its parts."""
    if path.is_fifo():
        return False
    try:
        with path.open("rb") as file:
            start = file.read(START)
    except OSError:
        return False
    if start[:1] == b"\x80" and start[1:2] <= b"\x05":
        return True
    in_json = start[:1] == b"{" and (b'"segments"' in start or b'"device_traces"' in start)
    return in_json or path.name.endswith((".pickle", ".pkl", ".pickle.gz"))


def read_snapshot(path: Path) -> Snapshot:
    """Reads a snapshot: a pickle of `torch.cuda.memory._dump_snapshot` (torch 2.1 to 2.13; also gzipped), or the same
    as JSON. A truncated file is read up to its damage, and the report says so.

    Raises SnapshotError if the file is no snapshot, is a pickle that would run code, or is too large for this
    machine."""
    try:
        if path.is_fifo():  # it would block until somebody writes into it, and can be read once only
            raise OSError("it is a pipe")
        with path.open("rb", buffering=0) as file, _columns(path, file) as columns:
            return _read_columns(path, columns)
    except FileNotFoundError:
        raise no_such_file(path, "a snapshot of PyTorch's allocator, a trace or a recording", SnapshotError) from None
    except OSError as error:
        raise SnapshotError(
            "snapshot-unreadable", f"{path} cannot be read ({error.strerror or error}). Check its path and permissions."
        ) from None


def _columns(path: Path, file: IO[bytes]) -> IO[bytes]:
    """Columns of a file, from `snapshot_columns` in a process whose memory is limited to the free memory."""
    size, free = path.stat().st_size, psutil.virtual_memory().available
    compressed = file.read(2) == GZIP
    file.seek(0)
    least = size * MEMORY_PER_BYTE[0]
    most = free if compressed else min(free, size * MEMORY_PER_BYTE[1])
    try:
        if least > free:
            raise NotPlainError("too-large", f"takes about {format_bytes(least)} of memory to read")
        return converted(file, CONVERTER, max(BASE_MEMORY, most), BASE_SECONDS + size // BYTES_PER_SECOND)
    except NotPlainError as error:
        helps = f"{format_bytes(free)} are free: {RECORD_LESS}" if error.kind == "too-large" else EXPECTED
        raise SnapshotError(f"snapshot-{error.kind}", f"{path} {error}. {helps}") from None


def _read_columns(path: Path, file: IO[bytes]) -> Snapshot:
    head = json.loads(file.readline())
    tables: dict[str, dict[str, Int64]] = {"segments": {}, "blocks": {}, "events": {}, "stacks": {}}
    for table, name, kind, count in head["columns"]:
        tables[table][name] = np.fromfile(file, kind, count)
        tables[table][name].flags.writeable = False
    segments, blocks, events, stacks = tables.values()
    words, lengths = head["words"], head["lengths"]
    size = _sealed(blocks["size"])
    ends = (
        f"{path.name} is cut short, perhaps because the job was killed while writing it. Its history ends at "
        f"event {len(events['time'])}."
    )
    return Snapshot(
        segments=Segments(
            device=_sealed(segments["device"], "i", 1 << 20),
            address=_sealed(segments["address"]),
            size=_sealed(segments["size"]),
        ),
        blocks=Blocks(
            segment=_sealed(blocks["segment"], "i"),
            address=_sealed(blocks["address"]),
            size=size,
            requested=_sealed(np.minimum(size, blocks["requested"])),
            state=_coded(blocks["state"], words, STATES),
            stack=blocks["stack"].astype(np.int32, copy=False),
        ),
        events=Events(
            device=_sealed(np.repeat(np.arange(len(lengths)), lengths), "i"),
            action=_coded(events["action"], words, ACTIONS),
            address=_sealed(events["address"]),
            size=_sealed(events["size"]),
            time=_sealed(_sealed(events["time"], most=LARGEST // 1000) * 1000),
            stack=events["stack"].astype(np.int32, copy=False),
        ),
        stacks=Stacks(
            frames=tuple(SourceLine(*frame) for frame in head["frames"]),
            start=_sealed(stacks["start"]),
            member=_sealed(stacks["member"], "i"),
        ),
        settings=tuple((name, value) for name, value in head["settings"]),
        truncated=head["truncated"],
        problems=(ends,) if head["truncated"] else (),
    )


def _sealed(column: Int64, kind: str = "q", most: int = LARGEST) -> np.ndarray[Any, np.dtype[Any]]:
    """Read-only column of a type, clipped to 0 to `most`."""
    found = np.clip(column, 0, most).astype(kind, copy=False)
    found.flags.writeable = False
    return found


def _coded(column: Int64, words: list[str], codes: Mapping[str, int]) -> np.ndarray[Any, np.dtype[Any]]:
    """Codes of words; 0 for unknown words."""
    return _sealed(np.array([codes.get(word, 0) for word in words])[column], "b")
