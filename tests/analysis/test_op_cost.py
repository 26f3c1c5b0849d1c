"""What binds an operator, what work its arguments mean, whose files are the user's: without torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from published import trace_of

from steptime.advice.kernels import elements, shapes_of
from steptime.analysis.op_cost.call import OpCost
from steptime.analysis.op_cost.op_cost import bound_of, work_of
from steptime.analysis.operators import operator_totals
from steptime.analysis.step_context import step_context
from steptime.analysis.trace_steps import device_step_bounds, steps_of
from steptime.analysis.traffic import collectives_of, tensor_bytes
from steptime.intervals import contains, union
from steptime.machine.machine import Machine, Rate
from steptime.quantities import Estimate
from steptime.trace.links import is_user_file
from steptime.trace.table import EventKind


def machine(matrix: float = 1e11, copy: float = 1e10, dispatch: float = 2000.0) -> Machine:
    def exactly(value: float, unit: str) -> Estimate:
        return Estimate(value, value, value, 1, unit)

    rates = (Rate("float32", exactly(matrix, "FLOP/s")),)
    return Machine("cpu", "test", matrix=rates, copy=exactly(copy, "B/s"), dispatch=exactly(dispatch, "ns"))


@pytest.mark.parametrize(
    ("file", "theirs"),
    [
        ("train.py", True),
        ("/home/ann/project/model.py", True),
        ("my_models/net.py", True),
        ("torch/nn/modules/linear.py", False),
        ("/usr/lib/python3.11/site-packages/foo/bar.py", False),
        ("/home/ann/steptime/src/steptime/probe/ranges.py", False),
        ("/home/ann/steptime/examples/slow_input.py", True),
        ("threading.py", False),
        ("/tmp/torch_geometric.nn.conv.gin_conv_GINConv_propagate_o3ij4bn7.py", False),
        ("/tmp/__main___MyConv_propagate_x1_4bn7z.py", False),
        ("/tmp/train_baseline.py", True),
        ("/home/ann/train.v2_baseline.py", True),
        ("<frozen os>", False),
        ("", False),
    ],
)
def test_files_of_libraries_are_not_the_users(file: str, theirs: bool) -> None:
    assert is_user_file(file) is theirs


@pytest.mark.parametrize(
    ("work", "bound"),
    [
        (OpCost(1e9, 1e6), "compute"),
        (OpCost(1e6, 1e8), "memory"),
        (OpCost(0.0, 1e8), "memory"),
        (OpCost(1e4, 1e3), "latency"),
        (OpCost(1e9, 1e6, "bfloat16"), "unmodelled"),
        (None, "unmodelled"),
    ],
)
def test_the_peaks_decide_what_binds(work: OpCost | None, bound: str) -> None:
    assert bound_of(work, machine()) == bound
    assert bound_of(work, None) == "unmodelled"


@pytest.mark.parametrize(
    ("name", "shapes", "types", "inputs", "flops", "moved"),
    [
        ("aten::mm", "[[4,5],[5,6]]", '["float","float"]', "", 240, 4 * (20 + 30 + 24)),
        ("aten::addmm", "[[6],[4,5],[5,6]]", '["c10::Half","c10::Half","c10::Half"]', "", 240, 2 * (6 + 20 + 30 + 24)),
        ("aten::linear", "[[2,4,5],[6,5],[6]]", '["float","float","float"]', "", 480, 4 * (40 + 30 + 6 + 48)),
        ("aten::mul_", "[[10,10],[]]", '["float","Scalar"]', "", 0, 800),
        ("aten::copy_", "[[100],[100],[]]", '["float","c10::Half","Scalar"]', "", 0, 600),
        ("aten::zero_", "[[100]]", '["double"]', "", 0, 800),
        ("aten::_foreach_add_", "[[[5],[3]],[[5],[3]],[]]", '["TensorList","TensorList","Scalar"]', "", 0, 96),
        ("aten::_fused_sgd_", "[[[8]],[[8]],[[8]]]", '["TensorList","TensorList","TensorList"]', "", 0, 160),
        ("aten::embedding_dense_backward", "[[3,8],[3],[]]", '["float","long int","Scalar"]', '["","","50"]', 0, 1912),
        ("aten::cudnn_convolution", "[[2,3,8,8],[4,3,3,3],[],[],[]]", '["float","float","ScalarList","ScalarList",""]',
         '["","","[1, 1]","[2, 2]","[1, 1]"]', 2 * 2 * 16 * 4 * 27, 4 * (384 + 108 + 128)),
    ],
)  # fmt: skip
def test_work_of_a_call_follows_its_shapes(
    name: str, shapes: str, types: str, inputs: str, flops: int, moved: int
) -> None:
    found = work_of(name, shapes, types, inputs)
    assert found is not None
    assert (found.flops, found.bytes) == (flops, moved)


@pytest.mark.parametrize("shapes", ["", "[]", "[[]]", '[["x"]]', "[[3]]", "nonsense", "{}"])
def test_arguments_that_do_not_fit_a_model_give_none(shapes: str) -> None:
    assert work_of("aten::mm", shapes, '["float", "float"]', "") is None
    assert work_of("my::operator", shapes, "", "") is None


@pytest.mark.parametrize(
    "shapes",
    [
        f"[[{'9' * 30},{'9' * 30}],[3,3]]",
        f"[[{'9' * 5000},2],[2,3]]",
        "[[2.5,3],[3,4]]",
        "[[-2,3],[3,4]]",
        "[[[2],3],[3,4]]",
        "[" * 100_000 + "]" * 100_000,
    ],
)
@pytest.mark.parametrize("types", ['["float", "float"]', '[[1, "x"], 3]', "5", "[" * 100_000 + "]" * 100_000])
def test_what_no_tensor_can_have_is_not_known(shapes: str, types: str) -> None:
    assert work_of("aten::mm", shapes, types, "") is None
    assert tensor_bytes(shapes, types) is None
    assert all(0 <= elements(shape) <= 1 << 50 for shape in shapes_of(shapes))


def test_on_an_accelerator_time_is_that_of_the_kernels(shared_data: Path) -> None:
    trace = trace_of(shared_data / "kineto/resnet50_workers0.pt.trace.json.gz")
    boundaries = steps_of(trace)
    totals = operator_totals(step_context(trace, boundaries), {})
    found = {(each.name, each.phase, each.differentiated): each for each in totals}
    assert len(found) == len(totals)
    device = np.isin(trace.events.event_kind, (EventKind.KERNEL, EventKind.MEMCPY, EventKind.MEMSET))
    within = device & contains(union(*device_step_bounds(trace, boundaries).T), trace.events.start)
    spent = sum(each.duration for each in found.values()) * len(boundaries)
    assert spent == pytest.approx(trace.events.duration[within].sum(), rel=1e-9)
    assert found["aten::cudnn_convolution", "forward", True].calls == 53
    assert found["aten::mm", "backward", True].flops == 2 * (32 * 1000 * 2048) * 2


def test_bytes_of_collectives_are_those_of_their_shapes(shared_data: Path) -> None:
    """Bytes, longs and ints that are exchanged between all, and signed chars that are gathered, in two steps."""
    trace = trace_of(shared_data / "hta/trace_filter/sampled_rank-0.json.gz")
    found = collectives_of(step_context(trace, steps_of(trace)))
    totals = {each.name: each.bytes.sum() for each in found if each.bytes is not None}
    assert totals["all_to_all"] == 2 * 419_430_400 + 384 * 8 + 2_846_720 * 4
    assert totals["all_gather"] == 2 * 16_777_216
