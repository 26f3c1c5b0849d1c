"""A recording of a job on a device: what its profiled steps show is added to the case of its steady ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from traces import MAIN, Events, Written, called, kernel, launch, operator, python, write

from steptime.advice.device_evidence import with_recorded_device
from steptime.advice.evidence import Case, CategoryUse, StepSummary
from steptime.analysis.categories import Breakdown, Category
from steptime.analysis.recorded_breakdown import RecordedBreakdown
from steptime.analysis.step_context import StepContext, step_context
from steptime.analysis.timeline import Phase
from steptime.intervals import EMPTY, union
from steptime.machine.datasheet import look_up
from steptime.machine.machine import Machine
from steptime.quantities import Estimate
from steptime.trace.table import Trace

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
    case = with_recorded_device(CASE, category(window(written(events()))))
    assert [(use.operator, use.duration) for use in case.kernels] == [("aten::tanh", 40_000), ("aten::add", 10_000)]
    gaps = {use.category: use for use in case.gaps}
    assert "input" not in gaps, "steady steps do not wait for it"
    assert gaps["sync"].cause == "aten::item"
    assert gaps["sync"].duration.value == gaps["sync"].longest == 5_000, "11 µs of the profiled step: 65 to 76"
    assert case.step == CASE.step
    assert [use.duration for use in case.categories] == [use.duration for use in CASE.categories]


def test_of_computing_good_kernels_save_what_lies_above_four_fifths_of_the_peaks(written: Written) -> None:
    case = with_recorded_device(CASE, category(window(written(events()))))
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
    case = with_recorded_device(CASE, category(window(timed), window(stacked, stacks=True)))
    assert [use.source.line for use in case.kernels if use.source is not None] == [12, 12]
    assert any(use.source is not None and use.source.file == "train.py" for use in case.gaps)


def test_utilisation_is_of_the_steady_step_not_of_the_slower_profiled_one(written: Written) -> None:
    trace = written([operator("aten::mm", 0, 10, **_product()), launch(1, 1, 3), kernel(1, 5, 85, "sgemm_128x64")])
    assert A100 is not None
    rapid = A100.at_least({"float32": 4 * (A100.matrix_rate() or 0.0)})
    slow = with_recorded_device(CASE, category(window(trace, rapid))).roofline
    fast = replace(CASE, step=replace(CASE.step, duration=Estimate(40_000.0, 4e4, 4e4, 60)))
    twice = with_recorded_device(fast, category(window(trace, rapid))).roofline
    assert slow is not None
    assert twice is not None
    assert slow.utilization is not None
    assert twice.utilization == pytest.approx(2 * slow.utilization)
    beyond = with_recorded_device(fast, category(window(trace)))
    assert beyond.roofline is not None
    assert beyond.roofline.utilization == pytest.approx(1), "never above the peak: what was reached is one"
    assert beyond.machine is not None
    assert beyond.machine.reached == ("float32",)


def _product() -> dict[str, Any]:
    sides = [[1024, 1024], [1024, 1024]]
    return {"Input Dims": sides, "Input type": ["float", "float"]}


def test_without_kernels_there_is_the_roofline_of_the_processor_alone(written: Written) -> None:
    trace = written([operator("aten::mm", 0, 80, **_product())])
    case = with_recorded_device(CASE, category(window(trace, look_up("cpu"))))
    assert (case.kernels, case.gaps) == ((), ())
    assert case.roofline is not None
    assert case.roofline.flops == 2 * 1024**3


def test_without_a_profile_the_case_stays_as_it_was() -> None:
    assert with_recorded_device(CASE, category()) is CASE
