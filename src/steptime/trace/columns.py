"""Events as the parser sees them, and their columns, filled block by block: only one block of objects is in memory.

The events are typed structs: the parser skips fields that are not named here, which is three times as fast. Types
accept what real files hold: ROCm writes streams and byte counts as strings, and a few tracks are strings.
"""

from __future__ import annotations

import functools
import math
import operator
import re
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields, replace
from decimal import Decimal, InvalidOperation
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from steptime.arrays import Bool, Few, Float64, Int32, Int64
from steptime.trace.table import ABSENT, FEW, SPARSE, AllocationEvents, EventKind, EventTable, Track
from steptime.trace.vendors import (
    CATEGORIES,
    CATEGORY_ENDINGS,
    DEVICE_WORK_CATEGORIES,
    DEVICE_WORK_KINDS,
    LEGACY,
    MODULE_RANGE,
    PRODUCTS,
)

Number: TypeAlias = int | str | None
NOTHING = msgspec.Raw()
FLOAT_HOLDS_NANOSECONDS = 2.0**43
"""Microseconds below which a float64 is within half a nanosecond of the written number."""
PRECISE_TIME = re.compile(rb'"ts"\s*:\s*\d{13,}\.\d')
"""A time too long for a float64: Kineto of spring 2024 wrote epoch microseconds with three decimals."""
PRECISE_LAYOUT = "dddddddddddddddd.ddd"
"""Layout of such a time, digit by digit."""
POINT = PRECISE_LAYOUT.index(".")
POINT_AS_DIGIT = (ord(".") - ord("0")) % 256
LATEST = 2.0**52
"""Latest valid time, microseconds: 142 years. A later one is garbage, and its ns would overflow int64."""
PHASES_PASSED_OVER = (*"MIfstCBEbenNODPRcavV(),=", "")
"""Phases of the Trace Event Format without a measured interval; arrows alone are up to 40 % of the events."""


class Arguments(msgspec.Struct, gc=False, frozen=True):
    """Fields of an event's `args` that the analyses read. They are in the order of the file, which the parser expects.
    Raw fields point into the parser's buffer."""

    external: Number = msgspec.field(default=ABSENT, name="External id")
    sequence: Number = msgspec.field(default=ABSENT, name="Sequence number")
    inputs: msgspec.Raw = msgspec.field(default=NOTHING, name="Concrete Inputs")
    dtypes: msgspec.Raw = msgspec.field(default=NOTHING, name="Input type")
    strides: msgspec.Raw = msgspec.field(default=NOTHING, name="Input Strides")
    shapes: msgspec.Raw = msgspec.field(default=NOTHING, name="Input Dims")
    device: Number = ABSENT
    stream: Number = ABSENT
    correlation: Number = ABSENT
    bytes: Number = ABSENT
    grid: msgspec.Raw = NOTHING
    block: msgspec.Raw = NOTHING
    external_of_2021: Number = msgspec.field(default=ABSENT, name="external id")
    collective: msgspec.Raw = msgspec.field(default=NOTHING, name="Collective name")
    kernel_file: msgspec.Raw = NOTHING


class Detailed(Arguments, gc=False, frozen=True):
    """Arguments with the details of rare events: collectives, and operators that torch.compile generated."""

    elements_in: msgspec.Raw = msgspec.field(default=NOTHING, name="In msg nelems")
    elements_out: msgspec.Raw = msgspec.field(default=NOTHING, name="Out msg nelems")
    group_size: msgspec.Raw = msgspec.field(default=NOTHING, name="Group size")
    dtype: msgspec.Raw = NOTHING
    group: msgspec.Raw = msgspec.field(default=NOTHING, name="Process Group Name")
    group_description: msgspec.Raw = msgspec.field(default=NOTHING, name="Process Group Description")
    group_ranks: msgspec.Raw = msgspec.field(default=NOTHING, name="Process Group Ranks")


