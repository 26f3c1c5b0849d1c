"""Every real trace reads the same as with the plain json module and Decimal times."""

from __future__ import annotations

import gzip
import json
from decimal import ROUND_HALF_EVEN, Decimal
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from published import IN_A_CLONE, is_alike, whole

from steptime.errors import TraceError
from steptime.trace.reader import read
from steptime.trace.table import ABSENT, EventKind, Trace


def traces(folder: Path) -> list[Path]:
    found = [*folder.rglob("*.json.gz"), *folder.rglob("*.trace.json")]
    return sorted(path for path in found if "_et" not in path.parent.name)


def plainly_read(path: Path) -> dict[str, Any]:
    raw = path.read_bytes()
    text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    document = json.loads(text, parse_float=Decimal)
    return document if isinstance(document, dict) else {"traceEvents": document}


def nanoseconds(value: Any) -> int:
    return int((Decimal(value) * 1000).to_integral_value(ROUND_HALF_EVEN))


def number(value: Any) -> int:
    """An id as it is written, in decimal or hexadecimal; absent where it is null or beyond 64 bits."""
    read = ABSENT if value is None else int(value, 0) if isinstance(value, str) else int(value)
    return read if -(2**63) <= read < 2**63 else ABSENT


COLUMNS = {
    "correlation": "correlation",
    "sequence": "Sequence number",
    "stream": "stream",
    "device": "device",
    "bytes": "bytes",
}
RAW = {"shapes": "Input Dims", "dtypes": "Input type", "inputs": "Concrete Inputs"}
CATEGORIES = {
    "cpu_op": "OPERATOR", "Operator": "OPERATOR", "user_annotation": "ANNOTATION", "python_function": "PYTHON",
    "cuda_runtime": "RUNTIME", "cuda_driver": "RUNTIME", "Runtime": "RUNTIME", "kernel": "KERNEL", "Kernel": "KERNEL",
    "gpu_memcpy": "MEMCPY", "Memcpy": "MEMCPY", "gpu_memset": "MEMSET", "Memset": "MEMSET", "Trace": "SPAN",
    "gpu_user_annotation": "DEVICE_ANNOTATION", "cuda_sync": "SYNC", "overhead": "OVERHEAD",
    "cuda_profiler_range": "OTHER", None: "OTHER",
}  # fmt: skip
"""All that occur in the real traces, by hand."""


def blocks(arguments: dict[str, Any]) -> int:
    """Of what ran on a stream. One file of ROCm's has them the other way round: its "block" is the grid in threads."""
    grid, block = arguments.get("grid"), arguments.get("block", [1])
    if not isinstance(grid, list) or "stream" not in arguments:
        return ABSENT
    return prod(grid) if prod(block) <= 1024 else prod(block) // prod(grid)


def external_id(arguments: dict[str, Any]) -> int:
    """Files of 2021 spell it in small letters, for some events."""
    return number(arguments.get("External id", arguments.get("external id")))


def assert_reads_the_same(trace: Trace, document: dict[str, Any]) -> None:
    events = [event for event in document["traceEvents"] if event.get("ph") == "X"]
    table, base = trace.events, document.get("baseTimeNanoseconds", 0)
    arguments = [event.get("args", {}) for event in events]
    assert len(table) == len(events)
    assert [trace.symbols[name] for name in table.name] == [event["name"] for event in events]
    tracks = [(trace.tracks[track].process, trace.tracks[track].thread) for track in table.track]
    assert tracks == [(event["pid"], event["tid"]) for event in events]
    assert table.start.tolist() == [nanoseconds(event["ts"]) + base for event in events]
    assert table.duration.tolist() == [nanoseconds(event["dur"]) for event in events]
    for column, key in COLUMNS.items():
        assert getattr(table, column)[:].tolist() == [number(each.get(key)) for each in arguments], column
    assert table.external.tolist() == [external_id(each) for each in arguments]
    assert table.blocks[:].tolist() == [blocks(each) for each in arguments]
    names = [CATEGORIES[event.get("cat")] for event in events]
    assert [EventKind(event_kind).name for event_kind in table.event_kind.tolist()] == names
    for column, key in RAW.items():
        texts = getattr(trace, column)
        values = [None if text is None else json.loads(text, parse_float=Decimal) for text in (*texts, None)]
        read = [values[text if text != ABSENT else -1] for text in getattr(table, column).tolist()]
        assert read == [each.get(key) for each in arguments], column


def facts(document: dict[str, Any]) -> tuple[Any, ...]:
    distributed = document.get("distributedInfo", {})
    devices = [(each["id"], each["name"]) for each in document.get("deviceProperties", [])]
    return distributed.get("rank"), distributed.get("world_size"), devices


def test_every_real_trace_reads_as_the_json_module_reads_it(shared_data: Path) -> None:
    found = [path for path in traces(shared_data) if not is_alike(path)]
    assert len(found) >= (10 if IN_A_CLONE else 26)
    for path in found:
        compare(path)


@pytest.mark.slow
def test_every_further_real_trace_reads_as_the_json_module_reads_it(shared_data: Path) -> None:
    found = [path for path in traces(shared_data) if is_alike(path)]
    assert len(found) == (0 if IN_A_CLONE else 13)
    for path in found:
        compare(path)


def compare(path: Path) -> None:
    trace, document = read(path), plainly_read(path)
    assert_reads_the_same(trace, document)
    assert facts(document) == (trace.rank, trace.world_size, [(each.number, each.name) for each in trace.devices])
    assert trace.damage.sentences == ()


def test_the_real_traces_are_not_all_alike(shared_data: Path) -> None:
    """What the comparison above is on: these peculiarities are in the files, and so compared."""
    whole()
    found = {path.name: read(path) for path in traces(shared_data) if not is_alike(path)}
    seen = {
        name: {EventKind(value).name for value in np.unique(trace.events.event_kind)} for name, trace in found.items()
    }
    assert set().union(*seen.values()) == {event_kind.name for event_kind in EventKind}
    assert any(trace.base_ns > 2**53 for trace in found.values())
    assert any((trace.events.start % 1000).any() and not trace.base_ns for trace in found.values())
    assert any(isinstance(track.process, str) for trace in found.values() for track in trace.tracks)


def test_what_a_trace_says_of_itself_is_kept(shared_data: Path) -> None:
    trace = read(shared_data / "hta/cpu_only/rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz")
    assert (trace.rank, trace.world_size, trace.devices) == (34, 300, ())
    trace = read(shared_data / "tracelens/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz")
    assert [device.name for device in trace.devices] == ["NVIDIA H100 80GB HBM3"]
    trace = read(shared_data / "hta/triton_example/triton_example.json.gz")
    assert 2413669096090100 + 1727743122000000000 in trace.events.start


def test_columns_are_read_only(shared_data: Path) -> None:
    events = read(shared_data / "hta/triton_example/triton_example.json.gz").events
    with pytest.raises(ValueError, match="read-only"):
        events.start[0] = 0
    assert events.start.dtype == np.int64


def test_a_json_file_that_is_no_trace_is_refused_in_a_sentence(shared_data: Path) -> None:
    with pytest.raises(TraceError, match="not a trace") as refused:
        read(shared_data / "param/dlrm_pytorch_et/dlrm_eg_0.json.gz")
    assert refused.value.slug == "trace-not-a-trace"
