"""A recording of a job on a device: what its profiled steps show is added to the case of its steady ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from device_recordings import diagnosed
from traces import MAIN, Event, Events, Written, called, happened, kernel, launch, operator, python, write

from steptime.advice.assemble import with_profile
from steptime.advice.device_evidence import on_one_machine
from steptime.advice.device_uses import RooflineUse
from steptime.advice.evidence import ABSENT, Case
from steptime.advice.propose import propose
from steptime.advice.run_uses import CategoryUse, StepSummary
from steptime.advice.trace_evidence import look_at_trace
from steptime.analysis.categories import Breakdown, Category
from steptime.analysis.graph_launches import GraphUse
from steptime.analysis.recorded_breakdown import RecordedBreakdown
from steptime.analysis.roofline import KernelUse
from steptime.analysis.step_context import StepContext, step_context
from steptime.analysis.timeline import Phase
from steptime.cli.trial import case_and_findings
from steptime.intervals import EMPTY, union
from steptime.machine.datasheet import look_up
from steptime.machine.machine import Machine
from steptime.quantities import Estimate
from steptime.report.sentences import bounds_text
from steptime.trace.table import Trace
from steptime.trace.vendors import BUCKET_TO_GRADIENT

A100 = look_up("NVIDIA A100-SXM4-80GB")
SHAPES: dict[str, Any] = {"Input Dims": [[1024, 1024], []], "Input type": ["float", "Scalar"]}
STEADY = Estimate(80_000.0, 79_000.0, 81_000.0, 60)
CASE = Case(
    step=StepSummary(STEADY, 75, 60, 5, "optimizer", "cuda"),
    categories=(CategoryUse("compute", STEADY, STEADY), CategoryUse("sync", Estimate(5e3, 4e3, 6e3, 60), STEADY)),
)


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return lambda events: write(events, tmp_path)


def events() -> Events:
    """A step of 100 µs: the loader for 20, a kernel for 40, a wait of the host, a kernel for 10."""
    return [
        python("torch/utils/data/dataloader.py(9): next", 0, 20),
        operator("aten::tanh", 20, 30, **SHAPES),
        launch(1, 21, 23),
        kernel(1, 25, 65, "tanh_kernel"),
        operator("aten::item", 35, 75),
        called("cudaStreamSynchronize", 36, 74),
        operator("aten::add", 75, 85, **SHAPES),
        launch(2, 76, 78),
        kernel(2, 85, 95, "add_kernel"),
    ]


def window(trace: Trace, machine: Machine | None = A100, *, stacks: bool = False) -> StepContext:
    phases = dict.fromkeys(Phase, EMPTY) | {Phase.INPUT: union([0], [20_000])}
    boundaries = np.array([[0, 100_000]], np.int64)
    return step_context(trace, boundaries, phases=phases, thread=MAIN, machine=machine, stacks=stacks)


def category(*windows: StepContext) -> RecordedBreakdown:
    breakdown = Breakdown("Testcard", np.zeros(0, np.int64), np.zeros((0, len(Category)), np.int64))
    nothing = np.zeros(0, np.int64)
    return RecordedBreakdown(breakdown, (), nothing, nothing, windows, ())


def test_kernels_and_gaps_of_the_profiled_steps_are_in_the_case(written: Written) -> None:
    case = with_profile(CASE, category(window(written(events()))))
    assert [(use.operator, use.duration) for use in case.kernels] == [("aten::tanh", 40_000), ("aten::add", 10_000)]
    gaps = {use.category: use for use in case.gaps}
    assert "input" not in gaps, "steady steps do not wait for it"
    assert gaps["sync"].cause == "aten::item"
    assert gaps["sync"].duration.value == gaps["sync"].longest == 5_000, "11 µs of the profiled step: 65 to 76"
    assert case.step == CASE.step
    assert [use.duration for use in case.categories] == [use.duration for use in CASE.categories]


def test_of_computing_good_kernels_save_what_lies_above_four_fifths_of_the_peaks(written: Written) -> None:
    case = with_profile(CASE, category(window(written(events()))))
    best = [(use.duration, use.at_roofline) for use in case.kernels]
    part = sum(duration - (upper_bound or 0) / 0.8 for duration, upper_bound in best) / 50_000
    assert case.replay is not None
    assert case.replay.calibration is not None
    shorter = case.replay.calibration.saved_by_kernels(part * 80_000)
    assert 0 < shorter < part * 80_000, "the trace has 50 µs of kernels, and the host waits for them in part"
    assert case.categories[0].recoverable.value == pytest.approx(shorter)
    assert case.categories[1].duration == CASE.categories[1].duration
    least = case.replay.calibration.without_host
    assert case.categories[1].recoverable.value == pytest.approx(min(CASE.categories[1].recoverable.value, least))


def test_lines_come_from_the_window_with_stacks(written: Written) -> None:
    timed = written(events())
    stacked = written([python("train.py(12): main", 0, 100), *events()])
    case = with_profile(CASE, category(window(timed), window(stacked, stacks=True)))
    assert [use.source.line for use in case.kernels if use.source is not None] == [12, 12]
    assert any(use.source is not None and use.source.file == "train.py" for use in case.gaps)


def test_utilisation_is_of_the_steady_step_not_of_the_slower_profiled_one(written: Written) -> None:
    trace = written([operator("aten::mm", 0, 10, **_product()), launch(1, 1, 3), kernel(1, 5, 85, "sgemm_128x64")])
    assert A100 is not None
    rapid = A100.at_least({"float32": 4 * (A100.matrix_rate() or 0.0)})
    slow = with_profile(CASE, category(window(trace, rapid))).roofline
    fast = replace(CASE, step=replace(CASE.step, duration=Estimate(40_000.0, 4e4, 4e4, 60)))
    twice = with_profile(fast, category(window(trace, rapid))).roofline
    assert slow is not None
    assert twice is not None
    assert slow.utilization is not None
    assert twice.utilization == pytest.approx(2 * slow.utilization)
    beyond = with_profile(fast, category(window(trace)))
    assert beyond.roofline is not None
    assert beyond.roofline.utilization == pytest.approx(1), "never above the peak: what was reached is one"
    assert beyond.machine is not None
    assert beyond.machine.reached == ("float32",)


def _product() -> dict[str, Any]:
    sides = [[1024, 1024], [1024, 1024]]
    return {"Input Dims": sides, "Input type": ["float", "float"]}


def test_without_kernels_there_is_the_roofline_of_the_processor_alone(written: Written) -> None:
    trace = written([operator("aten::mm", 0, 80, **_product())])
    case = with_profile(CASE, category(window(trace, look_up("cpu"))))
    assert (case.kernels, case.gaps) == ((), ())
    assert case.roofline is not None
    assert case.roofline.flops == 2 * 1024**3


def test_without_a_profile_the_case_stays_as_it_was() -> None:
    assert replace(with_profile(CASE, category()), second_order=None) == CASE


@pytest.mark.parametrize(
    ("size", "members", "there"),
    [
        (2, "[0, 1]", True),
        (2, "[6, 7]", True),
        (2, "[7, 8]", False),
        (4, "[0, 2, 4, 6]", True),
        (16, "", False),
        (8, "", True),
        (4, "", False),  # of one machine or of several
        (0, "", False),
        (2, "[0, 8, 16]", False),
    ],
)
def test_a_group_is_on_one_machine_where_its_ranks_say_so(size: int, members: str, there: bool) -> None:
    assert on_one_machine(size, members, 8) is there


def test_the_bus_bandwidth_of_a_real_job_is_set_against_its_link(shared_data: Path) -> None:
    case, findings = case_and_findings(shared_data / "hta/nccl_parser_config/nccl_data.json.gz")
    reduce = case.collectives[0]
    assert reduce.bytes is not None
    assert reduce.bus_bandwidth == pytest.approx(reduce.bytes / reduce.duration.value * 1e9, rel=1e-3), "of two ranks"
    assert reduce.link == "NVLink's 300 GB/s"
    assert reduce.link_share == pytest.approx(0.0219, rel=0.01)
    reported = {finding.code: finding for finding in findings}
    assert "161 gradients (97.5 MiB)" in reported["ST406"].summary


def test_copies_of_data_parallel_training_are_called_so() -> None:
    """A recording of an H100: the reducer copies 16 gradients out of its buckets; one more copy is the model's."""
    case, findings = diagnosed("ddp")
    (copied,) = (use for use in case.copies if use.operator == BUCKET_TO_GRADIENT)
    assert (copied.calls, copied.bytes) == (16, 134283264)
    (reported,) = (finding for finding in findings if finding.code == "ST406")
    assert "gradient_as_bucket_view=True" in reported.advice
    assert reported.savings is not None
    assert reported.savings.value == pytest.approx(copied.exposed.value, rel=0.02)
    (fix,) = (each for each in propose(case, findings) if "bucket_view" in each.option.label)
    assert fix.option.saving is not None
    assert fix.option.saving.value >= reported.savings.value


