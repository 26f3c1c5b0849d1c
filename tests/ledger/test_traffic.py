"""Copies, collectives and calls for memory in the steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from traces import Event, Written, annotation, called, copy, kernel, launch, operator, python, step, write

from steptime.analysis.breakdown import breakdown_of
from steptime.analysis.categories import Category
from steptime.analysis.device_activity import has_kernels
from steptime.analysis.operators import time_inside
from steptime.analysis.step_context import StepContext, step_context
from steptime.analysis.trace_steps import steps_of
from steptime.analysis.traffic import (
    AllocationTotal,
    CollectiveTotal,
    CopyTotal,
    allocations_of,
    collectives_of,
    copies_of,
    copy_kind,
)
from steptime.trace.reader import read
from steptime.trace.table import Trace


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Writes events and reads them back."""
    return lambda events: write(events, tmp_path)


def found_in(
    trace: Trace,
) -> tuple[tuple[CopyTotal, ...], tuple[CollectiveTotal, ...], tuple[AllocationTotal, ...]]:
    steps = step_context(trace, steps_of(trace))
    return copies_of(steps), collectives_of(steps), allocations_of(steps)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Memcpy HtoD (Pageable -> Device)", ("HtoD", "pageable")),
        ("Memcpy DtoH (Device -> Pinned)", ("DtoH", "pinned")),
        ("Memcpy DtoD (Device -> Device)", ("DtoD", "")),
        ("Memcpy PtoP (Device -> Device)", ("PtoP", "")),
        ("CopyHostToDevice", ("HtoD", "")),
        ("something", ("", "")),
    ],
)
def test_the_name_of_a_copy_says_its_direction_and_memory(name: str, kind: tuple[str, str]) -> None:
    assert copy_kind(name) == kind


def test_copies_have_their_exposed_time_bytes_operator_and_line(written: Written) -> None:
    asked = [python("train.py(3): train", 0, 900), operator("aten::to", 5, 90), operator("aten::copy_", 6, 89)]
    moved = [called("cudaMemcpyAsync", 10, 20, 1), copy(1, 50, 150, size=1000)]
    (total,), _, _ = found_in(written([step(0, 1000), *asked, *moved, launch(2, 30, 35), kernel(2, 100, 300)]))
    assert (total.kind, total.memory, total.operator) == ("HtoD", "pageable", "aten::to")
    assert (total.calls.tolist(), total.bytes) == ([1], np.array([1000]))
    assert (total.duration.tolist(), total.exposed.tolist()) == ([100_000], [50_000])
    assert total.source is not None
    assert total.source.function == "train"


def test_a_copy_on_the_boundary_of_two_steps_counts_in_both_by_its_time(written: Written) -> None:
    first = [step(0, 100, 1), called("cudaMemcpyAsync", 10, 20, 1), copy(1, 90, 130)]
    second = [step(130, 200, 2), launch(2, 140, 145), kernel(2, 150, 200)]
    trace = written([*first, *second])
    boundaries = np.array([[0, 100_000], [100_000, 200_000]])
    (total,) = copies_of(StepContext(trace, boundaries, boundaries))
    assert total.calls.tolist() == [1, 0]
    assert total.duration.tolist() == [10_000, 30_000]


def reduced(correlation: int, begin: float, end: float, **arguments: Any) -> list[Event]:
    record = operator("record_param_comms", correlation * 10, correlation * 10 + 9, **arguments)
    around = annotation("nccl:all_reduce", correlation * 10 + 1, correlation * 10 + 8)
    ran = kernel(correlation, begin, end, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)", 20)
    return [record, around, launch(correlation, correlation * 10 + 2, correlation * 10 + 3), ran]


def test_collectives_have_group_size_bytes_and_exposed_time(written: Written) -> None:
    said = {
        "Collective name": "allreduce", "Process Group Name": "0", "Process Group Description": "default_pg",
        "Group size": 2, "dtype": "BFloat16", "In msg nelems": 500, "Out msg nelems": 500,
    }  # fmt: skip
    hidden = [launch(9, 0, 1), kernel(9, 100, 200)]
    trace = written([step(0, 1000), *hidden, *reduced(1, 150, 300, **said), *reduced(2, 400, 450, **said)])
    _, (total,), _ = found_in(trace)
    assert (total.name, total.group, total.size) == ("allreduce", "default_pg", 2)
    assert total.calls.tolist() == [2]
    assert total.bytes is not None
    assert total.bytes.tolist() == [2 * 500 * 2]
    assert (total.duration.tolist(), total.exposed.tolist()) == ([200_000], [150_000])


