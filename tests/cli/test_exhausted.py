"""Jobs for which memory ran out: killed by the kernel, whose counters are in here, and by errors of Python."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from journals import MS, JournalBuilder

from steptime.cli.after_run import out_of_memory
from steptime.launcher import launch as launching
from steptime.launcher.launch import launch
from steptime.launcher.outcome import Outcome, ProbeOptions

KILLED = "import os, pathlib; pathlib.Path('events').write_text('oom_kill 4\\n'); os.kill(os.getpid(), 9)"
KILLED_CHILD = f"import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', {KILLED!r}]).returncode != 0)"
UNHURT = "import pathlib; pathlib.Path('events').write_text('oom_kill 4\\n')"
LIMITED = """
import resource, torch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
kept = []
for step in range(100_000):
    model(torch.randn(8, 64)).sum().backward(); optimizer.step(); optimizer.zero_grad()
    if step == 50:
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
    if step > 50:
        kept.append(BLOCK)
"""


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A counter as a control group has it; the job of a test is in its folder."""
    (tmp_path / "events").write_text("low 0\noom 7\noom_kill 3\n")
    monkeypatch.setattr(launching, "EVENTS", tmp_path / "events")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ended(folder: Path, script: str) -> Outcome:
    return launch([sys.executable, "-c", script], folder / "recording", ProbeOptions())


def test_the_control_groups_counter_is_read_and_else_the_machines(
    counted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert launching.oom_kills() == 3
    (counted / "events").write_text("oom_kill many\n")
    (counted / "vmstat").write_text("nr_free_pages 12\noom_kill 5\n")
    monkeypatch.setattr(launching, "MACHINE", counted / "vmstat")
    assert launching.oom_kills() == 5
    (counted / "vmstat").unlink()
    assert launching.oom_kills() is None


def test_a_job_that_the_kernel_killed_is_reported_of_in_three_lines(counted: Path) -> None:
    outcome = ended(counted, KILLED)
    assert (outcome.status, outcome.killed_for_memory) == (137, True)
    lines = out_of_memory(outcome, outcome.recording)
    assert len(lines) == 3
    assert lines[0].startswith("Linux killed the job: the machine or its container ran out of memory")


def test_a_launcher_whose_rank_was_killed_is_reported_of_too(counted: Path) -> None:
    outcome = ended(counted, KILLED_CHILD)
    assert (outcome.status, outcome.killed_for_memory) == (1, True)
    assert out_of_memory(outcome, outcome.recording)[0].startswith("Linux killed a process while the job ran")


def test_a_job_that_ends_well_or_fails_otherwise_is_not(counted: Path) -> None:
    assert not ended(counted, UNHURT).killed_for_memory
    failed = launch([sys.executable, "-c", "raise SystemExit(3)"], counted / "other", ProbeOptions())
    assert failed.status == 3
    assert out_of_memory(failed, failed.recording) == ()


def test_what_the_job_had_and_what_grew_is_reported_of_a_kill(tmp_path: Path) -> None:
    job = JournalBuilder()
    for _ in range(5):
        job.forward(MS).backward(MS).step(MS)
    job.samples.append({"monotonic_ns": job.now, "job_cpu": 1.0, "other_cpu": 0.0, "resident_bytes": 3 << 30})
    site = {"file": "train.py", "line": 7, "function": "train", "text": ""}
    grown = {"tensors": 2.0, "bytes": 5e6, "graphs": 0.0, "nodes": 0.0, "steps": 8, "site": site}
    job.facts.append({"fact": "leak", "kind": "list", "name": "history", **grown})
    recording = job.write(tmp_path / "recording")
    outcome = Outcome(recording, 137, 9, 1.0, True, True, True, killed_for_memory=True)
    first, _, last = out_of_memory(outcome, recording)
    assert "It had 3 GiB at the last sample." in first
    assert "release what history holds at train.py:7" in last
    assert out_of_memory(replace(outcome, killed_for_memory=False), recording) == ()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("block", "asked"),
    [
        ("torch.ones(1 << 20)", "allocating 4 MiB failed at job.py:12"),
        ("bytearray(4 << 20)", "an allocation failed at job.py:12"),
    ],
)
def test_memory_that_a_limit_ends_is_reported_behind_the_jobs_own_traceback(
    tmp_path: Path, block: str, asked: str
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "job.py").write_text(LIMITED.replace("BLOCK", block))
    entry = "import sys; from steptime.cli.main import main; sys.exit(main(sys.argv[1:]))"
    words = ["run", "--no-peaks", "--no-progress", "--no-profile", "--", sys.executable, "job.py"]
    alone = subprocess.run([sys.executable, "job.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    watched = subprocess.run(
        [sys.executable, "-c", entry, *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert alone.returncode == watched.returncode == 1
    traceback, _, reported = watched.stderr.partition("steptime: Out of memory on cpu: ")
    assert traceback.splitlines()[-1] == alone.stderr.splitlines()[-1]
    assert reported.startswith(asked)
    assert reported.splitlines()[1].startswith("steptime: Held at that moment")
    assert reported.splitlines()[2].startswith("steptime: First: ")
