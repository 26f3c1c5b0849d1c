"""The roofline of training on a CPU, profiled in the test."""

from __future__ import annotations

import numpy as np
import pytest

from steptime.analysis.breakdown import breakdown_of
from steptime.analysis.categories import Category
from steptime.analysis.roofline import BOUNDS, draw
from steptime.analysis.step_context import step_context
from steptime.analysis.trace_steps import steps_of
from steptime.machine.machine import Machine, Rate
from steptime.quantities import Estimate
from steptime.trace.reader import read
from steptime.trace.table import Trace

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """Three steps of a small network."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(3136, 10))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    images, targets = torch.randn(8, 3, 16, 16), torch.randint(0, 10, (8,))
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=3, repeat=1)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, record_shapes=True, schedule=schedule) as profiler:
        for _ in range(4):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(images), targets).backward()
            optimizer.step()
            profiler.step()
    path = tmp_path_factory.mktemp("trace") / "trace.json.gz"
    profiler.export_chrome_trace(str(path))
    return read(path)


def machine(matrix: float = 1e11) -> Machine:
    def exactly(value: float, unit: str) -> Estimate:
        return Estimate(value, value, value, 1, unit)

    rates = (Rate("float32", exactly(matrix, "FLOP/s")),)
    return Machine("cpu", "test", rates, exactly(1e10, "B/s"), exactly(1000.0, "ns"), measured=True)


def test_operators_stand_in_for_kernels(trained: Trace) -> None:
    boundaries = steps_of(trained)
    roofline = draw(step_context(trained, boundaries, machine=machine()))
    convolution = 2 * 8 * 14 * 14 * 16 * 3 * 9
    linear = 2 * 8 * 3136 * 10
    assert roofline.flops == 2 * convolution + 3 * linear  # no gradient of the images is wanted
    assert roofline.dtype == "float32"
    assert roofline.modelled > 0.99
    found = {group.operator: group for group in roofline.groups}
    assert found["aten::mkldnn_convolution"].flops == convolution
    assert found["aten::mkldnn_convolution"].name == "aten::mkldnn_convolution"
    assert found["aten::mkldnn_convolution"].tensor_cores is None


def test_the_split_is_the_breakdowns_compute_category_to_the_nanosecond(trained: Trace) -> None:
    boundaries = steps_of(trained)
    for peaks in (machine(), machine(1e6), None):
        roofline = draw(step_context(trained, boundaries, machine=peaks))
        breakdown = breakdown_of(step_context(trained, boundaries, machine=peaks))
        np.testing.assert_array_equal(roofline.split.sum(axis=1), breakdown.entries[:, Category.COMPUTE])


def test_a_slow_matrix_unit_makes_products_bound_by_arithmetic(trained: Trace) -> None:
    boundaries = steps_of(trained)
    slow, quick = (draw(step_context(trained, boundaries, machine=machine(rate))) for rate in (1e6, 1e15))
    assert {group.bound for group in slow.groups if group.flops} == {"compute"}
    assert "compute" not in {group.bound for group in quick.groups}
    assert slow.split[:, BOUNDS.index("compute")].min() > 0
    assert not quick.split[:, BOUNDS.index("compute")].any()
    assert slow.peak is not None
    assert slow.peak > 1e6, "the job itself reached more"
    assert slow.utilization == pytest.approx(slow.flops / slow.peak / (slow.wall / 1e9))
    assert 0 < (slow.utilization or 0.0) <= 1
