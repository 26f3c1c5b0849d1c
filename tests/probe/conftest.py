"""What holds for every test of the probe that runs in the process of the tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType

import pytest


@pytest.fixture(autouse=True)
def nobody_is_watched_afterwards() -> Iterator[None]:
    """A watch that a test leaves on would watch the tests behind it."""
    before = code_of_ranges()
    yield
    assert before in (code_of_ranges(), []), "this test has left a watch on: call Session.stop_listening()"


def code_of_ranges() -> list[CodeType]:
    """What runs where torch opens and closes a range, in which a watch has lines; [] without torch."""
    profiler = sys.modules.get("torch.autograd.profiler")
    ranges = getattr(profiler, "record_function", None)
    return [ranges.__enter__.__code__, ranges.__exit__.__code__] if ranges is not None else []
