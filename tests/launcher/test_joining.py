"""Several launchers, one recording: as srun starts one of us for each rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from patience import PATIENCE
from preloading import steptime_words

from steptime.errors import OutputError
from steptime.launcher import joining
from steptime.launcher.joining import join, leave, part_of_launcher, tasks_of_launcher, wait_for_others

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


def slurm(task: int, tasks: int) -> dict[str, str]:
    """What a job sees of Slurm; a batch script itself is task 0 without a step."""
    steps = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    return {**steps, "SLURM_NTASKS": str(tasks), "SLURM_PROCID": str(task), "SLURM_JOB_ID": "77"}


def test_the_first_to_come_leads_and_waits_for_the_others(tmp_path: Path) -> None:
    first, second = join(tmp_path / "run", "0"), join(tmp_path / "run", "1")
    assert (first.folder, first.leads, second.leads) == (second.folder, True, False)
    assert second.mark.exists()
    assert "were still running" in wait_for_others(first.folder, 0.0)[0]
    leave(second)
    assert wait_for_others(first.folder, 0.0) == ()


def test_a_part_that_is_taken_belongs_to_another_run(tmp_path: Path) -> None:
    """A second command of the same batch script, while the first one runs or after it: its ranks find each other."""
    first = [join(tmp_path / "run", part) for part in ("0", "1")]
    second = [join(tmp_path / "run", part) for part in ("1", "0")]
    for place in first:
        leave(place)
    third = join(tmp_path / "run", "1")
    assert [place.folder.name for place in (*first, *second, third)] == ["run", "run", "run-2", "run-2", "run-3"]
    assert [place.leads for place in (*first, *second, third)] == [True, False, True, False, True]


def test_parts_without_a_number_of_their_own_are_as_many_as_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = []
    for pid in (1, 2, 3):
        monkeypatch.setattr(os, "getpid", lambda pid=pid: pid)
        places.append(join(tmp_path / "run"))
    assert {place.folder.name for place in places} == {"run"}


def _waited(folder: Path) -> None:
    wait_for_others(folder, 0.0)


def _accounted(folder: Path) -> None:
    (folder / "manifest.json").write_text(json.dumps({"format_version": 1, "ended_epoch_ns": 3_000_000_000 * 10**9}))


def _killed(folder: Path) -> None:
    """The leader's number is another process's by now."""
    machine, pid, birth = (folder / "leader").read_text().split()
    (folder / "leader").write_text(f"{machine} {pid} {int(birth) - 1}\n")


def _killed_elsewhere(folder: Path) -> None:
    """A leader on another machine that has been silent for an hour."""
    _, pid, birth = (folder / "leader").read_text().split()
    (folder / "leader").write_text(f"elsewhere {pid} {birth}\n")
    an_hour_ago = (folder / "leader").stat().st_mtime - 3600
    os.utime(folder / "leader", (an_hour_ago, an_hour_ago))


@pytest.mark.parametrize("end", [_waited, _accounted, _killed, _killed_elsewhere])
def test_nobody_joins_a_run_that_has_ended(tmp_path: Path, end: Callable[[Path], None]) -> None:
    """Another run's steps would be taken for its, and nobody would account for this one."""
    ended = join(tmp_path / "run", "0")
    end(ended.folder)
    place = join(tmp_path / "run", "1")
    assert (place.folder.name, place.leads) == ("run-2", True)
    assert not (ended.folder / "joined-task-1").exists()


def test_a_leader_on_another_machine_that_writes_telemetry_is_joined(tmp_path: Path) -> None:
    first = join(tmp_path / "run", "0")
    _killed_elsewhere(first.folder)
    (first.folder / joining.TELEMETRY).write_text("{}\n")
    assert join(tmp_path / "run", "1").folder == first.folder


@pytest.mark.parametrize("manifest", ["[]", "{}", "no json", '{"ended_epoch_ns": null}'])
def test_a_manifest_that_names_no_end_keeps_nobody_out(tmp_path: Path, manifest: str) -> None:
    first = join(tmp_path / "run", "0")
    (first.folder / "manifest.json").write_text(manifest)
    assert join(tmp_path / "run", "1").folder == first.folder


def test_a_recording_of_one_launcher_is_left_alone_and_a_users_folder_is_refused(tmp_path: Path) -> None:
    for name, file, text in (("r", "manifest.json", '{"format_version": 1}'), ("precious", "thesis.tex", "mine")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(text)
    assert join(tmp_path / "r").folder.name == "r-2"
    with pytest.raises(OutputError, match="recording-exists"):
        join(tmp_path / "precious")
    assert [path.name for path in (tmp_path / "precious").iterdir()] == ["thesis.tex"]


def test_the_second_command_of_a_batch_script_runs_and_is_recorded(tmp_path: Path) -> None:
    job = "from pathlib import Path; path = Path('ran'); path.open('a').write('x'); raise SystemExit(3)"
    for _ in range(2):
        words = steptime_words("run", "--", sys.executable, "-c", job)
        run = subprocess.run(words, cwd=tmp_path, env=slurm(0, 8), capture_output=True, text=True, check=False)
        assert (run.returncode, len(run.stderr.splitlines())) == (3, 1), run.stderr
        assert "no-torch" in run.stderr, "each accounts for its own job"
    assert (tmp_path / "ran").read_text() == "xx"
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["python-77.0", "python-77.0-2"]


def test_two_tasks_that_run_together_find_each_other(tmp_path: Path) -> None:
    """Each waits until the other runs, too; then both leave, and one of them accounts for the job."""
    job = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "me = int(os.environ['SLURM_PROCID'])\n"
        "Path(f'here-{me}').touch()\n"
        "while not Path(f'here-{1 - me}').exists(): time.sleep(0.01)\n"
        "sys.exit(5)\n"
    )
    words = steptime_words("run", "--no-progress", "--", sys.executable, "-c", job)
    tasks = [
        subprocess.Popen(words, cwd=tmp_path, env=slurm(task, 2), stderr=subprocess.PIPE, text=True) for task in (0, 1)
    ]
    message = [task.communicate(timeout=PATIENCE)[1] for task in tasks]
    assert [task.returncode for task in tasks] == [5, 5]
    assert sorted(len(each.splitlines()) for each in message) == [0, 1], message
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["python-77.0"]


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
    assert (tasks_of_launcher(), part_of_launcher()) == ((1, ""), "")
    monkeypatch.setenv("SLURM_NTASKS", "8")
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    assert (tasks_of_launcher(), part_of_launcher()) == ((8, "77.0"), "3")


@pytest.mark.slow
def test_each_rank_under_its_own_launcher_gives_one_report(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "job.py").write_text(JOB)
    command = steptime_words("run", "--json", "--full", "--no-progress", "--no-peaks", "--", sys.executable, "job.py")
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
    done = [rank.communicate(timeout=PATIENCE) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], done
    (reported,) = (out for out, _ in done if out)
    report = json.loads(reported)
    assert sorted(process["rank"] for process in report["processes"]) == [0, 1]
    assert report["ranks"] is not None
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["job-9.0"]
