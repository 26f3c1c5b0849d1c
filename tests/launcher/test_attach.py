"""`steptime attach` on real jobs that run: it measures, leaves, comes again, and the job goes on to its own end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from patience import PATIENCE
from preloading import python

import steptime
from steptime.cli.main import main
from steptime.launcher import attach
from steptime.launcher.outcome import ProbeOptions
from steptime.probe.standby import entry_of, folder_of
from steptime.recording.load import load

pytest.importorskip("torch")

JOB = """
import os, sys, time
import torch

def features():
    time.sleep(0.003)  # waits: the job's own work is none of what is measured here

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
print("ready", os.getpid(), flush=True)
steps = 0
while not os.path.exists(sys.argv[1]):
    features()
    optimizer.zero_grad()
    model(torch.ones(32, 64)).square().mean().backward()
    optimizer.step()
    steps += 1
print("whole", steps, bool(model.weight.detach().isfinite().all()), sorted(
    name for name in os.environ if name.startswith("STEPTIME_P")), flush=True)
"""
LINE = next(number for number, line in enumerate(JOB.splitlines(), 1) if "time.sleep(0.003)" in line)


WORKER = """
import os, sys, threading
import steptime.probe.standby
import torch
until = threading.Timer(300, os._exit, (1,))
until.start()
print("ready", flush=True)
sys.stdin.readline()
until.cancel()
print("worked", float(torch.ones(3).sum()), flush=True)
"""
"""Waits for work in a system call that is begun again behind a signal, as a worker of a pool does."""
WITH_A_WORKER = f"""
import subprocess
words = [sys.executable, "-c", {WORKER!r}]
worker = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
worker.stdout.readline()
"""
WITH_ITS_WORK = """
print(worker.poll(), worker.communicate("work\\n")[0].strip(), worker.returncode, flush=True)
"""


IN_THE_MIDST = """
import importlib.abc
class Pause(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "torch.nn":
            sys.meta_path.remove(self)
            print("ready", os.getpid(), flush=True)
            while not os.path.exists(sys.argv[2]):
                time.sleep(0.01)
            until = time.monotonic() + 0.2
            while time.monotonic() < until:
                time.sleep(0.01)
sys.meta_path.insert(0, Pause())
"""
"""Stops in the midst of importing torch until somebody has entered."""


class Job:
    """A job that trains until it is told to end. pid: of what trains."""

    def __init__(
        self, folder: Path, standby: bool, worker: bool = False, midst: bool = False, own: Path | None = None
    ) -> None:
        """own: the folder of the steptime that the job's environment has, where it is not this one."""
        script, self.stop = folder / "train.py", folder / "stop"
        text = JOB.replace("import torch\n", f"import torch\n{WITH_A_WORKER}", 1) + WITH_ITS_WORK if worker else JOB
        text = text.replace("import torch\n", f"{IN_THE_MIDST}\nimport torch\n", 1) if midst else text
        script.write_text(text, encoding="utf-8")
        start = ["-c", f"import runpy, sys, steptime.probe.standby; sys.argv[:] = sys.argv[1:]; "
                 f"runpy.run_path({str(script)!r}, run_name='__main__')", script] if standby else [script]  # fmt: skip
        preloaded = standby and not midst
        words = [python() if preloaded else sys.executable, *start, self.stop, folder / "r" / "seen-python"]
        self.process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={
                **os.environ,
                **({"STEPTIME_STANDBY": "1"} if standby else {}),
                **({"PYTHONPATH": str(own)} if own is not None else {}),
            },
        )  # fmt: skip
        assert self.process.stdout is not None
        word, pid = self.process.stdout.readline().split()
        assert word == "ready"
        self.pid = int(pid)

    def end(self) -> tuple[str, str]:
        self.stop.touch()
        out, err = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0, err
        return out, err


