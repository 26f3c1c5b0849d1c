"""Passes with the same parameters are parts of one step; and what is no change of them."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from steptime.probe.weights import MOST_UNCHANGED, Weights  # noqa: E402


def watched(**options: Any) -> tuple[Any, Weights]:
    net, weights = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 3)).to(**options), Weights()
    weights.add(net.parameters())
    return net, weights


def by_operator(net: Any) -> None:
    with torch.no_grad():
        for each in net.parameters():
            each -= 0.1


def by_data(net: Any) -> None:
    for each in net.parameters():
        each.data.sub_(0.1)


def by_another_tensor(net: Any) -> None:
    flat = torch.nn.utils.parameters_to_vector(net.parameters()).detach()
    torch.nn.utils.vector_to_parameters(flat + 0.1, net.parameters())


@pytest.mark.parametrize("update", [by_operator, by_data, by_another_tensor])
def test_each_kind_of_update_by_hand_is_a_change(update: Any) -> None:
    net, weights = watched()
    assert [weights.unchanged() for _ in range(3)] == [False, True, True]
    update(net)
    assert [weights.unchanged() for _ in range(3)] == [False, True, True]


def test_a_job_that_never_changes_them_is_no_training() -> None:
    _, weights = watched()
    found = [weights.unchanged() for _ in range(2 * MOST_UNCHANGED)]
    assert found.index(False, 1) <= MOST_UNCHANGED + 2
    assert not any(found[MOST_UNCHANGED + 2 :])


def test_a_model_that_stays_as_it_is_hides_no_change_of_another() -> None:
    net, weights = watched()
    teacher = torch.nn.Linear(2, 1)
    weights.add(teacher.parameters())
    found = []
    for _ in range(3):
        found.append(weights.unchanged())
        by_operator(net)
    assert not any(found)
    assert [weights.unchanged() for _ in range(2)] == [False, True]


def test_parameters_elsewhere_and_those_that_are_gone_are_not_looked_at() -> None:
    _, weights = watched(device="meta")
    assert not any(weights.unchanged() for _ in range(3))
    net, weights = watched()
    weights.unchanged()
    del net
    assert not any(weights.unchanged() for _ in range(3))
