"""AMD's databases are read as what Kineto writes: rocprofv3's (schema 3 of rocpd) and rocmProfileData's (schema 2).

The tables are those of ck_bmm/37ca13315e70/28_results.db of HGLiu1998/batched_gemm (rocprofv3 on an MI300X) and of
raptor/tests/mytrace.rpd.gz of ROCm/rocmProfileData (a vLLM server on an MI300X), with the columns that matter; ranges
of roctx and copies of schema 3 are as source/lib/output/generateRocpd.cpp of rocprofiler-sdk writes them.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
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

SUFFIX = "_00003fdc_92cb_72cb"
START = 1_071_423_114_883_652
"""ns since the machine was started, as both profilers count."""
CPU, GPU = 0, 2


def written(path: Path, tables: dict[str, tuple[str, Sequence[Sequence[Any]]]]) -> Path:
    """A database of tables: columns, and rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    database = sqlite3.connect(path)
    for name, (columns, rows) in tables.items():
        listed = columns.split()
        database.execute(f'CREATE TABLE "{name}" ({", ".join(map(repr, listed))})')
        database.executemany(f'INSERT INTO "{name}" VALUES ({", ".join("?" * len(listed))})', rows)
    database.commit()
    database.close()
    return path


def of_rocprof(path: Path, process: int = 28, kernels: int = 3) -> Path:
    """A step that roctx marks, of a fill, kernels and a copy, each launched by a call of HIP."""
    texts = ["", "HIP_RUNTIME_API_EXT", "KERNEL_DISPATCH", "MEMORY_COPY", "MARKER_CORE_RANGE_API", "HSA_CORE_API"]
    texts += ["hipLaunchKernel", "hipMemcpyAsync", "hipMemsetAsync", "roctxThreadRangeA", "hsa_signal_wait_scacquire"]
    number = {text: place for place, text in enumerate(texts)}
    events: list[tuple[Any, ...]] = []
    regions: list[tuple[Any, ...]] = []
    dispatches: list[tuple[Any, ...]] = []
    copies: list[tuple[Any, ...]] = []

    def reported(category: str, stack: int, message: str = "{}") -> int:
        events.append((len(events) + 1, number[category], stack, message))
        return len(events)

    def call(
        name: str, stack: int, start: int, end: int, category: str = "HIP_RUNTIME_API_EXT", sentence: str = "{}"
    ) -> None:
        regions.append(
            (stack, process, process, START + start, START + end, number[name], reported(category, stack, sentence))
        )

    call("roctxThreadRangeA", 900, 0, 1_000_000, "MARKER_CORE_RANGE_API", json.dumps({"message": "step"}))
    call("roctxThreadRangeA", 901, 5_000, 90_000, "MARKER_CORE_RANGE_API",
         json.dumps({"message": "aten::mm, seq = 7, op_id = 3"}))  # fmt: skip
    call("hsa_signal_wait_scacquire", 902, 6_000, 7_000, "HSA_CORE_API")
    for place in range(kernels):
        call("hipLaunchKernel", 10 + place, 10_000 * place, 10_000 * place + 5_000)
        times = (START + 100_000 * (place + 1), START + 100_000 * (place + 1) + 70_001)
        dispatches.append(
            (process, process, GPU, 1, 16, 0, *times, reported("KERNEL_DISPATCH", 10 + place), 600, 4, 1, 256, 4, 1)
        )
    call("hipMemsetAsync", 50, 60_000, 61_000)
    dispatches.append((process, process, GPU, 2, 16, 0, START + 500_000, START + 510_000,
                       reported("KERNEL_DISPATCH", 50), 256, 1, 1, 256, 1, 1))  # fmt: skip
    call("hipMemcpyAsync", 51, 62_000, 63_000)
    copies.append((process, START + 600_000, START + 650_000, GPU, CPU, 4096, 0, reported("MEMORY_COPY", 51)))
    return written(path, {
        f"rocpd_string{SUFFIX}": ("id string", list(enumerate(texts))),
        f"rocpd_event{SUFFIX}": ("id category_id stack_id extdata", events),
        f"rocpd_region{SUFFIX}": ("id pid tid start end name_id event_id", regions),
        f"rocpd_kernel_dispatch{SUFFIX}": (
            "pid tid agent_id kernel_id queue_id stream_id start end event_id grid_size_x grid_size_y grid_size_z "
            "workgroup_size_x workgroup_size_y workgroup_size_z", dispatches),
        f"rocpd_memory_copy{SUFFIX}": ("pid start end dst_agent_id src_agent_id size stream_id event_id", copies),
        f"rocpd_info_kernel_symbol{SUFFIX}": (
            "id display_name", [(1, "Cijk_Alik_Bljk_MT256x224x128_MI16x16x1"), (2, "__amd_rocclr_fillBufferAligned")]),
        f"rocpd_info_agent{SUFFIX}": ("id type type_index product_name extdata", [
            (CPU, "CPU", 0, "EPYC", "{}"), (GPU, "GPU", 0, "AMD Instinct MI300X", json.dumps({"cu_count": 304})),
            (3, "GPU", 1, "AMD Instinct MI300X", "{damaged")]),
    })  # fmt: skip


