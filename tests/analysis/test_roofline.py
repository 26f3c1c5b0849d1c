"""The roofline of traces in which every microsecond and every shape is known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from advice.healthy import HEALTHY
from published import trace_of

from steptime.advice.device_evidence import machine_use, roofline_use
from steptime.analysis.breakdown import breakdown_of
from steptime.analysis.categories import Category
from steptime.analysis.roofline import BOUNDS, KernelUse, Roofline, draw
from steptime.analysis.step_context import step_context
from steptime.analysis.trace_steps import steps_of
from steptime.machine.machine import Machine, Rate
from steptime.quantities import Estimate
from steptime.report.sentences import reached_text
from steptime.trace.reader import read
from steptime.trace.table import Trace

GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"
POINTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>(int)"
TRANSPOSE = "void cudnn::ops::nchwToNhwcKernel<float, float, float>(Params)"


def machine() -> Machine:
    """100 TFLOP/s of bfloat16, 10 of float32, 1 TB/s."""

    def exactly(value: float, unit: str) -> Estimate:
        return Estimate(value, value, value, 1, unit)

    rates = (Rate("bfloat16", exactly(1e14, "FLOP/s")), Rate("float32", exactly(1e13, "FLOP/s")))
    return Machine("cuda", "test", rates, exactly(1e12, "B/s"))


class Writer:
    """A trace of one host thread and one stream; times in microseconds."""

    def __init__(self, steps: int, length: float) -> None:
        self.events: list[dict[str, Any]] = []
        self.launches = 0
        self.grid: list[int] | None = [100_000, 1, 1]
        for number in range(steps):
            self._add("ProfilerStep#" + str(number), "user_annotation", number * length, length, 1)

    def operator(
        self,
        name: str,
        start: float,
        shapes: list[Any],
        types: list[str],
        *kernels: tuple[str, float, float],
        values: tuple[str, ...] = (),
    ) -> None:
        """Launches its kernels (name, start, duration) one after another. values: of arguments that are no tensors."""
        concrete = {"Concrete Inputs": list(values)} if values else {}
        self._add(name, "cpu_op", start, 9, 1, {"Input Dims": shapes, "Input type": types, **concrete})
        for number, (kernel, at, duration) in enumerate(kernels):
            self.launches += 1
            number_of = {"correlation": self.launches}
            self._add("cudaLaunchKernel", "cuda_runtime", start + 1 + number, 0.5, 1, number_of)
            placed = {"device": 0, "stream": 7, **({"grid": self.grid} if self.grid is not None else {})}
            self._add(kernel, "kernel", at, duration, 7, {**number_of, **placed})

    def alone(self, kernel: str, start: float, duration: float, **more: Any) -> None:
        """A kernel without a launch in the trace."""
        self._add(kernel, "kernel", start, duration, 7, {"device": 0, "stream": 7, **more})

    def _add(self, name: str, event_kind: str, start: float, duration: float, thread: int, args: Any = None) -> None:
        event = {"ph": "X", "cat": event_kind, "name": name, "pid": 1 if thread == 1 else 0, "tid": thread}
        self.events.append({**event, "ts": start, "dur": duration, "args": args or {}})

    def trace(self, folder: Path) -> Trace:
        path = folder / "trace.json"
        device = {"id": 0, "name": "test", "numSms": 100}
        path.write_text(json.dumps({"deviceProperties": [device], "traceEvents": self.events}))
        return read(path)


def drawn(trace: Trace, peaks: Machine | None = None) -> Roofline:
    boundaries = steps_of(trace)
    return draw(step_context(trace, boundaries, machine=peaks))


def by_name(roofline: Roofline) -> dict[str, KernelUse]:
    return {group.name: group for group in roofline.groups}


MATRICES, TYPES = [[1024, 1024], [1024, 512]], ["c10::BFloat16", "c10::BFloat16"]
FLOPS = 2 * 1024 * 512 * 1024
BYTES = 2 * (1024 * 1024 + 1024 * 512 + 1024 * 512)


def test_a_product_is_bound_by_arithmetic_and_a_sum_by_bytes(tmp_path: Path) -> None:
    writer = Writer(2, 1000)
    for start in (0.0, 1000.0):
        writer.operator("aten::mm", start + 10, MATRICES, TYPES, (GEMM, start + 100, 20))
        writer.operator(
            "aten::add", start + 20, [[1000000], [1000000]], ["float", "float"], (POINTWISE, start + 200, 24)
        )
        writer.operator("aten::add", start + 30, [[10], [10]], ["float", "float"], (POINTWISE, start + 300, 3))
    roofline = drawn(writer.trace(tmp_path), machine())
    product = by_name(roofline)[GEMM]
    assert (product.calls, product.duration, product.flops, product.bytes) == (1, 20_000, FLOPS, BYTES)
    assert product.at_roofline == pytest.approx(FLOPS / 1e14 * 1e9)
    assert (product.bound, product.tensor_cores, product.dtype) == ("compute", True, "bfloat16")
    large, small = sorted((g for g in roofline.groups if g.operator == "aten::add"), key=lambda g: -g.duration)
    assert (large.bound, large.bytes, large.at_roofline) == ("memory", 12e6, 12e6 / 1e12 * 1e9)
    assert (small.bound, small.bytes) == ("latency", 120)
    assert roofline.split.tolist() == [[20_000, 24_000, 3_000, 0]] * 2
    assert roofline.flops == FLOPS
    assert roofline.dtype == "bfloat16"
    assert roofline.peak == 1e14
    assert roofline.utilization == pytest.approx(FLOPS / 1e14 / (roofline.wall / 1e9))
    assert roofline.modelled == 1
    assert roofline.tensor_cores == 1


def test_an_operators_work_is_shared_by_its_kernels_and_never_counted_twice(tmp_path: Path) -> None:
    """The products of a split convolution share by time; what only lays out its inputs gets none."""
    writer = Writer(1, 1000)
    kernels = ((TRANSPOSE, 100.0, 50.0), (GEMM, 150.0, 30.0), (GEMM + "_second", 180.0, 10.0))
    writer.operator("aten::mm", 10, MATRICES, TYPES, *kernels)
    writer.operator(
        "aten::add", 30, [[1000000], [1000000]], ["float", "float"], ("first", 300, 30), ("second", 330, 10)
    )
    found = by_name(drawn(writer.trace(tmp_path), machine()))
    assert found[GEMM].flops == pytest.approx(FLOPS * 3 / 4)
    assert found[GEMM + "_second"].flops == pytest.approx(FLOPS / 4)
    assert (found[TRANSPOSE].flops, found[TRANSPOSE].bytes, found[TRANSPOSE].bound) == (None, None, "unmodelled")
    assert [found[name].bytes for name in ("first", "second")] == [pytest.approx(9e6), pytest.approx(3e6)]
    assert sum(group.bytes or 0 for group in found.values()) == pytest.approx(BYTES + 12e6)


def test_kernels_that_overlap_give_their_time_to_the_first_bound(tmp_path: Path) -> None:
    writer = Writer(1, 1000)
    writer.operator("aten::mm", 10, MATRICES, TYPES, (GEMM, 100, 20))
    writer.operator("aten::add", 20, [[1000000], [1000000]], ["float", "float"], (POINTWISE, 110, 30))
    writer.alone("nobody_knows", 105, 100)
    writer.alone("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 150, 300)
    roofline = drawn(writer.trace(tmp_path), machine())
    assert roofline.split.tolist() == [[20_000, 20_000, 0, 65_000]]
    found = by_name(roofline)
    assert found["ncclDevKernel_AllReduce_Sum_f32_RING_LL"].bound == "communication"
    assert found["nobody_knows"].bound == "unmodelled"
    assert roofline.modelled == pytest.approx(50 / 150)


def test_what_has_no_model_is_not_guessed(tmp_path: Path) -> None:
    writer = Writer(1, 1000)
    writer.operator("my::operator", 10, [[1024, 1024]], ["float"], ("mine", 100, 20))
    writer.operator("aten::mm", 30, [], [], (GEMM, 200, 20))
    writer.operator("aten::convolution_backward", 50, [[2, 3, 4, 4]] * 3, ["float"] * 3, ("other", 300, 3))
    found = by_name(drawn(writer.trace(tmp_path), machine()))
    assert {(each.flops, each.bytes, each.at_roofline) for each in found.values()} == {(None, None, None)}
    assert (found["mine"].bound, found[GEMM].bound) == ("unmodelled", "unmodelled")
    assert found["other"].bound == "latency"  # whatever it does, no kernel takes less


@pytest.mark.parametrize(("grid", "bound"), [([7, 7, 1], "latency"), ([10, 5, 1], "compute"), (None, "compute")])
def test_a_kernel_of_few_blocks_leaves_most_of_the_device_idle(
    tmp_path: Path, grid: list[int] | None, bound: str
) -> None:
    """Of a hundred multiprocessors half have a block."""
    writer = Writer(1, 1000)
    writer.grid = grid
    writer.operator("aten::mm", 10, MATRICES, TYPES, (GEMM, 100, 200))
    roofline = drawn(writer.trace(tmp_path), machine())
    assert by_name(roofline)[GEMM].bound == bound
    assert roofline.split[0, BOUNDS.index(bound)] == 200_000


def test_without_peaks_work_is_counted_and_nothing_is_bound(tmp_path: Path) -> None:
    writer = Writer(1, 1000)
    writer.operator("aten::mm", 10, MATRICES, TYPES, (GEMM, 100, 20))
    roofline = drawn(writer.trace(tmp_path))
    assert roofline.flops == FLOPS
    assert (roofline.peak, roofline.utilization) == (None, None)
    assert by_name(roofline)[GEMM].bound == "unmodelled"


def test_a_kernel_that_runs_into_the_next_step_counts_where_it_was_launched(tmp_path: Path) -> None:
    """Work belongs to the step that asked for it; time to the step in which it passes."""
    writer = Writer(2, 1000)
    writer.operator("aten::mm", 990, MATRICES, TYPES, (GEMM, 1100, 200))
    writer.operator("aten::mm", 1500, MATRICES, TYPES, (GEMM, 1900, 50))
    trace = writer.trace(tmp_path)
    boundaries = steps_of(trace)[1:]
    second = draw(step_context(trace, boundaries, machine=machine()))
    assert second.flops == FLOPS
    assert second.groups[0].calls == 1
    assert second.split.tolist() == [[250_000, 0, 0, 0]]


def test_what_runs_faster_than_the_roofline_is_at_it(tmp_path: Path) -> None:
    writer = Writer(1, 1000)
    writer.operator("aten::add", 20, [[1000000], [1000000]], ["float", "float"], (POINTWISE, 110, 4))
    assert by_name(drawn(writer.trace(tmp_path), machine()))[POINTWISE].at_roofline == 4_000


def low(rate: float, **more: Any) -> Machine:
    """A machine whose peak of bfloat16 was measured as `rate`, FLOP/s."""
    rates = (Rate("bfloat16", Estimate(rate, rate, rate, 9, "FLOP/s")),)
    return replace(machine(), matrix=rates, measured=True, **more)


def test_no_peak_is_below_what_the_job_reached(tmp_path: Path) -> None:
    writer = Writer(1, 250)
    writer.operator("aten::mm", 10, MATRICES, TYPES, (GEMM, 20, 200))
    trace = writer.trace(tmp_path)
    reached = FLOPS / 200e-6
    raised = drawn(trace, low(3e12, other_cpus=1.5))
    assert raised.machine is not None
    assert raised.peak == pytest.approx(reached)
    assert raised.machine.matrix[0].reached
    assert raised.machine.under_load
    assert raised.groups[0].at_roofline == raised.groups[0].duration
    assert 0 < (raised.utilization or 0) <= 1
    assert drawn(trace, low(9e12)).machine == low(9e12)
    datasheet = replace(low(3e12), measured=False)
    assert drawn(trace, datasheet).peak == pytest.approx(FLOPS / raised.wall * 1e9), "the whole step, and no kernel"


def test_a_step_that_the_profiler_slowed_reached_more_than_it_shows(tmp_path: Path) -> None:
    writer = Writer(1, 250)
    writer.operator("aten::mm", 10, MATRICES, TYPES, (GEMM, 20, 200))
    trace = writer.trace(tmp_path)
    boundaries = steps_of(trace)
    roofline = draw(step_context(trace, boundaries, machine=low(3e12)), step=100_000.0)
    assert roofline.peak == pytest.approx(FLOPS / 100e-6)
    step = replace(HEALTHY.step, duration=Estimate(1e5, 1e5, 1e5, 1))
    use = roofline_use(roofline, replace(HEALTHY, step=step))
    assert use is not None
    assert 0.999 < (use.utilization or 0.0) <= 1
    displayed = machine_use(roofline.machine)
    assert displayed is not None
    assert displayed.reached == ("bfloat16",)
    case = replace(HEALTHY, roofline=use, machine=replace(displayed, under_load=True))
    assert "reached by this job: above the one measured next to other load" in reached_text(case)
    assert "while other processes ran" in reached_text(
        replace(case, machine=replace(displayed, reached=(), under_load=True))
    )


def test_a_convolution_by_a_fast_algorithm_says_nothing_of_the_peak(tmp_path: Path) -> None:
    writer = Writer(1, 1000)
    shapes: list[Any] = [[8, 64, 56, 56], [64, 64, 3, 3], [], [], [], []]
    types = ["c10::BFloat16", "c10::BFloat16", "ScalarList", "ScalarList", "ScalarList", "Scalar"]
    settings = ("", "", "[1, 1]", "[1, 1]", "[1, 1]", "1")
    writer.operator("aten::cudnn_convolution", 10, shapes, types, (GEMM, 20, 200), values=settings)
    roofline = drawn(writer.trace(tmp_path), low(5e12))
    assert (roofline.groups[0].flops or 0.0) / 200e-6 > 5e12
    assert roofline.peak == 5e12


def test_lists_are_as_wide_as_the_kernels_name_says(tmp_path: Path) -> None:
    writer = Writer(1, 1000)
    for number, item in enumerate(("c10::BFloat16", "double")):
        name = f"void multi_tensor_apply_kernel<TensorListMetadata<2>, BinaryOpListAlphaFunctor<{item}, 2, 2, 0>>(x)"
        shapes, types = [[[1000], [500]], [[1000], [500]]], ["TensorList", "TensorList"]
        writer.operator("aten::_foreach_add_", 10.0 + number * 20, shapes, types, (name, 100.0 + number * 50, 20))
    found = by_name(drawn(writer.trace(tmp_path), machine()))
    assert sorted(each.bytes or 0 for each in found.values()) == [1500 * 3 * 2, 1500 * 3 * 8]


def test_the_split_is_the_breakdowns_compute_category_to_the_nanosecond(shared_data: Path) -> None:
    for name in ("kineto/resnet50_workers4.pt.trace.json.gz", "tracelens/mi300/resnet_act_checkpoint.json.gz"):
        trace = trace_of(shared_data / name)
        boundaries = steps_of(trace)
        roofline = draw(step_context(trace, boundaries, machine=machine()))
        breakdown = breakdown_of(step_context(trace, boundaries))
        np.testing.assert_array_equal(roofline.split.sum(axis=1), breakdown.entries[:, Category.COMPUTE])
        assert (roofline.split >= 0).all()
        assert roofline.split.shape == (len(boundaries), len(BOUNDS))


def test_an_empty_trace_has_an_empty_roofline(tmp_path: Path) -> None:
    trace = Writer(0, 1).trace(tmp_path)
    roofline = draw(step_context(trace, np.empty((0, 2), np.int64), machine=machine()))
    assert (roofline.groups, roofline.flops, roofline.wall, roofline.modelled) == ((), 0, 0, 0)
