"""Categories of a step, on traces where every microsecond is known. Dispatching an operator costs 2 µs there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from published import is_alike
from traces import (
    DEVICE,
    ENGINE,
    GLOO,
    Event,
    Events,
    Written,
    annotation,
    called,
    happened,
    kernel,
    launch,
    operator,
    step,
    write,
)

from steptime.analysis.breakdown import breakdown_of, count_events, phase_breakdown
from steptime.analysis.categories import Category
from steptime.analysis.step_context import step_context
from steptime.analysis.timeline import Phase
from steptime.analysis.trace_steps import device_step_bounds, steps_of
from steptime.intervals import union
from steptime.trace.reader import read
from steptime.trace.table import Trace


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Writes events and reads them back."""
    return lambda events: write(events, tmp_path)


def categories(trace: Trace, **known: Any) -> dict[str, float]:
    """Microseconds by category, summed over the steps; categories without time left out."""
    breakdown = breakdown_of(step_context(trace, steps_of(trace), **known))
    spent = breakdown.entries.sum(axis=0)
    return {category.name.lower(): spent[category] / 1000 for category in Category if spent[category]}


def test_a_leaf_operator_computes_but_for_its_dispatch(written: Written) -> None:
    trace = written([step(0, 100), operator("aten::mm", 0, 100)])
    assert categories(trace) == {"compute": 98, "overhead": 2}


def test_views_and_allocations_inside_do_not_make_an_operator_a_wrapper(written: Written) -> None:
    inside = [operator("aten::empty", 10, 15), operator("aten::as_strided_", 90, 91)]
    trace = written([step(0, 100), operator("aten::mkldnn_convolution", 0, 100), *inside])
    assert categories(trace) == {"compute": 92, "overhead": 8}


def test_an_operator_around_others_launches_unless_it_takes_long_itself(written: Written) -> None:
    trace = written([step(0, 200), operator("aten::linear", 0, 200), operator("aten::addmm", 20, 100)])
    assert categories(trace) == {"overhead": 22, "compute": 178}


def test_short_gaps_between_operators_are_launch_and_long_ones_host(written: Written) -> None:
    leaves = [operator("aten::add", 0, 10), operator("aten::add", 40, 50), operator("aten::add", 150, 160)]
    assert categories(written([step(0, 160), *leaves])) == {"compute": 24, "overhead": 36, "python": 100}


def test_gaps_outside_the_models_phases_are_host(written: Written) -> None:
    leaves = [operator("aten::add", 0, 10), operator("aten::add", 40, 50), operator("aten::add", 70, 80)]
    phases = {Phase.FORWARD: union([0], [55_000])}
    assert categories(written([step(0, 80), *leaves]), phases=phases) == {
        "compute": 24,
        "overhead": 6 + 30 + 5,
        "python": 15,
    }


def test_the_loader_claims_what_its_operators_do(written: Written) -> None:
    loader = annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 60)
    trace = written([step(0, 100), loader, operator("aten::stack", 10, 50), operator("aten::mm", 60, 100)])
    assert categories(trace) == {"input": 60, "compute": 38, "overhead": 2}


def test_batch_preparation_that_the_caller_knows_is_input(written: Written) -> None:
    trace = written([step(0, 100), operator("aten::randn", 0, 50), operator("aten::mm", 50, 100)])
    assert categories(trace, phases={Phase.INPUT: union([0], [50_000])}) == {"input": 50, "compute": 48, "overhead": 2}


def test_compiling_is_a_category_of_its_own(written: Written) -> None:
    trace = written([step(0, 100), annotation("compile_inner (dynamo_timed)", 0, 70), operator("aten::mm", 70, 100)])
    assert categories(trace) == {"compile": 70, "compute": 28, "overhead": 2}


def test_backward_on_another_thread_counts_while_the_training_thread_waits(written: Written) -> None:
    frame = "autograd::engine::evaluate_function: MmBackward0"
    backward = [operator(frame, 100, 200, ENGINE), operator("aten::mm", 110, 195, ENGINE)]
    overlapped = operator("aten::mm", 180, 230)
    trace = written([step(0, 230), operator("aten::mm", 0, 90), *backward, overlapped])
    assert categories(trace) == {"compute": 88 + 68 + 48, "overhead": 2 + 10 + 10 + 2 + 2}


def test_python_in_a_hook_of_backward_is_host(written: Written) -> None:
    frame = "autograd::engine::evaluate_function: MyFunctionBackward"
    trace = written([step(0, 100), operator(frame, 0, 100), operator("aten::mul", 80, 90)])
    assert categories(trace) == {"python": 80, "compute": 8, "overhead": 12}


def test_waiting_for_gloo_is_communication_only_while_nothing_else_runs(written: Written) -> None:
    reduce = happened("user_annotation", "gloo:all_reduce", 40, 160, (1, GLOO))
    trace = written([step(0, 200), operator("aten::mm", 0, 80), reduce, operator("aten::mm", 160, 200)])
    assert categories(trace) == {"communication": 80, "compute": 116, "overhead": 4}


