"""Lines whose gradients hold the graph that holds them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from steptime.probe import backwards  # noqa: E402
from steptime.probe.memory.leaks import of_cycle  # noqa: E402

LEAK: dict[str, Any] = {"kind": "", "name": "", "site": None, "graphs": 1.0}


@pytest.fixture(autouse=True)
def seen() -> Iterator[None]:
    backwards.install()
    yield
    backwards.remove_if_idle()
    backwards.cycles.clear()


@pytest.mark.filterwarnings("ignore:Using backward")
def test_the_line_of_a_backward_that_creates_a_graph_is_named() -> None:
    points = torch.ones(3, requires_grad=True)
    points.pow(3).sum().backward(create_graph=True)
    found = of_cycle(LEAK)
    assert (found["kind"], found["name"]) == ("gradient of", "backward(create_graph=True)")
    assert found["site"]["text"] == "points.pow(3).sum().backward(create_graph=True)"
    assert of_cycle({**LEAK, "name": "losses"})["name"] == "losses"
    assert of_cycle({**LEAK, "graphs": 0.0})["name"] == ""


def test_other_passes_are_none() -> None:
    points = torch.ones(3, requires_grad=True)
    (first,) = torch.autograd.grad(points.pow(3).sum(), points, create_graph=True)
    first.sum().backward()
    assert of_cycle(LEAK) == LEAK