NO_ARGUMENTS = Arguments()
KEYS = dict(zip(Detailed.__struct_fields__, Detailed.__struct_encode_fields__, strict=True))
RAW_FIELDS = {name for name in KEYS if getattr(Detailed(), name) is NOTHING}
DETAILS = ("collective", "kernel_file", *(name for name in KEYS if name not in Arguments.__struct_fields__))
ALL_DETAILS = msgspec.json.Decoder(Detailed)
ATTEMPTS = 16
"""Most braces that are tried as the start of an event's arguments, and as their end."""


Time = TypeVar("Time")
"""Type of a time in microseconds: a float or, if that cannot hold the time, its digits (Raw)."""


class Complete(msgspec.Struct, Generic[Time], tag="X", tag_field="ph", gc=False, kw_only=True):
    """A complete event, with start and duration in microseconds."""

    cat: str = ""
    name: str
    pid: Number = None
    tid: Number = None
    ts: Time
    dur: float = 0.0
    args: Arguments = NO_ARGUMENTS


class OfInstant(msgspec.Struct, gc=False, frozen=True):
    """Fields that are read of an allocation's `args`."""

    reserved: Number = msgspec.field(default=None, name="Total Reserved")
    allocated: Number = msgspec.field(default=None, name="Total Allocated")
    bytes: Number = msgspec.field(default=None, name="Bytes")
    address: Number = msgspec.field(default=None, name="Addr")
    device: Number = msgspec.field(default=None, name="Device Id")
    device_type: Number = msgspec.field(default=None, name="Device Type")


NO_ALLOCATION = OfInstant()


class Instant(msgspec.Struct, Generic[Time], tag="i", tag_field="ph", gc=False, kw_only=True):
    """An event without a duration, such as an allocation. ts: NOTHING if the file has none."""

    name: str = ""
    pid: Number = None
    tid: Number = None
    ts: Time | msgspec.Raw = NOTHING
    args: OfInstant = NO_ALLOCATION


Event: TypeAlias = Complete[Any]
Mark: TypeAlias = Instant[Any]
KINDS: dict[bool, tuple[Any, Any]] = {
    False: (Complete[float], Instant[float]), True: (Complete[msgspec.Raw], Instant[msgspec.Raw])
}  # fmt: skip
"""Event types, by whether times are kept exactly."""


def _decoder(kinds: tuple[Any, Any], *, listed: bool) -> msgspec.json.Decoder[Any]:
    others = [
        msgspec.defstruct(f"Phase{ord(phase or '_')}", [], tag=phase, tag_field="ph", gc=False)
        for phase in PHASES_PASSED_OVER
    ]
    union: Any = functools.reduce(operator.or_, [*kinds, *others])
    return msgspec.json.Decoder(list[union] if listed else union)


_LISTS = {exactly: _decoder(kinds, listed=True) for exactly, kinds in KINDS.items()}
_SINGLES = {exactly: _decoder(kinds, listed=False) for exactly, kinds in KINDS.items()}


def decode_list(block: memoryview | bytes, *, exactly: bool) -> tuple[list[Event], list[Mark]]:
    """(kept complete events, kept instants) of a JSON array; their raw fields point into the block. Raises ValueError
    for invalid JSON or UTF-8."""
    try:
        found, marks = sorted_out(_LISTS[exactly].decode(block))
    except RecursionError as error:
        raise ValueError(str(error)) from None
    marked = [event for event in found if event.args.collective is not event.args.kernel_file]  # NOTHING, both
    if marked:
        _add_details(marked, block)
    return found, marks


def _add_details(events: Sequence[Event], block: memoryview | bytes) -> None:
    """Parses the arguments of some events again with all details; the parser is faster for others without them."""
    text, start = bytes(block), _address(block)
    for event in events:
        arguments = event.args
        raw = arguments.kernel_file if arguments.collective is NOTHING else arguments.collective
        event.args = _around(text, _address(raw) - start) or arguments


