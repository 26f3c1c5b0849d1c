"""Reader of `rocprofv3 --output-format json` (`PID_results.json`): one document, which is decoded whole.

Kernels, copies, fills, calls of HIP and ranges of roctx become the events that Kineto would have written, as from
rocprofv3's database. The format is from rocprofiler-sdk's source/lib/output/generateJSON.cpp; numbers of kinds and
operations are positions in lists of names in the document.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from steptime.errors import TraceError
from steptime.trace.rocpd import MARKED, RUNTIME, Agent, add_copies, add_kernels, blocks_of
from steptime.trace.source import TraceSource, first_bytes
from steptime.trace.sqlite import LATEST, EventColumns, Row
from steptime.trace.table import ABSENT, Device, EventKind, Trace

FIRST_START = re.compile(rb'\s*\{\s*"rocprofiler-sdk-tool"\s*:')
START = 1 << 10
"""Bytes at the start, unpacked, that show the document's type."""
CHUNK = 1 << 24
GPU, CPU = 2, 1
"""Numbers of agent types (rocprofiler_agent_type_t)."""


class _Handle(msgspec.Struct, frozen=True, gc=False):
    handle: int = 0


class _Correlation(msgspec.Struct, frozen=True, gc=False):
    internal: int = 0


class _Size(msgspec.Struct, frozen=True, gc=False):
    x: int = 1
    y: int = 1
    z: int = 1


class _ToolRecord(msgspec.Struct, gc=False):
    """Fields of every record."""

    start_timestamp: int
    end_timestamp: int
    thread_id: int = 0
    correlation_id: _Correlation = _Correlation()


class _Dispatched(msgspec.Struct, gc=False):
    kernel_id: int
    agent_id: _Handle = _Handle()
    queue_id: _Handle = _Handle()
    workgroup_size: _Size = _Size()
    grid_size: _Size = _Size()


class _Dispatch(_ToolRecord, gc=False, kw_only=True):
    dispatch_info: _Dispatched
    stream_id: _Handle = _Handle()


class _Copy(_ToolRecord, gc=False, kw_only=True):
    dst_agent_id: _Handle = _Handle()
    src_agent_id: _Handle = _Handle()
    stream_id: _Handle = _Handle()
    bytes: int = ABSENT


class _ApiCall(_ToolRecord, gc=False, kw_only=True):
    kind: int
    operation: int


class _Records(msgspec.Struct):
    kernel_dispatch: list[_Dispatch] = []
    memory_copy: list[_Copy] = []
    hip_api: list[_ApiCall] = []
    marker_api: list[_ApiCall] = []


class _BufferKind(msgspec.Struct):
    kind: str
    operations: list[str] = []


class _Marker(msgspec.Struct):
    key: int
    value: str


class _Strings(msgspec.Struct):
    buffer_records: list[_BufferKind] = []
    marker_api: list[_Marker] = []


class _Agent(msgspec.Struct):
    id: _Handle
    type: int = 0
    logical_node_type_id: int = 0
    name: str = ""
    product_name: str = ""
    cu_count: int = 0


UNKNOWN_AGENT = _Agent(_Handle(), logical_node_type_id=ABSENT)


class _Symbol(msgspec.Struct):
    kernel_id: int
    kernel_name: str = ""
    formatted_kernel_name: str = ""


class _Metadata(msgspec.Struct):
    pid: int = 0


