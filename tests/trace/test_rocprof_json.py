"""What `rocprofv3 --output-format json` writes is read as what Kineto writes.

rocprofv3_results.json.gz: 200 dispatches of tests/rocprof/908_results.json.gz of AMD-AGI/TraceLens (MIT; a training
with RCCL on an MI350X), with their kernels and agents. That file holds dispatches alone: calls, copies and ranges are
as rocprofiler-sdk's own tests have them.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steptime.diagnosis import diagnose_paths
from steptime.errors import TraceError
from steptime.trace.gather import gather
from steptime.trace.links import UNKNOWN, launches_of
from steptime.trace.table import EventKind, Trace
from steptime.trace.windows import read_rank

REAL = Path(__file__).with_name("rocprofv3_results.json.gz")
START = 63_857_982_592_000
CPU, GPU = 37944, 37946


def read(path: Path) -> Trace:
    (rank,) = gather([str(path)]).ranks
    return read_rank(rank)


def names(trace: Trace, kind: EventKind) -> list[str]:
    return [trace.symbols[number] for number in trace.events.name[trace.events.event_kind == kind].tolist()]


def recorded(start: int, end: int, number: int, **more: Any) -> dict[str, Any]:
    times = {"start_timestamp": START + start, "end_timestamp": START + end}
    return {"size": 1, "thread_id": 908, "correlation_id": {"internal": number, "external": 0}, **times, **more}


def process(number: int = 908) -> dict[str, Any]:
    """A range, in it a call that launches a kernel, and one that copies."""
    kinds = [("NONE", []), ("HIP_RUNTIME_API", ["", "hipLaunchKernel", "hipMemcpyAsync"]), ("HSA_CORE_API", ["x"])]
    kinds += [("MARKER_CORE_RANGE_API", ["roctxThreadRangeA"])]
    at = {"agent_id": {"handle": GPU}, "queue_id": {"handle": 18}, "kernel_id": 1}
    sizes = {"workgroup_size": {"x": 256, "y": 1, "z": 1}, "grid_size": {"x": 1000, "y": 2, "z": 1}}
    return {
        "metadata": {"pid": number},
        "agents": [
            {"id": {"handle": CPU}, "type": 1, "name": "EPYC"},
            {
                "id": {"handle": GPU},
                "type": 2,
                "name": "gfx950",
                "product_name": "AMD Instinct MI350X",
                "cu_count": 256,
            },
        ],
        "strings": {
            "buffer_records": [{"kind": kind, "operations": operations} for kind, operations in kinds],
            "marker_api": [{"key": 7, "value": "aten::mm, seq = 3, op_id = 7"}],
        },
        "kernel_symbols": [{"kernel_id": 1, "kernel_name": "gemm.kd", "formatted_kernel_name": "gemm"}],
        "buffer_records": {
            "kernel_dispatch": [recorded(500, 900, 1, dispatch_info=at | sizes, stream_id={"handle": 4})],
            "memory_copy": [
                recorded(920, 990, 2, src_agent_id={"handle": CPU}, dst_agent_id={"handle": GPU}, bytes=4096)
            ],
            "hip_api": [
                recorded(100, 200, 1, kind=1, operation=1),
                recorded(210, 300, 2, kind=1, operation=2),
                recorded(120, 130, 3, kind=2, operation=0),
            ],
            "marker_api": [recorded(50, 400, 7, kind=3, operation=0)],
        },
    }


def written(path: Path, *processes: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"rocprofiler-sdk-tool": processes}, indent=1))
    return path


def test_real_dispatches_have_their_times_to_the_nanosecond_and_their_device() -> None:
    trace = read(REAL)
    (document,) = json.loads(gzip.decompress(REAL.read_bytes()))["rocprofiler-sdk-tool"]
    dispatches = document["buffer_records"]["kernel_dispatch"]
    assert sorted(trace.events.start.tolist()) == sorted(each["start_timestamp"] for each in dispatches)
    assert trace.events.duration.sum() == sum(each["end_timestamp"] - each["start_timestamp"] for each in dispatches)
    assert (trace.devices[0].name, trace.devices[0].multiprocessors) == ("AMD Instinct MI350X", 256)
    assert "ncclDevKernel_Generic_1" in " ".join(names(trace, EventKind.KERNEL))
    assert not any(name.startswith("__amd_rocclr") for name in names(trace, EventKind.KERNEL))


def test_a_diagnosis_of_them_tells_communication_by_its_kernels_and_blames_no_host() -> None:
    case = diagnose_paths([str(REAL)]).processes[0].case
    spent = {use.name: use.duration.value / 1e6 for use in case.categories}
    assert spent["compute"] == pytest.approx(1.618523, abs=1e-6)  # the union of what is no RCCL, copy or fill
    assert set(spent) <= {"compute", "communication", "copy", "unexplained"}


def test_calls_launch_kernels_and_copies_and_ranges_are_operators(tmp_path: Path) -> None:
    trace = read(written(tmp_path / "908_results.json", process()))
    events, launch = trace.events, launches_of(trace)
    kernel = int(np.flatnonzero(events.event_kind == EventKind.KERNEL)[0])
    copy = int(np.flatnonzero(events.event_kind == EventKind.MEMCPY)[0])
    assert names(trace, EventKind.RUNTIME) == ["hipLaunchKernel", "hipMemcpyAsync"]
    assert [trace.symbols[events.name[launch[row]]] for row in (kernel, copy)] == names(trace, EventKind.RUNTIME)
    assert UNKNOWN not in (launch[kernel], launch[copy])
    assert (names(trace, EventKind.MEMCPY), int(events.bytes[copy])) == (["Memcpy HtoD"], 4096)
    assert (names(trace, EventKind.OPERATOR), events.sequence[:].max()) == (["aten::mm"], 3)
    assert (int(events.blocks[kernel]), int(events.stream[kernel])) == (8, 4)


def test_each_process_of_a_document_is_a_rank(tmp_path: Path) -> None:
    written(tmp_path / "a_results.json", process(908), process(909))
    found = gather([str(tmp_path)])
    assert [rank.rank for rank in found.ranks] == [0, 1]
    assert "count as ranks" in found.problems[0]


@pytest.mark.parametrize(
    ("text", "slug"),
    [
        ('{"rocprofiler-sdk-tool": []}', "trace-empty"),
        ('{"rocprofiler-sdk-tool": [{"buffer_records": ', "trace-unreadable"),
        ('{"rocprofiler-sdk-tool": [{"agents": 5}]}', "trace-unreadable"),
        ('{"rocprofiler-sdk-tool": {}}', "trace-unreadable"),
    ],
)
def test_a_torn_document_is_refused_in_a_sentence(tmp_path: Path, text: str, slug: str) -> None:
    path = tmp_path / "908_results.json"
    path.write_text(text)
    with pytest.raises(TraceError) as refused:
        diagnose_paths([str(path)])
    assert refused.value.slug == slug


def test_numbers_that_count_nothing_and_times_that_run_backwards_are_left_out(tmp_path: Path) -> None:
    odd = process()
    records = odd["buffer_records"]
    records["kernel_dispatch"] += [
        recorded(10, 5, 9, dispatch_info={"kernel_id": 1}),
        recorded(10, 1 << 62, 9, dispatch_info={"kernel_id": 1}),
        recorded(1000, 1100, 1 << 63, dispatch_info={"kernel_id": 77}),
    ]
    records["hip_api"].append(recorded(10, 20, 0, kind=99, operation=99))
    trace = read(written(tmp_path / "908_results.json", odd))
    assert names(trace, EventKind.KERNEL) == ["gemm", ""]
    assert len(names(trace, EventKind.RUNTIME)) == 2


def test_the_limit_of_size_holds(tmp_path: Path) -> None:
    path = written(tmp_path / "908_results.json", process())
    with pytest.raises(TraceError, match="more than 100 bytes"):
        diagnose_paths([str(path)], max_size=100)
