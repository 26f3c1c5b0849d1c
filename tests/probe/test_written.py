"""Models whose weights stay as they are, and copies that follow a trained model now and then."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from steptime.probe.weights import FIRST, MOST_MODELS, WrittenModels  # noqa: E402


def test_a_copy_that_follows_now_and_then_is_told_once_and_a_frozen_model_never() -> None:
    online: Any = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 3))
    target, frozen = copy.deepcopy(online), copy.deepcopy(online)
    found: list[int] = []
    models = WrittenModels(found.append)
    for number in range(1, 9):
        if number % 3 == 0:
            for source, copied in zip(online.parameters(), target.parameters(), strict=True):
                source.data += 0.1
                copied.data.copy_(source.data)
        models.look(number * 100 * FIRST, [(1, target), (2, frozen), (3, None)])
    assert found == [1]


def test_looks_lie_further_and_further_apart_and_at_few_models() -> None:
    looked: list[int] = []

    def models_at(time: int) -> Iterator[tuple[int, Any]]:
        looked.append(time)
        yield from enumerate(torch.nn.Linear(1, 1) for _ in range(MOST_MODELS + 5))

    found: list[int] = []
    models = WrittenModels(found.append)
    for time in range(0, 100 * FIRST, FIRST // 10):
        models.look(time, models_at(time))
    distances = [after - before for before, after in itertools.pairwise(looked)]
    assert distances == sorted(distances)
    assert 5 < len(looked) < 15
    assert sorted(found) == list(range(MOST_MODELS))  # each look is at new weights


def test_what_cannot_be_read_is_not_told() -> None:
    found: list[int] = []
    models = WrittenModels(found.append)
    for time in range(3):
        models.look(time * 100 * FIRST, [(1, torch.nn.Linear(2, 2, device="meta")), (2, torch.nn.ReLU())])
    assert not found