def of_profile_data(path: Path) -> Path:
    """A marked step, an operator that torch marked, a call that launches two kernels of a graph, and a copy."""
    texts = ["", "UserMarker", "hipGraphLaunch", "hipMemcpyWithStream", "OpTable::writeRows", "step", "aten::mm",
             "KernelExecution", "CopyDeviceToHost", "gemm"]  # fmt: skip
    marker, graph, copied, own, step, mm, runs, copy, gemm = range(1, 10)
    calls = [
        (1, 7, 70, START, START + 900_000, marker, step),
        (2, 7, 70, START + 1_000, START + 50_000, marker, mm),
        (3, 7, 70, START + 2_000, START + 9_000, graph, 0),
        (4, 7, 70, START + 10_000, START + 400_000, copied, 0),
        (5, 7, 71, START + 20_000, START + 30_000, own, 0),
    ]
    operations = [
        (1, 2, 0, START + 100_000, START + 150_000, gemm, runs),
        (2, 2, 0, START + 150_000, START + 200_000, gemm, runs),
        (3, 2, 1, START + 300_000, START + 310_000, 0, copy),
    ]
    return written(path, {
        "rocpd_string": ("id string", list(enumerate(texts))),
        "rocpd_api": ("id pid tid start end apiName_id args_id", calls),
        "rocpd_op": ("id gpuId queueId start end description_id opType_id", operations),
        "rocpd_api_ops": ("id api_id op_id", [(1, 3, 1), (2, 3, 2), (3, 4, 3)]),
        "rocpd_copyapi": ("api_ptr_id size", [(4, 512)]),
        "ext_autogradapi": ("api_ptr_id seq", [(2, 7)]),
    })  # fmt: skip


def read(path: Path) -> Trace:
    (rank,) = gather([str(path)]).ranks
    return read_rank(rank)


def names(trace: Trace, kind: EventKind) -> list[str]:
    return [trace.symbols[number] for number in trace.events.name[trace.events.event_kind == kind]]


def launched_by(trace: Trace, kind: EventKind) -> list[str]:
    rows = launches_of(trace)[trace.events.event_kind == kind]
    return [trace.symbols[trace.events.name[row]] if row != UNKNOWN else "" for row in rows]


def test_kernels_of_rocprofv3_have_their_times_to_the_nanosecond_their_blocks_and_their_launches(
    tmp_path: Path,
) -> None:
    trace = read(of_rocprof(tmp_path / "28_results.db"))
    kernels = trace.events.event_kind == EventKind.KERNEL
    assert trace.events.start[kernels].tolist() == [START + 100_000, START + 200_000, START + 300_000]
    assert trace.events.duration[kernels].tolist() == [70_001] * 3
    assert trace.events.blocks[kernels].tolist() == [3] * 3  # 600 x 4 threads in groups of 256 x 4
    assert launched_by(trace, EventKind.KERNEL) == ["hipLaunchKernel"] * 3
    assert [(each.name, each.multiprocessors) for each in trace.devices] == [
        ("AMD Instinct MI300X", units) for units in (304, 0)
    ]


