"""Containers that become longer with every step: by name, with their line; others are not told."""

from __future__ import annotations

import gc
import sys
from collections import deque
from functools import lru_cache
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from steptime.probe.memory.containers import growing, lengths  # noqa: E402

SEEN: list[int] = []


class Buffer:
    def __init__(self) -> None:
        self.items: deque[int] = deque(maxlen=1000)
        self.settings = {"size": 3}

    def add(self, step: int) -> None:
        self.items.extend(range(step, step + 5))


def looked(step_of_job: Any) -> list[dict[str, Any]]:
    """What three looks four steps apart find."""
    looks, steps = [], []
    for step in range(13):
        step_of_job(step)
        if step % 4 == 0 and step:
            looks.append(lengths(sys._getframe()))
            steps.append(step)
    return growing(looks, steps, sys._getframe())


def test_an_attribute_and_a_variable_of_a_module_are_named_with_their_lines() -> None:
    def train() -> list[dict[str, Any]]:
        buffer, sums = Buffer(), {"loss": 0.0}

        def step_of_job(step: int) -> None:
            buffer.add(step)
            SEEN.append(step)
            sums["loss"] += 1.0

        return looked(step_of_job)

    SEEN.clear()
    first, second = train()
    assert (first["kind"], first["name"], first["entries"]) == ("deque", "Buffer.items", 5)
    assert "self.items.extend" in first["site"]["text"]
    assert (second["kind"], second["name"], second["entries"]) == ("list", "SEEN", 1)


class Trainer:
    def __init__(self) -> None:
        self.logger = Buffer()
        self.name = "a trainer"


def test_an_attribute_of_an_attribute_is_found_with_its_limit() -> None:
    def train() -> list[dict[str, Any]]:
        trainer = Trainer()
        return looked(lambda step: trainer.logger.add(step))

    (found,) = train()
    assert (found["name"], found["entries"], found["most"]) == ("Buffer.items", 5, 1000)


def test_results_that_a_cache_keeps_of_a_function_are_named_with_its_limit() -> None:
    def train(most: int | None) -> list[dict[str, Any]]:
        @lru_cache(maxsize=most)
        def offsets(count: int) -> int:
            return count

        return looked(lambda step: offsets(step))

    (found,) = train(None)
    assert (found["kind"], found["name"], found["entries"], found["most"]) == ("cache", "offsets", 1, None)
    assert found["site"]["text"] == "@lru_cache(maxsize=most)"
    assert train(6) == []


def test_what_is_emptied_or_replaced_does_not_grow() -> None:
    def train() -> list[dict[str, Any]]:
        kept = [0]

        def step_of_job(step: int) -> None:
            nonlocal kept
            kept = [step]
            SEEN.append(step)
            if step % 6 == 5:
                SEEN.clear()

        return looked(step_of_job)

    SEEN.clear()
    assert train() == []


def test_no_container_is_kept_alive() -> None:
    def train() -> int:
        items = [object()]
        before = sys.getrefcount(items)
        lengths(sys._getframe())
        gc.collect()
        return sys.getrefcount(items) - before

    assert train() == 0


def test_a_proxy_that_describes_itself_runs_nothing() -> None:
    class Proxy:
        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            raise RuntimeError("outside of its context")

    def train() -> dict[tuple[str, int], int]:
        proxy = Proxy()
        assert proxy is not None
        return lengths(sys._getframe())

    assert all(not name.startswith("Proxy") for name, _ in train())


def test_hooks_that_pile_up_are_named_by_the_class_of_their_module() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ModuleList([torch.nn.Tanh()]))
    handle = net[0].register_forward_hook(lambda *_: None)
    found = looked(lambda step: net[1][0].register_forward_pre_hook(lambda *_: None))
    handle.remove()
    (hooks,) = [each for each in found if each["name"].endswith("hooks")]
    assert (hooks["name"], hooks["entries"]) == ("Tanh._forward_pre_hooks", 1.0)
