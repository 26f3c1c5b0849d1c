"""Lines that start many backward passes in a step, and whether these share a graph."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from steptime.probe.pass_sites import LOOKED, MANY, PassSites, bottom, leaves  # noqa: E402


def network() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def observed() -> tuple[PassSites, list[dict[str, Any]]]:
    reported = list[dict[str, Any]]()
    return PassSites(lambda fact, **fields: reported.append({"fact": fact, **fields})), reported


def test_results_of_one_forward_have_one_bottom_and_those_of_two_have_two() -> None:
    net, rows = network(), torch.randn(5, 4)
    results = net(rows)
    assert bottom([results[0, 0]]) == bottom([results[4].sum()]) >= 0
    assert bottom([results[0, 0]]) != bottom([net(rows)[0, 0]])
    assert bottom([torch.zeros(3)]) == -1


@pytest.mark.parametrize("again", [False, True])
def test_a_line_with_many_passes_is_reported_once(again: bool) -> None:
    net, rows, (passes, reported) = network(), torch.randn(5, 4), observed()
    for _ in range(2):
        result = net(rows)
        for number in range(MANY + LOOKED):
            if again:
                result = net(rows)
            passes.starts([result[number % 5, number % 3]], number)
        passes.boundary(1)
    (found,) = reported
    assert (found["fact"], found["shared"]) == ("passes", not again)
    assert MANY <= found["start"] < MANY + LOOKED
    assert found["site"]["text"] == "passes.starts([result[number % 5, number % 3]], number)"


def products(net: Any, step: int) -> Any:
    result = net(torch.ones(5, 4))
    return lambda vector: (result.flatten() @ vector, vector + 1)


def same_result(net: Any, step: int) -> Any:
    result = net(torch.ones(5, 4)).sum()
    return lambda vector: (result, vector)


def curvature(net: Any, step: int) -> Any:
    gradients = torch.autograd.grad(net(torch.ones(5, 4)).sum(), net.parameters(), create_graph=True)
    return lambda vector: (gradients[0].flatten()[vector.numel() % 4], vector)


@pytest.mark.parametrize("make", [products, same_result, curvature])
def test_passes_that_may_depend_on_each_other_are_not_taken_at_once(make: Any) -> None:
    net, (passes, reported) = network(), observed()
    one_pass, vector = make(net, 0), torch.ones(15)
    for number in range(MANY + LOOKED):
        loss, vector = one_pass(vector)
        passes.starts([loss], number)
    assert [each["shared"] for each in reported] == [False]


def test_few_passes_and_those_of_several_lines_are_not_reported() -> None:
    result, (passes, reported) = network()(torch.randn(5, 4)), observed()
    for _ in range(3):
        for number in range(MANY):
            passes.starts([result[0, 0]], number)
        passes.boundary(1)
    for number in range(MANY):
        passes.starts([result[0, 0]], number)
        passes.starts([result[0, 1]], number)
    assert not reported


def test_leaves_of_a_pass_are_what_it_computes_gradients_of() -> None:
    net, other = network(), torch.ones(3, requires_grad=True)
    found = leaves([net(torch.randn(5, 4)).sum() * other.sum()])
    assert {id(each) for each in found} == {id(each) for each in (*net.parameters(), other)}
    assert leaves([torch.zeros(3)]) == []