def _around(text: bytes, position: int) -> Detailed | None:
    """Arguments that hold a detail at `position`, between one of the last braces before it and one of the next."""
    start = position
    for _ in range(ATTEMPTS):
        start = text.rfind(b'"args"', 0, start)
        if start < 0:
            return None
        end, first = position, text.find(b"{", start, position)
        for _ in range(ATTEMPTS if first >= 0 else 0):
            end = text.find(b"}", end) + 1
            with suppress(ValueError):  # the brace of a text, or of an inner object
                found = ALL_DETAILS.decode(text[first:end])
                if found.collective is not found.kernel_file:
                    return found
    return None


def _address(buffer: memoryview | bytes | msgspec.Raw) -> int:
    return int(np.frombuffer(buffer, np.uint8).__array_interface__["data"][0])


def sorted_out(events: Sequence[object]) -> tuple[list[Event], list[Mark]]:
    """Splits events into (complete events, instants)."""
    found = [event for event in events if type(event) is Complete]
    return found, [] if len(found) == len(events) else [event for event in events if type(event) is Instant]


def decode_one(text: bytes, *, exactly: bool) -> Event | Mark | None:
    """Event in a JSON text, None if not kept. Raises ValueError if it is no JSON or has unexpected types."""
    try:
        found, marks = sorted_out([_SINGLES[exactly].decode(text)])
    except RecursionError as error:
        raise ValueError(str(error)) from None
    _add_details([each for each in found if each.args.collective is not each.args.kernel_file], text)
    return found[0] if found else marks[0] if marks else None


def needs_exactness(events: list[Event], block: memoryview | bytes) -> bool:
    """True if the floats of a block have lost digits of the file."""
    late = any(float(event.ts) >= FLOAT_HOLDS_NANOSECONDS for event in events)
    return late and PRECISE_TIME.search(block) is not None


def nanoseconds(microseconds: Float64) -> Int64:
    """Times in µs converted to ns, without the rounding error of a float64 (up to 128 ns for times of 2022)."""
    whole = np.floor(microseconds)
    return whole.astype(np.int64) * 1000 + np.rint((microseconds - whole) * 1000).astype(np.int64)


def starts(events: Sequence[Event | Mark], *, exactly: bool) -> tuple[Int64, Bool]:
    """(starts of events in ns, as in the file; mask of the valid times)."""
    if exactly:
        return _exact_starts([event.ts for event in events])
    times = np.fromiter([event.ts for event in events], np.float64, len(events))
    sound = np.abs(times) < LATEST
    return nanoseconds(times if sound.all() else np.where(sound, times, 0)), sound


def _exact_starts(texts: list[Any]) -> tuple[Int64, Bool]:
    """Result of `starts` for times as text, in one operation if all have the format of Kineto in 2024."""
    joined, count = b"".join(texts), len(texts)
    if len(joined) == count * len(PRECISE_LAYOUT):
        digits = np.frombuffer(joined, np.uint8).reshape(count, len(PRECISE_LAYOUT)) - np.uint8(ord("0"))
        point, digits = digits[:, POINT], np.delete(digits, POINT, axis=1)
        if (point == POINT_AS_DIGIT).all() and digits.max() <= 9:
            times = digits @ 10 ** np.arange(digits.shape[1] - 1, -1, -1)
            return times, np.abs(times) < LATEST * 1000
    found = [as_nanoseconds(bytes(text).decode("ascii", "replace").strip('"')) for text in texts]
    return np.array([time or 0 for time in found], np.int64), np.array([time is not None for time in found])


def as_nanoseconds(written: object) -> int | None:
    """Time in ns from a text in µs, rounded half to even; None if the text is no time."""
    try:
        time = Decimal(str(written))
    except InvalidOperation:
        return None
    return int((time * 1000).to_integral_value()) if time.is_finite() and abs(time) < LATEST else None


def lenient(event: dict[str, object], *, exactly: bool) -> Event | None:
    """Readable part of an event that the typed parser refused; None without a time or a name."""
    time, name, category = event.get("ts"), event.get("name"), event.get("cat")
    number, duration = _number(time), _number(event.get("dur", 0))
    if not isinstance(name, str) or number is None or abs(number) >= 2**53 or duration is None:
        return None
    return Complete(
        ts=msgspec.Raw(str(time).encode()) if exactly else float(str(time)),
        name=name,
        dur=duration,
        cat=category if isinstance(category, str) else "",
        pid=_track(event.get("pid")),
        tid=_track(event.get("tid")),
        args=_arguments(event.get("args")),
    )


