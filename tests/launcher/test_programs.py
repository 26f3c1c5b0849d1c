"""A job in a folder with an odd name, whose process replaces its program in the middle: both halves are told, with all
their traces, and nothing of ours is on its standard error."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from preloading import python

from steptime.diagnosis import diagnose
from steptime.recording.load import load

pytest.importorskip("torch")

JOB = b"""
import os, sys, time, torch
model = torch.nn.Linear(64, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(int(sys.argv[1])):
    optimizer.zero_grad()
    model(torch.randn(32, 64)).sum().backward()
    optimizer.step()
    time.sleep(0.02 * (len(sys.argv) > 2))  # the first program's steps are slower, and end behind the early window
if len(sys.argv) > 2:
    os.execv(sys.executable, [sys.executable, sys.argv[0], sys.argv[2]])
"""


def test_both_programs_of_a_process_in_an_odd_folder_are_reported(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b'/a\xff\n\\b"c'
    os.mkdir(folder)  # noqa: PTH102 - no text
    script = b"tr\\a\nin\xfe.py"
    Path(os.fsdecode(folder + b"/" + script)).write_bytes(JOB)
    ours = [python(), "-m", "steptime", "run", "--quiet", "--no-peaks", "--recording", "rec"]
    run = subprocess.run([*ours, "--", python(), script, "24", "600"], cwd=folder, capture_output=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, b"", b"")
    recording = load(Path(os.fsdecode(folder)) / "rec")
    assert recording.problems == ()
    assert recording.manifest.command[1] == "tr\\a\nin\ufffd.py"
    assert {each.name for each in recording.path.glob("seen-*")} == {"seen-python", "seen-torch"}
    first, second = recording.processes
    assert first.facts.pid == second.facts.pid
    assert [len(each.traces) for each in (first, second)] == [1, 1]  # without stacks: torch cannot read the name
    report = diagnose(recording, "rec")
    named = {each.name: each for each in report.processes}
    name = f"process {first.facts.pid}"
    assert set(named) == {name, f"{name} (program 2)"}
    assert len(named[name].traces) == 1
    settings = named[name].case.settings
    assert settings is not None
    assert settings.trainers_on_host == 1
