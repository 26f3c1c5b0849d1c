"""Whether a loss is divided is read from the names of its graph, once, and without a value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy, mse_loss

from steptime.probe import backwards
from steptime.probe.losses import LOOKS, LossObserver

Loss = Callable[[torch.Tensor], torch.Tensor]
TARGET = torch.zeros(4, dtype=torch.long)


class Told:
    """Keeps what is recorded."""

    def __init__(self) -> None:
        self.recorder: Any = self
        self.found: list[bool] = []

    def fact(self, fact: str, *, divided: bool) -> None:
        assert fact == "loss"
        self.found.append(divided)

    def failed(self, error: Exception) -> None:
        raise AssertionError(str(error))


def reported(loss: Loss, passes: int = LOOKS) -> list[bool]:
    listener = Told()
    observer = LossObserver(listener)
    backwards.install()
    observer.install()
    try:
        for _ in range(passes):
            loss(torch.randn(4, 3, requires_grad=True)).backward()
    finally:
        observer.remove()
        backwards.remove_if_idle()
    return listener.found


@pytest.mark.parametrize(
    ("loss", "divided"),
    [
        (lambda x: cross_entropy(x, TARGET), [False]),
        (lambda x: mse_loss(x, torch.zeros(4, 3)) + x.abs().mean(), [False]),
        (lambda x: cross_entropy(x, TARGET) / 4, [True]),
        (lambda x: 0.25 * cross_entropy(x, TARGET), [True]),
        (lambda x: cross_entropy(x, TARGET) + 0.1 * x.square().mean(), [True]),
        (lambda x: x.logsumexp((0, 1)), []),
    ],
)
def test_a_quotient_is_told_from_a_mean_and_what_is_not_known_from_both(loss: Loss, divided: list[bool]) -> None:
    assert reported(loss) == divided


def test_it_stops_looking_once_it_knows() -> None:
    assert reported(lambda x: cross_entropy(x, TARGET), 3 * LOOKS) == [False]
    assert reported(lambda x: cross_entropy(x, TARGET), LOOKS - 1) == [], "too few to say it of all"


def test_losses_of_several_lines_are_no_micro_batches_of_one() -> None:
    listener = Told()
    observer = LossObserver(listener)
    backwards.install()
    observer.install()
    try:
        for _ in range(LOOKS):
            cross_entropy(torch.randn(4, 3, requires_grad=True), TARGET).backward()
            torch.randn(4, requires_grad=True).mean().backward()
    finally:
        observer.remove()
        backwards.remove_if_idle()
    assert listener.found == []
