"""Whatever a trace holds, its breakdown balances: no event, however odd, makes time appear or vanish."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from examples import examples
from steptime.analysis import operators, threads
from steptime.analysis.breakdown import breakdown_of, phase_breakdown
from steptime.analysis.categories import Category
from steptime.analysis.idle import gaps_of
from steptime.analysis.operators import bridged, operator_totals, short_gaps
from steptime.analysis.recompute import recomputed
from steptime.analysis.step_context import step_context
from steptime.analysis.threads import during
from steptime.analysis.timeline import Phase
from steptime.analysis.trace_steps import device_step_bounds, steps_of
from steptime.analysis.traffic import allocations_of, collectives_of, copies_of
from steptime.intervals import join, union
from steptime.trace.reader import read

NAMES = {
    "cpu_op": ("aten::mm", "aten::linear", "aten::empty", "aten::copy_", "autograd::engine::evaluate_function: X",
               "CompiledFunction", "c10d::barrier"),
    "user_annotation": ("ProfilerStep#1", "ProfilerStep#2", "Optimizer.step#SGD.step", "gloo:all_reduce",
                        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "compile (dynamo_timed)"),
    "cuda_runtime": ("cudaLaunchKernel", "cudaStreamSynchronize", "cudaMemcpyAsync", "hipFree", "hipMemcpyWithStream"),
    "kernel": ("gemm", "ncclDevKernel_AllReduce"),
    "gpu_memcpy": ("Memcpy HtoD (Pageable -> Device)",),
    "gpu_memset": ("Memset (Device)",),
    "python_function": ("train.py(3): main", "torch/x.py(1): f"),
}  # fmt: skip


@st.composite
def events(draw: st.DrawFn) -> dict[str, Any]:
    event_kind = draw(st.sampled_from(sorted(NAMES)))
    args = {"correlation": draw(st.integers(0, 4)), "Sequence number": draw(st.integers(0, 3))}
    return {
        "ph": "X",
        "cat": event_kind,
        "name": draw(st.sampled_from(NAMES[event_kind])),
        "pid": draw(st.sampled_from([0, 1, "Spans"])),
        "tid": draw(st.integers(0, 2)),
        "ts": draw(st.integers(0, 300)) / 2,
        "dur": draw(st.integers(0, 200)) / 4,
        "args": args,
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces")


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(listed=st.lists(events(), max_size=25), thread=st.sampled_from([None, 0, 1, 7]))
def test_any_mixture_of_events_balances(folder: Path, listed: list[dict[str, Any]], thread: int | None) -> None:
    path = folder / "trace.json"
    path.write_text(json.dumps(listed))
    trace = read(path)
    boundaries = steps_of(trace)
    assert (boundaries[1:, 0] >= boundaries[:-1, 1]).all()
    steps = step_context(trace, boundaries, thread=thread)
    breakdown = breakdown_of(steps)
    assert breakdown.entries.sum() == breakdown.wall.sum()
    moved = device_step_bounds(trace, boundaries)
    assert (moved[1:, 0] >= moved[:-1, 1]).all()
    assert (moved[:, 1] >= moved[:, 0]).all()
    assert not len(device_step_bounds(trace, boundaries[:0]))
    phases = phase_breakdown(steps)
    assert phases[Phase.REST].sum() == (boundaries[:, 1] - boundaries[:, 0]).sum()
    assert all(each.duration > 0 for each in operator_totals(steps, {}))
    assert (recomputed(steps) <= boundaries[:, 1] - boundaries[:, 0]).all()


@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(listed=st.lists(events(), max_size=25), gap=st.integers(0, 40_000))
def test_the_time_of_events_is_the_same_in_pieces(folder: Path, listed: list[dict[str, Any]], gap: int) -> None:
    path = folder / "pieces.json"
    path.write_text(json.dumps(listed))
    trace = read(path)
    whole = union(trace.events.start, trace.events.end)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threads, "PIECE", 3)
        patch.setattr(operators, "DISPATCH_GAP", gap)
        every = np.ones(len(trace.events), np.bool_)
        assert during(trace, every) == during(trace, np.arange(len(every))) == whole
        assert during(trace, every, bridged) == join(whole, short_gaps(whole))


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(listed=st.lists(events(), max_size=25), thread=st.sampled_from([None, 0, 1]))
def test_gaps_and_traffic_of_any_mixture_sum_to_the_breakdown(
    folder: Path, listed: list[dict[str, Any]], thread: int | None
) -> None:
    path = folder / "device.json"
    path.write_text(
        json.dumps([*listed, {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 5, "dur": 2}])
    )
    trace = read(path)
    steps = step_context(trace, steps_of(trace), thread=thread)
    breakdown, gaps = breakdown_of(steps), gaps_of(steps)
    assert (gaps.duration > 0).all()
    assert (gaps.start[1:] >= gaps.end[:-1]).all()
    found = np.zeros_like(breakdown.entries)
    np.add.at(found, (gaps.step, gaps.category), gaps.duration)
    for copies in copies_of(steps):
        found[:, Category.COPY] += copies.exposed
    for collectives in collectives_of(steps):
        found[:, Category.COMMUNICATION] += collectives.exposed
    assert (found[:, Category.COMMUNICATION :] == breakdown.entries[:, Category.COMMUNICATION :]).all()
    for allocated in allocations_of(steps):
        assert (allocated.idle <= allocated.duration).all()
