"""The memory events of a trace (`profile_memory=True`), which are instants: the table of complete events has none."""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from steptime.arrays import Int64
from steptime.kineto.arguments import blocks_of
from steptime.kineto.reader import DEFAULT_MAX_SIZE
from steptime.kineto.source import Source

NAME = b"[memory]"
EVENT = re.compile(
    rb'"name":\s*"\[memory\]",\s*"pid":\s*"?(-?\w+)"?,\s*"tid":\s*"?(-?\w+)"?,\s*"ts":\s*(\d+)(?:\.(\d+))?\s*,'
    rb'\s*"args":\s*\{([^{}]*)\}'
)
"""Unescaped quotes in front of its keys: no text inside the trace can look like it."""
ARGUMENT = re.compile(rb'"(Total Reserved|Total Allocated|Bytes|Addr|Device Id|Device Type)":\s*(-?\d{1,19})\b')
COLUMNS = {b"Total Reserved": "reserved", b"Total Allocated": "allocated", b"Bytes": "bytes", b"Addr": "address",
           b"Device Id": "device", b"Device Type": "device_type"}  # fmt: skip
LIMIT = 1 << 62
UNKNOWN = -1


@dataclass(frozen=True, slots=True, eq=False)
class AllocationEvents:
    """Columns in file order. time: ns in the file's own terms (add the trace's base_ns). thread: as the file has it.
    bytes: negative where memory was freed. address: UNKNOWN in traces before torch 1.12. allocated, reserved: totals of
    the device right after; of a CPU only what was handed out since the recording began. device_type: 0 for a CPU."""

    time: Int64
    process: Int64
    thread: Int64
    address: Int64
    bytes: Int64
    allocated: Int64
    reserved: Int64
    device: Int64
    device_type: Int64

    def __len__(self) -> int:
        return len(self.time)


def read_allocations(path: Path, *, max_size: int = DEFAULT_MAX_SIZE) -> AllocationEvents:
    """The memory events of a trace; none where it was recorded without them. Raises TraceError as `read` does."""
    columns = {name: array("q") for name in ("time", "process", "thread", *COLUMNS.values())}
    with Source(path, max_size) as source:
        for text, start, stop in blocks_of(source):
            if text.find(NAME, start) < 0:
                continue
            for found in EVENT.finditer(text, start):
                if found.start() >= stop:
                    break
                _add(columns, found)
    return AllocationEvents(**{name: _column(values) for name, values in columns.items()})


def _add(columns: dict[str, array[int]], found: re.Match[bytes]) -> None:
    process, thread, whole, fraction, arguments = found.groups()
    values = dict.fromkeys(COLUMNS.values(), UNKNOWN)
    for name, number in ARGUMENT.findall(arguments):
        values[COLUMNS[name]] = max(-LIMIT, min(LIMIT, int(number)))
    nanoseconds = int((fraction or b"").ljust(3, b"0")[:3])
    values["time"] = min(LIMIT // 1000, int(whole)) * 1000 + nanoseconds
    values["process"], values["thread"] = _identity(process), _identity(thread)
    for name, value in values.items():
        columns[name].append(value)


def _identity(text: bytes) -> int:
    digits = text.removeprefix(b"-")
    return max(-LIMIT, min(LIMIT, int(text))) if digits.isdigit() and len(digits) < 20 else UNKNOWN


def _column(values: array[int]) -> Int64:
    column = np.array(values, np.int64)
    column.flags.writeable = False
    return column
