"""How far an update moves the weights: nothing of the job's is kept for it."""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")


def _name(own: str, _: object) -> str:
    return own


def test_a_model_that_the_job_deletes_is_gone_and_the_others_are_still_compared() -> None:
    from steptime.probe.numerics.monitor import UpdateObserver

    seen: list[tuple[str, Any]] = []
    observer = UpdateObserver(lambda name, ratio: seen.append((name, ratio)))
    deleted, kept = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
    for module, own in ((deleted, "deleted"), (kept, "kept")):
        observer.top_module(module, partial(_name, own))
    weight = weakref.ref(deleted.weight)
    observer.before()
    observer.after()
    assert [name for name, _ in seen] == ["deleted.weight", "kept.weight"]
    del deleted, module
    assert weight() is None
    observer.before()
    with torch.no_grad():
        kept.weight.mul_(2)
    observer.after()
    assert [name for name, _ in seen[2:]] == ["kept.weight"]
    assert seen[-1][1].item() == pytest.approx(1)
