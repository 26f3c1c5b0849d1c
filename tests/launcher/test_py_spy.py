"""`steptime attach` where there is no way in: py-spy, where it is installed, tells the lines from outside."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from steptime.cli.main import main
from steptime.launcher.py_spy import lines_of

pytest.importorskip("torch")

JOB = """
import time, torch
model = torch.nn.Linear(8, 1)
print("ready", flush=True)
while True:
    model(torch.ones(2, 8)).sum().backward()
    time.sleep(0.02)
"""
LINE = JOB.splitlines().index("    time.sleep(0.02)") + 1
PY_SPY = shutil.which("py-spy") or shutil.which(Path(sys.executable).with_name("py-spy")) or ""
WAITING = "/lib/python3.11/threading.py"
LIBRARY = "/env/lib/python3.11/site-packages/torch/nn/modules/module.py"


def test_each_look_counts_for_the_innermost_line_of_the_users_own() -> None:
    looks, lines = lines_of(
        [
            f"thread (7): MainThread;<module> (/my job/train b.py:21);step (/my job/model.py:4);call ({LIBRARY}:17) 30",
            "thread (7): MainThread;<module> (/my job/train b.py:21) 10",
            f"thread (7): MainThread;_run ({WAITING}:5);call ({LIBRARY}) 2",
            f"thread (8): Thread-1;run ({WAITING}:9) 500",
            "thread (7): MainThread;<module> (/my/train.py:1) many",
            "nonsense",
            "",
        ]
    )
    assert looks == 42
    assert [(line.file, line.line, line.function, count) for line, count in lines] == [
        ("/my job/model.py", 4, "step", 30),
        ("/my job/train b.py", 21, "<module>", 10),
        (WAITING, 5, "_run", 2),
    ]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    """A job that trains. There is no gdb on the way to it, but py-spy, which looks for a second."""
    (tmp_path / "train.py").write_text(JOB, encoding="utf-8")
    started = subprocess.Popen([sys.executable, "train.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    assert started.stdout.readline() == "ready\n"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "py-spy").symlink_to(PY_SPY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr("steptime.launcher.py_spy.SECONDS", 1)
    yield started
    started.kill()
    started.communicate()


def can_look() -> bool:
    """Some systems let no process be traced."""
    if not PY_SPY:
        return False
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; print(1, flush=True); time.sleep(60)"],
                               stdout=subprocess.PIPE)  # fmt: skip
    assert sleeper.stdout is not None
    sleeper.stdout.readline()
    done = subprocess.run([PY_SPY, "dump", "--pid", str(sleeper.pid)], capture_output=True, check=False)
    sleeper.kill()
    sleeper.communicate()
    return done.returncode == 0


needs_py_spy = pytest.mark.skipif(not can_look(), reason="py-spy is missing, or may look at nothing here")


@needs_py_spy
def test_lines_are_reported_from_outside_and_the_job_goes_on(
    job: subprocess.Popen[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["attach", str(job.pid)]) == 0
    out, message = capfd.readouterr()
    assert out == ""
    assert f"gdb is not installed: sampling process {job.pid} from outside with py-spy for 1 s" in message
    assert f"train.py:{LINE}: time.sleep(0.02)\n" in message
    assert "CPU: this job " in message
    assert "no steps are seen" in message
    assert job.poll() is None
    assert not (tmp_path / "runs").exists()


@needs_py_spy
def test_no_report_is_made_of_lines(job: subprocess.Popen[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["attach", str(job.pid), "-o", "report.md"]) == 2
    assert "no recording and no report" in capfd.readouterr().err