def product(start: float, **numbered: Any) -> Event:
    return operator("aten::mm", start, start + 26, **_product(), **numbered)


def multiplied(start: float, **numbered: Any) -> Event:
    return happened("kernel", "sgemm", start, start + 50, (0, 7), device=0, stream=7, **numbered)


def called_without_number(start: float, **numbered: Any) -> Event:
    return happened("cuda_runtime", "hipExtModuleLaunchKernel", start, start + 5, (1, MAIN), **numbered)


@pytest.mark.parametrize(
    ("of_call", "of_kernel", "known"),
    [
        (
            {"External id": 25},
            {"External id": 25},
            True,
        ),  # torch for ROCm: no correlation, and the operator has another
        ({}, {}, True),  # no number at all: one call, one kernel, in this order
        ({}, {"External id": 7}, False),
        ({"correlation": 3}, {"External id": 3}, False),  # Kineto's external id is an operator's, not a call's
    ],
)
def test_a_kernel_is_its_operators_whatever_number_its_launch_has(
    written: Written, of_call: dict[str, int], of_kernel: dict[str, int], known: bool
) -> None:
    events = [product(0, **{"External id": 513}), called_without_number(10, **of_call), multiplied(40, **of_kernel)]
    case = with_profile(CASE, category(window(written(events))))
    (use,) = case.kernels
    assert (use.operator, bool(use.shapes)) == (("aten::mm", True) if known else ("", False))


