"""`steptime try -- CMD…` on jobs that cannot be tried: each gets its sentence, and what was done stays."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from steptime.cli.main import main

pytest.importorskip("torch")

TRAINING = """
    import torch

    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range({steps}):
        loss = model(torch.randn(4, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("script", "budget", "slug", "words"),
    [
        ("print('nothing here')", "5m", "no-torch", "It said: nothing here"),
        ("import torch\nprint('looked around')", "5m", "no-steps", "took no training step"),
        ("import torch\nraise RuntimeError('no data at all')", "5m", "no-steps", "RuntimeError: no data at all"),
        ("import torch\ninput('Which model? ')", "5m", "no-steps", "input is empty"),
        ("import time\ntime.sleep(600)", "4s", "no-steps", "no training step in 2 s, half of the budget"),
    ],
)
def test_a_job_that_cannot_be_tried_gets_its_sentence(
    script: str,
    budget: str,
    slug: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "job.py").write_text(script)
    assert main(["try", "-q", "--budget", budget, "--", sys.executable, "job.py"]) == 1
    told = capsys.readouterr().err.splitlines()[-1]
    assert words in told
    assert f"({slug})" in told


@pytest.mark.slow
def test_a_job_without_end_is_measured_for_as_long_as_that_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "job.py").write_text(textwrap.dedent(TRAINING).format(steps=10**9))
    assert main(["lab", "--budget", "60s", "--", sys.executable, "job.py"]) == 0
    told = capsys.readouterr()
    assert told.out.startswith(f"Lab of {sys.executable} job.py"[:40])
    assert "Reading: " in told.out
