"""Reader of AMD's databases, of rocprofv3 (`PID_results.db`, schema 3 of rocpd, one per process) and of rocmProfileData
(`trace.rpd`, schema 2).

Kernels, copies, fills, calls of HIP and ranges of roctx become the events that Kineto would have written. The format is
from rocprofiler-sdk's source/lib/output/generateRocpd.cpp and the views in the databases, and from rpd_tracer in
ROCm/rocmProfileData.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from steptime.errors import TraceError
from steptime.trace.sqlite import (
    LATEST,
    Database,
    EventColumns,
    Row,
    columns_of,
    rows_of,
    tables_of,
    texts_of,
    timed_rows,
    whole,
)
from steptime.trace.table import ABSENT, Device, EventKind, Trace

DISPATCHES, REGIONS = "rocpd_kernel_dispatch", "rocpd_region"
OPERATIONS, CALLS = "rocpd_op", "rocpd_api"
BLOCKS = tuple(f"{of}_size_{axis}" for of in ("grid", "workgroup") for axis in "xyz")
"""Columns of a dispatch's size: grid (in threads) and workgroup."""
FILLING, COPYING = "__amd_rocclr_fill", "__amd_rocclr_copy"
"""Prefixes of the kernels that HIP itself launches to fill and to copy memory."""
RUNTIME, MARKED = ("HIP_RUNTIME", "HIP_COMPILER"), "MARKER"
"""Prefixes of the categories of regions that are read; others (HSA, RCCL, KFD) lie inside of these and are skipped."""
OWN = re.compile(r"::writeRows$|^rpdflush$|^hcc_activity_callback$")
"""Names of rocmProfileData's own calls."""
Agent: TypeAlias = tuple[str, int]
"""A place of memory: "CPU", "GPU" or "", and a number."""
PLACES = {"CPU": "H", "GPU": "D"}
KINDS_OF_KERNELS = (
    (EventKind.MEMSET, "Memset (Device)", FILLING),
    (EventKind.MEMCPY, "Memcpy", COPYING),
    (EventKind.KERNEL, "", ""),
)
"""Kinds of kernels: (kind, name of the event, prefix of HIP's own kernels); the last entry is for the job's kernels."""


def is_of_rocm(database: Database) -> bool:
    return {"start", "end"} <= columns_of(database, CALLS) or bool(_suffixes(database))


def processes_of(database: Database, path: Path) -> tuple[int, ...]:
    """Numbers of the processes in a rocpd database, in order. Raises TraceError (trace-empty)."""
    found = range(len(_processes(database)))
    if not found:
        raise TraceError("trace-empty", f"{path} contains no event of any process.")
    return tuple(found)


def read_process(database: Database, path: Path, process: int) -> Trace:
    """Trace of one process in a rocpd database. process: number of it, as `processes_of` returns it."""
    suffix, number = _processes(database)[process]
    events = EventColumns()
    if suffix is None:
        _Profile(database, number).add_all(events)
        return events.trace(path)
    reading = _ProcessRows(database, suffix, number)
    reading.add_all(events)
    return events.trace(path, reading.devices())


def _suffixes(database: Database) -> list[str]:
    """Suffixes of schema 3's table names: one for each process, or for each that was merged into one file."""
    names = [table for table in tables_of(database) if table.startswith((DISPATCHES, REGIONS))]
    return sorted({table.removeprefix(DISPATCHES).removeprefix(REGIONS) for table in names})


def _processes(database: Database) -> list[tuple[str | None, int]]:
    """(suffix, process id) of each process; the suffix is None for schema 2."""
    calls = sorted({row[2] for row in timed_rows(database, CALLS, "pid")})
    if calls:
        return [(None, process) for process in calls]
    tables = [(suffix, f"{table}{suffix}") for suffix in _suffixes(database) for table in (DISPATCHES, REGIONS)]
    return sorted({(suffix, row[2]) for suffix, table in tables for row in timed_rows(database, table, "pid")})


