"""Copies, collectives and calls for memory in the steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from published import IN_A_CLONE, trace_of
from traces import Event, Written, annotation, called, copy, happened, kernel, launch, operator, python, step, write

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
from steptime.trace.vendors import BUCKET_TO_GRADIENT


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


def reduced(correlation: int, start: float, end: float, **arguments: Any) -> list[Event]:
    record = operator("record_param_comms", correlation * 10, correlation * 10 + 9, **arguments)
    around = annotation("nccl:all_reduce", correlation * 10 + 1, correlation * 10 + 8)
    ran = kernel(correlation, start, end, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)", 20)
    return [record, around, launch(correlation, correlation * 10 + 2, correlation * 10 + 3), ran]


def test_collectives_have_group_size_bytes_and_exposed_time(written: Written) -> None:
    message = {
        "Collective name": "allreduce", "Process Group Name": "0", "Process Group Description": "default_pg",
        "Group size": 2, "dtype": "BFloat16", "In msg nelems": 500, "Out msg nelems": 500,
    }  # fmt: skip
    hidden = [launch(9, 0, 1), kernel(9, 100, 200)]
    trace = written([step(0, 1000), *hidden, *reduced(1, 150, 300, **message), *reduced(2, 400, 450, **message)])
    _, (total,), _ = found_in(trace)
    assert (total.name, total.group, total.size) == ("all_reduce", "default_pg", 2)
    assert total.bus_bandwidth == pytest.approx(2 * 500 * 2 / 200e-6), "factor 2 (n - 1) / n of two ranks is 1"
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
    assert [(each.name, each.bytes) for each in totals] == [("all_gather", None), ("cross_device_reduce_1stage", None)]


def test_an_all_to_all_has_one_name_whatever_says_it(written: Written) -> None:
    """Its kernel is that of sends and receives; NVTX ranges of torch count as operators."""
    sends = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    nvtx = [operator("record_param_comms", 10, 50), operator("nccl:all_to_all", 12, 48)]
    known: dict[str, Any] = {"Collective name": "alltoall_base"}
    noted = [operator("record_param_comms", 110, 150, **known)]
    ran = [launch(1, 20, 25), kernel(1, 100, 110, sends, 20), launch(2, 120, 125), kernel(2, 200, 210, sends, 20)]
    _, (total,), _ = found_in(written([step(0, 1000), *nvtx, *noted, *ran]))
    assert (total.name, total.calls.tolist()) == ("all_to_all", [2])


def test_what_torch_gives_the_library_as_one_is_what_the_kernel_is(written: Written) -> None:
    ran: list[Event] = []
    known: dict[str, Any] = {"Collective name": "coalesced"}
    for at, name in ((1, "ncclDevKernel_AllGather_RING_LL(...)"), (2, "ncclDevKernel_SendRecv(...)")):
        record = operator("record_param_comms", 100 * at, 100 * at + 50, **known)
        ran += [record, launch(at, 100 * at + 1, 100 * at + 5), kernel(at, 100 * at + 60, 100 * at + 70, name, 20)]
    _, totals, _ = found_in(written([step(0, 1000), *ran]))
    assert sorted(each.name for each in totals) == ["all_gather", "coalesced"]


def test_copies_out_of_buckets_are_the_reducers(written: Written) -> None:
    asked = [operator(BUCKET_TO_GRADIENT, 0, 90), operator("aten::copy_", 5, 80)]
    moved = [called("cudaMemcpyAsync", 10, 20, 1), copy(1, 50, 150, "Memcpy DtoD (Device -> Device)", size=1000)]
    (total,), _, _ = found_in(written([step(0, 1000), *asked, *moved]))
    assert total.operator == BUCKET_TO_GRADIENT


@pytest.mark.parametrize(
    "name",
    [
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "void deep_ep::internode_ll::dispatch<true, 3, 10, 7168>(void*, float*, int*)",
        "void dpsk::ep::internode::cached_notify<false>(int, int, int)",
        "void deep_ep::intranode::combine<__nv_bfloat16, 8>(__nv_bfloat16*, float*)",
        "void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals)",
        "void sglang::cross_device_reduce_1stage<__half, 8>(sglang::RankData*)",
        "void quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half>, __half>()",
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<1, __nv_bfloat16, 8>()",
        "aiter::allreduce_fusion_kernel_1stage",
        "void tensorrt_llm::kernels::oneShotAllReduceKernel<__half, 8>(AllReduceParams)",
        "void c10d::symmetric_memory::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)",
        "nvshmemi_proxy_quiet_entrypoint",
        "mscclKernel_Sum_half_LL_false(ncclDevComm*)",
        "hcom_allReduce__721_0_1",
        "oneccl_reduce_scatter_kernel",
    ],
)
def test_kernels_that_move_data_between_devices_communicate(name: str, written: Written) -> None:
    _, totals, _ = found_in(written([step(0, 1000), launch(1, 0, 5), kernel(1, 100, 200, name)]))
    assert len(totals) == 1


@pytest.mark.parametrize(
    "name",
    [
        "triton_poi_fused_all_reduce_wait_tensor_add_0",
        "void softmax_kernel<cub::WarpAllReduce<float> >(float*)",
        "void occlusion_kernel<float>(float*)",
        "void deep_ep::layout::get_dispatch_layout<256, 8, 32, 8>(long const*, int*)",
    ],
)
def test_kernels_that_only_sound_like_it_compute(name: str, written: Written) -> None:
    _, totals, _ = found_in(written([step(0, 1000), launch(1, 0, 5), kernel(1, 100, 200, name)]))
    assert totals == ()


def test_what_a_collectives_operator_launches_itself_communicates_whatever_it_is_called(written: Written) -> None:
    asked = [operator("_C_custom_ar::all_reduce", 0, 50), operator("aten::copy_", 20, 40)]
    ran = [launch(1, 5, 8), kernel(1, 100, 200, "k0"), launch(2, 25, 30), kernel(2, 200, 300, "direct_copy_kernel")]
    _, (total,), _ = found_in(written([step(0, 1000), *asked, *ran]))
    assert (total.name, total.duration.tolist()) == ("k0", [100_000])


def test_a_collective_of_int8_has_bytes(written: Written) -> None:
    events = [step(0, 1000), *reduced(1, 150, 300)]
    shapes = {"Input Dims": [[300]], "Input type": ["signed char"]}
    next(event for event in events if event["name"] == "nccl:all_reduce")["args"] = shapes
    _, (total,), _ = found_in(written(events))
    assert total.bytes is not None
    assert total.bytes.tolist() == [300]


def test_waits_and_records_of_a_device_are_no_work_and_its_dma_is_a_copy(written: Written) -> None:
    """As Meta's MTIA lists them among what its streams executed."""

    def executed(name: str, start: float, end: float) -> Event:
        return happened("mtia_ccp_events", name, start, end, (3, 8), device=3, stream=8)

    events = [executed("event_wait", 0, 600), executed("pe_exe", 600, 700), executed("dma_request", 700, 720)]
    trace = written([step(0, 800), *events, executed("event_record", 720, 721)])
    entries = breakdown_of(step_context(trace, steps_of(trace))).entries[0]
    assert (entries[Category.COMPUTE], entries[Category.COPY]) == (100_000, 20_000)


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