def integer(value: Number, absent: int) -> int:
    """Id as an integer, from a number or decimal or hexadecimal text; `absent` for anything else or beyond int64."""
    if isinstance(value, str):
        try:
            value = int(value, 0)
        except ValueError:
            return absent
    if value is None or not -(2**63) <= value < 2**63:
        return absent
    return value


def _arguments(given: object) -> Arguments:
    """Integers among the arguments; raw JSON is not kept for events that the typed parser refused."""
    if not isinstance(given, dict):
        return NO_ARGUMENTS
    known = {name: _integer(given[key]) for name, key in KEYS.items() if key in given and name not in RAW_FIELDS}
    return Arguments(**known)  # type: ignore[arg-type]


def _number(value: object) -> float | None:
    try:
        number = float(Decimal(str(value)))
    except InvalidOperation:
        return None
    return number if math.isfinite(number) else None


def _integer(value: object) -> Number:
    if isinstance(value, (float, Decimal)):
        return int(value) if -(2**63) <= value < 2**63 and value == int(value) else ABSENT
    return value if isinstance(value, (int, str)) else ABSENT


def _track(value: object) -> Number:
    return value if isinstance(value, (int, str)) else str(value) if value is not None else None


Array = npt.NDArray[Any]
PIECE = 1 << 18
"""Rows by which a column grows."""
WIDER: dict[type[np.integer[Any]], type[np.integer[Any]]] = {np.int8: np.int16, np.int16: np.int32, np.int32: np.int64}


