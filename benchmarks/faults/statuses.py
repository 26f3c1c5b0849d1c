"""Exit statuses: a job ends under steptime as it does alone, whatever its streams are connected to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.started import STEPTIME

JOB = Path(__file__).parent / "ends.py"
ENDS = ("0", "3", "exception", "SIGTERM", "SIGKILL", "SIGINT")
STREAMS = (
    "", "<&-", ">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-", ">/dev/full", "2>/dev/full", ">/dev/full 2>/dev/full",
    ">&9", "2>&9", ">&9 2>&9",
)  # fmt: skip
"""As a shell has them; 9 is a pipe that nobody reads from any more."""
TRAINED, STEPS = ("3", "SIGKILL"), 60
"""Ends of jobs that train before, and how many steps: most stages of the watch, and the profiler."""


@dataclass(frozen=True)
class Ending:
    """How a job ended with these streams after so many steps, alone and watched: a status, or a signal's number below
    zero."""

    streams: str
    end: str
    steps: int
    alone: int
    watched: int


def endings(folder: Path, *, quick: bool) -> Iterator[Ending]:
    """All ways to end with all streams; quick: no job trains."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, and so would ours
    for number, (streams, end) in enumerate((streams, end) for streams in STREAMS for end in ENDS):
        steps = STEPS if end in TRAINED and not quick else 0
        job = (sys.executable, str(JOB), end, str(steps))
        ours = (*STEPTIME, "run", "--no-peaks", "--recording", str(folder / f"ending-{number}"), "--")
        yield Ending(streams, end, steps, _status(streams, job), _status(streams, (*ours, *job)))


def _status(streams: str, command: Sequence[str]) -> int:
    """What a command ends with, which takes the shell's place."""
    read, write = os.pipe()
    os.close(read)
    nothing = subprocess.DEVNULL
    words = ["bash", "-c", f'exec 9>&{write}; exec "$@" {streams} 9>&-', "bash", *command]
    try:
        return subprocess.run(
            words,
            stdin=nothing,
            stdout=nothing,
            stderr=nothing,
            pass_fds=(write,),
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=False,
        ).returncode
    finally:
        os.close(write)


def faults(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """The endings that differ."""
    return [
        f"{each['end']} with {each['streams'] or 'open streams'}: {each['watched']} instead of {each['alone']}"
        for each in found
        if each["watched"] != each["alone"]
    ]


def table(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """A row for each kind of streams."""
    lines = ["\n| streams | ends | jobs that trained | statuses that differ |", "|---|---|---|---|"]
    for streams in dict.fromkeys(each["streams"] for each in found):
        mine = [each for each in found if each["streams"] == streams]
        displayed = f"`{streams}`" if streams else "open"
        trained = sum(bool(each["steps"]) for each in mine)
        lines.append(f"| {displayed} | {', '.join(each['end'] for each in mine)} | {trained} | {len(faults(mine))} |")
    return lines
