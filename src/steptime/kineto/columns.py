"""Events to columns, block by block, so that no more than a block of Python objects is alive."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import TypeVar

import msgspec
import numpy as np

from steptime.arrays import Float64, Int32, Int64
from steptime.kineto.categories import CategoryCodes
from steptime.kineto.events import NOTHING, Arguments, Event, Number, begins, integer, nanoseconds
from steptime.kineto.growing import Growing
from steptime.kineto.table import ABSENT, EventTable, Lane

Key = TypeVar("Key")
LONGEST = 2.0**50
MOST_THREADS = 1024
"""Of a block, on all devices of NVIDIA and AMD."""
WHOLE: dict[str, type[np.generic]] = {
    "category": np.uint8, "name": np.int32, "lane": np.int32, "begin": np.int64, "duration": np.int64,
    "shapes": np.int32, "dtypes": np.int32, "inputs": np.int32,
}  # fmt: skip
"""Columns of one type always: times are 64 bits wide, whatever they hold."""
IDS = ("correlation", "external", "sequence", "bytes", "stream", "device", "python", "python_parent", "blocks")
"""Columns of integers that the file gives: as narrow as they are."""


class Numbering(dict[Key, int]):
    """Gives each new key the next number."""

    def __missing__(self, key: Key) -> int:
        number = self[key] = len(self)
        return number


class Texts(dict[bytes, int]):
    """The same for raw JSON, with ABSENT for no text."""

    def __init__(self) -> None:
        super().__init__({b"": ABSENT})

    def __missing__(self, key: bytes) -> int:
        number = self[key] = len(self) - 1
        return number

    def decoded(self) -> tuple[str, ...]:
        """The texts in the order of their numbers."""
        return tuple(key.decode("utf-8", "replace") for key in self if key)


class Grids(dict[tuple[bytes, bytes], int]):
    """The blocks of a grid, by the JSON of grid and block; each pair is looked at once."""

    def __missing__(self, key: tuple[bytes, bytes]) -> int:
        blocks = self[key] = _blocks(*key)
        return blocks


class Columns:
    """Grows the columns of an `EventTable`. refused, negative: see `Damage`."""

    def __init__(self) -> None:
        self._columns = {name: Growing(kind, ABSENT if kind is np.int32 else 0) for name, kind in WHOLE.items()}
        self._columns |= {name: Growing(np.int64, ABSENT, narrow=True) for name in IDS}
        self._categories = CategoryCodes()
        self.names: Numbering[str] = Numbering()
        self._lanes: Numbering[tuple[Number, Number]] = Numbering()
        self.shapes, self.dtypes, self.inputs = Texts(), Texts(), Texts()
        self._grids = Grids()
        self.refused = self.negative = 0

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """In the order of their numbers."""
        return tuple(Lane(*key) for key in self._lanes)

    def add(self, events: list[Event], *, exactly: bool) -> None:
        """Appends events of one block."""
        if not events:
            return
        durations = _floats([event.dur for event in events])
        times, sound = begins(events, exactly=exactly)
        sound &= durations < LONGEST
        if not sound.all():
            self.refused += int((~sound).sum())
            self.add([event for event, kept in zip(events, sound, strict=True) if kept], exactly=exactly)
            return
        self.negative += int((durations < 0).sum())
        self._columns["begin"].extend(times)
        self._columns["duration"].extend(nanoseconds(np.maximum(durations, 0)))
        self._add_identities(events)
        self._add_arguments(events)

    def _add_identities(self, events: list[Event]) -> None:
        names = _integers(list(map(self.names.__getitem__, [event.name for event in events])))
        self._columns["name"].extend(names)
        self._columns["lane"].extend(self._lanes_of([event.pid for event in events], [event.tid for event in events]))

    def _lanes_of(self, processes: list[Number], threads: list[Number]) -> Int32:
        """The number of each event's lane. Lanes come in runs, and only the first of each is looked up."""
        try:
            pids, tids = _integers(processes), _integers(threads)
        except struct.error:  # a name, or none
            keys = zip(processes, threads, strict=True)
            return np.fromiter(map(self._lanes.__getitem__, keys), np.int32, len(threads))
        starts = np.flatnonzero((pids[1:] != pids[:-1]) | (tids[1:] != tids[:-1])) + 1
        firsts = [0, *starts.tolist()]
        lanes = [self._lanes[processes[first], threads[first]] for first in firsts]
        return np.repeat(np.array(lanes, np.int32), np.diff([*firsts, len(threads)]))

    def _add_arguments(self, events: list[Event]) -> None:
        every = [event.args for event in events]
        self._add_ids("correlation", [args.correlation for args in every])
        external = [args.external for args in every]
        of_2021 = [args.external_of_2021 for args in every]
        if of_2021.count(ABSENT) < len(every):
            external = [old if new == ABSENT else new for new, old in zip(external, of_2021, strict=True)]
        self._add_ids("external", external)
        self._add_ids("sequence", [args.sequence for args in every])
        self._add_ids("bytes", [args.bytes for args in every])
        if self._add_ids("python", [args.python for args in every]) is None:
            self._columns["python_parent"].skip(len(every))
        else:
            self._add_ids("python_parent", [args.python_parent for args in every])
        with_inputs = self._add_texts("inputs", self.inputs, [args.inputs for args in every])
        with_shapes = self._add_texts("shapes", self.shapes, [args.shapes for args in every])
        if with_inputs or with_shapes:
            self._add_texts("dtypes", self.dtypes, [args.dtypes for args in every])
        else:  # Kineto writes types with shapes only
            self._columns["dtypes"].skip(len(every))
        streams = self._add_ids("stream", [args.stream for args in every])
        self._add_blocks(every, streams)
        devices = self._add_ids("device", [args.device for args in every])
        self._columns["category"].extend(self._categories.of(events, streams, devices))

    def _add_texts(self, column: str, numbers: Texts, raw: list[msgspec.Raw]) -> bool:
        """Raw JSON; most events have none, and then it is the one default object. True where some event has one."""
        if raw.count(NOTHING) == len(raw):
            self._columns[column].skip(len(raw))
            return False
        values = [ABSENT if text is NOTHING else numbers[bytes(text)] for text in raw]
        self._columns[column].extend(_integers(values))
        return True

    def _add_blocks(self, every: list[Arguments], streams: Int64 | None) -> None:
        """Only what runs on a stream can have a grid, and that is a small part of all events."""
        if streams is None:
            self._columns["blocks"].skip(len(every))
            return
        blocks = np.full(len(every), ABSENT, np.int64)
        for at in np.flatnonzero(streams != ABSENT).tolist():
            arguments = every[at]
            if arguments.grid is not NOTHING:
                blocks[at] = self._grids[bytes(arguments.grid), bytes(arguments.block)]
        self._columns["blocks"].extend(blocks)

    def _add_ids(self, column: str, values: list[Number]) -> Int64 | None:
        """Optional ids: integers or ABSENT, with rare exceptions. Returns them, None where no event has one."""
        if values.count(ABSENT) == len(values):  # an identity test for almost all: less than a nanosecond each
            self._columns[column].skip(len(values))
            return None
        try:
            numbers = _integers(values)
        except struct.error:  # text, null, or more than 64 bits
            numbers = _integers([integer(value, ABSENT) for value in values])
        self._columns[column].extend(numbers)
        return numbers

    def table(self, base_ns: int) -> EventTable:
        """All events."""
        joined = {name: column.finished() for name, column in self._columns.items()}
        if base_ns and len(joined["begin"]):
            joined["begin"] += base_ns
        for column in joined.values():
            column.flags.writeable = False
        return EventTable(**joined)


def _blocks(grid: bytes, block: bytes) -> int:
    """Of a grid [x, y, z] of blocks [x, y, z]; ABSENT where it is none. Some versions of ROCm swap the two: no block
    has more than 1,024 threads, so the larger is then the whole grid in threads."""
    try:
        blocks, threads = (math.prod(msgspec.json.decode(text, type=list[int])) for text in (grid, block or b"[1]"))
    except msgspec.DecodeError:
        return ABSENT
    found = threads // max(blocks, 1) if threads > MOST_THREADS else blocks
    return found if 0 <= found < 2**62 else ABSENT


def _integers(values: Sequence[Number]) -> Int64:
    """Packing is twice as fast as numpy's own conversion, and it refuses what is no integer of 64 bits
    (struct.error)."""
    return np.frombuffer(struct.pack(f"{len(values)}q", *values), np.int64)


def _floats(values: list[float]) -> Float64:
    return np.frombuffer(struct.pack(f"{len(values)}d", *values), np.float64)
