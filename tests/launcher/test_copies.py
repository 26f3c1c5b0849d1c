"""Nothing of ours is reachable from anything of the user's: what a job makes of its model in mid-training (copies,
pickles, traces, scripts) is what it would be without us, and so is all that its objects hold."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from preloading import python

pytest.importorskip("torch")

OBSERVED = Path(__file__).parent / "observed"
LAUNCHER = """
import sys
from pathlib import Path
from steptime.launcher.launch import ProbeOptions, exit_as, launch
exit_as(launch(sys.argv[2:], Path(sys.argv[1]), ProbeOptions()))
"""
KINDS = ("stateful", "ddp", *(pytest.param(each, marks=pytest.mark.slow) for each in ("handwritten", "calling")))


def run(words: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    return subprocess.run(words, capture_output=True, text=True, cwd=folder, env=environment, check=False)


def watched(words: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return run([sys.executable, "-I", "-c", LAUNCHER, str(folder / "recording"), *words], folder)


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_of_a_watched_model_is_what_it_would_be_alone(tmp_path: Path, kind: str) -> None:
    words = [python(), str(shutil.copy(OBSERVED / "copying_job.py", tmp_path)), kind]
    alone, together = run(words, tmp_path), watched(words, tmp_path)
    assert alone.returncode == together.returncode == 0, together.stderr
    assert together.stdout.splitlines() == alone.stdout.splitlines()
    assert alone.stdout.count("deepcopy 0x") + alone.stdout.count("deepcopy -0x") == 60
    assert list((tmp_path / "recording").glob("process-*/trace-*.json*"))


TRAIN = """
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(60):
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
"""
FIRST, LATER = "import {}\nimport torch\n", "import torch\nimport {}\n"


@pytest.mark.parametrize(
    ("path", "first"),
    [
        pytest.param("steptime.py", FIRST, id="module, first"),
        pytest.param("steptime/tools.py", LATER, id="package, later"),
        pytest.param("steptime.py", LATER, id="module, later", marks=pytest.mark.slow),
        pytest.param("steptime/tools.py", FIRST, id="package, first", marks=pytest.mark.slow),
    ],
)
def test_a_module_of_the_jobs_that_is_named_as_we_are_stays_the_jobs(tmp_path: Path, path: str, first: str) -> None:
    (tmp_path / path).parent.mkdir(exist_ok=True)
    (tmp_path / path).with_name("__init__.py" if "/" in path else "other.py").touch()
    (tmp_path / path).write_text("WHOSE = 'the job'\n")
    name = path.removesuffix(".py").replace("/", ".")
    (tmp_path / "train.py").write_text(first.format(name) + TRAIN + f"print({name}.WHOSE, {name}.__file__)\n")
    words = [python(), "train.py"]
    alone, together = run(words, tmp_path), watched(words, tmp_path)
    assert alone.stdout == f"the job {tmp_path / path}\n", alone.stderr
    assert (together.returncode, together.stdout, together.stderr) == (0, alone.stdout, alone.stderr)
    assert list((tmp_path / "recording").glob("process-*/trace-*.json*"))


@pytest.mark.parametrize("first", [FIRST, pytest.param(LATER, marks=pytest.mark.slow)], ids=["first", "later"])
def test_a_job_that_imports_steptime_itself_has_the_session_that_watches_it(tmp_path: Path, first: str) -> None:
    reported = "from steptime import probe\nprint(probe.watching() is not None, steptime.record().begun)\n"
    (tmp_path / "train.py").write_text(first.format("steptime") + TRAIN + reported)
    together = watched([python(), "train.py"], tmp_path)
    assert (together.returncode, together.stdout) == (0, "True False\n"), together.stderr


LATE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x):
        return self.layers(x)


def train(model, steps):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).square().sum().backward()
        optimizer.step()


train(Net(), 40)
for _ in range(8):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    traced = torch.jit.trace(model, torch.ones(4, 8))  # raises where the graph has anything of ours
    train(model, 3)
print("the end")
"""


def test_a_later_model_whose_first_call_is_a_trace_is_traced_as_without_us(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(LATE, encoding="utf-8")
    together = watched([python(), "late.py"], tmp_path)
    assert together.returncode == 0, together.stderr
    assert "the end" in together.stdout
