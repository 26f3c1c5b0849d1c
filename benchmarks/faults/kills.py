"""Jobs that are killed at random moments: what was recorded is there, and all but the last second of it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.faults.targets import JOB
from benchmarks.started import STEPTIME
from steptime.diagnosis import diagnose
from steptime.errors import SteptimeError
from steptime.journal import Kind
from steptime.recording.load import load

LONGEST = 5.0
"""Seconds within which a job is killed: of its start, or, three times out of four, of its first step: all stages of the
watch, its profiler and plain watching."""
MOST_LOST = 1_000_000_000
"""ns of training that a killed job may lose."""
WAYS = (
    (signal.SIGKILL, "group"), (signal.SIGKILL, "job"), (signal.SIGKILL, "steptime"), (signal.SIGINT, "group"),
    (signal.SIGTERM, "group"), (signal.SIGTERM, "job"),
)  # fmt: skip
"""Which signal, and who gets it. Ctrl-C goes to the group; a scheduler's SIGTERM to the group or to the job."""


@dataclass(frozen=True)
class Kill:
    """One killed job. lost_ns: training after the last record, None where it was killed before its first step."""

    number: int
    way: str
    after: float
    steps: int
    lost_ns: int | None
    faults: tuple[str, ...]


def kill_jobs(folder: Path, seed: int, count: int, first: int = 0) -> Iterator[Kill]:
    """Kills `count` jobs, one after another; number, moment and way follow from the seed."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, and so would ours
    for number in range(first, first + count):
        draw = random.Random(f"{seed} {number}")
        (sent, whom), after, stepping = draw.choice(WAYS), draw.uniform(0.05, LONGEST), draw.random() < 0.75
        yield _killed(folder / f"{number}", number, sent, whom, after, stepping)


def _killed(recording: Path, number: int, sent: signal.Signals, whom: str, after: float, stepping: bool) -> Kill:
    words = [
        *STEPTIME,
        "run",
        "--quiet",
        "--no-peaks",
        "--recording",
        str(recording),
        "--",
        sys.executable,
        str(JOB),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    output, errors = recording.with_suffix(".out"), recording.with_suffix(".err")
    with output.open("wb") as out, errors.open("wb") as err:
        run = subprocess.Popen([*words, "100000000"], env=environment, stdout=out, stderr=err, start_new_session=True)
        while stepping and not output.stat().st_size and run.poll() is None:
            time.sleep(0.01)
        time.sleep(after)
        faults = _send(run, sent, whom)
    lines = [line.split() for line in output.read_text().splitlines() if line[:1].isdigit() and line.count(" ") == 1]
    stamps = [int(line[1]) for line in lines[:-1]]  # the last line may be torn
    lost, unread = _lost(recording, stamps)
    if b"site-packages/steptime" in errors.read_bytes() or b"switched off" in errors.read_bytes():
        unread += (f"said {errors.read_text()[-300:]!r}",)
    return Kill(number, f"{sent.name} to the {whom}", after, len(stamps), lost, faults + unread)


def _send(run: subprocess.Popen[bytes], sent: signal.Signals, whom: str) -> tuple[str, ...]:
    """Sends it, waits for the end of all. What was not as it should be."""
    job = _job_of(run.pid)
    if whom == "group" or (whom == "job" and job is None):
        os.killpg(run.pid, sent)
    else:
        os.kill(run.pid if whom == "steptime" or job is None else job, sent)
    try:
        status = run.wait(60)
    except subprocess.TimeoutExpired:
        return (f"steptime did not end within a minute of {sent.name}",)
    finally:
        for pid in (job, run.pid):  # a job whose steptime was killed goes on; it is ours to end
            if pid is not None:
                _end(pid)
    return () if status == -sent else (f"ended with {status} instead of {-sent}",)


def _end(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    until = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and time.monotonic() < until:
        time.sleep(0.01)


def _job_of(pid: int) -> int | None:
    """The job among the processes that steptime has started, if it is there by now."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        words = {int(child): Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0") for child in children}
    except OSError:
        return None
    return next((child for child, given in words.items() if given[1:2] == [str(JOB).encode()]), None)


def _lost(recording: Path, stamps: list[int]) -> tuple[int | None, tuple[str, ...]]:
    try:
        found = load(recording)
    except SteptimeError as error:
        return None, (f"not readable: {error}",) if stamps else ()
    try:
        diagnose(found, str(recording))
    except SteptimeError:
        pass  # too little was measured, in one sentence
    except Exception as error:  # noqa: BLE001 - what we look for
        return None, (f"no diagnosis: {type(error).__name__}: {error}",)
    if not stamps or not found.processes:
        return None, () if len(stamps) < 2 else ("steps were taken and nothing was recorded",)
    table = found.processes[0].intervals
    times = table.end[(table.kind != Kind.MEMORY) & (table.kind != Kind.QUEUE)]
    lost = max(0, stamps[-1] - int(times.max(initial=stamps[0])))
    return lost, (f"{lost / 1e9:.2f} s of training are lost",) if lost > MOST_LOST else ()
