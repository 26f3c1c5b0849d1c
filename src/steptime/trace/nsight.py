"""Reading what Nsight Systems exported: `nsys export -t sqlite`, one database with all processes of a machine.

Kernels, copies, fills, calls of the runtime and NVTX ranges become the events that Kineto would have written. A range
of torch.autograd.profiler.emit_nvtx ("aten::mm, seq = 3, op_id = 7") is an operator, any other an annotation.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from steptime.errors import TraceError
from steptime.trace.columns import IDS, WHOLE, Array, Growing, Numbering
from steptime.trace.source import too_large
from steptime.trace.table import ABSENT, Device, EventKind, EventTable, Trace, Track

Row: TypeAlias = tuple[Any, ...]
MAGIC = b"SQLite format 3\0"
KERNELS, GRAPHS = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
COPIES, FILLS = "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"
CALLS, RANGES = "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"
OF_DEVICE = ("deviceId", "streamId", "correlationId")
VERSION = re.compile(r"_v\d+(_pt[sd][zs])?$")
"""Of a call, which CUPTI adds to its name: cudaLaunchKernel_v7000."""
OPERATOR = re.compile(r"^(?P<name>\S.*?), (?=seq = |op_id = )(seq = (?P<sequence>\d+))?")
PUSHED, STARTED = 59, 60
"""Kinds of NVTX events that last; of the others, marks and names are left out."""
DIRECTIONS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP", 11: "HtoD", 12: "DtoH", 13: "DtoD"}
MEMORY = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed", 5: "Device", 6: "Managed"}
LATEST = 1 << 60
"""ns. A time beyond is garbage."""


def is_database(path: Path) -> bool:
    """Whether the file is one of SQLite."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def processes_of(path: Path) -> tuple[int, ...]:
    """The numbers of the processes that used a device, in order; of all that the database knows where none did.
    Raises TraceError (trace-not-a-trace, trace-empty)."""
    with _opened(path) as database:
        if not any(_columns(database, table) for table in (KERNELS, CALLS, RANGES)):
            raise TraceError(
                "trace-not-a-trace",
                f"{path} is a database, but none that Nsight Systems exported: it has no table {KERNELS}, {CALLS} or "
                f"{RANGES}. Expected what nsys export -t sqlite wrote.",
            )
        for tables, column in (((KERNELS, GRAPHS, COPIES), "globalPid"), ((CALLS, RANGES), "globalTid")):
            said = {row[2] >> 24 & 0xFFFFFF for table in tables for row in _rows(database, table, column)}
            if said:
                return tuple(sorted(said))
    raise TraceError("trace-empty", f"{path} holds no event of any process.")


def read_database(path: Path, process: int, *, max_size: int) -> Trace:
    """The trace of one process. max_size: bytes of the file. Raises TraceError."""
    size = path.stat().st_size
    if size > max_size:
        raise too_large(f"{path} has", max_size)
    with _opened(path) as database:
        events = _Events(process, dict(_rows_of(database, "StringIds", "id", "value")))
        events.add_device(database)
        events.add_host(database)
        devices = tuple(
            Device(number, name if isinstance(name, str) else "", _whole(sms))
            for number, name, sms in _rows_of(database, "TARGET_INFO_GPU", "id", "name", "smCount")
            if isinstance(number, int)
        )
        since = next((_whole(row[0]) for row in _rows_of(database, "TARGET_INFO_SESSION_START_TIME", "utcEpochNs")), 0)
    return Trace(
        path=path, size=size, events=events.table(since), symbols=tuple(events.names),
        lanes=tuple(Track(*key) for key in events.lanes), shapes=(), dtypes=(), inputs=(), devices=devices,
        base_ns=since,
    )  # fmt: skip


