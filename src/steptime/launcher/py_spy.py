"""Sampling of a process from outside, if there is no way into it: py-spy, if the user has it, reads the training
thread's place a hundred times per second. It knows lines, but no steps."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from steptime.errors import CommandError
from steptime.launcher.telemetry import CpuLoad
from steptime.quantities import SourceLine
from steptime.trace.links import is_user_file

SECONDS, RATE = 20, 100
"""Duration, s, and samples per second; each stops the process for less than a millisecond."""
ENDING_SECONDS = 10.0
"""Seconds for py-spy to write its file at Ctrl-C."""
FRAME = re.compile(r"(?P<function>.*) \((?P<file>.+?)(?::(?P<line>\d{1,9}))?\)")
MAIN = ": MainThread"
MOST_LINES = 1 << 20
"""Most lines of py-spy's file, one per stack."""


@dataclass(frozen=True, slots=True)
class LinesFromOutside:
    """Samples of the training thread, Python's main one. looks: number of samples. lines: (innermost line of the user's
    code, number of its samples), most first. job_cpus, other_cpus: CPUs in use by the job and by others, None after its
    end. memory: of the job, bytes."""

    looks: int
    lines: tuple[tuple[SourceLine, int], ...]
    job_cpus: float | None = None
    other_cpus: float | None = None
    memory: int | None = None


def find() -> str:
    """Returns the path of py-spy; "" if it is not installed."""
    return shutil.which("py-spy") or ""


def look_from_outside(pid: int, seconds: int | None) -> LinesFromOutside:
    """Samples a process for `seconds`; None: to its end. Ctrl-C ends it early. Raises CommandError."""
    load = CpuLoad(pid)
    load.look()  # what it has used so far
    with tempfile.TemporaryDirectory(prefix="steptime-") as folder:
        file = Path(folder) / "stacks"
        words = [find(), "record", "--pid", str(pid), "--format", "raw", "--output", str(file), "--rate", str(RATE),
                 "--threads", "--idle", "--full-filenames", "--duration", str(seconds or "unlimited")]  # fmt: skip
        with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as spy:
            try:
                message, _ = spy.communicate()
            except KeyboardInterrupt:
                spy.send_signal(signal.SIGINT)  # from a terminal it has it already; it writes what it has
                with contextlib.suppress(subprocess.TimeoutExpired):
                    message, _ = spy.communicate(timeout=ENDING_SECONDS)
                spy.kill()
        sample = load.look() or {}
        if not file.exists():
            raise CommandError("attach-refused", _refusal(pid, message.decode(errors="replace")), exit_status=1)
        with file.open(encoding="utf-8", errors="replace") as stacks:
            looks, lines = lines_of(islice(stacks, MOST_LINES))
    if not looks:
        raise CommandError(
            "attach-refused",
            f"py-spy found no Python code in the main thread of process {pid}. Give the training process itself.",
            exit_status=1,
        )
    cpus = sample.get("job_cpu"), sample.get("other_cpu")
    return LinesFromOutside(looks, lines, *cpus, sample.get("resident_bytes"))


def lines_of(stacks: Iterable[str]) -> tuple[int, tuple[tuple[SourceLine, int], ...]]:
    """Returns (number of samples of the main thread, (user's line, number of its samples), …) from py-spy's lines
    "thread;frame;frame count", outermost frame first. A stack without user lines counts for its outermost frame."""
    found: Counter[SourceLine] = Counter()
    for stack in stacks:
        frames, _, count = stack.strip().rpartition(" ")
        thread, *below = frames.split(";")
        if not thread.endswith(MAIN) or not count.isdigit():
            continue
        matches = filter(None, map(FRAME.fullmatch, below))
        lines = [SourceLine(each["file"], int(each["line"] or 0), each["function"]) for each in matches]
        own = next((line for line in reversed(lines) if is_user_file(line.file)), lines[0] if lines else None)
        if own is not None:
            found[own] += int(count)
    return sum(found.values()), tuple(found.most_common())


def _refusal(pid: int, message: str) -> str:
    if "ermission" in message:
        return (
            f"The system forbids py-spy to read process {pid}. Run steptime as root, run the container with "
            "SYS_PTRACE, or start the job with STEPTIME_STANDBY=1."
        )
    words = next((line for line in reversed(message.splitlines()) if line.strip()), "no reason was given").strip(" .")
    return f"py-spy could not read process {pid} ({words}). Start the job with STEPTIME_STANDBY=1, or install gdb."
