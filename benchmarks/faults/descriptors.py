"""Jobs that close descriptors which they did not open, and open files of their own: these hold the job's bytes alone.

Each job is drawn from a seed: when it closes which numbers, how many files it opens, in which process. It runs bare and
watched; its files and what it prints must be the same.
"""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.started import STEPTIME

JOB = Path(__file__).parent / "descriptors_job.py"
PLACES = ("job", "child", "thread")
"""Where a job closes and opens: in the training process, in a child that it forks, in a thread next to the training."""


@dataclass(frozen=True)
class Closed:
    """One job. closings: what it did, as `descriptors_job` takes it; files: how many of its own it wrote."""

    number: int
    closings: tuple[dict[str, Any], ...]
    files: int
    faults: tuple[str, ...]


def drawn(seed: int, number: int) -> tuple[dict[str, Any], ...]:
    """The same closings for the same seed and number."""
    draw = random.Random(f"{seed} descriptors {number}")
    return tuple(
        {
            "after": draw.randrange(40),
            "place": draw.choice(PLACES),
            "first": draw.randrange(3, 12),
            "last": draw.choice((16, 64, 256)),
            "files": draw.randrange(1, 24),
            "keep": draw.random() < 0.5,
        }
        for _ in range(draw.randrange(1, 5))
    )


def close_descriptors(folder: Path, seed: int, count: int, first: int = 0) -> Iterator[Closed]:
    """Runs `count` jobs, one after another, each bare and watched."""
    for number in range(first, first + count):
        closings = drawn(seed, number)
        bare, watched = folder / f"{number}-bare", folder / f"{number}-watched"
        ours = [*STEPTIME, "run", "--quiet", "--no-peaks", "--recording", str(folder / f"{number}-recording"), "--"]
        faults = differences(_outcome((), bare, closings), _outcome(ours, watched, closings))
        yield Closed(number, closings, len(list(bare.iterdir())), faults)


def _outcome(before: Sequence[str], folder: Path, closings: tuple[dict[str, Any], ...]) -> dict[str, str]:
    """By name: a digest of each of the job's files, and its status and output."""
    folder.mkdir()
    words = [*before, sys.executable, str(JOB), json.dumps(closings)]
    run = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    return {**files, "status": str(run.returncode), "output": run.stdout, "errors": run.stderr}


def differences(bare: dict[str, str], watched: dict[str, str]) -> tuple[str, ...]:
    """What is not the same, by name."""
    return tuple(
        f"{name} differs from the bare run's"
        for name in sorted({*bare, *watched})
        if bare.get(name) != watched.get(name)
    )


def descriptors_row(jobs: Sequence[dict[str, Any]]) -> str:
    """One sentence for all jobs."""
    closings, files = sum(len(each["closings"]) for each in jobs), sum(each["files"] for each in jobs)
    faults = sum(bool(each["faults"]) for each in jobs)
    return (
        f"\nDescriptors: {len(jobs)} jobs closed ranges of descriptors {closings} times and wrote {files} files of "
        "their own, as the same jobs did without steptime; jobs with a file, a status or an output that differs: "
        f"{faults}."
    )