class _Events:
    """Grows the columns of an `EventTable`."""

    def __init__(self, process: int, texts: dict[Any, Any]) -> None:
        self._process, self._texts = process, texts
        self._columns = {name: Growing(kind, ABSENT if kind is np.int32 else 0) for name, kind in WHOLE.items()}
        self._columns |= {name: Growing(np.int64, ABSENT, narrow=True) for name in IDS}
        self.names: Numbering[str] = Numbering()
        self.lanes: Numbering[tuple[int, int]] = Numbering()

    def add_device(self, database: sqlite3.Connection) -> None:
        """Kernels (graphs that were recorded as one, too), copies and fills."""
        grid = ("gridX", "gridY", "gridZ")
        kernels = self._mine(database, KERNELS, "globalPid", *OF_DEVICE, "demangledName", "shortName", *grid)
        blocks = [min(max(x, 1) * max(y, 1) * max(z, 1), LATEST) for *_, x, y, z in kernels]
        names = [self._text(row[6]) or self._text(row[7]) for row in kernels]
        self._add_work(EventKind.KERNEL, kernels, names, blocks=blocks)
        graphs = self._mine(database, GRAPHS, "globalPid", *OF_DEVICE)
        self._add_work(EventKind.KERNEL, graphs, ["CUDA graph"] * len(graphs))
        copies = self._mine(database, COPIES, "globalPid", *OF_DEVICE, "bytes", "copyKind", "srcKind", "dstKind")
        names = [
            f"Memcpy {DIRECTIONS.get(kind, '')} ({MEMORY.get(source, 'Unknown')} -> {MEMORY.get(target, 'Unknown')})"
            for *_, kind, source, target in copies
        ]
        self._add_work(EventKind.MEMCPY, copies, names, bytes=[row[6] for row in copies])
        fills = self._mine(database, FILLS, "globalPid", *OF_DEVICE, "bytes")
        self._add_work(EventKind.MEMSET, fills, ["Memset (Device)"] * len(fills), bytes=[row[6] for row in fills])

    def add_host(self, database: sqlite3.Connection) -> None:
        """Calls of the runtime and ranges."""
        calls = self._mine(database, CALLS, "globalTid", "correlationId", "nameId")
        names = [VERSION.sub("", self._text(row[4])) for row in calls]
        self._add(EventKind.RUNTIME, calls, names, self._threads(calls), correlation=[row[3] for row in calls])
        kept = [row for row in self._mine(database, RANGES, "globalTid", "eventType", "textId", text="text")
                if row[3] in (PUSHED, STARTED)]  # fmt: skip
        said = [row[5] if isinstance(row[5], str) else self._text(row[4]) for row in kept]
        found = [OPERATOR.match(text) for text in said]
        kinds = [EventKind.ANNOTATION if each is None else EventKind.OPERATOR for each in found]
        names = [text if each is None else each["name"] for text, each in zip(said, found, strict=True)]
        numbers = [int(each["sequence"]) if each and each["sequence"] else ABSENT for each in found]
        numbers = [number if number < LATEST else ABSENT for number in numbers]
        self._add(kinds, kept, names, self._threads(kept), sequence=numbers)

    def table(self, since: int) -> EventTable:
        """All events. since: ns at which the session began."""
        joined = {name: column.finished() for name, column in self._columns.items()}
        if len(joined["begin"]):
            joined["begin"] += since
        for column in joined.values():
            column.flags.writeable = False
        return EventTable(**joined)

    def _mine(self, database: sqlite3.Connection, table: str, owner: str, *columns: str, text: str = "") -> list[Row]:
        """begin, end, owner and more of the process's events that have sound times. text: a last column, as it is."""
        rows = _rows(database, table, owner, *columns, text=text)
        return [row for row in rows if row[2] >> 24 & 0xFFFFFF == self._process and 0 <= row[0] <= row[1] < LATEST]

    def _text(self, number: int) -> str:
        text = self._texts.get(number)
        return text if isinstance(text, str) else ""

    def _threads(self, rows: list[Row]) -> list[int]:
        return [self.lanes[self._process, row[2] & 0xFFFFFF] for row in rows]

    def _add_work(self, kind: EventKind, rows: list[Row], names: list[str], **more: list[int]) -> None:
        ids = {name: [row[3 + at] for row in rows] for at, name in enumerate(("device", "stream", "correlation"))}
        self._add(kind, rows, names, [self.lanes[row[3], row[4]] for row in rows], **ids, **more)

    def _add(
        self, kind: EventKind | list[EventKind], rows: list[Row], names: list[str], lanes: list[int], **ids: list[int]
    ) -> None:
        begin, end = (np.array([row[at] for row in rows], np.int64) for at in (0, 1))
        values: dict[str, Array] = {
            "event_kind": np.broadcast_to(np.array(kind, np.uint8), begin.shape),
            "name": np.array([self.names[name] for name in names], np.int32),
            "lane": np.array(lanes, np.int32),
            "begin": begin,
            "duration": end - begin,
        }
        values |= {name: np.array(column, np.int64) for name, column in ids.items()}
        for name, column in self._columns.items():
            if name in values:
                column.extend(values[name])
            else:
                column.skip(len(rows))


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """A database that nothing is written to. Raises TraceError (trace-unreadable) where it is damaged, too."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as database:
            database.execute("PRAGMA trusted_schema = OFF")
            database.text_factory = lambda text: text.decode("utf-8", "replace")
            yield database
    except (sqlite3.Error, OverflowError) as error:
        raise TraceError(
            "trace-unreadable", f"{path} cannot be read as a database of Nsight Systems: {error}."
        ) from error


def _columns(database: sqlite3.Connection, table: str) -> set[str]:
    """Of a table (a view, which may do anything, is none); empty where there is none of the name."""
    known = database.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)).fetchone()
    return {row[1] for row in database.execute(f"PRAGMA table_info({table})")} if known else set()


def _rows(database: sqlite3.Connection, table: str, *columns: str, text: str = "") -> list[Row]:
    """start, end and more integers of each row, ABSENT where there is none; text: a last column that is none."""
    known = _columns(database, table)
    if not {"start", "end"} <= known:
        return []
    wanted = [f'COALESCE(CAST("{name}" AS INTEGER), {ABSENT})' if name in known else str(ABSENT)
              for name in ("start", "end", *columns)]  # fmt: skip
    wanted += [f'"{text}"' if text in known else "NULL"] if text else []
    return database.execute(f"SELECT {', '.join(wanted)} FROM {table} ORDER BY 1").fetchall()


def _rows_of(database: sqlite3.Connection, table: str, *columns: str) -> list[Row]:
    """The columns as they are; nothing where one of them is missing, or the table."""
    if not set(columns) <= _columns(database, table):
        return []
    return database.execute(f"SELECT {', '.join(columns)} FROM {table}").fetchall()


def _whole(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 61 else 0
