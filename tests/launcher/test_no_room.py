"""The disk fills up, or the recording goes, while a job trains: the job ends as it would have, one sentence tells it,
and what was measured before is kept.

Each test has a file system of three megabytes to itself, in a mount namespace that ends with it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from preloading import python

from steptime.recording.load import load

pytest.importorskip("torch")

JOB = """
import os, shutil, sys, time, torch
harm, at, workers, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]

def do_harm():
    if harm == "removed":
        shutil.rmtree(os.path.join(folder, "recording"))
    if harm == "full":
        with open(os.path.join(folder, "filler"), "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1024))
            except OSError:
                pass
    if harm == "read-only":
        os.system("mount -o remount,ro " + folder)

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(64, 8)
optimizer = torch.optim.Adam(model.parameters())
data = torch.utils.data.TensorDataset(torch.randn(400, 64), torch.randint(8, (400,)))
loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=workers)
if at < 0:
    do_harm()
for step in range(8 * 100):
    if step % 100 == 0:
        batches = iter(loader)
    if step == at:
        do_harm()
    if step == 600:
        time.sleep(0.5)  # so that on any machine the next step writes what is only kept for a quarter of a second
    batch, labels = next(batches)
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(batch), labels)
    loss.backward()
    optimizer.step()
print("loss", loss.item().hex())
sys.exit(7)
"""
MOUNT = """
mount -t tmpfs -o size=3m none {small}
{command}
status=$?
cp -r {small}/recording {kept} 2>/dev/null
exit $status
"""
STEPTIME = "from steptime.cli.main import entry; entry()"


@pytest.fixture(scope="module", autouse=True)
def namespaces() -> None:
    try:
        subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting in a namespace of one's own is not allowed here")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("job") / "train.py"
    path.write_text(JOB)
    return path


@pytest.fixture(scope="module")
def bare(job: Path) -> str:
    """What the job prints by itself."""
    return subprocess.run([python(), job, "", "0", "0", ""], capture_output=True, text=True, check=False).stdout


def watched(job: Path, tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The job under steptime, its recording in the small file system, copied to `kept` at the end."""
    small = tmp_path / "small"
    small.mkdir()
    ours = [sys.executable, "-c", STEPTIME, "run", "--no-progress", "--no-peaks", "--recording", small / "recording"]
    command = shlex.join(map(str, [*ours, "--", python(), job, *arguments, small]))
    script = MOUNT.format(small=shlex.quote(str(small)), kept=shlex.quote(str(tmp_path / "kept")), command=command)
    return subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True, check=False)


def sentences(run: subprocess.CompletedProcess[str]) -> list[str]:
    """Ours, without the report's lines."""
    assert "Traceback" not in run.stderr, run.stderr
    return [line for line in run.stderr.splitlines() if line.startswith("steptime: ")]


@pytest.mark.parametrize(
    ("at", "workers"),
    [(210, 0), *(pytest.param(at, workers, marks=pytest.mark.slow) for at, workers in ((-1, 0), (0, 0), (210, 2)))],
)
def test_a_disk_that_fills_up_early_costs_the_recording_only(
    job: Path, bare: str, tmp_path: Path, at: int, workers: int
) -> None:
    run = watched(job, tmp_path, "full", str(at), str(workers))
    assert (run.returncode, run.stdout) == (7, bare)
    off, end, *more = sentences(run)
    assert re.search(r"switched off: .*(No space left|no room).*; the job goes on$", off)
    assert re.search(r"is incomplete \(No space left on device\): free some room", end)
    looked = "steptime: Telemetry could not be written to the recording."  # where the job lasts until the next look
    assert all("uncompressed" in line or line.startswith(looked) for line in more), more
    load(tmp_path / "kept")


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_what_was_measured_before_is_kept_and_accounted_for(job: Path, bare: str, tmp_path: Path, workers: int) -> None:
    run = watched(job, tmp_path, "full", "799", str(workers))
    assert (run.returncode, run.stdout) == (7, bare)
    assert re.search(r"is incomplete.*\(No space left on device\).*\(recording-cut-short\)", "".join(sentences(run)))
    assert re.search(r"^Step .* mean of \d+ steps", run.stderr, re.MULTILINE), run.stderr
    assert not list((tmp_path / "kept").glob("*.partial"))
    assert json.loads((tmp_path / "kept" / "manifest.json").read_text())["command"][1] == str(job)
    (process,) = load(tmp_path / "kept").processes
    assert len(process.intervals.kind) > 200


