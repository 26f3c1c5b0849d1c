"""The link between processes of this machine: measured once with the user's torch, remembered, and never fatal."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from machine.interpreters import interpreter
from preloading import python

from steptime.machine import link, peaks
from steptime.machine.machine import BUSY_CPUS, Link
from steptime.quantities import Estimate

ANSWER = (
    '{"backend": "gloo", "ranks": 2, "rate": {"value": 2e9, "low": 1.5e9, "high": 2e9, "samples": 12, "unit": "B/s"}}'
)
FOUND = Link("gloo", 2, Estimate(2e9, 1.5e9, 2e9, 12, "B/s"))


def link_of(
    python: str, device: str = "cpu", backend: str | None = "gloo", ranks: int = 2
) -> tuple[Link | None, list[str]]:
    """The link without what disturbed it, and what was told."""
    reported: list[str] = []
    found = link.link_of(python, device, backend, ranks, "9.9", reported.append)
    return found and replace(found, other_cpus=0.0), reported


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else runs on this machine."""
    monkeypatch.setattr(peaks.OtherLoad, "since", lambda self: (0.0, 0.0))


def test_two_processes_of_this_machine_exchange_something() -> None:
    pytest.importorskip("torch")
    found, reported = link_of(python())
    assert found is not None
    assert (found.backend, found.ranks) == ("gloo", 2)
    assert 1e6 < found.rate.low <= found.rate.value < 1e13
    assert found.rate.samples == 12
    assert len(reported) == 1


def test_nothing_of_it_listens_beyond_the_loopback_device(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    measuring = subprocess.Popen([python(), str(link.SCRIPT), "gloo", "2"], stdout=subprocess.PIPE, cwd=tmp_path)
    heard: set[str] = set()
    while measuring.poll() is None:
        for process in psutil.process_iter():
            try:
                if process.cwd() != str(tmp_path):  # forks of the tests' server are no children of ours
                    continue
                found = process.net_connections("inet")
            except psutil.Error:
                continue
            heard.update(each.laddr.ip for each in found if each.status == psutil.CONN_LISTEN)
    measuring.communicate()
    assert measuring.returncode == 0
    assert heard in ({"127.0.0.1"}, {"::1"}, {"127.0.0.1", "::1"})


@pytest.mark.usefixtures("quiet")
def test_a_link_is_measured_once_for_each_number_of_ranks(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    python = interpreter(tmp_path, f"echo \"$@\" >> {asked}\necho noise\necho '{ANSWER}'")
    reported = [link_of(python, "cpu", "cpu:gloo,cuda:nccl", ranks) for ranks in (2, 2, 4, 400)]
    assert [found for found, _ in reported] == [FOUND] * 4
    assert [len(sentences) for _, sentences in reported] == [1, 0, 1, 1]
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
    assert link_of(interpreter(tmp_path, f"touch {asked}"), device, backend, ranks) == (None, [])
    assert not asked.exists()


@pytest.mark.parametrize(
    ("body", "reason"),
    [("echo no backend >&2; exit 1", "no backend"), ("echo no", "exit status 0"), ("echo '{}'", "exit status 0")],
)
def test_a_failure_is_reported_and_not_tried_again_for_a_day(
    body: str, reason: str, tmp_path: Path, cache: Path
) -> None:
    python = interpreter(tmp_path, body)
    found, reported = link_of(python)
    assert found is None
    assert reason in reported[-1]
    assert link_of(python) == (None, [])
    (path,) = cache.glob("link-*")
    os.utime(path, (1, 1))
    assert link_of(interpreter(tmp_path, f"echo '{ANSWER}'"))[0] == FOUND


def test_what_other_programs_disturbed_is_reported_and_not_remembered(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peaks.OtherLoad, "since", lambda self: (2 * BUSY_CPUS, 0.0))
    found = link.link_of(interpreter(tmp_path, f"echo '{ANSWER}'"), "cpu", "gloo", 2, "9.9", lambda sentence: None)
    assert found is not None
    assert found.under_load
    assert not list(cache.glob("link-*"))


@pytest.mark.usefixtures("quiet")
def test_without_a_cache_it_is_measured_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/nowhere")
    python = interpreter(tmp_path, f"echo '{ANSWER}'")
    assert [len(link_of(python)[1]) for _ in range(2)] == [1, 1]
