"""What `ncu --csv` writes: its layouts, its numbers, and which kernels of a trace get its counters.

The names are those of public files: CodeGandee/llm-perf-opt (Nsight Compute 2025, namespaces left out),
leleucas/Actual-Parameter-Collection-for-Machine-Learning-Operators (of 2022) and brycelelbach/nsightful.
"""

from __future__ import annotations

import csv
import json
import tracemalloc
from collections.abc import Iterable
from pathlib import Path

import pytest
from analysis import trace_events as made

from steptime.advice.companion_evidence import by_function, counters_of
from steptime.analysis.roofline import KernelUse
from steptime.cli.main import main
from steptime.diagnosis import CompanionFiles, diagnose_paths
from steptime.report.page.page import render
from steptime.trace.nsight_compute import (
    KernelCounters,
    MeasuredKernel,
    counter_files,
    find_counters,
    number,
    read_counters,
)

NEWER = (
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size",
    "Device", "CC", "Section Name", "Metric Name", "Metric Unit", "Metric Value", "Rule Name", "Rule Type",
    "Rule Description",
)  # fmt: skip
OLDER = tuple(column for column in NEWER if column not in ("Block Size", "Grid Size", "Device", "CC"))
STALL = (
    "On average, each warp of this kernel spends 491.9 cycles being stalled waiting for a scoreboard dependency on a "
    "L1TEX (local, global, surface, texture) operation. Find the instruction producing the data being waited upon to "
    "identify the culprit. This stall type represents about 52.7% of the total average of 933.1 cycles between issuing "
    "two instructions."
)
ADD = "void vectorized_elementwise_kernel<4, CUDAFunctor_add<BFloat16>, array<char *, 3>>(int, T2, T3)"
ADD_IN_TRACE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>)"
)
SILU_IN_TRACE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::silu_kernel("
    "at::TensorIteratorBase&)::{lambda()#1}::operator()() const::{lambda()#6}, std::array<char*, 2ul> >(int)"
)
CAT = "void unnamed>::CatArrayBatchedCopy<unnamed>::OpaqueType<2>, unsigned int, 4, 64, 64>(T1 *, int, T2)"
CAT_IN_TRACE = (
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::(anonymous namespace)::OpaqueType<2u>, "
    "unsigned int, 4, 64, 64>(at::native::(anonymous namespace)::OpaqueType<2u>*, int, unsigned int)"
)
GEMV = "enable_if<!T7, void>::type kernel<int, int, __nv_bfloat16, float, 0, 1, 7, cublasGemvParamsEx<int>>(T13)"
GEMV_IN_TRACE = (
    "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, __nv_bfloat16, float, false, true, 7, "
    "cublasGemvParamsEx<int> >(cublasGemvParamsEx<int>)"
)


def of(name: str, grid: str = "(224, 1, 1)", number: str = "0", **more: str) -> dict[str, str]:
    """A row of a launch."""
    launch = {"ID": number, "Process ID": "7", "Kernel Name": name, "Grid Size": grid}
    return {**launch, **{key.replace("_", " "): value for key, value in more.items()}}


def metric(name: str, what: str, unit: str, value: str, **more: str) -> dict[str, str]:
    return of(name, **more, Metric_Name=what, Metric_Unit=unit, Metric_Value=value)


def rows_of(name: str, **more: str) -> list[dict[str, str]]:
    return [
        metric(name, "Elapsed Cycles", "cycle", "4,963,609", **more),
        metric(name, "Memory Throughput", "%", "61.84", **more),
        metric(name, "DRAM Throughput", "%", "60", **more),
        metric(name, "Compute (SM) Throughput", "%", "1.30", **more),
        metric(name, "Memory Throughput", "Gbyte/s", "345.14", **more),
        metric(name, "Block Limit Registers", "block", "2", **more),
        metric(name, "Block Limit Warps", "block", "12", **more),
        metric(name, "Theoretical Occupancy", "%", "16.67", **more),
        metric(name, "Achieved Occupancy", "%", "11.32", **more),
        of(name, **more, Rule_Name="CPIStall", Rule_Description=STALL),
    ]


def written(file: Path, rows: Iterable[dict[str, str]], columns: tuple[str, ...] = NEWER) -> Path:
    """As ncu writes it, with its own lines and the job's among the rows."""
    with file.open("w", newline="") as lines:
        lines.write("==PROF== Connected to process 7 (/usr/bin/python3.12)\nepoch 0: loss 2.3\n")
        table = csv.DictWriter(lines, columns, quoting=csv.QUOTE_ALL, extrasaction="ignore", restval="")
        table.writeheader()
        table.writerows(rows)
        lines.write('"Kernel" said the job\n==PROF== Disconnected from process 7\n')
    return file


def test_a_launch_has_its_counters_as_shares(tmp_path: Path) -> None:
    (kernel,) = read_counters([written(tmp_path / "kernels.csv", rows_of(ADD))])
    assert (kernel.name, kernel.blocks) == (ADD, 224)
    assert kernel.counters == KernelCounters(
        1, 0.1132, 0.1667, "registers", 0.6184, 0.6, 0.013,
        "a scoreboard dependency on a L1TEX (local, global, surface, texture) operation", 0.527,
    )  # fmt: skip


def test_launches_alike_are_one_kernel_with_their_means_and_grids_are_not_mixed(tmp_path: Path) -> None:
    rows = [
        metric(ADD, "Achieved Occupancy", "%", "20"),
        metric(ADD, "Achieved Occupancy", "%", "40", number="1"),
        metric(ADD, "Achieved Occupancy", "%", "90", number="2", grid="(7, 2, 1)"),
    ]
    found = read_counters([written(tmp_path / "kernels.csv", rows)])
    assert {(each.blocks, each.counters.launches, each.counters.occupancy) for each in found} == {
        (224, 2, 0.3),
        (14, 1, 0.9),
    }