def test_a_collective_of_an_old_trace_is_known_by_its_annotation_and_shapes(written: Written) -> None:
    events = [step(0, 1000), *reduced(1, 150, 300)]
    next(event for event in events if event["name"] == "nccl:all_reduce")["args"] = {
        "Input Dims": [[3, 5], [7]],
        "Input type": ["float", "c10::Half"],
    }
    _, (total,), _ = found_in(written(events))
    assert (total.name, total.group) == ("all_reduce", "")
    assert total.bytes is not None
    assert total.bytes.tolist() == [15 * 4 + 7 * 2]


def test_a_collective_without_a_host_is_known_by_its_kernel(written: Written) -> None:
    lost = kernel(7, 100, 200, "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long)", 20)
    own = kernel(8, 300, 350, "void (anonymous namespace)::cross_device_reduce_1stage<float, 2>(RankData*)", 20)
    _, totals, _ = found_in(written([step(0, 1000), lost, own]))
    assert [(each.name, each.bytes) for each in totals] == [("AllGather", None), ("cross_device_reduce_1stage", None)]


def test_calls_for_memory_have_the_idle_time_of_the_device_meanwhile(written: Written) -> None:
    calls = [called("hipMalloc", 100, 200, 3), called("hipFree", 300, 900, 4), called("hipMallocAsync", 900, 950, 5)]
    busy = [launch(1, 0, 5), kernel(1, 5, 150), launch(2, 40, 45), kernel(2, 500, 1000)]
    _, _, (free, allocated) = found_in(written([step(0, 1000), *calls, *busy]))
    assert (free.name, free.calls.tolist(), free.duration.tolist(), free.idle.tolist()) == (
        "hipFree", [1], [600_000], [200_000],
    )  # fmt: skip
    assert (allocated.name, allocated.duration.tolist(), allocated.idle.tolist()) == ("hipMalloc", [100_000], [50_000])


def real_traces(folder: Path) -> Iterator[Trace]:
    for path in sorted(folder.rglob("*.json*")):
        if "_et" not in str(path) and "expected" not in path.name and path.stat().st_size < 1_500_000:
            trace = read(path)
            if has_kernels(trace):
                yield trace


def test_exposed_traffic_of_real_traces_is_the_breakdowns_of_each_step(shared_data: Path) -> None:
    seen = 0
    for trace in real_traces(shared_data):
        breakdown = breakdown_of(step_context(trace, steps_of(trace)))
        copies, collectives, _ = found_in(trace)
        nothing = np.zeros(len(breakdown.wall), np.int64)
        copied = sum((each.exposed for each in copies), nothing)
        sent = sum((each.exposed for each in collectives), nothing)
        assert copied.tolist() == breakdown.entries[:, Category.COPY].tolist(), trace.path
        assert sent.tolist() == breakdown.entries[:, Category.COMMUNICATION].tolist(), trace.path
        seen += len(copies) + len(collectives)
    assert seen > 50


def test_collectives_of_a_real_job_are_the_published_ones(shared_data: Path) -> None:
    """HTA: 21 NCCL kernels, all-reduces of up to 2,049,000 elements of float in the default group; expected.json."""
    trace = read(shared_data / "hta/nccl_parser_config/nccl_data.json.gz")
    _, (reduce, broadcast), _ = found_in(trace)
    assert int(reduce.calls.sum() + broadcast.calls.sum()) == 21
    assert (reduce.name, reduce.group, reduce.size) == ("allreduce", "default_pg", 2)
    assert broadcast.name == "broadcast"


@given(st.lists(st.tuples(st.integers(-50, 50), st.integers(0, 30)), max_size=20))
def test_time_inside_windows_counts_every_interval_for_itself(intervals: list[tuple[int, int]]) -> None:
    begin = np.array([each[0] for each in intervals], np.int64) + 2**60
    end = begin + np.array([each[1] for each in intervals], np.int64)
    windows = np.array([[-20, 5], [5, 40]]) + 2**60
    plain = [[max(0, min(e, w[1]) - max(b, w[0])) for b, e in zip(begin, end, strict=True)] for w in windows.tolist()]
    assert time_inside(begin, end, windows).tolist() == [sum(each) for each in plain]
