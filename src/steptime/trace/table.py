"""A trace as columns: what Kineto wrote, nothing derived. The room's central types.

One law: times are integer nanoseconds, exact to the last digit that the file holds.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from steptime.arrays import Bool, Few, Int64, Numbers, Row, Rows

Ids: TypeAlias = Int64

ABSENT = -128
"""An integer that the event does not carry: no id, stream or size (-1 is a real stream, of syncs). 8 bits hold it."""


class EventKind(IntEnum):
    """Kind of an event, whatever the file's year calls it."""

    OTHER = 0
    OPERATOR = 1
    """A dispatched operator. In files of 2021 also the annotations."""
    ANNOTATION = 2
    RUNTIME = 3
    """A call of the CUDA or HIP runtime or driver, on the host."""
    KERNEL = 4
    MEMCPY = 5
    MEMSET = 6
    DEVICE_ANNOTATION = 7
    PYTHON = 8
    """A Python function (with_stack)."""
    SYNC = 9
    """A wait as the device's tracer reports it, next to the runtime call."""
    OVERHEAD = 10
    """The profiler's own work: flushing buffers, instrumenting."""
    SPAN = 11
    """The recording itself."""


HOST_CATEGORIES = (EventKind.OPERATOR, EventKind.ANNOTATION, EventKind.RUNTIME, EventKind.PYTHON)
"""Categories of a host thread's own work."""


@dataclass(frozen=True, slots=True)
class Track:
    """A row of the trace as the file names it: a process (or device) and a thread (or stream)."""

    process: int | str | None
    thread: int | str | None


@dataclass(frozen=True, slots=True)
class EventTable:
    """Columns of the complete ("X") events in file order; all arrays have one length and are read-only.

    name, shapes, dtypes, inputs, details: numbers of `Trace.symbols`, `Trace.shapes`… (ABSENT where an event has none).
    records: number in `Trace.tracks`. start: ns, absolute where the file says since when. duration: ns, never negative.
    bytes: of a copy or a memset. blocks: of a kernel's grid (some
    calls of HIP give its threads instead, which are more).

    Columns but start are as narrow as their values allow, 8 to 64 bits, and a duration has at least 32: widen them
    before arithmetic. A column that no event fills is one broadcast ABSENT; those that few events fill are `Few`."""

    event_kind: npt.NDArray[np.uint8]
    name: Numbers
    track: Numbers
    start: Int64
    duration: Numbers
    correlation: Ids
    external: Ids
    sequence: Few
    bytes: Few
    stream: Ids
    device: Ids
    shapes: Numbers
    dtypes: Numbers
    inputs: Numbers
    blocks: Few
    details: Few

    def __len__(self) -> int:
        return len(self.start)

    @property
    def end(self) -> Int64:
        """start + duration of all, ns. Computed anew each time: nobody keeps 8 bytes for each event."""
        return self.start + self.duration

    def are(self, *kinds: EventKind) -> Bool:
        found: Bool = self.event_kind == kinds[0]
        for each in kinds[1:]:
            found |= self.event_kind == each
        return found

    def ends(self, rows: Rows | Row) -> Int64:
        """The same of some events. rows: their numbers, a mask or a slice."""
        found: Int64 = self.start[rows] + self.duration[rows]
        return found


FEW = ("sequence", "bytes", "blocks", "details")
"""Columns that few events fill."""


@dataclass(frozen=True, slots=True, eq=False)
class Launched:
    """For each activity of a device, the row of the call that launched it, and of the event of the host that it comes
    from; see `links.launches_of` and `links.origins_of`."""

    launch: Few
    origin: Few


UNSAID = -1
"""A number of an allocation that the file does not give."""


@dataclass(frozen=True, slots=True, eq=False)
class AllocationEvents:
    """Columns in file order. time: ns in the file's own terms (add the trace's base_ns). thread: as the file has it.
    bytes: negative where memory was freed. address: UNSAID in traces before torch 1.12. allocated, reserved: totals of
    the device right after; of a CPU only what was handed out since the recording began. device_type: 0 for a CPU.

    32 bits wide where all of a column's values fit and 64 where one does not: widen them before arithmetic."""

    time: Ids
    process: Ids
    thread: Ids
    address: Ids
    bytes: Ids
    allocated: Ids
    reserved: Ids
    device: Ids
    device_type: Ids

    def __len__(self) -> int:
        return len(self.time)


