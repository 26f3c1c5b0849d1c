"""Reader of what Nsight Systems exported: `nsys export -t sqlite`, one database with all processes of a machine.

Kernels, copies, fills, runtime calls and NVTX ranges become the events that Kineto would have written. A range of
torch.autograd.profiler.emit_nvtx ("aten::mm, seq = 3, op_id = 7") is an operator, any other range an annotation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from steptime.errors import TraceError
from steptime.trace.sqlite import LATEST, Database, EventColumns, Row, columns_of, rows_of, texts_of, timed_rows, whole
from steptime.trace.table import Device, EventKind, Trace

KERNELS, GRAPHS = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
COPIES, FILLS = "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"
CALLS, RANGES = "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"
OF_DEVICE = ("deviceId", "streamId", "correlationId")
VERSION = re.compile(r"_v\d+(_pt[sd][zs])?$")
"""Suffix that CUPTI adds to the name of a call: cudaLaunchKernel_v7000."""
PUSHED, STARTED = 59, 60
"""Types of NVTX events with a duration; marks and names are skipped."""
DIRECTIONS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP", 11: "HtoD", 12: "DtoH", 13: "DtoD"}
MEMORY = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed", 5: "Device", 6: "Managed"}


def is_of_nsight(database: Database) -> bool:
    return any(columns_of(database, table) for table in (KERNELS, CALLS, RANGES))


def processes_of(database: Database, path: Path) -> tuple[int, ...]:
    """Numbers of the processes in an Nsight Systems database that used a device, in order; of all its processes if none
    did. Raises TraceError (trace-empty)."""
    for tables, column in (((KERNELS, GRAPHS, COPIES), "globalPid"), ((CALLS, RANGES), "globalTid")):
        message = {row[2] >> 24 & 0xFFFFFF for table in tables for row in timed_rows(database, table, column)}
        if message:
            return tuple(sorted(message))
    raise TraceError("trace-empty", f"{path} contains no event of any process.")


def read_process(database: Database, path: Path, process: int) -> Trace:
    reading, events = _ProcessTables(database, process), EventColumns()
    reading.add_device(events)
    reading.add_host(events)
    devices = tuple(
        Device(number, name if isinstance(name, str) else "", whole(sms))
        for number, name, sms in rows_of(database, "TARGET_INFO_GPU", "id", "name", "smCount")
        if isinstance(number, int)
    )
    since = next((whole(row[0]) for row in rows_of(database, "TARGET_INFO_SESSION_START_TIME", "utcEpochNs")), 0)
    return events.trace(path, devices, since)


class _ProcessTables:
    """The database's tables, filtered by process."""

    def __init__(self, database: Database, process: int) -> None:
        self._database, self._process = database, process
        self._texts = texts_of(database, "StringIds", "value")

    def add_device(self, events: EventColumns) -> None:
        """Adds kernels (also graphs recorded as one), copies and fills."""
        grid = ("gridX", "gridY", "gridZ")
        kernels = self._mine(KERNELS, "globalPid", *OF_DEVICE, "demangledName", "shortName", *grid)
        blocks = [min(max(x, 1) * max(y, 1) * max(z, 1), LATEST) for *_, x, y, z in kernels]
        names = [self._texts.get(row[6]) or self._texts.get(row[7], "") for row in kernels]
        _add_work(events, EventKind.KERNEL, kernels, names, blocks=blocks)
        graphs = self._mine(GRAPHS, "globalPid", *OF_DEVICE)
        _add_work(events, EventKind.KERNEL, graphs, ["CUDA graph"] * len(graphs))
        copies = self._mine(COPIES, "globalPid", *OF_DEVICE, "bytes", "copyKind", "srcKind", "dstKind")
        names = [
            f"Memcpy {DIRECTIONS.get(kind, '')} ({MEMORY.get(source, 'Unknown')} -> {MEMORY.get(target, 'Unknown')})"
            for *_, kind, source, target in copies
        ]
        _add_work(events, EventKind.MEMCPY, copies, names, bytes=[row[6] for row in copies])
        fills = self._mine(FILLS, "globalPid", *OF_DEVICE, "bytes")
        _add_work(events, EventKind.MEMSET, fills, ["Memset (Device)"] * len(fills), bytes=[row[6] for row in fills])

    def add_host(self, events: EventColumns) -> None:
        calls = self._mine(CALLS, "globalTid", "correlationId", "nameId")
        names = [VERSION.sub("", self._texts.get(row[4], "")) for row in calls]
        events.add(EventKind.RUNTIME, calls, names, self._threads(calls), correlation=[row[3] for row in calls])
        kept = [row for row in self._mine(RANGES, "globalTid", "eventType", "textId", text="text")
                if row[3] in (PUSHED, STARTED)]  # fmt: skip
        message = [row[5] if isinstance(row[5], str) else self._texts.get(row[4], "") for row in kept]
        events.add_ranges(kept, message, self._threads(kept))

    def _mine(self, table: str, owner: str, *columns: str, text: str = "") -> list[Row]:
        """(start, end, owner, further columns) of the process's events. text: name of a last column, unconverted."""
        rows = timed_rows(self._database, table, owner, *columns, text=text)
        return [row for row in rows if row[2] >> 24 & 0xFFFFFF == self._process]

    def _threads(self, rows: Sequence[Row]) -> list[tuple[int, int]]:
        return [(self._process, row[2] & 0xFFFFFF) for row in rows]


def _add_work(events: EventColumns, kind: EventKind, rows: list[Row], names: list[str], **more: list[int]) -> None:
    ids = {name: [row[3 + at] for row in rows] for at, name in enumerate(("device", "stream", "correlation"))}
    events.add(kind, rows, names, [(row[3], row[4]) for row in rows], **ids, **more)
