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

from steptime.arrays import Bool, Few, Int32, Int64, Numbers, Row, Rows
from steptime.trace.cached_per_trace import cached_per_trace

Ids: TypeAlias = Int64

ABSENT = -128
"""Value of an integer that an event does not have: no id, stream or size (-1 is a stream, of syncs). It fits 8 bits."""
SPARSE = "sparse "
"""Put before the type of an argument that is a sparse tensor."""


class EventKind(IntEnum):
    """Kind of an event, independent of the name that the file's version has for its category."""

    OTHER = 0
    OPERATOR = 1
    """Dispatched operator. In files of 2021 also annotations."""
    ANNOTATION = 2
    RUNTIME = 3
    """Call of the CUDA or HIP runtime or driver, on a CPU thread."""
    KERNEL = 4
    MEMCPY = 5
    MEMSET = 6
    DEVICE_ANNOTATION = 7
    PYTHON = 8
    """Python function (with_stack)."""
    SYNC = 9
    """Wait as the device's tracer reports it, in addition to the runtime call."""
    OVERHEAD = 10
    """Work of the profiler itself: flushing buffers, instrumenting."""
    SPAN = 11
    """Time span of the recording itself."""


HOST_CATEGORIES = (EventKind.OPERATOR, EventKind.ANNOTATION, EventKind.RUNTIME, EventKind.PYTHON)
"""Kinds of events that are a CPU thread's own work."""


@dataclass(frozen=True, slots=True)
class Track:
    """A thread of a process, or a stream of a device, as the file names them."""

    process: int | str | None
    thread: int | str | None


@dataclass(frozen=True, slots=True)
class EventTable:
    """Columns of the complete ("X") events in file order; all arrays have one length and are read-only. name, shapes,
    dtypes, inputs, details: indices into `Trace.symbols`, `Trace.shapes`… (ABSENT for none). track: index into
    `Trace.tracks`. start: ns, absolute if the file has its origin. duration: ns, never negative. bytes: size of a copy
    or a memset. blocks: number of blocks in a kernel's grid (some calls of HIP record threads instead, which are more).
    All columns but start are as narrow as their values allow, 8 to 64 bits, and a duration has at least 32: widen them
    before arithmetic. A column without values is one broadcast ABSENT; sparse ones are `Few`."""

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
        """End of each event, ns. Computed on each access, because a column would take 8 bytes per event."""
        return self.start + self.duration

    def are(self, *kinds: EventKind) -> Bool:
        found: Bool = self.event_kind == kinds[0]
        for each in kinds[1:]:
            found |= self.event_kind == each
        return found

    def ends(self, rows: Rows | Row) -> Int64:
        """End of each of some events, ns. rows: numbers of these events, a mask or a slice."""
        found: Int64 = self.start[rows] + self.duration[rows]
        return found


FEW = ("sequence", "bytes", "blocks", "details")
"""Columns that are stored as `Few`, since few events have a value."""


@dataclass(frozen=True, slots=True, eq=False)
class Launched:
    """Row of the call that launched each device activity, and of the CPU event that it comes from; see
    `links.launches_of` and `links.origins_of`."""

    launch: Few
    origin: Few


UNSAID = -1
"""Value of an allocation's number that is not in the file."""


@dataclass(frozen=True, slots=True, eq=False)
class AllocationEvents:
    """Allocations and frees in file order. time: ns on the file's clock (add the trace's base_ns). thread: as in the
    file. bytes: negative for a free. address: UNSAID in traces before torch 1.12. allocated, reserved: total bytes on
    the device right after the event (on a CPU, since the recording's start). device_type: 0 for a CPU. A column has 32
    bits if all its values fit, else 64: widen it before arithmetic."""

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
    """An accelerator as the trace describes it. multiprocessors: 0 and name: "" if unknown."""

    number: int
    name: str = ""
    multiprocessors: int = 0


@dataclass(frozen=True, slots=True)
class Damage:
    """Losses of a damaged trace. truncated: the file ends before its list of events does. damaged: number of passages
    that are no JSON (each costs an event or two). refused: number of events without a usable time or name. negative:
    number of durations below zero, read as 0."""

    truncated: bool = False
    damaged: int = 0
    refused: int = 0
    negative: int = 0

    @property
    def sentences(self) -> tuple[str, ...]:
        """Text for the user with all counts, as a tuple of one sentence; an empty tuple without damage."""
        counted = (
            (self.damaged, "part", "parts", "could not be understood"),
            (self.refused, "event", "events", "had no usable time or name"),
            (self.negative, "negative duration", "negative durations", "became zero"),
        )
        message = ["it is cut short, perhaps because the job was killed while writing it"] if self.truncated else []
        message += [f"{count} {one if count == 1 else many} {what}" for count, one, many, what in counted if count]
        return (f"The trace is damaged; steptime uses its intact part: {'; '.join(message)}.",) if message else ()


class Referable:
    """Base that makes weak references to a class with slots possible before Python 3.11."""

    __slots__ = ("__weakref__",)


@dataclass(frozen=True, slots=True)
class Trace(Referable):
    """Trace of one process, whichever supported profiler wrote it. size: bytes of JSON, or of the database, that were
    read. symbols: names of events. shapes, dtypes, inputs: raw JSON of "Input Dims", "Input type" and "Concrete
    Inputs". details: further arguments of collectives and compiled kernels, JSON objects. allocations: only of a single
    file. base_ns: added to the file's times (baseTimeNanoseconds). rank, world_size: None if unknown. windows: starts
    and ends of the joined recordings, ns, in time order; empty for one file. parts: (file, number of events) of the
    joined recordings, in the same order. launched: None until computed; from then on the events have no correlation and
    external ids."""

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
    """Fields of `Trace` (devices, rank, world_size, backend, base_ns) from the text around the list of events: header
    up to and including its "[", trailer from its "]".

    If header or trailer is missing or damaged, its fields are missing."""
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
    """True if header and trailer form one JSON document: the list of events ends where the trailer starts."""
    try:
        json.loads((header + trailer).decode("utf-8-sig", "replace"))
    except (ValueError, RecursionError):
        return False
    return True


def _count(value: object) -> int | None:
    """The value if it is a non-negative integer below 2^62, else None."""
    return value if type(value) is int and 0 <= value < 2**62 else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


Details = dict[str, Any]


def details_of(trace: Trace, rows: Int64 | Int32) -> tuple[Details, ...]:
    """Details of some events, by Kineto's names for them; {} for an event without details."""
    known = (*_decoded(trace), Details())  # ABSENT is the last
    return tuple(known[max(number, -1)] for number in trace.events.details[rows].tolist())


@cached_per_trace
def _decoded(trace: Trace) -> tuple[Details, ...]:
    return tuple(map(_parsed, trace.details))


def _parsed(text: str) -> Details:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
