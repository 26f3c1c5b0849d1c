"""A case from a bare trace: kernels, chains, optimizers, garbage and ranks, on traces made by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from traces import Event, Events, Written, annotation, happened, kernel, launch, operator, python, step, write

from steptime.advice.engine import examine
from steptime.advice.evidence import Case
from steptime.advice.kernels import shapes_of
from steptime.advice.rank_evidence import rank_uses
from steptime.advice.trace_evidence import look_at_trace
from steptime.analysis.stragglers.straggler import compare
from steptime.analysis.stragglers.summary import RankSummary, summarise_trace
from steptime.analysis.trace_steps import steps_of
from steptime.machine.datasheet import look_up
from steptime.trace.table import Trace

A100 = look_up("NVIDIA A100-SXM4-80GB")
LARGE = [1024, 1024]
MEGABYTES = 4.0 * 1024 * 1024
Launch = Callable[..., Events]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return lambda events: write(events, tmp_path)


@pytest.fixture
def launched() -> Launch:
    """An operator of 10 µs at a time, and the kernel that it launches, 5 µs later; correlation ids of their own."""
    numbers = itertools.count(1)

    def make(name: str, at: float, lasts: float = 10, shape: list[int] | None = None, named: str = "k") -> Events:
        number = next(numbers)
        shape = LARGE if shape is None else shape
        arguments: dict[str, Any] = {"Input Dims": [shape, []], "Input type": ["float", "Scalar"]}
        return [
            operator(name, at, at + 10, **arguments),
            launch(number, at + 1, at + 3),
            kernel(number, at + 5, at + 5 + lasts, named),
        ]

    return make


def case_of(trace: Trace) -> Case:
    return look_at_trace(trace, steps_of(trace), A100).case


def test_a_chain_is_pointwise_kernels_in_a_row_on_one_size(written: Written, launched: Launch) -> None:
    events = [
        step(0, 200),
        *launched("aten::mul", 0),
        *launched("aten::add", 20),
        *launched("aten::tanh", 40),
        *launched("aten::mm", 60),
        *launched("aten::mul", 80),
        *launched("aten::add", 100, shape=[8]),
    ]
    (chain,) = case_of(written(events)).chains
    assert chain.operators == ("aten::mul", "aten::add", "aten::tanh")
    assert (chain.calls, chain.kernels, chain.duration) == (1, 3, 30_000)
    assert chain.bytes == 6 * MEGABYTES  # each reads one tensor and writes one
    assert chain.saved == 4 * MEGABYTES  # two tensors in between, written and read


def test_shapes_are_read_however_they_are_laid_out() -> None:
    assert shapes_of("[[16, 559], [], [8]]") == ((16, 559), (), (8,))
    assert shapes_of("[\n  [\n    16,\n    559\n  ],\n  []\n]") == ((16, 559), ())
    assert shapes_of("[[[2,3],[4]],[]]") == ((2, 3), (4,), ())


def test_a_row_of_one_operator_is_no_chain(written: Written, launched: Launch) -> None:
    events = [step(0, 100), *launched("aten::mul_", 0), *launched("aten::mul_", 20), *launched("aten::mul_", 40)]
    assert case_of(written(events)).chains == ()


def test_what_the_optimizer_launches_is_no_chain(written: Written, launched: Launch) -> None:
    update = annotation("Optimizer.step#SGD.step", 0, 60)
    events = [step(0, 100), update, *launched("aten::mul_", 0), *launched("aten::add_", 20)]
    assert case_of(written(events)).chains == ()


def test_an_optimizer_that_works_tensor_by_tensor_shows_in_its_operators(written: Written, launched: Launch) -> None:
    calls = [event for at in range(30) for event in launched("aten::add_", 20 * at, shape=[100])]
    trace = written([step(0, 700), annotation("Optimizer.step#SGD.step", 0, 600), *calls])
    (use,) = case_of(trace).optimizers
    assert (use.type, use.foreach, use.fused) == ("SGD", False, False)
    assert (use.parameters, use.elements, use.kernels) == (30, 3000, 30)
    assert use.duration.value == 580_000 + 10_000  # from the first kernel at 5 µs to the end of the last at 595


def test_the_number_of_tensors_is_what_most_operators_of_an_update_share(written: Written, launched: Launch) -> None:
    names = ["aten::lerp_", "aten::addcmul_", "aten::addcdiv_", "aten::copy_", "aten::copy_"]
    calls = [
        event
        for at, name in enumerate(name for _ in range(25) for name in names)
        for event in launched(name, 20 * at, shape=[8, 8])
    ]
    trace = written([step(0, 3000), annotation("Optimizer.step#Adam.step", 0, 2600), *calls])
    (use,) = case_of(trace).optimizers
    assert (use.type, use.parameters, use.elements) == ("Adam", 25, 25 * 64)


@pytest.mark.parametrize("name", ["aten::_foreach_add_", "aten::_fused_adamw_"])
def test_an_optimizer_with_lists_of_tensors_is_reported_from_one_without(
    written: Written, launched: Launch, name: str
) -> None:
    trace = written([step(0, 100), annotation("Optimizer.step#AdamW.step", 0, 60), *launched(name, 0)])
    (use,) = case_of(trace).optimizers
    assert use.foreach is True
    assert use.fused is ("fused" in name)


def test_few_operators_in_an_optimizer_tell_nothing(written: Written, launched: Launch) -> None:
    trace = written([step(0, 100), annotation("Optimizer.step#SGD.step", 0, 60), *launched("aten::add_", 0)])
    (use,) = case_of(trace).optimizers
    assert use.foreach is None


def test_garbage_is_known_only_where_the_profiler_recorded_some(written: Written, launched: Launch) -> None:
    events = [step(0, 100), *launched("aten::mm", 0)]
    assert case_of(written(events)).garbage is None
    garbage = case_of(written([*events, python("Python GC", 40, 70), python("Python GC", 90, 130)])).garbage
    assert garbage is not None
    assert (garbage.duration.value, garbage.collections) == (40_000, 2)


def test_waiting_for_input_says_what_the_loader_was_at(written: Written, launched: Launch) -> None:
    loader = annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 20, 500)
    inside = [python("<built-in function zoom_shift>", 60, 450), python("<built-in function cat>", 450, 490)]
    case = case_of(written([step(0, 600), *launched("aten::mm", 0), loader, *inside, *launched("aten::mm", 500, 90)]))
    (waited,) = (gap for gap in case.gaps if gap.category == "input")
    assert waited.inside == "zoom_shift"
    (finding,) = (each for each in examine(case).findings if each.code == "ST101")
    assert "mostly in zoom_shift" in finding.summary


def test_kernels_carry_the_users_function_and_what_they_would_take_at_the_roofline(
    written: Written, launched: Launch
) -> None:
    frames = [python("train.py(10): main", 0, 100), python("torch/nn/functional.py(5): tanh", 0, 50)]
    case = case_of(written([step(0, 100), *frames, *launched("aten::tanh", 5, lasts=40, named="tanh_kernel")]))
    (use,) = case.kernels
    assert use.source is not None
    assert (use.source.file, use.source.line, use.operator) == ("train.py", 10, "aten::tanh")
    assert use.bytes == 2 * MEGABYTES
    assert use.at_roofline == pytest.approx(2 * MEGABYTES / 2039e9 * 1e9)
    assert case.roofline is not None
    assert case.roofline.memory == 40_000


def test_the_compute_category_is_the_sum_of_its_bounds(written: Written, launched: Launch) -> None:
    events = [
        step(0, 200),
        *launched("aten::tanh", 0, 40),
        *launched("aten::my_own", 60, 30),
        *launched("aten::mm", 99),
    ]
    case = case_of(written(events))
    roofline = case.roofline
    assert roofline is not None
    bounds = roofline.compute + roofline.memory + roofline.latency + roofline.unmodelled
    assert bounds == next(use.duration.value for use in case.categories if use.name == "compute")


def collective(start: float, lasts: float, kind: str = "AllReduce") -> Event:
    name = f"ncclDevKernel_{kind}_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    return happened("kernel", name, start, start + lasts, (0, 9), device=0, stream=9)


def summary(trace: Trace, rank: int) -> RankSummary:
    found = summarise_trace(trace, rank)
    assert found is not None
    return found


def test_the_rank_with_the_shortest_collectives_is_the_late_one(written: Written) -> None:
    lengths = {0: (500, 400, 30), 1: (20, 30, 35), 2: (510, 390, 25)}
    comparison = compare(
        [
            summary(written([step(0, 3000), *(collective(800 * k, each) for k, each in enumerate(lasts))]), rank)
            for rank, lasts in lengths.items()
        ]
    )
    assert comparison is not None
    ranks = rank_uses(comparison)
    assert [rank.waiting for rank in ranks] == [855_000, 10_000, 850_000]
    assert ranks[1].last == pytest.approx(1.0, abs=0.02)
    case = look_at_trace(written([step(0, 3000), collective(0, 900)]), steps_of(written([step(0, 3000)])), A100).case
    found = examine(type(case)(case.step, case.categories, ranks=ranks, straggler=comparison.late)).findings
    late = next(finding for finding in found if finding.name == "straggler")
    assert late.summary.startswith("Rank 1 is the straggler: ")


def test_ranks_that_arrive_together_have_no_late_one(written: Written) -> None:
    traces = [written([step(0, 900), collective(0, 300 + rank)]) for rank in range(4)]
    ranks = rank_uses(compare([summary(trace, rank) for rank, trace in enumerate(traces)]))
    assert all(rank.last == 0 for rank in ranks)


def test_collectives_that_some_rank_has_more_of_are_not_compared(written: Written) -> None:
    one = summary(written([step(0, 900), collective(0, 300)]), 0)
    two = summary(written([step(0, 900), collective(0, 300), collective(400, 300)]), 1)
    uneven = compare([one, two])
    assert rank_uses(uneven) == ()
    assert uneven is not None
    assert "all_reduce" in uneven.notes[0]
    gather = [step(0, 900), collective(500, 90, "AllGather")]
    both = compare([summary(written([*gather, collective(0, 300)]), 0), summary(written(gather), 1)])
    assert both is not None
    assert [row.waiting for row in both.rows] == [0, 0]


def test_one_rank_alone_has_nobody_to_wait_for(written: Written) -> None:
    assert compare([summary(written([step(0, 900), collective(0, 300)]), 0)]) is None
    assert rank_uses(None) == ()


def test_a_first_step_that_takes_longer_than_the_others_is_left_out(written: Written, launched: Launch) -> None:
    steps = [step(0, 500, 1), step(500, 600, 2), step(600, 700, 3)]
    case = case_of(written([*steps, *launched("aten::mm", 10), *launched("aten::mm", 510), *launched("aten::mm", 610)]))
    assert (case.step.total, case.step.steady, case.step.warm_up) == (3, 2, 1)