@pytest.fixture(autouse=True)
def as_long_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job on a busy machine is not given up before its probe has left."""
    monkeypatch.setattr(attach, "LEAVING_SECONDS", float(PATIENCE))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[bool], Job]]:
    jobs: list[Job] = []

    def one(standby: bool) -> Job:
        jobs.append(Job(tmp_path, standby))
        return jobs[-1]

    yield one
    for job in jobs:
        job.process.kill()
        job.process.communicate()


def attached(job: Job, recording: Path, capfd: pytest.CaptureFixture[str]) -> dict[str, object]:
    words = ["attach", str(job.pid), "--recording", str(recording), "--json", "--full", "--quiet"]
    assert main(words) == 0, capfd.readouterr().err
    report: dict[str, object] = json.loads(capfd.readouterr().out)["processes"][0]
    return report


def test_a_job_that_stands_by_is_measured_left_and_measured_again(
    start: Callable[[bool], Job], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    job = start(True)
    for name in ("first", "second"):
        report = attached(job, tmp_path / name, capfd)
        case = report["case"]
        assert isinstance(case, dict)
        assert case["step"]["mode"] == "optimizer"
        assert LINE in {each["lines"][0]["line"] for each in case["paths"]} | {
            each["source"]["line"] for each in case["lines"]
        }, "by the profile, or by the timers of lines"
        assert (tmp_path / name / f"left-{job.pid}").exists()
    size = sum(file.stat().st_size for file in (tmp_path / "second").rglob("*"))
    time.sleep(0.5)
    assert sum(file.stat().st_size for file in (tmp_path / "second").rglob("*")) == size, "nothing is written any more"
    out, err = job.end()
    assert out.startswith("whole")
    assert out.endswith("True []\n")
    assert err == ""


@pytest.mark.slow
def test_a_worker_that_waits_for_work_holds_nothing_up(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    job = Job(tmp_path, True, worker=True)
    try:
        report = attached(job, tmp_path / "r", capfd)
        assert report["findings"]
        out, err = job.end()
    finally:
        job.process.kill()
        job.process.communicate()
    whole, worked = out.splitlines()
    assert whole.startswith("whole")
    assert worked == "None worked 3.0 0"
    assert err == ""
    assert f"left-{job.pid}" in {each.name for each in (tmp_path / "r").iterdir()}


@pytest.mark.slow
def test_a_job_that_is_entered_while_it_imports_torch_is_entered_once_more(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    job = Job(tmp_path, True, midst=True)
    try:
        assert attached(job, tmp_path / "r", capfd)["findings"]
        out, err = job.end()
    finally:
        job.process.kill()
        job.process.communicate()
    assert out.splitlines()[-1].startswith("whole")
    assert err == ""


def test_a_job_that_lets_nobody_in_is_asked_once_and_its_reason_is_reported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As where steptime is installed twice: by itself, and in the job's environment, which stands by with its own."""
    shutil.copytree(Path(steptime.__file__).parent, tmp_path / "own" / "steptime")
    job = Job(tmp_path, True, own=tmp_path / "own")
    try:
        assert main(["attach", str(job.pid), "--recording", str(tmp_path / "r"), "--quiet"]) == 1
        message = capfd.readouterr().err
        out, err = job.end()
    finally:
        job.process.kill()
        job.process.communicate()
    reason = f"the job has loaded steptime from {tmp_path / 'own' / 'steptime'} (attach with that), not from "
    assert message.startswith(f"steptime: steptime could not enter process {job.pid}: ImportError: {reason}")
    assert message.count("\n") == 1
    assert not (tmp_path / "r").exists()
    assert out.startswith("whole")
    assert err.startswith(f"steptime: switched off: ImportError: {reason}")
    assert err.count("\n") == 1


def test_a_worker_that_ends_before_it_is_entered_holds_nothing_up(start: Callable[[bool], Job], tmp_path: Path) -> None:
    job, ended = start(True), subprocess.Popen(["true"])
    ended.wait()
    (tmp_path / "r").mkdir()
    found = attach.attach([job.pid, ended.pid], tmp_path / "r", ProbeOptions(True), None, stay=False)
    assert (found.ended, found.left, found.problems) == (False, True, ())
    assert load(tmp_path / "r").processes[0].facts.pid == job.pid
    assert job.end()[0].startswith("whole")


