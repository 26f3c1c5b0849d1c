"""Looks at a process from outside, where there is no way into it: py-spy, where the user has it installed, reads where
its training thread is a hundred times a second. It knows lines, and no steps.
"""

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
"""How long, and looks per second; each stops the process for less than a millisecond."""
ENDING_SECONDS = 10.0
"""Seconds that py-spy is given to write at Ctrl-C."""
FRAME = re.compile(r"(?P<function>.*) \((?P<file>.+?)(?::(?P<line>\d{1,9}))?\)")
MAIN = ": MainThread"
MOST_LINES = 1 << 20
"""Lines of py-spy's file, one for each stack."""


@dataclass(frozen=True, slots=True)
class LinesFromOutside:
    """looks: at the training thread, Python's main one. lines: the innermost ones of the user's code with the looks
    that found them, most first. job_cpus, other_cpus: in use, None where it has ended. memory: bytes of the job."""

    looks: int
    lines: tuple[tuple[SourceLine, int], ...]
    job_cpus: float | None = None
    other_cpus: float | None = None
    memory: int | None = None


def find() -> str:
    """The path of py-spy; "" without."""
    return shutil.which("py-spy") or ""


def look_from_outside(pid: int, seconds: int | None) -> LinesFromOutside:
    """seconds: None to the end of the process or Ctrl-C, which ends it early in any case. Raises CommandError."""
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
            "attach-refused", f"py-spy saw no Python in the main thread of process {pid}.", exit_status=1
        )
    cpus = sample.get("job_cpu"), sample.get("other_cpu")
    return LinesFromOutside(looks, lines, *cpus, sample.get("resident_bytes"))


def lines_of(stacks: Iterable[str]) -> tuple[int, tuple[tuple[SourceLine, int], ...]]:
    """Counts of py-spy's lines "thread;frame;frame count", outermost first: the looks at the main thread, and the
    user's lines with theirs. A look that found none of those counts for the outermost frame."""
    found: Counter[SourceLine] = Counter()
    for stack in stacks:
        frames, _, count = stack.strip().rpartition(" ")
        thread, *below = frames.split(";")
        if not thread.endswith(MAIN) or not count.isdigit():
            continue
        lines = [_line(match) for frame in below if (match := FRAME.fullmatch(frame))]
        own = next((line for line in reversed(lines) if is_user_file(line.file)), lines[0] if lines else None)
        if own is not None:
            found[own] += int(count)
    return sum(found.values()), tuple(found.most_common())


def _line(match: re.Match[str]) -> SourceLine:
    return SourceLine(match["file"], int(match["line"] or 0), match["function"])


def _refusal(pid: int, message: str) -> str:
    if "ermission" in message:
        return (
            f"The system does not let process {pid} be looked at by py-spy: run it as root, in a container with "
            "SYS_PTRACE, or start the job with STEPTIME_STANDBY=1."
        )
    words = next((line for line in reversed(message.splitlines()) if line.strip()), "no reason was given").strip(" .")
    return f"py-spy could not look at process {pid} ({words}): start the job with STEPTIME_STANDBY=1, or install gdb."
