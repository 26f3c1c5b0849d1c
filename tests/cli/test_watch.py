"""`steptime watch` next to real jobs: real processes, a real terminal, real signals."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from journals import MS, JournalBuilder
from patience import PATIENCE
from preloading import python, steptime_words

pytest.importorskip("torch")

Steptime = Callable[..., "subprocess.CompletedProcess[str]"]

JOB = """
import os, sys, time, torch
from pathlib import Path
model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
stop = Path(sys.argv[1])
Path(sys.argv[1] + ".pid").write_text(str(os.getpid()))
while not stop.exists():
    model(torch.ones(4, 16)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.005)
sys.exit(3)
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    """A job that trains until the file `stop` is there, recorded; it leaves its own number next to that."""
    script = tmp_path / "train.py"
    script.write_text(JOB, encoding="utf-8")
    work = tmp_path / "work"
    work.mkdir()
    words = ["run", "-q", "--no-peaks", "--no-profile", "--", python(), str(script), str(tmp_path / "stop")]
    started = subprocess.Popen([sys.executable, "-m", "steptime", *words], cwd=work, env=environment(tmp_path))
    until(lambda: any(work.glob("runs/*/process-*/process.json")))
    yield tmp_path / "stop", started
    (tmp_path / "stop").touch()
    started.wait(PATIENCE)


def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}


def until(met: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not met():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_lines_come_while_the_job_runs_and_the_last_one_with_its_end(
    job: tuple[Path, subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    stop, _ = job
    watch = subprocess.Popen(
        steptime_words("watch", "--every", "1s"),
        cwd=tmp_path / "work",
        stdout=subprocess.PIPE,
        text=True,
        env=environment(tmp_path),
    )
    assert watch.stdout is not None
    first = watch.stdout.readline()
    while "; step " not in first:  # at first there may be none yet
        first = watch.stdout.readline()
    assert re.fullmatch(r"\d+ s: [\d,]+ steps?; step [\d.]+ ms, .*%.*\n", first)
    stop.touch()
    rest = watch.communicate(timeout=PATIENCE)[0].splitlines()
    assert re.fullmatch(r"The job ended with status 3 after \d+ s: [\d,]+ steps?\.", rest[-2])
    assert re.fullmatch(r"Next:  steptime diagnose runs/train-\S+", rest[-1])
    assert watch.returncode == 0


def test_a_profile_is_asked_for_from_a_terminal_and_the_watch_is_left(
    job: tuple[Path, subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    _, started = job
    (recording,) = (tmp_path / "work" / "runs").iterdir()
    number, terminal = pty.fork()
    if number == 0:
        os.chdir(tmp_path / "work")
        os.execv(sys.executable, [sys.executable, "-m", "steptime", "watch", str(started.pid)])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 100, 0, 0))
    seen = displayed(terminal, b"p: profile now", b"Step ")
    os.write(terminal, b"p")
    seen += displayed(terminal, b"Profile requested")
    assert (recording / "profile-request").exists()
    until(lambda: any(recording.glob("process-*/trace-*.json")))  # the job does as it was asked
    os.write(terminal, b"d")
    displayed(terminal, b"From:")
    os.write(terminal, b"q")
    assert os.waitpid(number, 0)[1] == 0
    os.close(terminal)
    assert started.poll() is None, "the job goes on"


def displayed(terminal: int, *wanted: bytes) -> bytes:
    """What a terminal shows until all of that was there."""
    seen, end = b"", time.monotonic() + PATIENCE
    while not all(each in seen for each in wanted):
        assert time.monotonic() < end, seen[-2000:]
        if select.select([terminal], [], [], 0.2)[0]:
            seen += os.read(terminal, 65536)
    return seen


def test_a_job_whose_launcher_and_program_were_killed_is_not_waited_for(
    job: tuple[Path, subprocess.Popen[bytes]], tmp_path: Path, steptime: Steptime
) -> None:
    stop, started = job
    started.send_signal(signal.SIGKILL)
    os.kill(int(Path(f"{stop}.pid").read_text()), signal.SIGKILL)
    (recording,) = (tmp_path / "work" / "runs").iterdir()
    watch = steptime("watch", recording, timeout=PATIENCE)
    assert watch.returncode == 0
    assert "the job's end was not recorded" in watch.stdout


def test_what_cannot_be_watched_is_reported_in_a_sentence(steptime: Steptime, tmp_path: Path) -> None:
    for words, sentence in {
        (): "No job is being recorded in runs",
        (str(os.getpid()),): f"Process {os.getpid()} was not started by `steptime run`",
        ("4194304",): "There is no process 4194304 on this machine",
        (str(tmp_path),): "has no manifest.json",
        ("nowhere",): "No such file or directory: nowhere",
    }.items():
        watch = steptime("watch", *words)
        assert watch.returncode in (1, 2), words
        assert sentence in watch.stderr
        assert watch.stderr.count("\n") == 1
        assert watch.stdout == ""


def test_a_recording_whose_job_has_ended_is_reported_at_once(steptime: Steptime, tmp_path: Path) -> None:
    built = JournalBuilder()
    for _ in range(4):
        built.next(MS).forward(MS).backward(MS).step(MS)
    folder = built.write(tmp_path / "r")
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace("}", ', "ended_epoch_ns": 1700000009000000000}'))
    assert steptime("watch", folder).stdout.startswith("The job ended after 10 s: 4 steps.\n")