def can_trace() -> bool:
    if shutil.which("gdb") is None:
        return False
    sleeper = subprocess.Popen(["sleep", "30"])
    try:
        words = ["gdb", "-nx", "-batch", "-p", str(sleeper.pid), "-ex", "print ((int (*)()) getpid)()"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        return (
            f"= {sleeper.pid}" in done.stdout
        )  # some kernels let a process be stopped, and no function be called in it
    finally:
        sleeper.kill()
        sleeper.wait()


def test_any_other_job_is_entered_by_gdb_unless_that_fails_with_a_process_of_its_own(
    start: Callable[[bool], Job], tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As gdb 13 does on a processor with AMX: the system call that it finds a process in comes back broken. Then the
    job is never touched."""
    gdb, path = tmp_path / "bin" / "gdb", os.environ["PATH"]
    gdb.parent.mkdir()
    gdb.write_text(f'#!/bin/sh\necho "$STEPTIME_PID" >>{tmp_path}/entered\necho "Couldn\'t write extended state"\n')
    gdb.chmod(0o755)
    monkeypatch.setenv("PATH", str(gdb.parent), prepend=os.pathsep)
    job = start(False)
    assert main(["attach", str(job.pid), "--recording", str(tmp_path / "refused")]) == 1
    message = capfd.readouterr().err
    assert f"did not touch process {job.pid} (Couldn't write extended state)" in message
    assert str(job.pid) not in (tmp_path / "entered").read_text().split()
    monkeypatch.setenv("PATH", path)
    if can_trace():
        assert attached(job, tmp_path / "r", capfd)["findings"]
    out, err = job.end()
    assert out.startswith("whole")
    assert err == ""


@pytest.mark.slow
def test_an_attach_that_is_killed_leaves_the_job_alone_and_another_may_come(
    start: Callable[[bool], Job], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    job = start(True)
    words = [sys.executable, "-m", "steptime", "attach", str(job.pid), "--stay", "-q", "--recording"]
    killed = subprocess.Popen([*words, tmp_path / "killed"])
    while not (tmp_path / "killed" / "seen-torch").exists():
        time.sleep(0.05)
    assert main(["attach", str(job.pid), "--recording", str(tmp_path / "refused")]) == 1
    assert "Another steptime attach" in capfd.readouterr().err
    assert not (tmp_path / "refused").exists()
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert attached(job, tmp_path / "r", capfd)["findings"]
    assert job.end()[0].startswith("whole")


def test_an_attach_that_is_killed_leaves_no_probe_behind(start: Callable[[bool], Job], tmp_path: Path) -> None:
    job, folder = start(True), tmp_path / "killed"
    words = [sys.executable, "-m", "steptime", "attach", str(job.pid), "--stay", "-q", "--no-profile"]
    killed = subprocess.Popen([*words, "--recording", str(folder)], stderr=subprocess.DEVNULL)
    while not list(folder.glob("process-*/journal.bin")):
        time.sleep(0.05)
    killed.kill()
    killed.wait()
    while not (folder / f"left-{job.pid}").exists():
        assert job.process.poll() is None
        time.sleep(0.05)
    out, err = job.end()
    assert out.startswith("whole")
    assert err == ""


@pytest.mark.parametrize("what", ["nobody", "no torch", "no right"])
def test_what_cannot_be_entered_is_one_sentence_and_leaves_nothing(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    sleeper = subprocess.Popen(["sleep", "60"])
    pid = sleeper.pid if what == "no torch" else 1 << 29 if what == "nobody" else os.getpid()
    monkeypatch.setenv("PATH", "")
    assert main(["attach", str(pid)]) == 1
    sleeper.kill()
    sleeper.wait()
    message = capfd.readouterr().err.splitlines()
    assert ("(no-such-process)" if what == "nobody" else "(attach-refused)") in message[-1]
    assert not list(tmp_path.iterdir())
    assert not Path(entry_of(folder_of(os.getuid()), pid)).exists()


def test_one_that_is_interrupted_at_once_says_so_and_keeps_nothing(
    start: Callable[[bool], Job], tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job, before = start(True), set(tmp_path.iterdir())
    monkeypatch.setattr(attach, "_wait_for_one", lambda *_: os.kill(os.getpid(), signal.SIGINT))
    assert main(["attach", str(job.pid), "--recording", str(tmp_path / "r")]) == 130
    message = "steptime: interrupted before a step was measured: no recording was saved, and the job goes on\n"
    assert capfd.readouterr() == ("", f"{message}\n"), "behind ^C the shell's prompt is on a line of its own"
    assert set(tmp_path.iterdir()) == before
    assert job.end()[0].startswith("whole")
