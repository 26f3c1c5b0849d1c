"""A trace as columns: what Kineto wrote, nothing derived. The room's central types.

One law: times are integer nanoseconds, exact to the last digit that the file holds.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from steptime.arrays import Int32, Int64

Ids: TypeAlias = Int64

ABSENT = -(2**31)
"""An integer that the event does not carry. No id, stream or size reaches it; -1 is a real stream (of syncs)."""


class EventKind(IntEnum):
    """What an event is, whatever the file's year calls it."""

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
    """A wait as the device's tracer reports it, beside the runtime call."""
    OVERHEAD = 10
    """The profiler's own work: flushing buffers, instrumenting."""
    SPAN = 11
    """The recording itself."""


HOST_CATEGORIES = (EventKind.OPERATOR, EventKind.ANNOTATION, EventKind.RUNTIME, EventKind.PYTHON)
"""What a thread of the host did itself."""


@dataclass(frozen=True, slots=True)
class Track:
    """A row of the trace as the file names it: a process (or device) and a thread (or stream)."""

    process: int | str | None
    thread: int | str | None


class _WithEnd:
    """A place for what is computed once; no field of the table."""

    __slots__ = ("_end",)
    _end: Int64


@dataclass(frozen=True, slots=True)
class EventTable(_WithEnd):
    """Columns of the complete ("X") events in file order; all arrays have one length and are read-only.

    name, shapes, dtypes, inputs: numbers of `Trace.symbols`, `Trace.shapes`… (ABSENT where the event has none).
    lane: number in `Trace.lanes`. begin: ns, absolute where the file says since when. duration: ns, never negative.
    bytes: of a copy or a memset. python and python_parent: ids of Python functions. blocks: of a kernel's grid (some
    calls of HIP give its threads instead, which are more).

    Ids and sizes (correlation to device, python, python_parent) are 32 bits wide where all of them fit and 64 where one
    does not: widen them before arithmetic. A column that no event fills is one broadcast ABSENT.
    """

    event_kind: npt.NDArray[np.uint8]
    name: Int32
    lane: Int32
    begin: Int64
    duration: Int64
    correlation: Ids
    external: Ids
    sequence: Ids
    bytes: Ids
    stream: Ids
    device: Ids
    shapes: Int32
    dtypes: Int32
    inputs: Int32
    python: Ids
    python_parent: Ids
    blocks: Ids

    def __len__(self) -> int:
        return len(self.begin)

    @property
    def end(self) -> Int64:
        """begin + duration, ns; computed once."""
        try:
            return self._end
        except AttributeError:
            end = self.begin + self.duration
            end.flags.writeable = False
            object.__setattr__(self, "_end", end)
            return end


@dataclass(frozen=True, slots=True)
class Device:
    """An accelerator as the trace describes it. memory: bytes; 0 and "" where the file does not say."""

    number: int
    name: str = ""
    memory: int = 0
    compute_capability: tuple[int, int] = (0, 0)
    multiprocessors: int = 0


@dataclass(frozen=True, slots=True)
class Damage:
    """What was lost. truncated: the file ends before its list of events does. damaged: stretches that are no JSON (each
    costs an event or two). refused: events without a usable time or name. negative: durations below zero, read as 0.
    """

    truncated: bool = False
    damaged: int = 0
    refused: int = 0
    negative: int = 0

    @property
    def sentences(self) -> tuple[str, ...]:
        """What to tell the user: nothing, or one sentence with all counts."""
        said = []
        if self.truncated:
            said.append("it ends in the middle, as of a job killed while writing it")
        if self.damaged:
            said.append(f"{_counted(self.damaged, 'stretch', 'stretches')} could not be understood")
        if self.refused:
            said.append(f"{_counted(self.refused, 'event', 'events')} had no usable time or name")
        if self.negative:
            said.append(f"{_counted(self.negative, 'negative duration', 'negative durations')} became zero")
        return (f"The trace is damaged, and what is whole in it was kept: {'; '.join(said)}.",) if said else ()


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


class _Referable:
    """With slots, only a base can make weak references possible before Python 3.11."""

    __slots__ = ("__weakref__",)


@dataclass(frozen=True, slots=True)
class Trace(_Referable):
    """A file written by Kineto. size: bytes of JSON that were read.

    symbols: names of events. shapes, dtypes, inputs: the raw JSON of "Input Dims", "Input type" and "Concrete Inputs".
    base_ns: added to the file's times (baseTimeNanoseconds). rank, world_size: None where the file does not say.
    windows: begins and ends in ns of the recordings that it was put together from, in time order; none for one file.
    parts: their files with the number of events of each, likewise.
    """

    path: Path
    size: int
    events: EventTable
    symbols: tuple[str, ...]
    lanes: tuple[Track, ...]
    shapes: tuple[str, ...]
    dtypes: tuple[str, ...]
    inputs: tuple[str, ...]
    devices: tuple[Device, ...] = ()
    rank: int | None = None
    world_size: int | None = None
    backend: str = ""
    base_ns: int = 0
    damage: Damage = Damage()
    windows: tuple[tuple[int, int], ...] = ()
    parts: tuple[tuple[Path, int], ...] = ()


@dataclass(frozen=True, slots=True)
class TraceDescription:
    """See `Trace` for the fields."""

    devices: tuple[Device, ...] = ()
    rank: int | None = None
    world_size: int | None = None
    backend: str = ""
    base_ns: int = 0


def understand(header: bytes, trailer: bytes) -> TraceDescription:
    """Facts from the text before and after the list of events: header up to and with its "[", trailer from its "]".

    A trailer that is missing or damaged costs what it held; a damaged header likewise.
    """
    for text in (header + trailer, header + b"]}"):
        try:
            document = json.loads(text.decode("utf-8-sig", "replace"))
        except (ValueError, RecursionError):
            continue
        return _facts(document) if isinstance(document, dict) else TraceDescription()
    return TraceDescription()


def closes(header: bytes, trailer: bytes) -> bool:
    """True when header and trailer are one JSON document: the list of events ends where the trailer begins."""
    try:
        json.loads((header + trailer).decode("utf-8-sig", "replace"))
    except (ValueError, RecursionError):
        return False
    return True


def _facts(document: dict[str, object]) -> TraceDescription:
    distributed = document.get("distributedInfo")
    distributed = distributed if isinstance(distributed, dict) else {}
    listed = document.get("deviceProperties")
    backend = distributed.get("backend")
    return TraceDescription(
        devices=tuple(_device(each) for each in listed if isinstance(each, dict)) if isinstance(listed, list) else (),
        rank=_count(distributed.get("rank")),
        world_size=_count(distributed.get("world_size")),
        backend=backend if isinstance(backend, str) else "",
        base_ns=_count(document.get("baseTimeNanoseconds")) or 0,
    )


def _device(properties: dict[str, object]) -> Device:
    name = properties.get("name")
    return Device(
        number=_count(properties.get("id")) or 0,
        name=name if isinstance(name, str) else "",
        memory=_count(properties.get("totalGlobalMem")) or 0,
        compute_capability=(_count(properties.get("computeMajor")) or 0, _count(properties.get("computeMinor")) or 0),
        multiprocessors=_count(properties.get("numSms")) or 0,
    )


def _count(value: object) -> int | None:
    """A non-negative integer below 2^62, or None."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**62:
        return None
    return value