class _Process(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    agents: list[_Agent] = []
    strings: _Strings = msgspec.field(default_factory=_Strings)
    kernel_symbols: list[_Symbol] = []
    buffer_records: _Records = msgspec.field(default_factory=_Records)


class _Document(msgspec.Struct):
    processes: list[_Process] = msgspec.field(name="rocprofiler-sdk-tool")


class _Count(msgspec.Struct):
    processes: list[msgspec.Raw] = msgspec.field(name="rocprofiler-sdk-tool")


Content = TypeVar("Content", _Document, _Count)
Timed = TypeVar("Timed", bound=_ToolRecord)


def is_of_rocprof(path: Path) -> bool:
    """True if a file starts like a JSON document of rocprofv3."""
    return FIRST_START.match(first_bytes(path, START)) is not None


def processes_in(path: Path, max_size: int) -> tuple[int, ...]:
    """Indices (0, 1, …) of the processes in the file. Raises TraceError (trace-unreadable, trace-empty,
    trace-too-large)."""
    found = range(len(_decoded(path, max_size, _Count).processes))
    if not found:
        raise TraceError("trace-empty", f"{path} contains no event of any process.")
    return tuple(found)


def read_rocprof(path: Path, process: int, *, max_size: int) -> Trace:
    """Trace of one process in a document of rocprofv3. process: number from `processes_in`. Raises TraceError."""
    return _ProcessColumns(_decoded(path, max_size, _Document).processes[process]).trace(path)


def _decoded(path: Path, max_size: int, kind: type[Content]) -> Content:
    text = bytearray()
    with TraceSource(path, max_size) as source:
        chunk = bytearray(CHUNK)
        while count := source.fill(memoryview(chunk)):
            text += memoryview(chunk)[:count]
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError("trace-unreadable", f"{path} is not valid output of rocprofv3: {error}.") from None


class _ProcessColumns:
    """Columns of one process. A call has the same correlation id as what it launched."""

    def __init__(self, process: _Process) -> None:
        self._process, self._events = process, EventColumns()
        self._agents = {agent.id.handle: agent for agent in process.agents}
        self._number = process.metadata.pid
        self._messages = {marker.key: marker.value for marker in process.strings.marker_api}

    def trace(self, path: Path) -> Trace:
        """Trace of the process. Raises TraceError if a number is too large for its column."""
        records = self._process.buffer_records
        try:
            self._add_kernels(_sound(records.kernel_dispatch))
            self._add_copies(_sound(records.memory_copy))
            self._add_host(_sound(records.hip_api), _sound(records.marker_api))
        except OverflowError as error:
            raise TraceError("trace-unreadable", f"{path} contains an invalid number: {error}.") from None
        devices = [
            Device(agent.logical_node_type_id, agent.product_name or agent.name, max(agent.cu_count, 0))
            for agent in self._process.agents
            if agent.type == GPU
        ]
        return self._events.trace(path, devices)

    def _add_kernels(self, dispatches: Sequence[_Dispatch]) -> None:
        names = {
            each.kernel_id: each.formatted_kernel_name or each.kernel_name for each in self._process.kernel_symbols
        }
        by_stream = any(each.stream_id.handle for each in dispatches)
        add_kernels(
            self._events,
            _rows(dispatches),
            [names.get(each.dispatch_info.kernel_id, "") for each in dispatches],
            [_blocks(each.dispatch_info) for each in dispatches],
            device=[self._agent(each.dispatch_info.agent_id)[1] for each in dispatches],
            stream=[(each.stream_id if by_stream else each.dispatch_info.queue_id).handle for each in dispatches],
            correlation=_numbers(dispatches),
        )

    def _add_copies(self, copies: Sequence[_Copy]) -> None:
        add_copies(
            self._events,
            _rows(copies),
            [(self._agent(each.src_agent_id), self._agent(each.dst_agent_id)) for each in copies],
            stream=[each.stream_id.handle for each in copies],
            bytes=[each.bytes if 0 <= each.bytes < LATEST else ABSENT for each in copies],
            correlation=_numbers(copies),
        )

    def _add_host(self, calls: Sequence[_ApiCall], marks: Sequence[_ApiCall]) -> None:
        calls = [each for each in calls if self._kind_of(each).kind.startswith(RUNTIME)]
        known = [(self._kind_of(each).operations, each.operation) for each in calls]
        names = [operations[number] if 0 <= number < len(operations) else "" for operations, number in known]
        self._events.add(EventKind.RUNTIME, _rows(calls), names, self._tracks(calls), correlation=_numbers(calls))
        marks = [each for each in marks if self._kind_of(each).kind.startswith(MARKED) and self._message(each)]
        self._events.add_ranges(_rows(marks), list(map(self._message, marks)), self._tracks(marks))

    def _tracks(self, records: Sequence[_ApiCall]) -> list[tuple[int, int]]:
        return [(self._number, each.thread_id) for each in records]

    def _message(self, mark: _ApiCall) -> str:
        return self._messages.get(mark.correlation_id.internal, "")

    def _kind_of(self, call: _ApiCall) -> _BufferKind:
        known = self._process.strings.buffer_records
        return known[call.kind] if 0 <= call.kind < len(known) else _BufferKind("")

    def _agent(self, agent: _Handle) -> Agent:
        known = self._agents.get(agent.handle, UNKNOWN_AGENT)
        return {GPU: "GPU", CPU: "CPU"}.get(known.type, ""), known.logical_node_type_id


def _sound(records: Sequence[Timed]) -> list[Timed]:
    """Records with usable times, by start."""
    found = [each for each in records if 0 <= each.start_timestamp <= each.end_timestamp < LATEST]
    return sorted(found, key=lambda each: each.start_timestamp)


def _rows(records: Sequence[_ToolRecord]) -> list[Row]:
    return [(each.start_timestamp, each.end_timestamp) for each in records]


def _numbers(records: Sequence[_ToolRecord]) -> list[int]:
    internal = (each.correlation_id.internal for each in records)
    return [number if 0 < number < LATEST else ABSENT for number in internal]


def _blocks(dispatched: _Dispatched) -> int:
    grid, group = dispatched.grid_size, dispatched.workgroup_size
    return blocks_of((grid.x, grid.y, grid.z), (group.x, group.y, group.z))