class _ProcessRows:
    """Rows of one process in schema 3. A call's stack id equals that of what it launched."""

    def __init__(self, database: Database, suffix: str, process: int) -> None:
        self._database, self._suffix, self._process = database, suffix, process
        self._texts = texts_of(database, f"rocpd_string{suffix}", "string")
        reported = rows_of(database, f"rocpd_event{suffix}", "id", "category_id", "stack_id", "extdata")
        self._reported = {
            row[0]: (self._texts.get(row[1], ""), row[2] if isinstance(row[2], int) else 0, row[3]) for row in reported
        }
        agents = rows_of(database, f"rocpd_info_agent{suffix}", "id", "type", "type_index", "product_name", "extdata")
        self._agents = {row[0]: (str(row[1]), whole(row[2]), str(row[3] or ""), row[4]) for row in agents}

    def devices(self) -> tuple[Device, ...]:
        return tuple(
            Device(number, name, whole(_decoded(more).get("cu_count")))
            for kind, number, name, more in self._agents.values()
            if kind == "GPU"
        )

    def add_all(self, events: EventColumns) -> None:
        kernels = self._mine(DISPATCHES, "agent_id", "kernel_id", "queue_id", "stream_id", "event_id", *BLOCKS)
        names = texts_of(self._database, f"rocpd_info_kernel_symbol{self._suffix}", "display_name")
        by_stream = any(row[6] > 0 for row in kernels)  # else by queue, of which each stream has one
        add_kernels(
            events,
            kernels,
            [names.get(row[4], "") for row in kernels],
            [blocks_of(row[8:11], row[11:14]) for row in kernels],
            device=[self._agent(row[3])[1] for row in kernels],
            stream=[row[6 if by_stream else 5] for row in kernels],
            correlation=[self._stack(row[7]) for row in kernels],
        )
        copies = self._mine(
            "rocpd_memory_copy", "dst_agent_id", "src_agent_id", "queue_id", "stream_id", "event_id", "size"
        )
        add_copies(
            events,
            copies,
            [(self._agent(row[4]), self._agent(row[3])) for row in copies],
            stream=[row[6] for row in copies],
            bytes=[row[8] for row in copies],
            correlation=[self._stack(row[7]) for row in copies],
        )
        self._add_host(events, self._mine(REGIONS, "tid", "name_id", "event_id"))

    def _add_host(self, events: EventColumns, rows: Sequence[Row]) -> None:
        calls = [row for row in rows if self._category(row).startswith(RUNTIME)]
        names = [self._texts.get(row[4], "") for row in calls]
        stacks = [self._stack(row[5]) for row in calls]
        events.add(EventKind.RUNTIME, calls, names, [(row[2], row[3]) for row in calls], correlation=stacks)
        ranges = [row for row in rows if self._category(row).startswith(MARKED)]
        texts = [_message(self._reported[row[5]][2]) or self._texts.get(row[4], "") for row in ranges]
        events.add_ranges(ranges, texts, [(row[2], row[3]) for row in ranges])

    def _mine(self, table: str, *columns: str) -> list[Row]:
        """(start, end, process, further columns) of the process's rows."""
        rows = timed_rows(self._database, f"{table}{self._suffix}", "pid", *columns)
        return [row for row in rows if row[2] == self._process]

    def _agent(self, agent: int) -> Agent:
        return self._agents.get(agent, ("", agent))[:2]

    def _stack(self, event: int) -> int:
        return self._reported.get(event, ("", 0))[1] or ABSENT

    def _category(self, row: Row) -> str:
        return self._reported.get(row[5], ("",))[0]


