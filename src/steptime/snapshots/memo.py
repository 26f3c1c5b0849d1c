"""The memo of a pickle: values that stood before and are meant again."""

from __future__ import annotations

import re
from typing import Any

from steptime.snapshots.source import Source, TruncatedError

MOST_RUNS = 1 << 16
MOST_AHEAD = 1 << 20
"""Entries that may be left out: pickle numbers them without gaps."""
RUN = re.compile(rb"(?:h.|j....)+", re.DOTALL)
"""Values that stood before, in a row: nine tenths of a snapshot are call stacks written like this."""
SHORTEST_RUN = 16
RECALLS = (0x68, 0x6A)


class OpenDict(dict[Any, Any]):
    """A dictionary that may yet become a row. place: in the memo."""

    __slots__ = ("place",)
    place: int


class OpenList(list[Any]):
    """A list. rows: events in it, which are not kept as values."""

    __slots__ = ("place", "rows")
    place: int
    rows: int


class Memo:
    """values: what was put in, by number. A row of references is looked up once and kept."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.values: list[Any] = []
        self._runs: dict[bytes, list[Any]] = {}

    def recall(self, stack: list[Any]) -> int:
        """Pushes the values that are referred to here, as many as stand in a row; returns the bytes that they take."""
        found = RUN.match(self._source.data, self._source.at)
        if found is None:
            raise TruncatedError
        text = found.group()
        values = self._runs.get(text)
        if values is None:
            values = self._recalled(text)
            if len(text) >= SHORTEST_RUN:
                if len(self._runs) >= MOST_RUNS:
                    self._runs.clear()
                self._runs[text] = values
        stack += values
        return len(text)

    def _recalled(self, text: bytes) -> list[Any]:
        memo, at = self.values, 0
        found: list[Any] = []
        while at < len(text):
            if text[at] == RECALLS[0]:
                found.append(memo[text[at + 1]])
                at += 2
            else:
                found.append(memo[int.from_bytes(text[at + 1 : at + 5], "little")])
                at += 5
        return found

    def put(self, value: Any, place: int) -> None:
        """Puts a value at a place of its own choice (protocols 2 and 3)."""
        if place > len(self.values) + MOST_AHEAD:
            raise self._source.strange(f"a memo of {place} entries")
        if type(value) is OpenDict or type(value) is OpenList:
            value.place = place
        if place == len(self.values):
            self.values.append(value)
            return
        self._runs.clear()
        self.values.extend([None] * (place + 1 - len(self.values)))
        self.values[place] = value
