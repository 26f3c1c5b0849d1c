"""The link between processes of this machine: measured once with the user's torch, remembered, and never fatal."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from steptime.hardware import link
from steptime.hardware.machine import Link
from steptime.quantities import Estimate

ANSWER = '{"backend": "gloo", "ranks": 2, "rate": {"best": 2e9, "median": 1.5e9, "blocks": 12}}'
FOUND = Link("gloo", 2, Estimate(2e9, 1.5e9, 2e9, 12, "B/s"))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "steptime"


def interpreter(folder: Path, body: str) -> str:
    """A program that stands for the user's Python."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def test_two_processes_of_this_machine_exchange_something() -> None:
    pytest.importorskip("torch")
    found = link.link_of(sys.executable, "cpu", "gloo", 2, "any")
    assert found is not None
    assert (found.backend, found.ranks) == ("gloo", 2)
    assert 1e6 < found.rate.low <= found.rate.value < 1e13
    assert found.rate.samples == 12


def test_a_link_is_measured_once_for_each_number_of_ranks(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    python = interpreter(tmp_path, f"echo \"$@\" >> {asked}\necho noise\necho '{ANSWER}'")
    for ranks in (2, 2, 4, 400):
        assert link.link_of(python, "cpu", "cpu:gloo,cuda:nccl", ranks, "9.9") == FOUND
    assert [line.split()[1:] for line in asked.read_text().splitlines()] == [
        ["gloo", "2"],
        ["gloo", "4"],
        ["gloo", "8"],
    ]


@pytest.mark.parametrize(
    ("device", "backend", "ranks"),
    [("cpu", "gloo", 1), ("cpu", "mpi", 2), ("cuda", "gloo", 2), ("xpu", "xccl", 2), ("cpu", None, 2)],
)
def test_what_cannot_be_measured_is_none_and_starts_nothing(
    device: str, backend: str | None, ranks: int, tmp_path: Path
) -> None:
    asked = tmp_path / "asked"
    assert link.link_of(interpreter(tmp_path, f"touch {asked}"), device, backend, ranks, "9.9") is None
    assert not asked.exists()


@pytest.mark.parametrize("body", ["exit 1", "echo no", "echo '{}'"])
def test_a_failure_costs_the_link_and_nothing_else(body: str, tmp_path: Path, cache: Path) -> None:
    assert link.link_of(interpreter(tmp_path, body), "cpu", "gloo", 2, "9.9") is None
    assert not list(cache.glob("link-*"))


def test_without_a_cache_it_is_measured_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/nowhere")
    python = interpreter(tmp_path, f"echo '{ANSWER}'")
    assert link.link_of(python, "cpu", "gloo", 2, "9.9") == FOUND
    assert link.link_of(python, "cpu", "gloo", 2, "9.9") == FOUND
