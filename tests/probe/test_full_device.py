"""What is written down when a CUDA device runs full, with an allocator of our own in the place of CUDA's."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from memory.allocator import FORWARD, Allocator

pytest.importorskip("torch")
import torch

from steptime.memory.lives import histories
from steptime.memory.snapshot import read_snapshot
from steptime.memory.triage import triage
from steptime.probe.memory import exhausted


@pytest.fixture
def attached(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The observers that were attached."""
    observers: list[Any] = []
    for name, value in (("path", ""), ("process", 0), ("spent", 0)):
        monkeypatch.setattr(exhausted._FullDeviceState, name, value)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch._C, "_cuda_attach_out_of_memory_observer", observers.append, raising=False)
    return observers


def full(*, history: bool) -> Allocator:
    """Five MiB in one-MiB segments, every second of which is free again."""
    allocator = Allocator(segment=1 << 20, recording=history)
    blocks = [allocator.malloc(200_000, FORWARD) for _ in range(20)]
    for block in blocks[::2]:
        allocator.free(block, FORWARD)
    return allocator


def test_the_state_is_written_with_the_request_and_its_line(
    attached: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocator = full(history=False)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", allocator.snapshot)
    exhausted.observe_device(str(tmp_path))
    (observer,) = attached
    line = sys._getframe().f_lineno + 1
    observer(0, 900_000, 5 << 20, 1000)
    found = triage(histories(read_snapshot(tmp_path / exhausted.FILE))[0], capacity=16 << 20)
    assert found.moment == "when memory ran out"
    assert found.failure is not None
    assert (found.failure.asked, found.failure.driver_free) == (900_000, 1000)
    assert found.failure.obstacle.startswith("fragmentation")
    assert found.failure.others == (16 << 20) - len(allocator.segments) * (1 << 20) - 1000
    assert found.failure.source is not None
    assert Path(found.failure.source.file).name == Path(__file__).name
    assert found.failure.source.line == line
    assert found.breakdown.live == 10 * 200_000


def test_where_the_allocator_has_written_the_request_itself_it_stands_there_once(
    attached: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocator = full(history=True)
    allocator.fail(900_000, FORWARD, free=1000)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", allocator.snapshot)
    exhausted.observe_device(str(tmp_path))
    attached[0](0, 900_000, 5 << 20, 1000)
    (history,) = histories(read_snapshot(tmp_path / exhausted.FILE))
    assert len(history.failures) == 1


def test_one_observer_serves_a_process_and_follows_its_folder(
    attached: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", full(history=False).snapshot)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    exhausted.observe_device(str(tmp_path / "a"))
    exhausted.observe_device(str(tmp_path / "b"))
    (observer,) = attached
    observer(0, 1, 1, 1)
    assert [path.parent.name for path in tmp_path.glob("*/*")] == ["b"]


def test_nothing_is_raised_into_the_job_and_a_failure_is_the_last_try(
    attached: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def broken() -> dict[str, Any]:
        calls.append(1)
        raise RuntimeError("no snapshot")

    monkeypatch.setattr(torch.cuda.memory, "_snapshot", broken)
    exhausted.observe_device(str(tmp_path))
    attached[0](0, 1, 1, 1)
    attached[0](0, 1, 1, 1)
    assert calls == [1]
    assert list(tmp_path.iterdir()) == []


def test_a_job_that_runs_out_often_is_not_held_up_for_ever(
    attached: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", full(history=False).snapshot)
    monkeypatch.setattr(exhausted._FullDeviceState, "spent", exhausted.MOST_NANOSECONDS + 1)
    exhausted.observe_device(str(tmp_path))
    attached[0](0, 1, 1, 1)
    assert list(tmp_path.iterdir()) == []


def test_a_forked_child_writes_nothing_into_its_parents_folder(
    attached: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", full(history=False).snapshot)
    exhausted.observe_device(str(tmp_path))
    monkeypatch.setattr(exhausted._FullDeviceState, "process", os.getppid())
    attached[0](0, 1, 1, 1)
    assert list(tmp_path.iterdir()) == []


def test_a_torch_without_observers_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exhausted._FullDeviceState, "process", 0)
    monkeypatch.delattr(torch._C, "_cuda_attach_out_of_memory_observer", raising=False)
    exhausted.observe_device(str(tmp_path))
    assert exhausted._FullDeviceState.process == 0


def test_a_job_that_does_not_use_cuda_is_left_alone(
    attached: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    exhausted.observe_device(str(tmp_path))
    assert attached == []
