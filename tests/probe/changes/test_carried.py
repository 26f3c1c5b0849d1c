"""What is carried from step to step is found whoever holds it, and what cannot be read is left alone."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")


def test_an_average_kept_by_hand_is_seen_to_move() -> None:
    from steptime.probe.changes.carried import CarriedState, LivingObjects

    weight = torch.nn.Parameter(torch.randn(37, 11))
    kept = {"weight": weight.detach().clone()}
    state = CarriedState()
    state.look({"weight": weight}, LivingObjects())
    assert state.moving({"weight": weight}) == 0
    with torch.no_grad():
        weight += 1
    kept["weight"].data.lerp_(weight.detach(), 0.5)  # which no version of the tensor shows
    assert state.moving({"weight": weight}) == 37 * 11
    kept["weight"] = kept["weight"] + 1  # a new one
    assert state.moving({"weight": weight}) == 37 * 11
    assert [shape for shape, _ in state.moved({"weight": weight})["carried"]] == ["37x11"]


def test_what_a_sharded_model_has_freed_and_vmap_has_left_is_not_read() -> None:
    from steptime.probe.changes.carried import CarriedState, LivingObjects

    weight = torch.nn.Parameter(torch.randn(31, 13))
    freed = torch.randn(31, 13)
    freed.untyped_storage().resize_(0)
    left = []

    def keep(each: Any) -> Any:
        left.append(each)
        return each

    torch.func.vmap(keep)(torch.randn(2, 31, 13))
    state = CarriedState()
    state.look({"weight": weight}, LivingObjects())
    assert state.moving({"weight": weight}) == 0
    assert len(left) == 1
