"""Trials that are killed at random moments: no process of theirs lives on, none stays stopped, no workspace is left."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.started import STEPTIME
from steptime.launcher import watchdog

JOB = Path(__file__).parent / "orphans_job.py"
VERBS = {
    "try": ("try", "--workers", "1", "--budget", "20m"),
    "judge": ("judge", "--env", "OMP_NUM_THREADS=1", "--budget", "20m"),
    "lab": ("lab", "--budget", "20m"),
}
LONGEST = 20.0
"""Seconds within which a trial is killed: of its start, in which a command is measured and a variant rehearsed; or, of
every other `try` and `judge`, of its first round, whose processes take turns (a lab compiles for minutes first)."""
ROUNDS = b"round 1 of"
SLOWEST = 120.0
"""Seconds in which a trial comes to its first round."""
PATIENCE = 60.0
"""Seconds in which all must have ended."""
WORKSPACES = ("copies", "caches")
RANKS = (0, 1, 2)
"""Of torchrun, which starts each in a session of its own; 0: the job without it."""


@dataclass(frozen=True)
class KilledTrial:
    """ranks: of torchrun, 0 without it. after: seconds, of its start or its first round. lived: processes of the trial
    that lived when it was killed, and `stopped` those of them that were stopped. seconds: until nothing was left."""

    number: int
    verb: str
    ranks: int
    after: float
    lived: int
    stopped: int
    seconds: float
    faults: tuple[str, ...]


def kill_trials(folder: Path, seed: int, count: int, first: int = 0) -> Iterator[KilledTrial]:
    """Kills `count` trials, one after another; verb, moment and target follow from the seed and the number. The ranks
    go round within the verbs."""
    place = folder / f"trials-{os.getpid()}"
    place.mkdir()
    shutil.copy(JOB, place / "train.py")
    for ranks in RANKS:
        words = ["run", "--quiet", "--no-peaks", "--no-profile", "--recording", f"recorded-{ranks}", "--"]
        subprocess.run([*STEPTIME, *words, *_job(ranks, place, 60)], cwd=place, check=True)
    for process in _living(place.name):  # a job that is no trial's is the user's, and so is what it leaves
        process.kill()
    for number in range(first, first + count):
        draw = random.Random(f"{seed} trials {number}")
        verb, ranks = list(VERBS)[number % len(VERBS)], RANKS[number // len(VERBS) % len(RANKS)]
        early = verb == "lab" or draw.random() < 0.5
        command = early and draw.random() < 0.5
        target = ("--", *_job(ranks, place, 100_000_000)) if command else (f"recorded-{ranks}",)
        yield _killed(place, number, verb, ranks, draw.uniform(0.2, LONGEST), target, early=early)
    shutil.rmtree(place)


def _job(ranks: int, place: Path, steps: int) -> list[str]:
    """The command of a job with so many ranks of torchrun, 0 without it."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks else []
    return [sys.executable, *launcher, "train.py", place.name, str(steps)]


def _killed(
    place: Path, number: int, verb: str, ranks: int, after: float, target: Sequence[str], *, early: bool
) -> KilledTrial:
    environment = {**os.environ, "TMPDIR": str(place / "tmp"), "OMP_NUM_THREADS": "1"}
    (place / "tmp").mkdir(exist_ok=True)
    with (place / "output").open("wb") as output:
        trial = subprocess.Popen(
            [*STEPTIME, *VERBS[verb], *target], cwd=place, env=environment, stdout=output, stderr=output
        )
        until = time.monotonic() + SLOWEST
        while not early and ROUNDS not in (place / "output").read_bytes() and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(after)
        ended = trial.poll()
        before = _living(place.name)
        trial.kill()
        trial.wait()
    start = time.monotonic()
    while (left := _living(place.name)) and time.monotonic() < start + PATIENCE:
        time.sleep(0.02)
    faults = [f"{process.pid} ({' '.join(process.cmdline())[:80]}) lives on, {process.status()}" for process in left]
    faults += [f"{path.relative_to(place)} is left" for path in _workspaces(place)]
    if ended is not None:
        faults.append(f"it had ended with {ended}: {(place / 'output').read_text()[-300:]!r}")
    for process in left:
        process.kill()
    for path in _workspaces(place):
        shutil.rmtree(path, ignore_errors=True)
    lived = [process for process in before if process.pid != trial.pid]
    stopped = sum(status == psutil.STATUS_STOPPED for status in before.values())
    return KilledTrial(number, verb, ranks, after, len(lived), stopped, time.monotonic() - start, tuple(faults))


def _living(mark: str) -> dict[psutil.Process, str]:
    """What lives of a trial, with its status: its command, or its folder for temporary files, has the mark."""
    found: dict[psutil.Process, str] = {}
    for process in psutil.process_iter():
        try:
            words, status = process.cmdline(), process.status()
            marked = (*words, process.environ().get("TMPDIR", "") if watchdog.__file__ in words else "")
        except psutil.Error:
            continue
        ours = any(mark in word for word in marked)
        if ours and status != psutil.STATUS_ZOMBIE:
            found[process] = status
    return found


def _workspaces(place: Path) -> list[Path]:
    folders = [path for path in place.rglob("*") if path.name in WORKSPACES or path.name.startswith("workspace-")]
    return folders + list((place / "tmp").glob("steptime-*"))


def orphans_table(trials: Sequence[dict[str, Any]]) -> list[str]:
    """A row for each verb."""
    lines = [
        "\n| trials killed by SIGKILL | ranks of torchrun | trials | processes that lived then | of these stopped | "
        "longest until all had ended, s | faults |",
        "|---|---|---|---|---|---|---|",
    ]
    for verb, ranks in dict.fromkeys((trial["verb"], trial.get("ranks", 0)) for trial in trials):
        mine = [trial for trial in trials if (trial["verb"], trial.get("ranks", 0)) == (verb, ranks)]
        lived, stopped = (sum(trial[name] for trial in mine) for name in ("lived", "stopped"))
        slowest, faults = max(trial["seconds"] for trial in mine), sum(len(trial["faults"]) for trial in mine)
        lines.append(f"| {verb} | {ranks or '–'} | {len(mine)} | {lived} | {stopped} | {slowest:.1f} | {faults} |")
    return lines


signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, and so would ours