class _Profile:
    """Rows of one process in schema 2: calls, ranges and device operations, linked by a separate table."""

    def __init__(self, database: Database, process: int) -> None:
        self._texts = texts_of(database, "rocpd_string", "string")
        self._calls = [
            row for row in timed_rows(database, CALLS, "pid", "tid", "id", "apiName_id", "args_id") if row[2] == process
        ]
        own = {row[4] for row in self._calls}
        linked = {
            operation: call for call, operation in rows_of(database, "rocpd_api_ops", "api_id", "op_id") if call in own
        }
        operations = timed_rows(database, OPERATIONS, "id", "gpuId", "queueId", "description_id", "opType_id")
        self._operations = [(*row, linked[row[2]]) for row in operations if row[2] in linked]
        self._bytes = {row[0]: row[1] for row in rows_of(database, "rocpd_copyapi", "api_ptr_id", "size")}
        self._named = {row[0]: row[1] for row in rows_of(database, "ext_autogradapi", "api_ptr_id", "seq")}

    def add_all(self, events: EventColumns) -> None:
        for kind, start in ((EventKind.MEMCPY, "Copy"), (EventKind.MEMSET, "Fill"), (EventKind.KERNEL, "")):
            rows = [row for row in self._operations if beginning(self._texts.get(row[6], ""), "Copy", "Fill") == start]
            reported = 6 if start else 5
            sizes = {"bytes": [whole(self._bytes.get(row[7])) or ABSENT for row in rows]} if start else {}
            events.add(
                kind, rows, [self._texts.get(row[reported], "") for row in rows], [(row[3], row[4]) for row in rows],
                device=[row[3] for row in rows], stream=[row[4] for row in rows], correlation=[row[7] for row in rows],
                **sizes,
            )  # fmt: skip
        for kind, rows in self._by_kind().items():
            names = [self._texts.get(row[5], "") for row in rows]
            events.add(kind, rows, names, [(row[2], row[3]) for row in rows], correlation=[row[4] for row in rows])
        ranges = [row for row in self._calls if self._texts.get(row[5]) == "UserMarker"]
        named = [row for row in ranges if row[4] in self._named]
        events.add(
            EventKind.OPERATOR, named, [self._texts.get(row[6], "") for row in named],
            [(row[2], row[3]) for row in named], sequence=[_sequence(self._named[row[4]]) for row in named],
        )  # fmt: skip
        others = [row for row in ranges if row[4] not in self._named]
        events.add_ranges(others, [self._texts.get(row[6], "") for row in others], [(row[2], row[3]) for row in others])

    def _by_kind(self) -> dict[EventKind, list[Row]]:
        """Calls of HIP, functions that the job marked, and the profiler's own work, by kind."""
        kinds: dict[EventKind, list[Row]] = {EventKind.RUNTIME: [], EventKind.ANNOTATION: [], EventKind.OVERHEAD: []}
        for row in self._calls:
            name = self._texts.get(row[5], "")
            if name != "UserMarker":
                other = EventKind.OVERHEAD if OWN.search(name) else EventKind.ANNOTATION
                kinds[EventKind.RUNTIME if name.startswith("hip") else other].append(row)
        return kinds


def add_kernels(
    events: EventColumns, rows: Sequence[Row], names: Sequence[str], blocks: Sequence[int], **ids: Sequence[int]
) -> None:
    """Adds kernels to the events; HIP's own kernels for copies and fills become copies and memsets. ids: device, stream
    and correlation id of each."""
    for kind, text, start in KINDS_OF_KERNELS:
        chosen = [at for at, name in enumerate(names) if beginning(name, FILLING, COPYING) == start]
        mine = {name: [column[at] for at in chosen] for name, column in ids.items()}
        tracks = list(zip(mine["device"], mine["stream"], strict=True))
        sizes = {"blocks": [blocks[at] for at in chosen]} if kind == EventKind.KERNEL else {}
        events.add(kind, [rows[at] for at in chosen], [text or names[at] for at in chosen], tracks, **mine, **sizes)


def add_copies(
    events: EventColumns, rows: Sequence[Row], ends: Sequence[tuple[Agent, Agent]], **columns: Sequence[int]
) -> None:
    """Adds copies to the events. ends: (source, target) of each copy. columns: streams, bytes and correlation ids."""
    names = [f"Memcpy {PLACES.get(source, '')}to{PLACES.get(target, '')}" for (source, _), (target, _) in ends]
    devices = [number if target == "GPU" else other for (_, other), (target, number) in ends]
    tracks = list(zip(devices, columns["stream"], strict=True))
    events.add(EventKind.MEMCPY, rows, names, tracks, device=devices, **columns)


def beginning(name: str, *known: str) -> str:
    """Known prefix of a name; "" if it has none."""
    return next((start for start in known if name.startswith(start)), "")


def blocks_of(grid: Sequence[int], group: Sequence[int]) -> int:
    """Number of blocks in a grid, given in threads."""
    return min(prod(-(-max(threads, 1) // max(size, 1)) for threads, size in zip(grid, group, strict=True)), LATEST)


def _message(more: Any) -> str:
    message = _decoded(more).get("message")
    return message if isinstance(message, str) else ""


def _decoded(more: Any) -> Mapping[str, Any]:
    """Content of a JSON column; empty if it is damaged."""
    try:
        found = msgspec.json.decode(more) if isinstance(more, str | bytes) else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _sequence(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < LATEST else ABSENT