@pytest.mark.slow
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
    assert seen > (10 if IN_A_CLONE else 50)


def test_collectives_of_a_real_job_are_the_published_ones(shared_data: Path) -> None:
    """HTA: 21 NCCL kernels, all-reduces of up to 2,049,000 elements of float in the default group; expected.json."""
    trace = trace_of(shared_data / "hta/nccl_parser_config/nccl_data.json.gz")
    _, (reduce, broadcast), _ = found_in(trace)
    assert int(reduce.calls.sum() + broadcast.calls.sum()) == 21
    assert (reduce.name, reduce.group, reduce.size) == ("all_reduce", "default_pg", 2)
    assert broadcast.name == "broadcast"


@given(st.lists(st.tuples(st.integers(-50, 50), st.integers(0, 30)), max_size=20))
def test_time_inside_windows_counts_every_interval_for_itself(intervals: list[tuple[int, int]]) -> None:
    start = np.array([each[0] for each in intervals], np.int64) + 2**60
    end = start + np.array([each[1] for each in intervals], np.int64)
    windows = np.array([[-20, 5], [5, 40]]) + 2**60
    plain = [[max(0, min(e, w[1]) - max(b, w[0])) for b, e in zip(start, end, strict=True)] for w in windows.tolist()]
    assert time_inside(start, end, windows).tolist() == [sum(each) for each in plain]
