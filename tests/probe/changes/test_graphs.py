"""A model captured by make_graphed_callables: what is refused with which words, and when a call runs as before."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from steptime.probe import calls
from steptime.probe.changes import graphs
from steptime.probe.changes.graphs import GraphedCallables, obstacle, place_of, signature, unfit


class Reading(torch.nn.Module):  # type: ignore[misc]
    """A model that waits for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x)
        return y * y.sum().item()


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 1))


def test_what_cannot_be_captured_is_refused_with_its_reason() -> None:
    compiled = torch.compile(network(), backend="eager")
    hooked = network()
    hooked[1].register_forward_hook(lambda *_: None)
    assert "compiles this model itself" in obstacle(compiled)
    assert obstacle(hooked).startswith("BatchNorm1d has hooks")
    assert "on no CUDA device" in obstacle(network())
    x = torch.ones(2, 4)
    assert unfit((x,), {}) == ""
    assert "mask= by name" in unfit((x,), {"mask": x})
    assert "an argument is a int" in unfit((x, 3), {})
    assert "without a tensor" in unfit((), {})
    for other in (torch.ones(3, 4), x.double(), torch.ones(4, 2).T, x.clone().requires_grad_()):
        assert signature((other,)) != signature((x,))
    assert signature((x.clone(),)) == signature((x,))
    applier = GraphedCallables("", {})
    applier.top_module(network())
    assert not applier.applied
    assert "on no CUDA device" in applier.detail


def test_a_wait_is_named_with_its_line() -> None:
    class Broken(Reading):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch.nn.functional.linear(x, torch.ones(3))  # raised in torch, called here
            return x

    with pytest.raises(RuntimeError) as raised:
        Broken()(torch.ones(2, 4))
    assert place_of(raised.value).startswith(" at test_graphs.py:")


class Captured(torch.nn.Module):  # type: ignore[misc]
    """Stands for a graph on a machine without a device: counts what was replayed."""

    replays = 0

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> Any:
        Captured.replays += 1
        return self.inner(x)


@pytest.fixture
def applied(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(graphs, "obstacle", lambda module: "")
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", lambda module, samples, **_: Captured(module))
    Captured.replays = 0
    applier, model = GraphedCallables("", {}), network()
    applier.top_module(model)
    yield applier, model
    calls._changed.clear()
    calls.remove_if_idle()


def test_calls_that_a_graph_cannot_stand_for_run_as_before(applied: Any) -> None:
    applier, model = applied
    x = torch.randn(6, 4)

    def step(steps: int, *batches: torch.Tensor) -> None:
        losses = [model(batch).square().mean() for batch in batches]
        torch.stack(losses).sum().backward()
        applier.after_backward()
        applier.boundary(steps)

    for number in range(1, 5):
        step(number, x)
    assert (applier.exercised, applier.detail, Captured.replays) == (True, "4 calls replayed", 4)
    step(5, torch.randn(5, 4))  # a last batch that is smaller
    step(6, x, x)
    with torch.no_grad():
        model(x)
    model.eval()
    model(x)
    model.train()
    assert Captured.replays == 5
    assert applier.detail == (
        "5 calls replayed; 1 call had inputs of another shape, dtype or layout, and ran as before; "
        "1 call came before the last one's backward, and ran as before"
    )
    assert applier.exercised
    model[0].weight.data = model[0].weight.data.clone()
    step(7, x)
    assert not applier.exercised
    assert applier.detail == "weights moved to other addresses in step 7, where the graph does not read them"
    step(8, x)
    assert Captured.replays == 6, "the call that found it out was the last"


def test_a_refusal_is_final_and_the_model_runs(applied: Any) -> None:
    applier, _ = applied
    model = Reading()
    applier.applied = False
    applier.top_module(model)
    x = torch.ones(2, 4)
    assert torch.equal(model(x=x), model.forward(x))
    assert "x= by name" in applier.detail
    model(x)
    applier.boundary(1)
    assert (Captured.replays, applier.exercised) == (0, False)


@pytest.mark.gpu
def test_a_captured_model_trains_the_same() -> None:
    """Losses and running statistics equal those without a graph; a line that reads the device is named."""
    x, found = torch.randn(10, 6, 4, device="cuda"), []
    for captured in (False, True):
        model = network().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        applier = GraphedCallables("", {})
        if captured:
            applier.top_module(model)
        losses = []
        for number, batch in enumerate((*x, x[0][:3]), 1):
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            applier.after_backward()
            optimizer.step()
            applier.boundary(number)
            losses.append(loss.detach().clone())
        found.append((torch.stack(losses), model[1].running_mean.clone()))
    assert applier.detail.startswith("10 calls replayed; 1 call had inputs of another shape")
    for plain, replayed in zip(*found, strict=True):
        assert torch.allclose(plain, replayed, rtol=1e-5)
    applier, reading = GraphedCallables("", {}), Reading().cuda()
    applier.top_module(reading)
    assert reading(x[0]).isfinite().all(), "it runs as before"
    assert "it cannot be captured at test_graphs.py:" in applier.detail