def test_kernels_of_several_streams_are_not_linked_by_time(written: Written) -> None:
    other = happened("kernel", "sgemm", 60, 90, (0, 8), device=0, stream=8)
    calls = [called_without_number(10), called_without_number(16)]
    case = with_profile(CASE, category(window(written([product(0), *calls, multiplied(40), other]))))
    assert {use.operator for use in case.kernels} == {""}


def test_why_kernels_have_no_work_is_what_is_so(written: Written) -> None:
    roofline = RooflineUse(0, 0, 0, 5e4, 0, 0)
    lost = KernelUse("sgemm", "", 1, 5e4, "unmodelled")
    case = replace(CASE, kernels=(lost,))
    assert "does not show which operators" in bounds_text(roofline, case)
    assert "record_shapes=True" in bounds_text(roofline, replace(case, kernels=(replace(lost, operator="aten::mm"),)))
    known = replace(lost, operator="vllm::moe", shapes="[[8, 8]]")
    assert "no model of their operators" in bounds_text(roofline, replace(case, kernels=(known,)))
    graphs = replace(CASE.step, graphs=GraphUse(1, 0, 9, 0.9, 0, 0))
    assert "kernels of a CUDA graph" in bounds_text(roofline, replace(case, step=graphs))


OF_STEPS = {"step", "categories", "outliers", "rank"}
"""Parts of a case that a recording takes from its timers and facts, and a bare trace from its own steps."""
GPU = Path(__file__).parents[1] / "data" / "gpu"


def test_a_bare_trace_and_a_recording_that_holds_it_tell_the_same(written: Written) -> None:
    trace = written(events())
    bare = look_at_trace(trace, np.array([[0, 100_000]], np.int64), A100).case
    recorded = with_profile(CASE, category(window(trace)))
    parts = [{name for name in ABSENT if case.has(name)} - OF_STEPS for case in (bare, recorded)]
    assert parts[0] - parts[1] == {"operators"}, "a recording's are scaled to its steady steps first"
    assert parts[1] <= parts[0]


@pytest.mark.parametrize("name", ["ddp", "graphs", "streams"])
def test_no_rule_looks_at_a_trace_and_is_blind_for_the_recording_that_holds_it(name: str) -> None:
    """But for idle time that the profiler alone makes: of a category that steady steps do not have, no gap is told."""
    recorded, _ = diagnosed(name)
    bare, _ = case_and_findings(min((GPU / name).rglob("trace-*.json.gz")))
    usual = {use.name for use in recorded.categories}
    lost = {name for name in ABSENT if bare.has(name) and not recorded.has(name)} - OF_STEPS
    assert not lost or (lost == {"gaps"} and usual.isdisjoint(gap.category for gap in bare.gaps)), lost


def test_what_backward_computes_again_in_profiled_steps_is_a_steady_steps_part(written: Written) -> None:
    trace = written([operator("aten::mm", 20, 90)])
    phases = dict.fromkeys(Phase, EMPTY) | {Phase.BACKWARD: union([20_000], [100_000])}
    profiled = step_context(trace, np.array([[0, 100_000]], np.int64), phases=phases, thread=MAIN)
    again = np.array([40_000], np.int64)
    recorded = replace(category(profiled), recompute=again, backward_again=again)
    backward = Estimate(20_000.0, 19_000.0, 21_000.0, 60)
    steady = replace(CASE, phases=(CategoryUse("backward", backward, backward),))
    for case, spent in ((steady, 10_000), (CASE, 40_000)):
        found = with_profile(case, recorded)
        assert found.recompute is not None
        assert found.backward_again is not None
        assert (found.recompute.duration.value, found.backward_again.value) == (spent, spent)