def test_events_are_counted_by_the_phase_in_which_they_start(written: Written) -> None:
    trace = written([operator("aten::mm", start, start + 5) for start in (0, 10, 20, 30, 200)])
    phases = {Phase.FORWARD: union([0], [15_000]), Phase.BACKWARD: union([12_000], [25_000])}
    counts = count_events(step_context(trace, np.array([[0, 100_000]]), phases=phases))
    assert [counts[each] for each in (Phase.FORWARD, Phase.BACKWARD, Phase.REST)] == [2, 1, 1]


def test_the_call_of_a_collective_is_communication_not_compute(written: Written) -> None:
    frame = operator("autograd::engine::evaluate_function: AccumulateGrad", 100, 200)
    trace = written([step(0, 200), operator("aten::mm", 0, 100), frame, operator("c10d::allreduce_", 110, 190)])
    assert categories(trace) == {"compute": 98, "communication": 80, "overhead": 22}


def test_code_of_torch_compile_computes(written: Written) -> None:
    region = annotation("Torch-Compiled Region: 0/0", 70, 500)
    guards = operator("TorchDynamo Cache Lookup", 0, 60)
    trace = written([step(0, 500), guards, region, operator("CompiledFunction", 90, 490)])
    assert categories(trace) == {"compute": 398, "overhead": 102}


def test_what_the_recording_does_not_cover_is_unexplained(written: Written) -> None:
    trace = written([operator("aten::mm", 100, 200)])
    breakdown = breakdown_of(step_context(trace, np.array([[0, 250_000]])))
    assert breakdown.entries[0, Category.UNEXPLAINED] == 150_000


def test_a_trace_without_anything_of_the_host_explains_nothing(written: Written) -> None:
    breakdown = breakdown_of(step_context(written([]), np.array([[0, 1000]])))
    assert breakdown.entries[0].tolist() == [0] * 9 + [1000]


def test_steps_come_from_optimisers_where_the_profiler_marked_none(written: Written) -> None:
    updates = [annotation("Optimizer.step#SGD.step", start, start + 10) for start in (90, 190, 290)]
    assert steps_of(written([operator("aten::mm", 0, 50), *updates])).tolist() == [
        [100_000, 200_000],
        [200_000, 300_000],
    ]


def test_updates_inside_each_other_are_one(written: Written) -> None:
    updates = [(10, 20), (12, 15), (12, 12), (30, 40)]
    trace = written([annotation("Optimizer.step#SGD.step", *update) for update in updates])
    assert steps_of(trace).tolist() == [[20_000, 40_000]]


def test_without_any_mark_the_recording_is_one_step(written: Written) -> None:
    assert steps_of(written([operator("aten::mm", 5, 50)])).tolist() == [[5_000, 50_000]]
    assert steps_of(written([])).shape == (0, 2)


def test_overlapping_step_marks_never_count_time_twice(written: Written) -> None:
    trace = written([step(0, 100, 1), step(90, 200, 2), operator("aten::mm", 0, 200)])
    assert steps_of(trace).tolist() == [[0, 100_000], [100_000, 200_000]]


def test_phases_partition_the_categories(written: Written) -> None:
    trace = written([step(0, 200), operator("aten::mm", 0, 100), operator("aten::add_", 130, 190)])
    phases = {Phase.FORWARD: union([0], [110_000]), Phase.OPTIMIZER: union([105_000], [195_000])}
    table = phase_breakdown(step_context(trace, steps_of(trace), phases=phases))
    assert table.sum() == 200_000
    assert table[Phase.FORWARD, Category.COMPUTE] == 98_000
    assert table[Phase.FORWARD].sum() == 110_000
    assert table[Phase.OPTIMIZER, Category.COMPUTE] == 58_000
    assert table[Phase.REST].sum() == 5_000


@pytest.mark.parametrize("thread", [None, 0, 10, 999])
def test_the_training_thread_is_found_with_and_without_its_number(written: Written, thread: int | None) -> None:
    busier = [operator("aten::copy_", start, start + 1, 55) for start in range(50)]
    trace = written([*busier, step(0, 100), operator("aten::mm", 0, 100)])
    assert categories(trace, thread=thread) == {"compute": 98, "overhead": 2}


def training(*events: Event) -> Events:
    """A step of 1 ms with a first kernel at once and a last one at its end; in between the device idles."""
    first = [launch(1, 0, 5), kernel(1, 10, 100)]
    last = [launch(2, 880, 885), kernel(2, 890, 1000)]
    return [step(0, 1000), *first, *last, *events]