class ColumnBuilder:
    """Builder of an integer column of type `kind` or, if `growing`, of the narrowest type from `kind` on that holds all
    values. absent: value of rows that have none. The column is one array that the system resizes in place, so nothing
    is copied or left in the heap."""

    def __init__(self, kind: type[np.integer[Any]], absent: int, *, growing: bool = False) -> None:
        self._kind = kind
        self._absent = absent
        self._limits = np.iinfo(kind) if growing and kind in WIDER else None
        self._column: Array | None = None
        self._rows = 0

    def skip(self, count: int) -> None:
        """Appends `count` rows without a value."""
        if self._column is not None:
            self._room(self._column, count)[:] = self._absent
        self._rows += count

    def extend(self, values: Array) -> None:
        """Appends values, of any integer type that fits the column's type."""
        while self._limits is not None and len(values):
            if self._limits.min <= values.min() and values.max() <= self._limits.max:
                break
            self._kind = WIDER[self._kind]
            self._limits = np.iinfo(self._kind) if self._kind in WIDER else None
        if self._column is None:
            self._column = np.full(self._rows, self._absent, self._kind)
        elif self._column.dtype != self._kind:
            self._column = self._column.astype(self._kind)
        self._room(self._column, len(values))[:] = values
        self._rows += len(values)

    def _room(self, column: Array, count: int) -> Array:
        """Reserves space for `count` further rows and returns it."""
        if self._rows + count > len(column):
            column.resize((self._rows + count) // PIECE * PIECE + PIECE, refcheck=False)  # nobody else has seen it
        return column[self._rows : self._rows + count]

    def finished(self) -> Array:
        """The column: writable if any value was added, else a constant without memory per row. The builder must not
        be used afterwards."""
        if self._column is None:
            return np.broadcast_to(np.asarray(self._absent, self._kind), (self._rows,))
        column, self._column = self._column, None
        column.resize(self._rows, refcheck=False)
        return column


class SparseColumnBuilder:
    """Builder of a sparse column (`Few`)."""

    def __init__(self) -> None:
        self._rows, self._values = ColumnBuilder(np.int32, 0), ColumnBuilder(np.int8, ABSENT, growing=True)
        self._size = 0

    def skip(self, count: int) -> None:
        self._size += count

    def extend(self, values: Array) -> None:
        """Appends values, some of which may be ABSENT."""
        known = np.flatnonzero(values != ABSENT)
        self._rows.extend(known + self._size)
        self._values.extend(values[known])
        self._size += len(values)

    def finished(self) -> Few:
        """The finished column. The builder is then empty."""
        return Few(self._size, ABSENT, self._rows.finished(), self._values.finished())


DEVICE_WORK = 254
"""Code outside of `EventKind`: work of a device whose kind the event's name shows."""
UNKNOWN = 255
"""Code outside of `EventKind`: work of a device if the event says where it ran, else OTHER."""


class _Codes(dict[str, int]):
    """`EventKind` by an event's category; DEVICE_WORK or UNKNOWN for categories that do not decide it."""

    def __init__(self) -> None:
        super().__init__({name: int(event_kind) for name, event_kind in CATEGORIES.items()})
        self |= dict.fromkeys(DEVICE_WORK_CATEGORIES, DEVICE_WORK)

    def __missing__(self, key: str) -> int:
        endings = (event_kind for ending, event_kind in CATEGORY_ENDINGS.items() if key.lower().endswith(ending))
        code = self[key] = int(next(endings, UNKNOWN))
        return code

    def of(self, events: list[Event], streams: Int64 | None, devices: Int64 | None) -> npt.NDArray[np.uint8]:
        """Kinds of events. streams, devices: of the events, None if no event has one."""
        named = [event.cat or LEGACY.get(event.pid, "") if type(event.pid) is str else event.cat for event in events]
        packed = list(map(self.__getitem__, named))
        codes = np.frombuffer(struct.pack(f"{len(packed)}B", *packed), np.uint8)
        if codes.max() < DEVICE_WORK:
            return codes
        codes = codes.copy()
        work = codes == DEVICE_WORK
        if streams is not None and devices is not None:
            work |= (codes == UNKNOWN) & (streams != ABSENT) & (devices != ABSENT) & (devices >= 0)
        for row in np.flatnonzero(work).tolist():
            kinds = (kind for pattern, kind in DEVICE_WORK_KINDS if pattern.search(events[row].name))
            codes[row] = next(kinds, EventKind.KERNEL)
        codes[codes == UNKNOWN] = EventKind.OTHER
        return codes


Key = TypeVar("Key")
Table = TypeVar("Table", EventTable, AllocationEvents)
LONGEST = 2.0**50
MOST_THREADS = 1024
"""Most threads of a block on any device of NVIDIA and AMD."""


def column_builders() -> dict[str, ColumnBuilder | SparseColumnBuilder]:
    """Builders for the columns of an `EventTable`, by name. Durations have 32 bits or more, so two can be added."""
    found: dict[str, ColumnBuilder | SparseColumnBuilder] = {
        field.name: SparseColumnBuilder() if field.name in FEW else ColumnBuilder(np.int8, ABSENT, growing=True)
        for field in fields(EventTable)
    }
    found["event_kind"], found["start"] = ColumnBuilder(np.uint8, 0), ColumnBuilder(np.int64, 0)
    found["duration"] = ColumnBuilder(np.int32, 0, growing=True)
    return found


def table_of(columns: dict[str, ColumnBuilder | SparseColumnBuilder], base_ns: int = 0) -> EventTable:
    """Event table of finished columns, read-only. base_ns: ns to add to the starts."""
    joined: dict[str, Any] = {name: column.finished() for name, column in columns.items()}
    if base_ns and len(joined["start"]):
        joined["start"] += base_ns
    return sealed(joined, EventTable)


def sealed(columns: dict[str, Any], table: type[Table]) -> Table:
    """Table of type `table` made of these columns, which become read-only."""
    for column in columns.values():
        for part in (column.rows, column.values) if isinstance(column, Few) else (column,):
            part.flags.writeable = False
    return table(**columns)


class Numbering(dict[Key, int]):
    """Dictionary that gives each new key the next number."""

    def __missing__(self, key: Key) -> int:
        number = self[key] = len(self)
        return number


class Texts(dict[bytes, int]):
    """Numbering of raw JSON texts; ABSENT is the number of a missing text."""

    def __init__(self) -> None:
        super().__init__({b"": ABSENT})

    def __missing__(self, key: bytes) -> int:
        number = self[key] = len(self) - 1
        return number

    def decoded(self) -> tuple[str, ...]:
        """Texts in the order of their numbers."""
        return tuple(key.decode("utf-8", "replace") for key in self if key)


class Columns:
    """Builder of an `EventTable`'s columns. refused, negative: counts as in `Damage`."""

    def __init__(self) -> None:
        self._columns = column_builders()
        self._event_kinds = _Codes()
        self.names: Numbering[str] = Numbering()
        self._tracks: Numbering[tuple[Number, Number]] = Numbering()
        self.shapes, self.dtypes, self.inputs, self.details = Texts(), Texts(), Texts(), Texts()
        self._grids = functools.cache(_blocks)
        self.refused = self.negative = 0

    @property
    def tracks(self) -> tuple[Track, ...]:
        """Tracks in the order of their numbers."""
        return tuple(Track(*key) for key in self._tracks)

    def add(self, events: list[Event], *, exactly: bool) -> None:
        if not events:
            return
        durations = np.frombuffer(struct.pack(f"{len(events)}d", *[event.dur for event in events]), np.float64)
        times, sound = starts(events, exactly=exactly)
        sound &= durations < LONGEST
        if not sound.all():
            self.refused += int((~sound).sum())
            self.add([event for event, kept in zip(events, sound, strict=True) if kept], exactly=exactly)
            return
        self.negative += int((durations < 0).sum())
        self._columns["start"].extend(times)
        self._columns["duration"].extend(nanoseconds(np.maximum(durations, 0)))
        self._columns["name"].extend(_integers(list(map(self.names.__getitem__, [event.name for event in events]))))
        self._columns["track"].extend(self._tracks_of([event.pid for event in events], [event.tid for event in events]))
        self._add_arguments(events)

    def _tracks_of(self, processes: list[Number], threads: list[Number]) -> Int32:
        """Number of each event's track. Tracks come in runs, and only the first event of each run is looked up."""
        try:
            pids, tids = _integers(processes), _integers(threads)
        except struct.error:  # a name, or none
            keys = zip(processes, threads, strict=True)
            return np.fromiter(map(self._tracks.__getitem__, keys), np.int32, len(threads))
        starts = np.flatnonzero((pids[1:] != pids[:-1]) | (tids[1:] != tids[:-1])) + 1
        firsts = [0, *starts.tolist()]
        tracks = [self._tracks[processes[first], threads[first]] for first in firsts]
        return np.repeat(np.array(tracks, np.int32), np.diff([*firsts, len(threads)]))

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
        with_inputs = self._add_texts("inputs", self.inputs, [args.inputs for args in every])
        with_shapes = self._add_texts("shapes", self.shapes, [args.shapes for args in every])
        if with_inputs or with_shapes:
            sparse = self._with_sparse
            kinds = [sparse(event.args) if event.name in PRODUCTS else event.args.dtypes for event in events]
            self._add_texts("dtypes", self.dtypes, kinds)
        else:  # Kineto writes types with shapes only
            self._columns["dtypes"].skip(len(every))
        self._add_details(every)
        streams = self._add_ids("stream", [args.stream for args in every])
        self._add_blocks(every, streams)
        devices = self._add_ids("device", [args.device for args in every])
        self._columns["event_kind"].extend(self._event_kinds.of(events, streams, devices))

    @staticmethod
    def _with_sparse(args: Arguments) -> msgspec.Raw:
        """Types of the arguments, with sparse tensors as such: they have sides and no strides."""
        if b"[]" not in bytes(args.strides):
            return args.dtypes
        try:
            kinds = msgspec.json.decode(args.dtypes, type=list[str])
            strides, shapes = (msgspec.json.decode(each, type=list[list[Any]]) for each in (args.strides, args.shapes))
        except (msgspec.DecodeError, RecursionError):
            return args.dtypes
        every = zip(kinds, strides, shapes, strict=False)
        marked = [SPARSE + kind if sides and not apart else kind for kind, apart, sides in every]
        return msgspec.Raw(msgspec.json.encode(marked)) if marked != kinds else args.dtypes

    def _add_texts(self, column: str, numbers: Texts, raw: list[msgspec.Raw]) -> bool:
        """Appends raw JSON texts; True if some event has one. Events without one share one default object."""
        if raw.count(NOTHING) == len(raw):
            self._columns[column].skip(len(raw))
            return False
        values = [ABSENT if text is NOTHING else numbers[bytes(text)] for text in raw]
        self._columns[column].extend(_integers(values))
        return True

    def _add_details(self, every: list[Arguments]) -> None:
        """Appends the details, which few events have."""
        if list(map(type, every)).count(Arguments) == len(every):
            self._columns["details"].skip(len(every))
            return
        numbers = np.full(len(every), ABSENT, np.int32)
        for at, args in enumerate(every):
            if isinstance(args, Detailed):
                given = ((KEYS[name].encode(), getattr(args, name)) for name in DETAILS)
                written = (b'"%s":%s' % (key, bytes(raw)) for key, raw in given if raw is not NOTHING)
                numbers[at] = self.details[b"{%s}" % b",".join(written)]  # a JSON object, its parts as in the file
        self._columns["details"].extend(numbers)

    def _add_blocks(self, every: list[Arguments], streams: Int64 | None) -> None:
        """Appends the number of blocks. Only events on a stream can have a grid, and these are few."""
        if streams is None:
            self._columns["blocks"].skip(len(every))
            return
        blocks = np.full(len(every), ABSENT, np.int64)
        for at in np.flatnonzero(streams != ABSENT).tolist():
            arguments = every[at]
            if arguments.grid is not NOTHING:
                blocks[at] = self._grids(bytes(arguments.grid), bytes(arguments.block))
        self._columns["blocks"].extend(blocks)

    def _add_ids(self, column: str, values: list[Number]) -> Int64 | None:
        """Appends optional ids, mostly integers or ABSENT. Returns them, None if no event has one."""
        if values.count(ABSENT) == len(values):  # an identity test for almost all: less than a nanosecond each
            self._columns[column].skip(len(values))
            return None
        numbers = integers(values, ABSENT)
        self._columns[column].extend(numbers)
        return numbers

    def table(self, base_ns: int) -> EventTable:
        table = table_of(self._columns, base_ns)
        ranges = np.array([MODULE_RANGE.match(name) is not None for name in self.names])
        if not ranges.any():
            return table
        called = ranges[table.name] & (table.event_kind == EventKind.OPERATOR)
        kinds = np.where(called, np.uint8(EventKind.ANNOTATION), table.event_kind)
        kinds.flags.writeable = False
        return replace(table, event_kind=kinds)


def _blocks(grid: bytes, block: bytes) -> int:
    """Number of blocks in a grid [x, y, z] of blocks [x, y, z]; ABSENT if it is malformed. Some versions of ROCm swap
    the two: since no block has more than 1,024 threads, a larger value is the whole grid in threads."""
    try:
        blocks, threads = (math.prod(msgspec.json.decode(text, type=list[int])) for text in (grid, block or b"[1]"))
    except msgspec.DecodeError:
        return ABSENT
    found = threads // max(blocks, 1) if threads > MOST_THREADS else blocks
    return found if 0 <= found < 2**62 else ABSENT


def integers(values: Sequence[Number], absent: int) -> Int64:
    """Ids as integers; `absent` for text that is no number, null, and numbers of more than 64 bits."""
    try:
        return _integers(values)
    except struct.error:
        return _integers([integer(value, absent) for value in values])


def _integers(values: Sequence[Number]) -> Int64:
    """Integers as an array. struct.pack is twice as fast as numpy; raises struct.error beyond 64-bit integers."""
    return np.frombuffer(struct.pack(f"{len(values)}q", *values), np.int64)