NO_ALLOCATIONS = AllocationEvents(*[np.empty(0, np.int64)] * 9)


@dataclass(frozen=True, slots=True)
class Device:
    """An accelerator as the trace describes it. multiprocessors: 0, and name: "", where the file does not say."""

    number: int
    name: str = ""
    multiprocessors: int = 0


@dataclass(frozen=True, slots=True)
class Damage:
    """Losses of a damaged trace. truncated: the file ends before its list of events does. damaged: intervals that are
    no JSON (each costs an event or two). refused: events without a usable time or name. negative: durations below zero,
    read as 0."""

    truncated: bool = False
    damaged: int = 0
    refused: int = 0
    negative: int = 0

    @property
    def sentences(self) -> tuple[str, ...]:
        """Message for the user: nothing, or one sentence with all counts."""
        counted = (
            (self.damaged, "part", "parts", "could not be understood"),
            (self.refused, "event", "events", "had no usable time or name"),
            (self.negative, "negative duration", "negative durations", "became zero"),
        )
        message = ["it ends in the middle, as of a job killed while writing it"] if self.truncated else []
        message += [f"{count} {one if count == 1 else many} {what}" for count, one, many, what in counted if count]
        return (f"The trace is damaged, and what is whole in it was kept: {'; '.join(message)}.",) if message else ()


class Referable:
    """With slots, only a base can make weak references possible before Python 3.11."""

    __slots__ = ("__weakref__",)


@dataclass(frozen=True, slots=True)
class Trace(Referable):
    """Trace of a process by Kineto or Nsight Systems. size: bytes of JSON, or of the database, that were read.

    symbols: names of events. shapes, dtypes, inputs: the raw JSON of "Input Dims", "Input type" and "Concrete Inputs".
    details: what collectives and compiled kernels carry beyond, JSON objects. allocations: of one file only.
    base_ns: added to the file's times (baseTimeNanoseconds). rank, world_size: None where the file does not say.
    windows: starts and ends in ns of the recordings that it was put together from, in time order; none for one file.
    parts: their files with the number of events of each, likewise.
    launched: None where nobody has looked yet; else the events have lost correlation and external, which say no more.
    """

    path: Path
    size: int
    events: EventTable
    symbols: tuple[str, ...]
    tracks: tuple[Track, ...]
    shapes: tuple[str, ...]
    dtypes: tuple[str, ...]
    inputs: tuple[str, ...]
    details: tuple[str, ...] = ()
    allocations: AllocationEvents = NO_ALLOCATIONS
    devices: tuple[Device, ...] = ()
    rank: int | None = None
    world_size: int | None = None
    backend: str = ""
    base_ns: int = 0
    damage: Damage = Damage()
    windows: tuple[tuple[int, int], ...] = ()
    parts: tuple[tuple[Path, int], ...] = ()
    launched: Launched | None = None


def facts_of(header: bytes, trailer: bytes) -> dict[str, Any]:
    """Fields of `Trace` (devices, rank, world_size, backend, base_ns) from the text before and after the list of
    events: header up to and with its "[", trailer from its "]".

    A trailer that is missing or damaged costs what it held; a damaged header likewise."""
    document: object = None
    for text in (header + trailer, header + b"]}"):
        with suppress(ValueError, RecursionError):
            document = json.loads(text.decode("utf-8-sig", "replace"))
            break
    document = document if isinstance(document, dict) else {}
    distributed, listed = document.get("distributedInfo"), document.get("deviceProperties")
    distributed = distributed if isinstance(distributed, dict) else {}
    listed = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    return {
        "devices": tuple(
            Device(_count(each.get("id")) or 0, _text(each.get("name")), _count(each.get("numSms")) or 0)
            for each in listed
        ),
        "rank": _count(distributed.get("rank")),
        "world_size": _count(distributed.get("world_size")),
        "backend": _text(distributed.get("backend")),
        "base_ns": _count(document.get("baseTimeNanoseconds")) or 0,
    }


def closes(header: bytes, trailer: bytes) -> bool:
    """True when header and trailer are one JSON document: the list of events ends where the trailer starts."""
    try:
        json.loads((header + trailer).decode("utf-8-sig", "replace"))
    except (ValueError, RecursionError):
        return False
    return True


def _count(value: object) -> int | None:
    """A non-negative integer below 2^62, or None."""
    return value if type(value) is int and 0 <= value < 2**62 else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
