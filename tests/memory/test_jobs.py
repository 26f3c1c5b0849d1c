"""Whole jobs: a sawtooth that is no leak, a leak that ends in "out of memory", and the three lines behind it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from steptime.cli.after_run import out_of_memory
from steptime.launcher.outcome import Outcome
from steptime.memory.report import triage_path
from steptime.recording.load import load

pytest.importorskip("torch")
LOOP = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
kept = []
for step in range(STEPS):
    loss = model(torch.randn(64, 64)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    BODY
"""


def recorded(folder: Path, body: str, steps: int = 1500) -> tuple[Outcome, Path, str]:
    """A job through `steptime run`, its recording and what it wrote on standard error.

    It has an interpreter of its own: what is held is asked of the garbage collector, and in a fork of the tests' server
    the server's objects are there, too.
    """
    script = folder / "job.py"
    script.write_text(LOOP.replace("BODY", body).replace("STEPS", str(steps)), encoding="utf-8")
    recording = folder / "recording"
    words = ["run", "--no-peaks", "--no-progress", "--recording", str(recording), "--", sys.executable, str(script)]
    done = subprocess.run([sys.executable, "-m", "steptime", *words], capture_output=True, text=True, check=False)
    return Outcome(recording, done.returncode, None, 0.0, True, True, True), recording, done.stderr


@pytest.mark.slow
def test_a_list_that_is_emptied_now_and_then_is_no_leak(tmp_path: Path) -> None:
    _, recording, reported = recorded(
        tmp_path, "kept.append(model(torch.randn(64, 64))); kept[:] = kept[-(step % 100) :]", 30_000
    )
    assert "ST702" not in reported
    assert triage_path(recording).holders == ()


@pytest.mark.slow
def test_memory_that_runs_out_is_reported_in_three_lines_behind_the_traceback(tmp_path: Path) -> None:
    body = "kept.append(loss)\n    if step == STEPS - 1: torch.empty(1 << 46)"
    outcome, recording, reported = recorded(tmp_path, body)
    assert outcome.status == 1
    traceback, _, rest = reported.partition("Error code 12 (Cannot allocate memory)\n")
    assert traceback.splitlines()[0] == "Traceback (most recent call last):"
    lines = rest.splitlines()[:3]
    assert lines[0] == f"steptime: Out of memory on cpu: allocating 256 TiB failed at {tmp_path / 'job.py'}:10."
    assert lines[1].startswith(
        "steptime: Held at that moment, as visible from Python: parameters 73.0 KiB, gradients 73"
    )
    assert lines[2].startswith(f"steptime: First: make the allocation at {tmp_path / 'job.py'}:10 smaller")
    assert [f"steptime: {line}" for line in out_of_memory(outcome, recording)] == lines
    facts = load(recording).processes[0].out_of_memory
    assert facts is not None
    assert facts.asked == 4 << 46
    assert load(recording).processes[0].leaks[0].name == "kept"
