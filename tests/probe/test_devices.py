"""Which devices a process tells of: those on which it has a context, without making one."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
import torch

from steptime.probe import device
from steptime.probe.recorder import Recorder
from steptime.probe.session import Housekeeping

UUIDS = [UUID(int=number) for number in range(8)]


class Driver:
    """torch.cuda on a machine of eight devices, as far as telling them apart goes. contexts: of the process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *contexts: int) -> None:
        self.contexts, self.capturing, self.lost = set(contexts), False, False
        self.asked: list[int] = []
        self.current = 3
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: bool(self.contexts))
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.capturing)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(UUIDS))
        monkeypatch.setattr(torch.cuda, "set_device", lambda _: pytest.fail("the job's device is its own"))
        monkeypatch.setattr(torch.cuda, "init", lambda: pytest.fail("asking initialises nothing"))
        monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", self.has_context, raising=False)
        monkeypatch.setattr(torch.cuda, "get_device_properties", self.properties)

    def has_context(self, number: int) -> bool:
        if self.lost:
            raise RuntimeError("CUDA error: unspecified launch failure")
        return number in self.contexts

    def properties(self, number: int) -> Any:
        self.asked.append(number)
        return SimpleNamespace(uuid=UUIDS[number])


def test_a_process_without_a_context_tells_of_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch)
    assert device.distinguished() == {}
    assert driver.asked == []


def test_devices_with_a_context_are_reported_by_their_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch, 3, 5)
    assert device.distinguished() == {3: str(UUIDS[3]), 5: str(UUIDS[5])}
    assert driver.asked == [3, 5]
    driver.capturing = True
    assert device.distinguished() == {}, "a graph that is captured is let alone"


def test_an_old_torch_that_tells_no_uuids_leaves_devices_untold(monkeypatch: pytest.MonkeyPatch) -> None:
    Driver(monkeypatch, 3)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(name="NVIDIA H200"))
    assert device.distinguished() == {}
    monkeypatch.delattr(torch._C, "_cuda_hasPrimaryContext")
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda number: (number == 5) << 20)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: SimpleNamespace(uuid=UUIDS[number]))
    assert device.distinguished() == {5: str(UUIDS[5])}


def test_each_device_is_a_fact_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    driver = Driver(monkeypatch, 3)
    now = [0]
    monkeypatch.setattr("steptime.probe.session.time.perf_counter_ns", lambda: now[0])
    monkeypatch.setattr(device, "memory_sampler", lambda _: lambda _: None)
    recorder = Recorder(lambda reason: pytest.fail(reason))
    recorder.open(str(tmp_path))
    housekeeping = Housekeeping(recorder)
    for contexts in ({3}, {3}, {3, 5}, {5}):
        driver.contexts = set(contexts)
        housekeeping.boundary()
        now[0] += 1_000_000_000
    driver.lost = True
    housekeeping.boundary()  # a device that is lost is none of our business
    lines = [json.loads(line) for line in (tmp_path / "facts.jsonl").read_text(encoding="utf-8").splitlines()]
    reported = [
        line for line in lines if line["fact"] == "device"
    ]  # a test before this one may have compiled something
    assert reported == [
        {"fact": "device", "identity": number, "uuid": str(UUIDS[number])} for number in (3, 5)
    ]  # fmt: skip