def test_older_versions_have_the_grid_as_a_metric(tmp_path: Path) -> None:
    rows = [metric(ADD, "Grid Size", "", "1,024"), metric(ADD, "SM Throughput", "%", "20.49")]
    (kernel,) = read_counters([written(tmp_path / "kernels.csv", rows, OLDER)])
    assert (kernel.blocks, kernel.counters.compute) == (1024, 0.2049)


def test_a_launch_that_several_files_of_a_folder_tell_of_is_one(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    written(tmp_path / "details.csv", rows_of(ADD))
    written(tmp_path / "deep" / "metrics.csv", [metric(ADD, "Achieved Occupancy", "%", "11.32")])
    (tmp_path / "losses.csv").write_text("epoch,loss\n0,2.3\n")
    (kernel,) = read_counters(counter_files(tmp_path))
    assert kernel.counters.launches == 1


@pytest.mark.parametrize(
    ("text", "value"),
    [("4,963,609,951.19", 4963609951.19), ("1,024", 1024), ("61.84", 61.84), ("61,84", 61.84),
     ("1.234.567,5", 1234567.5), ("n/a", None), ("", None), ("inf", None), ("1e400", None)],
)  # fmt: skip
def test_numbers_are_read_in_the_language_of_the_machine(text: str, value: float | None) -> None:
    assert number(text) == value


def joined(use: KernelUse, *measured: MeasuredKernel) -> KernelCounters | None:
    return counters_of(use, by_function(measured))


def ran(name: str, blocks: int = 224) -> KernelUse:
    return KernelUse(name, "aten::add", 1, 1e6, "memory", blocks=blocks)


def test_a_kernel_of_the_trace_is_found_by_its_name_without_namespaces_and_its_grid() -> None:
    counters, others = KernelCounters(1, occupancy=0.5), KernelCounters(1, occupancy=0.9)
    add, gemv = MeasuredKernel(ADD, 224, counters), MeasuredKernel(GEMV, 224, others)
    assert joined(ran(ADD_IN_TRACE), add, gemv) == counters
    assert joined(ran(GEMV_IN_TRACE), add, gemv) == others
    assert joined(ran(CAT_IN_TRACE), MeasuredKernel(CAT, 224, counters), add) == counters
    assert joined(ran("triton_poi_fused_add_0"), MeasuredKernel("triton_poi_fused_add_0", 224, counters)) == counters


def test_another_grid_another_functor_and_what_is_not_clear_get_no_counters() -> None:
    counters = KernelCounters(1, occupancy=0.5)
    assert joined(ran(ADD_IN_TRACE, blocks=7), MeasuredKernel(ADD, 224, counters)) is None
    assert joined(ran(SILU_IN_TRACE), MeasuredKernel(ADD, 224, counters)) is None
    several = [MeasuredKernel(ADD, blocks, counters) for blocks in (7, 224)]
    assert joined(ran(ADD_IN_TRACE, blocks=0), *several) is None
    assert joined(ran(ADD_IN_TRACE, blocks=0), several[0]) == counters


def trace(folder: Path) -> Path:
    """A step of three kernels of one name and grid."""
    events = [made.step(0, 1000)]
    for at in range(3):
        events += [made.operator("aten::add", 300 * at, 300 * at + 90),
                   made.called("cudaLaunchKernel", 300 * at + 10, 300 * at + 20, at + 1)]  # fmt: skip
        kernel = made.kernel(at + 1, 300 * at + 30, 300 * at + 230, name=ADD_IN_TRACE)
        kernel["args"]["grid"] = [224, 1, 1]
        events.append(kernel)
    file = folder / "trace.json"
    file.write_text(json.dumps({"traceEvents": events, "deviceProperties": [{"id": 0, "name": "Testcard"}]}))
    return file


def test_counters_alongside_a_trace_stand_alongside_its_kernels_and_on_the_page(tmp_path: Path) -> None:
    written(tmp_path / "kernels.csv", rows_of(ADD))
    report = diagnose_paths([str(trace(tmp_path))])
    (use,) = report.processes[0].case.kernels
    assert use.counters is not None
    assert use.counters.occupancy == 0.1132
    assert any("100 % of the kernels' time" in message for message in report.processes[0].notes)
    page = render(report)
    assert "scoreboard dependency" in page
    assert "16.7" in page or "17 %" in page


def test_counters_of_other_kernels_are_reported_only_where_they_were_given(tmp_path: Path) -> None:
    given = written(tmp_path / "kernels.csv", rows_of(GEMV))
    path = str(trace(tmp_path))
    assert "Nsight Compute" not in str(diagnose_paths([path]))
    report = diagnose_paths([path], companions=CompanionFiles(counters=given))
    assert any("Nsight Compute measured 1 kernel, " in message for message in report.problems)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("kernels.csv", "epoch,loss\n0,2.3\n", "no-counters"),
        ("kernels.ncu-rep", "NVR\0", "ncu --import"),
        ("missing.csv", None, "no-such-file"),
    ],
)
def test_what_is_no_such_table_is_refused_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: str | None, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    assert main(["diagnose", str(trace(tmp_path)), "--ncu", str(tmp_path / name)]) != 0
    assert message in capsys.readouterr().err


def test_a_file_without_ends_of_lines_is_no_table_and_fills_no_memory(tmp_path: Path) -> None:
    endless = tmp_path / "endless.csv"
    endless.write_text('"Kernel Name",' * 500_000)
    tracemalloc.start()
    assert find_counters(endless) == ()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 15 << 20
