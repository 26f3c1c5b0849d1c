"""Users without rights and without a home: what they run is the same, and it is recorded."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from patience import PATIENCE
from preloading import python, steptime_words

from steptime.recording.load import load

pytest.importorskip("torch")

NOBODY = 65534
JOB = """
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(60):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 16)).square().mean()
    loss.backward()
    optimizer.step()
print("loss", loss.item().hex())
"""
HOMES = {"not writable": "/proc", "missing": "/nonexistent"}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(JOB)
    return tmp_path


def as_nobody(place: Path, home: str | None, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in a user namespace of its own, whose user has another number and no right but its files'."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "HOME", "STEPTIME"))}
    environment = {**kept, "OMP_NUM_THREADS": "1", "TMPDIR": "/tmp", **({"HOME": home} if home else {})}
    return subprocess.run(["unshare", "--user", *words], cwd=place, env=environment,
                          capture_output=True, text=True, timeout=PATIENCE, check=False)  # fmt: skip


@pytest.mark.parametrize("home", ["none", *(pytest.param(each, marks=pytest.mark.slow) for each in HOMES)])
def test_a_user_without_a_home_measures_a_job_and_reads_the_report(place: Path, home: str) -> None:
    if shutil.which("unshare") is None or as_nobody(place, None, "true").returncode:
        pytest.skip("user namespaces are not allowed here")
    assert as_nobody(place, None, "id", "-u").stdout.strip() == str(NOBODY)
    where, train = HOMES.get(home), (python(), "train.py")
    run = as_nobody(
        place, where, *steptime_words(), "run", "--no-progress", "--no-peaks", "--recording", "r", "--", *train
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("loss 0x")
    assert not re.search("Traceback|bug|Permission", run.stderr), run.stderr
    (process,) = load(place / "r").processes
    assert len(process.intervals.kind) > 60
    report = as_nobody(place, where, *steptime_words(), "report", "r", "-o", "r.html")
    assert (report.returncode, (place / "r.html").exists()) == (0, True), report.stderr
