"""Several launchers, one recording: as srun starts one of us for each rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from steptime.capture.joining import join, leave, mark_of, tasks_of_launcher, wait_for_others
from steptime.errors import OutputError

JOB = """
import os
import time
import torch, torch.distributed as distributed
from torch.nn.parallel import DistributedDataParallel
distributed.init_process_group(
    "gloo", init_method="file://" + os.path.abspath("store"), rank=int(os.environ["SLURM_PROCID"]), world_size=2
)
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(60):
    model(torch.randn(256, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
distributed.destroy_process_group()
time.sleep(0.3)  # gloo's threads end a moment later: a process that is gone before may abort (torch 2.13)
"""


def test_the_first_to_come_leads_and_waits_for_the_others(tmp_path: Path) -> None:
    folder, leads = join(tmp_path / "run")
    again, follows = join(tmp_path / "run")
    assert (folder, leads, follows) == (again, True, False)
    assert mark_of(folder).exists()
    assert "had not ended" in wait_for_others(folder, 0.0)[0]
    leave(folder)
    assert wait_for_others(folder, 0.0) == ()


@pytest.mark.parametrize(
    ("manifest", "joins"),
    [
        ({}, True),
        ({"ended_epoch_ns": None}, True),
        ({"ended_epoch_ns": 3_000_000_000 * 10**9}, True),  # in 2065: whenever this is run, not long ago
        ({"ended_epoch_ns": 1_700_000_000 * 10**9}, False),
        ([], True),
    ],
)
def test_nobody_joins_a_job_that_ended_long_ago(tmp_path: Path, manifest: object, joins: bool) -> None:
    """Another job's steps would be taken for its."""
    folder, leads = join(tmp_path / "r")
    assert leads
    (folder / "manifest.json").write_text(json.dumps(manifest))
    if joins:
        assert join(tmp_path / "r") == (folder, False)
        return
    with pytest.raises(OutputError, match="recording-exists"):
        join(tmp_path / "r")
    assert not list(folder.glob("joined-*"))


def test_a_job_that_was_requeued_records_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("PROCID", "0"), ("NTASKS", "8"), ("JOB_ID", "77"), ("STEP_ID", "0")):
        monkeypatch.setenv(f"SLURM_{name}", value)
    names = []
    for count in ("", "0", "1", "2"):
        monkeypatch.setenv("SLURM_RESTART_COUNT", count)
        names.append(tasks_of_launcher()[1])
    assert names == ["77.0", "77.0", "77.0-1", "77.0-2"]


def test_a_folder_that_cannot_be_written_is_refused_before_the_job(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        join(tmp_path / "file" / "run")


def test_tasks_are_counted_where_a_launcher_has_started_several(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    assert tasks_of_launcher() == (1, "")
    monkeypatch.setenv("SLURM_PROCID", "3")
    monkeypatch.setenv("SLURM_NTASKS", "1")
    assert tasks_of_launcher() == (1, "")
    monkeypatch.setenv("SLURM_NTASKS", "8")
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    assert tasks_of_launcher() == (8, "77.0")


@pytest.mark.slow
def test_each_rank_under_its_own_launcher_gives_one_report(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "job.py").write_text(JOB)
    steptime = [sys.executable, "-c", "from steptime.cli.main import entry; entry()"]
    command = [*steptime, "run", "--json", "--no-progress", "--no-ceilings", "--", sys.executable, "job.py"]
    slurm = {"SLURM_NTASKS": "2", "SLURM_JOB_ID": "9", "SLURM_STEP_ID": "0", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            command,
            cwd=tmp_path,
            env={**os.environ, **slurm, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    done = [rank.communicate(timeout=240) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], done
    (told,) = (out for out, _ in done if out)
    report = json.loads(told)
    assert sorted(process["rank"] for process in report["processes"]) == [0, 1]
    assert report["ranks"] is not None
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["job-9.0"]
