"""Operators of real CPU training, profiled in the test: their work, what bounds them, recomputation and lines."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steptime.analysis.breakdown import breakdown_of
from steptime.analysis.categories import Category
from steptime.analysis.operators import OperatorUse, operator_totals, sources_of
from steptime.analysis.recompute import backward_again, is_second_order, recomputed
from steptime.analysis.step_context import StepContext, step_context
from steptime.analysis.trace_steps import steps_of
from steptime.arrays import few
from steptime.intervals import Intervals, contains, intersect, measure, subtract, union
from steptime.machine.machine import Machine, Rate
from steptime.quantities import Estimate
from steptime.trace.reader import read
from steptime.trace.table import ABSENT, Trace
from steptime.trace.vendors import LOADER, is_engine, matching

torch = pytest.importorskip("torch")

STEPS = 3
Profiled = Callable[..., Trace]

SCRIPT = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 6, 3, stride=2)
        self.inner = nn.Sequential(nn.Linear(6, 32), nn.GELU(), nn.Linear(32, 6))
        self.last = nn.Linear(6 * 49, 5)

    def forward(self, images, mode):
        hidden = self.second(torch.relu(self.first(images))).flatten(2).transpose(1, 2)
        hidden = hidden + attend(hidden)
        if mode in ("plain", "penalty", "kept"):
            hidden = self.inner(hidden)
        else:
            hidden = checkpoint(self.inner, hidden, use_reentrant=mode == "reentrant")
        return self.last(hidden.flatten(1))

def attend(hidden):
    weights = torch.bmm(hidden, hidden.transpose(1, 2)).softmax(-1)
    return torch.bmm(weights, hidden)

def step(net, images, targets, mode="plain"):
    loss = nn.functional.cross_entropy(net(images, mode), targets)
    if mode == "kept":
        loss.backward(retain_graph=True)
    if mode == "penalty":
        gradients = torch.autograd.grad(loss, list(net.parameters()), create_graph=True)
        loss = loss + sum(gradient.square().sum() for gradient in gradients)
    loss.backward()
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A training script as a user has it: a file of its own."""
    path = tmp_path_factory.mktemp("job") / "train_small.py"
    path.write_text(SCRIPT)
    specification = importlib.util.spec_from_file_location("train_small", path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture
def profiled(job: Any, tmp_path: Path) -> Profiled:
    """Profiles three steps, each with a loader, and reads the trace."""

    def run(mode: str = "plain", **options: Any) -> Trace:
        torch.manual_seed(0)
        net = job.Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
        data = torch.utils.data.TensorDataset(torch.randn(40, 3, 16, 16), torch.randint(0, 5, (40,)))
        batches = iter(torch.utils.data.DataLoader(data, batch_size=8))
        schedule = torch.profiler.schedule(wait=0, warmup=1, active=STEPS, repeat=1)
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(
            activities=activities, record_shapes=True, schedule=schedule, **options
        ) as profiler:
            for images, targets in batches:
                optimizer.zero_grad()
                job.step(net, images, targets, mode)
                optimizer.step()
                profiler.step()
                if profiler.step_num > STEPS:
                    break
        path = tmp_path / "trace.json.gz"
        profiler.export_chrome_trace(str(path))
        return read(path)

    return run


def machine(matrix: float = 1e11, copy: float = 1e10, dispatch: float = 2000.0) -> Machine:
    def exactly(value: float, unit: str) -> Estimate:
        return Estimate(value, value, value, 1, unit)

    rates = (Rate("float32", exactly(matrix, "FLOP/s")),)
    return Machine("cpu", "test", matrix=rates, copy=exactly(copy, "B/s"), dispatch=exactly(dispatch, "ns"))


def by_name(totals: tuple[OperatorUse, ...]) -> dict[str, OperatorUse]:
    return {each.name: each for each in totals}


def test_flops_of_a_step_are_those_of_torchs_flop_counter(job: Any, profiled: Profiled) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        job.step(job.Net(), torch.randn(8, 3, 16, 16), torch.randint(0, 5, (8,)))
    trace = profiled()
    found = [each.flops or 0 for each in operator_totals(step_context(trace, steps_of(trace), machine=machine()), {})]
    assert sum(found) == counter.get_total_flops()


def test_flops_do_not_depend_on_when_a_gradient_is_wanted(profiled: Profiled) -> None:
    trace = profiled()
    found = by_name(operator_totals(step_context(trace, steps_of(trace), machine=machine()), {}))
    backward, forward = found["aten::convolution_backward"], found["aten::mkldnn_convolution"]
    first, second = 2 * 8 * 16 * 16 * 8 * 3 * 9, 2 * 8 * 7 * 7 * 6 * 8 * 9
    assert forward.flops == first + second
    assert backward.flops == first + 2 * second
    assert (forward.phase, backward.phase) == ("forward", "backward")
    assert forward.calls == backward.calls == 2


def test_the_breakdown_of_a_real_step_holds_loader_compute_and_launch(profiled: Profiled) -> None:
    trace = profiled()
    boundaries = steps_of(trace)
    breakdown = breakdown_of(step_context(trace, boundaries, machine=machine()))
    loader = matching(trace, LOADER.match) & contains(union(boundaries[:, 0], boundaries[:, 1]), trace.events.start)
    assert len(breakdown.wall) == STEPS
    assert breakdown.entries[:, Category.INPUT].sum() == trace.events.duration[loader].sum()
    assert (breakdown.entries[:, [Category.COMPUTE, Category.OVERHEAD]] > 0).all()
    assert not breakdown.entries[
        :, [Category.COMMUNICATION, Category.SYNC, Category.COMPILE, Category.UNEXPLAINED]
    ].any()


def test_time_of_operators_is_within_the_time_of_computing_and_launching(profiled: Profiled) -> None:
    trace = profiled()
    for boundary in steps_of(trace):  # each alone: of several, the longest one of each operator does not count
        steps = step_context(trace, boundary[None], machine=machine())
        entries = breakdown_of(steps).entries
        spent = sum(each.duration for each in operator_totals(steps, {}))
        inside = entries[:, [Category.COMPUTE, Category.OVERHEAD, Category.INPUT]].sum()
        assert entries[:, Category.COMPUTE].sum() <= spent <= inside


@pytest.mark.parametrize("mode", ["reentrant", "not reentrant"])
def test_checkpointing_is_seen_as_forward_operators_in_backward(profiled: Profiled, mode: str) -> None:
    trace = profiled(mode)
    again = recomputed(step_context(trace, steps_of(trace)))
    backward = named(trace, lambda name: name.startswith("autograd::engine::evaluate_function"))
    forward = intersect(backward, named(trace, lambda name: name in {"aten::linear", "aten::gelu"}))
    products = named(trace, lambda name: name in {"aten::convolution_backward", "aten::mm"})
    derivative = subtract(intersect(backward, products), forward)  # some layers are products, too
    boundaries = steps_of(trace).T
    assert len(again) == STEPS
    assert (again > measure(forward, *boundaries)).all(), "the Python around them, too"
    assert (again < measure(subtract(backward, derivative), *boundaries)).all(), "and nothing of the derivative"


def named(trace: Trace, wanted: Callable[[str], bool]) -> Intervals:
    chosen = matching(trace, wanted)
    return union(trace.events.start[chosen], trace.events.end[chosen])


@pytest.mark.parametrize("mode", ["plain", "penalty"])
def test_a_backward_that_recomputes_nothing_is_not_blamed(profiled: Profiled, mode: str) -> None:
    trace = profiled(mode)
    assert not recomputed(step_context(trace, steps_of(trace))).any()


def steps_in(trace: Trace) -> StepContext:
    return step_context(trace, steps_of(trace))


def test_operators_lead_to_the_users_function_also_from_backward(profiled: Profiled) -> None:
    found = sources_of(steps_in(profiled(with_stack=True)))
    assert found["aten::mkldnn_convolution", True].function == "forward"
    assert found["aten::convolution_backward", True].function == "forward"
    assert found["aten::bmm", True].function == "attend"
    assert found["aten::nll_loss_backward", True].function == "step"
    assert {source.file.rsplit("/", 1)[-1] for source in found.values()} <= {"train_small.py", Path(__file__).name}


def test_a_graph_that_is_kept_is_gone_through_again(profiled: Profiled) -> None:
    """Not so where gradients are wanted of gradients, nor where checkpointing runs forward again."""
    kept, spent = steps_in(profiled("kept")), {}
    for mode in ("plain", "penalty", "reentrant", "not reentrant"):
        spent[mode] = backward_again(steps_in(profiled(mode))).sum()
    assert set(spent.values()) == {0}, spent
    frames = matching(kept.trace, is_engine)
    whole = measure(union(kept.trace.events.start[frames], kept.trace.events.end[frames]), *kept.boundaries.T)
    again = backward_again(kept)
    assert (again > 0).all()
    assert (again < whole).all()


def test_what_backward_has_nothing_to_do_with_is_reported_apart(profiled: Profiled, job: Any, monkeypatch: Any) -> None:
    """A constant that is made anew, and one that is made without gradients: the second was meant."""

    def forward(self: Any, images: Any, mode: str) -> Any:
        adjacency = torch.ones(64, 64)
        scale = torch.mm(adjacency, adjacency).mean()
        with torch.no_grad():
            scale = scale + torch.bmm(adjacency[None], adjacency[None]).mean()
        return usual(self, images * scale, mode)

    usual = job.Net.forward
    monkeypatch.setattr(job.Net, "forward", forward)
    totals = operator_totals(steps_in(profiled()), {})
    assert {each.name for each in totals if not each.differentiated} >= {"aten::mm", "aten::mul"}
    assert not any(each.unreached for each in totals), "neither depends on what is trained"
    assert {each.differentiated for each in totals if each.name in ("aten::bmm", "aten::mkldnn_convolution")} == {True}
    assert all(
        each.differentiated
        for each in operator_totals(steps_in(profiled("reentrant")), {})
        if each.name == "aten::gelu"
    )


def test_a_second_forward_of_the_model_has_no_backward(profiled: Profiled, job: Any, monkeypatch: Any) -> None:
    """For a metric, with gradients on: then half of what forward records never comes back."""

    def forward(self: Any, images: Any, mode: str) -> Any:
        return self.last(self.second(torch.relu(self.first(images))).flatten(1))

    def step(net: Any, images: Any, targets: Any, mode: str) -> None:
        torch.nn.functional.cross_entropy(net(images, mode), targets).backward()
        (net(images, mode).argmax(1) == targets).float().mean()

    monkeypatch.setattr(job.Net, "forward", forward)
    monkeypatch.setattr(job, "step", step)
    totals = operator_totals(steps_in(profiled()), {})
    found = {(each.name, each.differentiated): each.calls for each in totals if each.phase == "forward"}
    assert found["aten::addmm", True] == found["aten::addmm", False] == 1
    assert found["aten::mkldnn_convolution", True] == found["aten::mkldnn_convolution", False] == 2
    left = by_name(tuple(each for each in totals if not each.differentiated))
    for name in ("aten::addmm", "aten::mkldnn_convolution"):
        assert left[name].unreached == pytest.approx(left[name].duration), "it needs a gradient"
    assert not left["aten::argmax"].unreached

    def with_values(net: Any, images: Any, targets: Any, mode: str) -> None:
        loss = torch.nn.functional.cross_entropy(net(images, mode), targets)
        (loss + (net(images, mode).detach() - images.mean()).square().mean()).backward()

    monkeypatch.setattr(job, "step", with_values)
    totals = operator_totals(steps_in(profiled()), {})
    products = {each.differentiated for each in totals if each.name in ("aten::addmm", "aten::mkldnn_convolution")}
    assert products == {True}, "the values of the second one are used"


def test_the_forward_of_one_batch_alongside_the_backward_of_another_tells_nothing_apart(
    profiled: Profiled, job: Any, monkeypatch: Any
) -> None:
    usual = job.Net.forward

    def forward(self: Any, images: Any, mode: str) -> Any:
        ones = images.new_ones(9, 9)
        return usual(self, images * torch.mm(ones, ones).mean(), mode)

    monkeypatch.setattr(job.Net, "forward", forward)
    trace = profiled()
    assert not all(each.differentiated for each in operator_totals(steps_in(trace), {}))
    frames, number = matching(trace, is_engine), trace.events.sequence[:].astype(np.int64)
    others = replace(trace.events, sequence=few(np.where(frames, number + 10_000, number), ABSENT))
    assert all(each.differentiated for each in operator_totals(steps_in(replace(trace, events=others)), {}))


def test_what_recurrent_layers_of_torch_do_is_reported_apart(profiled: Profiled, job: Any, monkeypatch: Any) -> None:
    """A packed batch is sliced inside of aten::gru for each time step; two slices are the forward's own."""
    gru = torch.nn.GRU(3, 3, batch_first=True)

    def forward(self: Any, images: Any, mode: str) -> Any:
        rows = images.mean(3).transpose(1, 2)
        packed = torch.nn.utils.rnn.pack_padded_sequence(rows, torch.arange(9, 1, -1), batch_first=True)
        last = gru(packed)[1][0]
        return usual(self, images + (last[:, 1:2] + last[:, 2:3])[..., None, None], mode)

    usual = job.Net.forward
    monkeypatch.setattr(job.Net, "forward", forward)
    totals = by_name(operator_totals(steps_in(profiled()), {}))
    slices = totals["aten::slice_backward"]
    assert slices.calls - slices.recurrent == 2
    assert slices.recurrent >= 9
    assert totals["aten::tanh_"].recurrent == totals["aten::tanh_"].calls > 0
    assert totals["aten::gelu"].recurrent == 0


def test_without_stacks_no_line_is_guessed(profiled: Profiled) -> None:
    assert sources_of(steps_in(profiled())) == {}


def test_totals_carry_the_lines_that_a_trace_with_stacks_gave(profiled: Profiled) -> None:
    trace = profiled(with_stack=True)
    steps = step_context(trace, steps_of(trace), machine=machine())
    found = by_name(operator_totals(steps, sources_of(steps)))
    source = found["aten::bmm"].source
    assert source is not None
    assert source.line == SCRIPT.splitlines().index("def attend(hidden):") + 1


@pytest.mark.parametrize("mode", ["plain", "reentrant", "other", "kept", "penalty"])
def test_gradients_of_gradients_are_told_from_checkpoints_and_kept_graphs(profiled: Profiled, mode: str) -> None:
    assert is_second_order(steps_in(profiled(mode))) is (mode == "penalty")