def test_device_time_is_compute_then_exposed_communication_then_exposed_copies(written: Written) -> None:
    busy = [kernel(3, 100, 400, "ncclDevKernel_AllReduce", 20), kernel(4, 50, 200), launch(3, 1, 2), launch(4, 2, 3)]
    copy = [
        happened("gpu_memcpy", "Memcpy HtoD", 300, 600, (DEVICE, 9), correlation=5),
        called("cudaMemcpyAsync", 3, 4, 5),
    ]
    found = categories(written([*training(*busy, *copy), operator("aten::x", 600, 1000)]))
    assert found == {"compute": 190 + 110, "communication": 200, "copy": 200, "overhead": 10 + 290}


def test_idle_time_in_the_loader_of_the_launching_thread_is_input(written: Written) -> None:
    loader = annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 150, 800)
    elsewhere = annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 100, 1000, 77)
    found = categories(written([*training(loader, elsewhere), operator("aten::x", 800, 890)]))
    assert found == {"compute": 200, "input": 650, "overhead": 10 + 90, "python": 50}


def test_a_wait_that_drained_the_device_is_charged_up_to_the_next_launch(written: Written) -> None:
    wait = called("cudaStreamSynchronize", 20, 120)
    found = categories(written(training(wait)))
    assert found == {"compute": 200, "sync": 780, "overhead": 10 + 10}


def test_a_wait_that_ended_before_the_device_ran_dry_is_not_charged(written: Written) -> None:
    found = categories(written(training(called("cudaStreamSynchronize", 20, 90))))
    assert found == {"compute": 200, "python": 780, "overhead": 20}


def test_a_copy_that_holds_the_host_while_it_is_staged_is_sync(written: Written) -> None:
    staged = [called("cudaMemcpyAsync", 200, 700, 3), happened("gpu_memcpy", "HtoD", 690, 700, (0, 7), correlation=3)]
    quick = [called("cudaMemcpyAsync", 750, 760, 4), happened("gpu_memcpy", "HtoD", 770, 780, (0, 7), correlation=4)]
    found = categories(written(training(*staged, *quick)))
    assert found == {"compute": 200, "copy": 20, "sync": 490, "python": 100 + 100, "overhead": 10 + 50 + 20 + 10}


def test_input_after_a_drain_is_input_not_sync(written: Written) -> None:
    loader = annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 200, 700)
    found = categories(written(training(called("cudaDeviceSynchronize", 20, 120), loader)))
    assert found == {"compute": 200, "input": 500, "sync": 280, "overhead": 20}


def test_idle_time_inside_operators_and_between_them_is_launch(written: Written) -> None:
    operators = [operator("aten::linear", 100, 500), operator("aten::linear", 540, 880)]
    assert categories(written(training(*operators))) == {"compute": 200, "overhead": 800}


def test_python_before_the_next_launch_is_host(written: Written) -> None:
    assert categories(written(training())) == {"compute": 200, "python": 780, "overhead": 20}


def test_the_thread_that_launches_the_next_kernel_explains_the_gap(written: Written) -> None:
    engine = [launch(5, 390, 395, ENGINE), kernel(5, 400, 500), operator("autograd::engine::x", 110, 400, ENGINE)]
    found = categories(written(training(*engine)))
    assert found == {"compute": 300, "overhead": 10 + 290 + 10, "python": 10 + 380}


def test_kernels_that_nothing_launched_leave_the_gap_to_the_training_thread(written: Written) -> None:
    events = [step(0, 100), operator("aten::x", 0, 40), kernel(9, 40, 100)]
    assert categories(written(events)) == {"compute": 60, "overhead": 40}


def test_steps_on_the_device_reach_to_their_last_kernel_and_do_not_overlap(written: Written) -> None:
    first = [step(0, 100, 1), launch(1, 50, 55), kernel(1, 60, 180)]
    second = [step(100, 200, 2), launch(2, 150, 155), kernel(2, 180, 190)]
    trace = written([*first, *second])
    assert device_step_bounds(trace, steps_of(trace)).tolist() == [[0, 180_000], [180_000, 200_000]]
    breakdown = breakdown_of(step_context(trace, steps_of(trace)))
    assert breakdown.device == "Testcard"
    assert breakdown.wall.tolist() == [180_000, 20_000]
    assert breakdown.entries[:, Category.COMPUTE].tolist() == [120_000, 10_000]


def test_the_clock_of_the_trace_may_be_any(written: Written) -> None:
    early = written(training())
    late = written([{**event, "ts": event["ts"] + 1.7e15} for event in training()])
    assert categories(early) == categories(late)


@pytest.mark.parametrize("alike", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_real_traces_of_many_makers_balance(shared_data: Path, alike: bool) -> None:
    for path in sorted(shared_data.rglob("*.json*")):
        if "_et" in str(path) or "expected" in path.name or is_alike(path) != alike:
            continue
        trace = read(path)
        boundaries = steps_of(trace)
        breakdown = breakdown_of(step_context(trace, boundaries))
        assert len(breakdown.wall) == len(boundaries) > 0
        assert breakdown.entries.sum() == breakdown.wall.sum()
