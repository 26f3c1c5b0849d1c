"""What HTA's own tests assert about traces, for the quantities that we have, too (expected.json)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from steptime.analysis.step_context import step_context
from steptime.analysis.trace_steps import steps_of
from steptime.analysis.traffic import copies_of
from steptime.diagnosis import diagnose_traces
from steptime.trace.links import DEVICE, UNKNOWN, link
from steptime.trace.reader import read
from steptime.trace.table import EventKind, Trace, details_of
from steptime.trace.vendors import matching


def name(trace: Trace, row: int) -> str:
    return "" if row == UNKNOWN else trace.symbols[trace.events.name[row]]


def test_kernels_know_the_annotation_around_their_launch(shared_data: Path) -> None:
    """HTA drops the last step and counts 27 kernels of the optimizer: the annotation of the fourth update starts on the
    device after the last step does on the host, and falls with it. By their launches there are 9 in each of 4 steps."""
    trace = read(shared_data / "hta/ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz")
    boundaries = steps_of(trace)
    links = link(trace, boundaries)
    kernels = np.flatnonzero(np.isin(trace.events.event_kind, DEVICE) & (links.step < len(boundaries) - 1))
    counts = Counter(name(trace, row) for row in links.annotation[kernels])
    assert sum(counts.values()) == 4876
    assert set(counts) == {"", "DistributedDataParallel.forward", "Optimizer.step#SGD.step", "## backward ##"}
    assert counts["Optimizer.step#SGD.step"] == 4 * 9
    for correlation, annotation in ((135139, "DistributedDataParallel.forward"), (164926, "Optimizer.step#SGD.step")):
        row = np.flatnonzero((trace.events.correlation == correlation) & np.isin(trace.events.event_kind, DEVICE))
        assert [name(trace, each) for each in links.annotation[row]] == [annotation]


def test_copies_and_streams_are_of_the_published_kinds(shared_data: Path) -> None:
    trace = read(shared_data / "hta/negative_queue_length_values_check/rank0.json.gz")
    boundaries = steps_of(trace)
    copies = copies_of(step_context(trace, boundaries))
    assert {each.kind for each in copies} == {"DtoH", "HtoD", "DtoD", "memset"}
    streams = trace.events.stream[np.isin(trace.events.event_kind, DEVICE)]
    assert len(np.unique(streams)) == 6


def test_collectives_carry_the_published_arguments(shared_data: Path) -> None:
    trace = read(shared_data / "hta/nccl_parser_config/nccl_data.json.gz")
    links = link(trace, steps_of(trace))
    kernels = np.flatnonzero(matching(trace, lambda symbol: symbol.startswith("nccl")) & (links.launch != UNKNOWN))
    assert len(kernels) == 21
    longest = kernels[np.argmax(trace.events.duration[kernels])]
    (details,) = details_of(trace, links.operator[[longest]])
    expected = {
        "Collective name": "allreduce", "In msg nelems": 2049000, "Out msg nelems": 2049000, "Group size": 2,
        "Process Group Name": "0", "Process Group Description": "default_pg", "Process Group Ranks": "[0, 1]",
    }  # fmt: skip
    assert {key: details[key] for key in expected} == expected


def test_a_triton_kernel_knows_its_operator_and_what_it_was_compiled_from(shared_data: Path) -> None:
    trace = read(shared_data / "hta/triton_example/triton_example.json.gz")
    links = link(trace, steps_of(trace))
    (kernel,) = np.flatnonzero(trace.events.event_kind == EventKind.KERNEL)
    operator = links.operator[kernel]
    assert name(trace, operator) == "triton_poi_fused_add_cos_sin_0"
    (details,) = details_of(trace, np.array([operator]))
    assert "cqaokwf2bph4egogzevc22vluasiyuui4i54zpemp6knbsggfbuu" in details["kernel_file"]
    recorded = trace.events.event_kind != EventKind.SPAN
    assert trace.events.start[recorded].min() == pytest.approx(2413669096090100 + 1727743122000000000, abs=1000)


def test_counters_of_the_sixth_kernel_are_the_published_ones(shared_data: Path) -> None:
    """CUPTI's counters name no launch: they are in the order of the launches."""
    trace = read(shared_data / "hta/cupti_profiler/benchmark_result_924719_1679055439_trace.json.gz")
    links, events = link(trace, steps_of(trace)), trace.events
    counters = np.flatnonzero(events.event_kind == EventKind.OTHER)
    assert len(counters) == 77
    sixth = counters[np.argsort(events.start[counters], kind="stable")[5]]
    assert "fft2d_r2c_32x32" in name(trace, sixth)
    launches = np.flatnonzero((events.event_kind == EventKind.RUNTIME) & matching(trace, "cudaLaunchKernel".__eq__))
    assert len(launches) == 77
    operator = links.operator[launches[np.argsort(events.start[launches], kind="stable")[5]]]
    above = [int(operator)]
    while links.parent[above[-1]] != UNKNOWN and name(trace, links.parent[above[-1]]).startswith("aten::"):
        above.append(int(links.parent[above[-1]]))
    assert (name(trace, above[0]), name(trace, above[-1])) == ("aten::cudnn_convolution", "aten::conv2d")


def test_what_runs_below_an_operator_has_the_published_count(shared_data: Path) -> None:
    """Host events of its first call with the kernels that they launched; and the events of an interval of time."""
    trace = read(shared_data / "hta/trace_filter/sampled_rank-0.json.gz")
    links, events = link(trace, steps_of(trace)), trace.events
    first = np.flatnonzero(matching(trace, "forward".__eq__))[0]
    below = np.zeros(len(events), np.bool_)
    below[first] = True
    parent = links.parent[:]
    while True:
        more = (parent != UNKNOWN) & below[parent] & ~below
        if not more.any():
            break
        below |= more
    launched = (links.launch != UNKNOWN) & below[links.launch[:]]
    assert int(below.sum() + launched.sum()) == 146
    inside = (events.start >= 1682725898237042_000) & (events.end <= 1682725898240570_000)
    assert int(inside.sum()) == 93


def test_waits_that_concern_the_whole_device_name_no_stream(shared_data: Path) -> None:
    trace = read(shared_data / "hta/critical_path/cuda_event_sync/event_sync_trace.json.gz")
    waits = trace.events.event_kind == EventKind.SYNC
    assert int((trace.events.stream[waits] == -1).sum()) == 3


def test_a_trace_says_its_rank_or_gets_the_first(shared_data: Path) -> None:
    named = read(shared_data / "hta/cpu_only/rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz")
    assert (named.rank, named.world_size, named.backend, named.devices) == (34, 300, "gloo", ())
    for file in ("distributed_info_unavailable/distributed_info_not_found", "rank_unavailable/rank_not_found"):
        nameless = read(shared_data / f"hta/{file}.json.gz")
        assert nameless.rank is None
        assert [process.rank for process in diagnose_traces([nameless], "x").processes] == [0]