def test_fills_and_copies_of_rocprofv3_are_no_kernels(tmp_path: Path) -> None:
    trace = read(of_rocprof(tmp_path / "28_results.db"))
    assert names(trace, EventKind.MEMSET) == ["Memset (Device)"]
    assert names(trace, EventKind.MEMCPY) == ["Memcpy HtoD"]
    assert trace.events.bytes[trace.events.event_kind == EventKind.MEMCPY].tolist() == [4096]
    assert launched_by(trace, EventKind.MEMSET) + launched_by(trace, EventKind.MEMCPY) == [
        "hipMemsetAsync",
        "hipMemcpyAsync",
    ]


def test_ranges_of_roctx_are_operators_and_annotations_and_calls_below_hip_are_left_out(tmp_path: Path) -> None:
    trace = read(of_rocprof(tmp_path / "28_results.db"))
    assert names(trace, EventKind.ANNOTATION) == ["step"]
    assert names(trace, EventKind.OPERATOR) == ["aten::mm"]
    assert not [name for name in trace.symbols if name.startswith("hsa")]
    assert trace.events.sequence[trace.events.event_kind == EventKind.OPERATOR].tolist() == [7]


def test_files_of_several_processes_below_a_folder_are_ranks_and_other_databases_are_passed_over(
    tmp_path: Path,
) -> None:
    for process in (28, 29):
        of_rocprof(tmp_path / "out" / "host" / f"{process}_results.db", process)
    written(tmp_path / "out" / "host" / "studies.db", {"trials": ("id", [(1,)])})
    report = diagnose_paths([str(tmp_path / "out")])
    assert report.environment.ranks == 2
    assert any("rocprof does not contain ranks: its 2 processes" in message for message in report.problems)
    case = report.processes[0].case
    assert sum(round(use.duration.value) for use in case.categories) == round(case.step.duration.value)


def test_what_rocprofv3_wrote_once_more_as_json_is_no_other_process(tmp_path: Path) -> None:
    database = of_rocprof(tmp_path / "out" / "28_results.db")
    database.with_suffix(".json").write_text('{"rocprofiler-sdk-tool": [{}]}')
    assert [rank.files for rank in gather([str(tmp_path / "out")]).ranks] == [(database,)]


def test_rocm_profile_data_has_operators_graphs_and_copies(tmp_path: Path) -> None:
    trace = read(of_profile_data(tmp_path / "trace.rpd"))
    assert names(trace, EventKind.KERNEL) == ["gemm", "gemm"]
    assert launched_by(trace, EventKind.KERNEL) == ["hipGraphLaunch"] * 2
    assert names(trace, EventKind.MEMCPY) == ["CopyDeviceToHost"]
    assert trace.events.bytes[trace.events.event_kind == EventKind.MEMCPY].tolist() == [512]
    assert names(trace, EventKind.OPERATOR) == ["aten::mm"]
    assert trace.events.sequence[trace.events.event_kind == EventKind.OPERATOR].tolist() == [7]
    assert names(trace, EventKind.ANNOTATION) == ["step"]
    assert names(trace, EventKind.OVERHEAD) == ["OpTable::writeRows"]


def test_a_diagnosis_of_rocm_profile_data_counts_the_device_once(tmp_path: Path) -> None:
    case = diagnose_paths([str(of_profile_data(tmp_path / "trace.rpd"))]).processes[0].case
    spent = {use.name: use.duration.value for use in case.categories}
    assert spent["compute"] == 100_000
    assert np.isclose(sum(spent.values()), case.step.duration.value)


def test_a_torn_database_is_refused_in_a_sentence(tmp_path: Path) -> None:
    torn = of_rocprof(tmp_path / "28_results.db", kernels=3000)
    torn.write_bytes(torn.read_bytes()[:60_000])
    with pytest.raises(TraceError, match="is not a readable database"):
        read(torn)
