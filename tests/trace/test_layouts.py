"""What Kineto wrote in other years and for other devices reads the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steptime.arrays import Few
from steptime.trace.reader import read
from steptime.trace.table import ABSENT, EventKind, Trace, Track


def read_events(tmp_path: Path, events: list[dict[str, Any]], **around: Any) -> Trace:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({**around, "traceEvents": events}))
    return read(path)


def event(**changed: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 7, "tid": 7, "ts": 1.0, "dur": 2.0} | changed


def work(event_kind: str, name: str = "gemm", **arguments: Any) -> dict[str, Any]:
    return event(cat=event_kind, name=name, pid=0, tid=7, args={"device": 0, "stream": 7, "correlation": 3} | arguments)


def event_kinds(trace: Trace) -> list[EventKind]:
    return [EventKind(value) for value in trace.events.event_kind.tolist()]


def test_metadata_may_stand_before_between_or_behind_the_events(tmp_path: Path) -> None:
    named = {"ph": "M", "name": "process_name", "pid": 7, "ts": 0, "args": {"name": "python"}}
    arrow = {"ph": "s", "id": 1, "pid": 7, "tid": 7, "ts": 1, "cat": "ac2g", "name": "ac2g"}
    finish = {"ph": "f", "id": 1, "pid": 0, "tid": 7, "ts": 1, "cat": "ac2g", "name": "ac2g", "bp": "e"}
    instant = {"ph": "i", "s": "t", "name": "[memory]", "pid": 7, "tid": 7, "ts": 1, "args": {"Bytes": -512}}
    counter = {"ph": "C", "name": "queue", "pid": 0, "ts": 1, "args": {"length": 3}}
    for listed in ([named, event(), arrow], [event(), named, finish, instant], [arrow, counter, event(), named]):
        assert len(read_events(tmp_path, listed).events) == 1


def test_torch_1_8_capitalised_categories_and_spelt_ids_in_small_letters(tmp_path: Path) -> None:
    old = [
        event(cat="Operator", args={"External id": 5}),
        event(cat="Runtime", name="cudaLaunchKernel", args={"external id": 5, "correlation": 9}),
        event(cat="Kernel", name="gemm", args={"external id": 5, "correlation": 9, "stream": 7, "device": 0}),
        work("Memcpy", "Memcpy HtoD (Pageable -> Device)", bytes=64),
        work("Memset", "Memset (Device)", bytes=8),
    ]
    trace = read_events(tmp_path, old)
    names = ["OPERATOR", "RUNTIME", "KERNEL", "MEMCPY", "MEMSET"]
    assert [event_kind.name for event_kind in event_kinds(trace)] == names
    assert trace.events.external.tolist() == [5, 5, 5, ABSENT, ABSENT]
    assert trace.events.bytes[:].tolist()[3:] == [64, 8]


def test_times_of_2022_and_of_2024_differ_in_precision_only(tmp_path: Path) -> None:
    whole = read_events(tmp_path, [event(ts=1695835535123456, dur=7)])
    assert (whole.events.start[0], whole.events.duration[0]) == (1695835535123456000, 7000)
    base = 2**60 + 1  # a float64 would lose the 1
    relative = read_events(tmp_path, [event(ts=12345.678, dur=0.001)], baseTimeNanoseconds=base)
    assert (relative.events.start[0], relative.events.duration[0]) == (base + 12345678, 1)


def test_times_of_mixed_digits_are_exact_alongside_those_of_nineteen(tmp_path: Path) -> None:
    stamps = ["1712195495505000.001", "1712195495505001", "1712195495505002.5", "17121954955.123", "-3.25"]
    listed = ",".join(f'{{"ph": "X", "name": "k", "ts": {stamp}, "dur": 1}}' for stamp in stamps)
    path = tmp_path / "trace.json"
    path.write_text(f'{{"traceEvents": [{listed}]}}')
    expected = [1712195495505000001, 1712195495505001000, 1712195495505002500, 17121954955123, -3250]
    assert read(path).events.start.tolist() == expected


@pytest.mark.parametrize("time", ["null", '"later"', "{}", "1e400", "99999999999999999.123", "true"])
def test_what_is_no_time_alongside_times_of_nineteen_digits_is_refused_alone(tmp_path: Path, time: str) -> None:
    stamps = ["1712195495505000.001", time, "1712195495505002.003"]
    listed = ",".join(f'{{"ph": "X", "name": "k", "ts": {stamp}, "dur": 1}}' for stamp in stamps)
    path = tmp_path / "trace.json"
    path.write_text(f'{{"traceEvents": [{listed}]}}')
    trace = read(path)
    assert trace.events.start.tolist() == [1712195495505000001, 1712195495505002003]
    assert trace.damage.refused == 1


def test_rocm_streams_and_sizes_as_text(tmp_path: Path) -> None:
    launch = event(cat="cuda_runtime", name="hipLaunchKernel", args={"stream": "0x0", "correlation": 4, "grid": [1]})
    copy = event(
        cat="cuda_runtime", name="hipMemcpyAsync", args={"stream": "0x7f2a", "bytes": "4096", "correlation": 5}
    )
    trace = read_events(tmp_path, [launch, copy, work("kernel", "Cijk_Ailk", correlation=4)])
    assert trace.events.stream.tolist() == [0, 0x7F2A, 7]
    assert trace.events.bytes[:].tolist() == [ABSENT, 4096, ABSENT]
    assert trace.events.correlation.tolist() == [4, 5, 4]


def test_lanes_are_what_the_file_calls_them(tmp_path: Path) -> None:
    span = event(cat="Trace", name="PyTorch Profiler (0)", pid="Spans", tid="PyTorch Profiler")
    trace = read_events(tmp_path, [span, event(tid=-1408237568), event(pid=None, tid=None)])
    assert [trace.tracks[track] for track in trace.events.track] == [
        Track("Spans", "PyTorch Profiler"),
        Track(7, -1408237568),
        Track(None, None),
    ]


@pytest.mark.parametrize(
    ("event_kind", "expected"),
    [
        ("mtia_runtime", EventKind.RUNTIME),
        ("privateuse1_runtime", EventKind.RUNTIME),
        ("privateuse1_driver", EventKind.RUNTIME),
        ("newchip_driver", EventKind.RUNTIME),
        ("xpu_sync", EventKind.SYNC),
        ("newchip_user_annotation", EventKind.DEVICE_ANNOTATION),
        ("cuda_event", EventKind.OTHER),
        ("mtia_insight", EventKind.OTHER),
        ("never heard of", EventKind.OTHER),
    ],
)
def test_categories_of_other_makers_are_known_by_their_endings(
    tmp_path: Path, event_kind: str, expected: EventKind
) -> None:
    assert event_kinds(read_events(tmp_path, [event(cat=event_kind)])) == [expected]


def test_what_ran_on_a_stream_of_a_device_is_its_work_whatever_its_category(tmp_path: Path) -> None:
    listed = [
        work("newchip_engine", "matmul_fp8"),
        work("newchip_engine", "DMA memcpy D2H"),
        work("newchip_engine", "Memset"),
        work("newchip_kernel"),
        event(cat="mtia_ccp_events", name="gemm", args={"correlation": 3}),
        work("cuda_event", "record"),
        work("newchip_engine", device=-1),
        event(cat="newchip_engine", args={"stream": 7}),
    ]
    names = [event_kind.name for event_kind in event_kinds(read_events(tmp_path, listed))]
    assert names == ["KERNEL", "MEMCPY", "MEMSET", "KERNEL", "KERNEL", "OTHER", "OTHER", "OTHER"]


def test_a_trace_without_any_id_has_columns_all_the_same(tmp_path: Path) -> None:
    table = read_events(tmp_path, [event(args={}), event()]).events
    for name in ("correlation", "external", "sequence", "bytes", "stream", "device"):
        column = getattr(table, name)
        assert column[:].tolist() == [ABSENT, ABSENT], name
        assert not (column.values if isinstance(column, Few) else column).flags.writeable


def test_an_empty_trace_has_empty_columns_that_can_be_reckoned_with(tmp_path: Path) -> None:
    trace = read_events(tmp_path, [], baseTimeNanoseconds=5)
    assert len(trace.events) == 0
    assert trace.events.end.tolist() == []
    assert (trace.events.start.dtype, trace.events.duration.dtype) == (np.dtype(np.int64), np.dtype(np.int32))


def test_one_id_beyond_32_bits_widens_its_column_and_keeps_the_others(tmp_path: Path) -> None:
    many = [event(ts=number, args={"correlation": number, "External id": number}) for number in range(30_000)]
    many[20_000]["args"]["correlation"] = 2**40 + 1
    many[20_001]["args"]["correlation"] = -(2**31) - 1
    table = read_events(tmp_path, many).events
    expected = list(range(30_000))
    expected[20_000], expected[20_001] = 2**40 + 1, -(2**31) - 1
    assert table.correlation.tolist() == expected
    assert table.correlation.dtype == np.int64
    assert table.external.dtype == np.int16


def test_a_column_that_fills_late_is_absent_before(tmp_path: Path) -> None:
    many = [event(ts=number) for number in range(30_000)]
    many[-1]["args"] = {"Sequence number": 4, "Input Dims": [[2, 3]]}
    trace = read_events(tmp_path, many)
    assert trace.events.sequence[:].tolist() == [ABSENT] * 29_999 + [4]
    assert trace.events.shapes.tolist() == [ABSENT] * 29_999 + [0]
    assert trace.shapes == ("[[2, 3]]",)


def test_duplicates_and_events_out_of_order_stay_as_they_are_in_the_file(tmp_path: Path) -> None:
    listed = [event(ts=9.0), event(ts=3.0), event(ts=9.0), event(ts=3.0)]
    assert read_events(tmp_path, listed).events.start.tolist() == [9000, 3000, 9000, 3000]
