"""`steptime skill`: every command that it tells an agent runs, in its order, on a job in a repository."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from machines import remember_peaks

from steptime.cli.main import main
from steptime.cli.skill import SKILL

TRAINING = """\
import torch

torch.manual_seed(0)
torch.autograd.set_detect_anomaly(True)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(100000):
    x = torch.randn(16, 64)
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
COMMANDS = re.findall(r"^```sh\n(.*?)^```", SKILL.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_it_is_printed_with_a_head_that_agents_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["skill"]) == 0
    printed = capsys.readouterr().out
    assert printed == SKILL.read_text(encoding="utf-8")
    assert re.match(r"---\nname: steptime\ndescription: .{50,}\n---\n", printed)


@pytest.mark.slow
def test_its_commands_lead_from_a_slow_job_to_a_comparison(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    work = tmp_path / "work"
    (tmp_path / "bin").mkdir()
    work.mkdir()
    for name, words in (("steptime", "-I -c 'from steptime.cli.main import entry; entry()'"), ("python", "")):
        (tmp_path / "bin" / name).write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
        (tmp_path / "bin" / name).chmod(0o755)
    remember_peaks(tmp_path / "cache")
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    environment |= {"XDG_CACHE_HOME": str(tmp_path / "cache")}

    def shell(commands: str, allowed: tuple[int, ...] = (0,)) -> None:
        words = ["bash", "-e", "-c", commands.replace("--budget 10m", "--budget 30s")]
        ended = subprocess.run(words, cwd=work, env=environment, capture_output=True, text=True, check=False)
        assert ended.returncode in allowed, ended.stderr

    (work / "train.py").write_text(TRAINING)
    shell("git init -q && git add . && git -c user.name=a -c user.email=a@b commit -qm start")
    assert len(COMMANDS) == 5
    measured, explained, tried, judged, adopted = COMMANDS
    shell(measured)
    before = json.loads((work / "before.json").read_text())
    assert {"headline", "confidence", "reason", "findings"} <= set(before)
    shell(explained)
    shell(tried)
    assert {"candidates", "patch", "folder"} <= set(json.loads((work / "tried.json").read_text()))
    (work / "train.py").write_text(TRAINING.replace("anomaly(True)", "anomaly(False)"))
    shell(judged, (0, 1, 3))
    (candidate,) = json.loads((work / "verdict.json").read_text())["candidates"]
    assert {"verdict", "speed_up", "seconds_to_decide"} <= set(candidate)
    assert (work / "train.py").read_text() == TRAINING
    shell(adopted)
    assert "anomaly(False)" in (work / "train.py").read_text()
