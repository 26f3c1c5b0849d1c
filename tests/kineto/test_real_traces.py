"""Every real trace reads the same as with the plain json module and Decimal times."""

from __future__ import annotations

import gzip
import json
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steptime.errors import TraceError
from steptime.kineto.reader import read
from steptime.kineto.table import ABSENT, Trace


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
    return ABSENT if value is None else int(value, 0) if isinstance(value, str) else int(value)


def assert_reads_the_same(trace: Trace, document: dict[str, Any]) -> None:
    events = [event for event in document["traceEvents"] if event.get("ph") == "X"]
    table, base = trace.events, document.get("baseTimeNanoseconds", 0)
    arguments = [event.get("args", {}) for event in events]
    assert len(table) == len(events)
    assert [trace.symbols[name] for name in table.name] == [event["name"] for event in events]
    lanes = [(trace.lanes[lane].process, trace.lanes[lane].thread) for lane in table.lane]
    assert lanes == [(event["pid"], event["tid"]) for event in events]
    assert table.begin.tolist() == [nanoseconds(event["ts"]) + base for event in events]
    assert table.duration.tolist() == [nanoseconds(event["dur"]) for event in events]
    for column, key in (("correlation", "correlation"), ("stream", "stream"), ("sequence", "Sequence number")):
        assert getattr(table, column).tolist() == [number(each.get(key)) for each in arguments], column
    shapes = [None if shape == ABSENT else json.loads(trace.shapes[shape]) for shape in table.shapes]
    assert shapes == [each.get("Input Dims") for each in arguments]


def test_every_real_trace_reads_as_the_json_module_reads_it(shared_data: Path) -> None:
    found = traces(shared_data)
    assert len(found) >= 35
    for path in found:
        trace = read(path)
        assert_reads_the_same(trace, plainly_read(path))
        assert trace.damage.sentences == ()


def test_what_a_trace_says_of_itself_is_kept(shared_data: Path) -> None:
    trace = read(shared_data / "hta/cpu_only/rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz")
    assert (trace.rank, trace.world_size, trace.devices) == (34, 300, ())
    trace = read(shared_data / "tracelens/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz")
    assert [device.name for device in trace.devices] == ["NVIDIA H100 80GB HBM3"]
    trace = read(shared_data / "hta/triton_example/triton_example.json.gz")
    assert 2413669096090100 + 1727743122000000000 in trace.events.begin


def test_columns_are_read_only(shared_data: Path) -> None:
    events = read(shared_data / "hta/triton_example/triton_example.json.gz").events
    with pytest.raises(ValueError, match="read-only"):
        events.begin[0] = 0
    assert events.begin.dtype == np.int64


def test_a_json_file_that_is_no_trace_is_refused_in_a_sentence(shared_data: Path) -> None:
    with pytest.raises(TraceError, match="not a trace") as refused:
        read(shared_data / "param/dlrm_pytorch_et/dlrm_eg_0.json.gz")
    assert refused.value.slug == "trace-not-a-trace"
