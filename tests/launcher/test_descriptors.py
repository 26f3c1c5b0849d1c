"""A job may close any descriptor, those that it never opened too: what it writes afterwards is its own to the byte."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from preloading import python

from steptime.journal import Journal, Kind
from steptime.launcher.launch import probe_environment
from steptime.launcher.outcome import ProbeOptions
from steptime.recording.load import load

pytest.importorskip("torch")

from steptime.probe.recorder import append_facts

JOB = """
import os, sys, torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(64, 4))

def train(workers=0):
    for (batch,) in torch.utils.data.DataLoader(data, batch_size=4, num_workers=workers):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

def own_files(name):
    "As a daemon does: closes what it may have inherited, and opens files of its own."
    os.closerange(3, 256)
    return [open(f"{name}-{number}", "wb", buffering=0) for number in range(12)]

def write(files):
    for number, file in enumerate(files):
        file.write(bytes([65 + number]) * 100)

train()
files = own_files("job")
for _ in range(3):
    write(files)
    train()
for file in files:  # closes them, and opens others in the middle of training
    file.close()
child = os.fork()
if not child:
    files = own_files("child")
    write(files)
    train()
    write(files)
    os._exit(0)
status = os.waitpid(child, 0)[1]
files = own_files("again")
write(files)
train(workers=2)
print(status, flush=True)
"""
OWN = {"job": 3, "child": 2, "again": 1}
"""How often each of the job's files is written."""


def test_the_files_of_a_job_that_closes_descriptors_hold_its_own_bytes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(JOB)
    recording = tmp_path / "recording"
    recording.mkdir()
    environment = probe_environment(recording, ProbeOptions())
    run = subprocess.run(
        [python(), "train.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "0\n", "")
    for name, times in OWN.items():
        for number in range(12):
            assert (tmp_path / f"{name}-{number}").read_bytes() == bytes([65 + number]) * 100 * times
    processes = load(recording).processes
    steps = [int(np.isin(each.intervals.kind, (Kind.OPTIMIZER_STEP, Kind.BOUNDARY)).sum()) for each in processes]
    assert max(steps) == 5 * 16  # the child ends without a last word
    assert any(len(each.workers.start) for each in processes)


def test_nothing_is_held_open_between_two_writes(tmp_path: Path) -> None:
    before = set(Path("/proc/self/fd").iterdir())
    book = Journal()
    book.open(str(tmp_path / "journal.bin"))
    book.append(int(Kind.FORWARD), 0, 0, 1, 0, 1)
    append_facts(str(tmp_path / "facts.jsonl"), [("note", {"text": "here"})])
    assert set(Path("/proc/self/fd").iterdir()) == before
    assert (tmp_path / "journal.bin").stat().st_size == 24
    assert (tmp_path / "facts.jsonl").read_bytes() == b'{"fact": "note", "text": "here"}\n'
