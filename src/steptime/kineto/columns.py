"""Events to columns, block by block, so that no more than a block of Python objects is alive."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from steptime.kineto.events import NOTHING, Arguments, Event, Number, begins, integer, nanoseconds
from steptime.kineto.table import ABSENT, CATEGORY_NAMES, Category, EventTable, Lane

Key = TypeVar("Key")
LATEST = 2.0**52
"""Microseconds: 142 years. A time beyond is garbage, and its ns would leave int64."""
LONGEST = 2.0**50
COLUMN_TYPES: dict[str, Any] = {
    "category": np.uint8, "name": np.int32, "lane": np.int32, "begin": np.int64, "duration": np.int64,
    "correlation": np.int64, "external": np.int64, "sequence": np.int64, "bytes": np.int64,
    "stream": np.int64, "device": np.int32, "shapes": np.int32, "dtypes": np.int32, "inputs": np.int32,
    "python": np.int32, "python_parent": np.int32,
}  # fmt: skip
WIDEST = {name: int(np.iinfo(kind).max) for name, kind in COLUMN_TYPES.items()}


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


class _Categories(dict[str, int]):
    def __missing__(self, key: str) -> int:
        return int(Category.OTHER)


class Columns:
    """Grows the columns of an `EventTable`. refused, negative: see `Damage`."""

    def __init__(self) -> None:
        self._parts: dict[str, list[npt.NDArray[np.generic]]] = {name: [] for name in COLUMN_TYPES}
        self._categories = _Categories(CATEGORY_NAMES)
        self.names: Numbering[str] = Numbering()
        self.lanes: Numbering[Lane] = Numbering()
        self._lane_keys: dict[tuple[object, object], int] = {}
        self.shapes, self.dtypes, self.inputs = Texts(), Texts(), Texts()
        self.refused = self.negative = 0

    def add(self, events: list[Event], *, exactly: bool) -> None:
        """Appends events of one block."""
        if not events:
            return
        durations = np.array([event.dur for event in events], np.float64)
        times = np.array([event.ts for event in events], np.float64)
        sound = (np.abs(times) < LATEST) & (durations < LONGEST)
        if not sound.all():
            self.refused += int((~sound).sum())
            self.add([event for event, kept in zip(events, sound, strict=True) if kept], exactly=exactly)
            return
        self.negative += int((durations < 0).sum())
        self._append("begin", begins(events, exactly=exactly) if exactly else nanoseconds(times))
        self._append("duration", nanoseconds(np.maximum(durations, 0)))
        self._add_identities(events)
        self._add_arguments([event.args for event in events])

    def _add_identities(self, events: list[Event]) -> None:
        categories, names, lanes = self._categories, self.names, self._lane_keys
        self._append("category", [categories[event.cat] for event in events])
        self._append("name", [names[event.name] for event in events])
        keys = [(event.pid, event.tid) for event in events]
        for key in set(keys).difference(lanes):
            lanes[key] = self.lanes[Lane(*key)]
        self._append("lane", [lanes[key] for key in keys])

    def _add_arguments(self, every: list[Arguments]) -> None:
        self._integers("correlation", [args.correlation for args in every])
        external = [args.external_of_2021 if args.external is None else args.external for args in every]
        self._integers("external", external)
        self._integers("sequence", [args.sequence for args in every])
        self._integers("bytes", [args.bytes for args in every])
        self._integers("stream", [args.stream for args in every])
        self._integers("device", [args.device for args in every])
        self._integers("python", [args.python for args in every])
        self._integers("python_parent", [args.python_parent for args in every])
        self._texts("shapes", self.shapes, [args.shapes for args in every])
        self._texts("dtypes", self.dtypes, [args.dtypes for args in every])
        self._texts("inputs", self.inputs, [args.inputs for args in every])

    def _texts(self, column: str, numbers: Texts, raw: list[msgspec.Raw]) -> None:
        """Raw JSON; most events have none, and then it is the one default object."""
        self._append(column, [ABSENT if text is NOTHING else numbers[bytes(text)] for text in raw])

    def _integers(self, column: str, values: list[Number]) -> None:
        """Optional ids: almost always integers or nothing; text and what exceeds the column takes the slow way."""
        kind, widest = COLUMN_TYPES[column], WIDEST[column]
        try:
            numbers = np.fromiter([ABSENT if value is None else value for value in values], kind, len(values))
        except (TypeError, ValueError, OverflowError):
            read = (integer(value, ABSENT) for value in values)
            held = [number if -widest <= number <= widest else ABSENT for number in read]
            numbers = np.fromiter(held, kind, len(values))
        self._append(column, numbers)

    def _append(self, column: str, values: object) -> None:
        self._parts[column].append(np.asarray(values, COLUMN_TYPES[column]))

    def table(self, base_ns: int) -> EventTable:
        """All events; frees the parts column by column, so that the peak is one column more than the table."""
        joined = {}
        for name, kind in COLUMN_TYPES.items():
            column = np.concatenate([np.empty(0, kind), *self._parts.pop(name)])
            if name == "begin":
                column += base_ns
            column.flags.writeable = False
            joined[name] = column
        return EventTable(**joined)