@pytest.mark.parametrize(
    "at", [pytest.param(-1, marks=pytest.mark.slow), 100, pytest.param(799, marks=pytest.mark.slow)]
)
def test_a_recording_that_is_removed_is_missed_by_us_alone(job: Path, bare: str, tmp_path: Path, at: int) -> None:
    run = watched(job, tmp_path, "removed", str(at), "0")
    assert (run.returncode, run.stdout) == (7, bare)
    *off, end = sentences(run)
    assert re.search(r"Somebody removed the recording .* while the job ran", end)
    assert [re.sub(r"switched off: .*; the job", "switched off; the job", line) for line in off] in (
        [],
        ["steptime: switched off; the job goes on"],
    )
    assert run.stderr.splitlines() == [*off, end], "nothing of anybody else's either"


@pytest.mark.slow
def test_a_file_system_that_becomes_read_only_is_reported(job: Path, bare: str, tmp_path: Path) -> None:
    run = watched(job, tmp_path, "read-only", "-1", "0")
    assert (run.returncode, run.stdout) == (7, bare)
    end = next(line for line in sentences(run) if "to its end" in line)
    assert "(Read-only file system): name another folder with --recording" in end


TRIAL = """
import contextlib, json, os, pathlib, subprocess, sys
small, steptime = pathlib.Path(sys.argv[1]), [sys.executable, "-c", sys.argv[2]]
small.mkdir()
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "none", small], check=True)
os.chdir(small)
pathlib.Path("train.py").write_text('''
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(64, 8)
optimizer = torch.optim.Adam(model.parameters())
for step in range(3000):
    optimizer.zero_grad()
    model(torch.randn(16, 64)).square().mean().backward()
    optimizer.step()
''')
source = pathlib.Path("train.py").read_bytes()
run = ["run", "--quiet", "--no-peaks", "--no-profile", "--recording", "recorded", "--", sys.executable, "train.py"]
subprocess.run([*steptime, *run], check=True, stdout=subprocess.DEVNULL)
judge = ["judge", "--args", sys.argv[3], "--budget", "45s", "recorded"]
with subprocess.Popen([*steptime, *judge], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as trial:
    said = []
    for line in trial.stderr:
        said.append(line)
        if "rehearsal" in line and not os.path.exists("filler"):
            with open("filler", "wb", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(bytes(4096))
    trial.stdout.read()
left = [each for each in pathlib.Path("/proc").glob("[0-9]*/cmdline") if each.parent.name != str(os.getpid())]
left = [each for each in left if sys.argv[3].encode() in each.read_bytes()]
os.unlink("filler")
(place,) = (each for each in os.listdir() if "judge" in each)
again = subprocess.run([*steptime, "judge", "--resume", place, "--budget", "45s"], capture_output=True, text=True)
print(json.dumps({"status": trial.returncode, "said": said, "left": len(left), "again": again.stdout,
                  "errors": again.stderr, "same": pathlib.Path("train.py").read_bytes() == source}))
"""


@pytest.mark.slow
def test_a_trial_whose_disk_fills_up_ends_with_a_sentence_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    words = [sys.executable, "-c", TRIAL, str(tmp_path / "small"), STEPTIME, f"--mark-{tmp_path.name}-{os.getpid()}"]
    done = subprocess.run(["unshare", "-rm", *words], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["status"] == 1, found["said"]
    assert "no room" in found["said"][-1] or "filled" in found["said"][-1]
    assert not any("bug" in line or "Traceback" in line for line in (*found["said"], found["errors"]))
    assert (found["left"], found["same"]) == (0, True)
    assert "Judged:" in found["again"], (found["said"], found["errors"])  # whatever the verdict
