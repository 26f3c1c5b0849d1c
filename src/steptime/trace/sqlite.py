"""Profilers' databases, opened read-only as untrusted input, and their events in the columns of Kineto's."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from steptime.errors import TraceError
from steptime.trace.columns import Array, Numbering, column_builders, table_of
from steptime.trace.source import too_large
from steptime.trace.table import ABSENT, Device, EventKind, Trace, Track

Row: TypeAlias = tuple[Any, ...]
Database: TypeAlias = sqlite3.Connection
MAGIC = b"SQLite format 3\0"
OPERATOR = re.compile(r"^(?P<name>\S.*?), (?=seq = |op_id = )(seq = (?P<sequence>\d+))?")
"""Format in which torch.autograd.profiler.emit_nvtx names a range."""
LATEST = 1 << 60
"""Latest valid time, ns."""


def is_database(path: Path) -> bool:
    """True if the file is an SQLite database. A pipe counts as none, because reading it would block."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


class EventColumns:
    """Builder of the columns of an `EventTable` from rows of a database, whose first fields are start and end."""

    def __init__(self) -> None:
        self._columns = column_builders()
        self._names: Numbering[str] = Numbering()
        self._tracks: Numbering[tuple[int, int]] = Numbering()

    def add(
        self,
        kind: EventKind | Sequence[EventKind],
        rows: Sequence[Row],
        names: Sequence[str],
        tracks: Sequence[tuple[int, int]],
        **ids: Sequence[int],
    ) -> None:
        """Adds events. kind: `EventKind` of all events, or of each. tracks: (process, thread) or (device, stream) of
        each. ids: further columns."""
        start, end = (np.array([row[at] for row in rows], np.int64) for at in (0, 1))
        values: dict[str, Array] = {
            "event_kind": np.broadcast_to(np.array(kind, np.uint8), start.shape),
            "name": np.array([self._names[name] for name in names], np.int32),
            "track": np.array([self._tracks[track] for track in tracks], np.int32),
            "start": start,
            "duration": end - start,
        }
        values |= {name: np.array(column, np.int64) for name, column in ids.items()}
        for name, column in self._columns.items():
            if name in values:
                column.extend(values[name])
            else:
                column.skip(len(rows))

    def add_ranges(self, rows: Sequence[Row], texts: Sequence[str], tracks: Sequence[tuple[int, int]]) -> None:
        """Adds ranges that the job marked: torch's operators ("aten::mm, seq = 3, op_id = 7"), else annotations."""
        found = [OPERATOR.match(text) for text in texts]
        kinds = [EventKind.ANNOTATION if each is None else EventKind.OPERATOR for each in found]
        names = [text if each is None else each["name"] for text, each in zip(texts, found, strict=True)]
        numbers = [int(each["sequence"]) if each and each["sequence"] else ABSENT for each in found]
        self.add(kinds, rows, names, tracks, sequence=[each if each < LATEST else ABSENT for each in numbers])

    def trace(self, path: Path, devices: Sequence[Device] = (), since: int = 0) -> Trace:
        """Trace of all events that were added. since: ns to add to their times."""
        return Trace(
            path=path, size=path.stat().st_size, events=table_of(self._columns, since), symbols=tuple(self._names),
            tracks=tuple(Track(*key) for key in self._tracks), shapes=(), dtypes=(), inputs=(), devices=tuple(devices),
            base_ns=since,
        )  # fmt: skip


@contextmanager
def opened(path: Path, max_size: int | None = None) -> Iterator[Database]:
    """Yields a read-only connection. Raises TraceError: trace-unreadable, trace-too-large beyond max_size bytes."""
    if max_size is not None and path.stat().st_size > max_size:
        raise too_large(f"{path} has", max_size)
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as database:
            database.execute("PRAGMA trusted_schema = OFF")
            database.text_factory = lambda text: text.decode("utf-8", "replace")
            yield database
    except (sqlite3.Error, OverflowError) as error:
        raise TraceError("trace-unreadable", f"{path} is not a readable database: {error}.") from error


def tables_of(database: Database) -> tuple[str, ...]:
    """Names of the database's tables, in order. Views are left out, because reading one may run anything."""
    return tuple(row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1"))


def columns_of(database: Database, table: str) -> set[str]:
    """Names of a table's columns; empty if there is no such table."""
    known = database.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)).fetchone()
    return {row[1] for row in database.execute(f"PRAGMA table_info({_quoted(table)})")} if known else set()


def timed_rows(database: Database, table: str, *columns: str, text: str = "") -> list[Row]:
    """Rows of a table with valid times, by start: (start, end, integers, ABSENT for none). text: name of a text column
    that each row ends with."""
    known = columns_of(database, table)
    if not {"start", "end"} <= known:
        return []
    wanted = [f"COALESCE(CAST({_quoted(name)} AS INTEGER), {ABSENT})" if name in known else str(ABSENT)
              for name in ("start", "end", *columns)]  # fmt: skip
    wanted += [_quoted(text) if text in known else "NULL"] if text else []
    found = database.execute(f"SELECT {', '.join(wanted)} FROM {_quoted(table)} ORDER BY 1")
    return [row for row in found if 0 <= row[0] <= row[1] < LATEST]


def rows_of(database: Database, table: str, *columns: str) -> list[Row]:
    """Rows of some columns of a table, unconverted; empty if the table or a column is missing."""
    if not set(columns) <= columns_of(database, table):
        return []
    return database.execute(f"SELECT {', '.join(map(_quoted, columns))} FROM {_quoted(table)}").fetchall()


def texts_of(database: Database, table: str, text: str) -> dict[Any, str]:
    """Texts of a table's column, by row id."""
    return {row[0]: row[1] for row in rows_of(database, table, "id", text) if isinstance(row[1], str)}


def whole(value: object) -> int:
    """The value if it is a valid count, else 0."""
    return value if isinstance(value, int) and 0 <= value < 1 << 61 else 0


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
