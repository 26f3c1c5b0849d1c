"""View of a running job from outside: its progress, and its Pythons that import torch without the probe.

These are found on Linux only: a script has replaced PYTHONPATH, and their environment has no steptime. Each process
with the probe has its pid in `seen-python`, and its forks have the probe, too. A Python that never maps torch's
libraries (a launcher, pip) does not count.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from steptime.launcher.outcome import WAITING
from steptime.recording.growing import StepCount
from steptime.recording.packed import ASIDE

WATCHING, PROFILED = "watching", "watching, profile taken"


class Journals:
    """All journals of a recording, read as they grow. Only for display: the breakdown counts steps itself."""

    def __init__(self, recording: Path) -> None:
        self._recording = recording
        self._counts: dict[Path, StepCount] = {}
        self._read_to: dict[Path, tuple[int, int]] = {}  # number of the file (inode), and bytes read of it

    def look(self) -> tuple[int, int, str]:
        """Returns (steps of the process with most, number of training processes, stage)."""
        folders = sorted(self._recording.glob("process-*"))
        for folder in folders:
            self._read(folder)
        profiled = any(True for folder in folders for _ in folder.glob("trace-*.json*"))
        stage = PROFILED if profiled else WATCHING if folders else WAITING
        return max((count.steps for count in self._counts.values()), default=0), len(folders), stage

    def _read(self, folder: Path) -> None:
        """Counts what is new: the rest of a journal that was renamed to be packed, then the newest one."""
        count, newest = self._counts.setdefault(folder, StepCount()), folder / "journal.bin"
        for path in (newest.with_suffix(ASIDE), newest):
            with contextlib.suppress(OSError), path.open("rb") as file:  # not there yet, or gone again
                number, (known, offset) = os.fstat(file.fileno()).st_ino, self._read_to.get(folder, (0, 0))
                if path == newest or number == known:
                    offset = file.seek(offset if number == known else 0)
                    self._read_to[folder] = number, offset + count.add(file.read())


PERIOD = 1.0
"""Seconds between two looks at the job's processes."""
TORCH = b"libtorch_python"
PROC = Path("/proc")
ISOLATED = "IES"
"""Options with which Python ignores PYTHONPATH (-I, -E), or skips start-up files, too (-S)."""


class Overlooked:
    """Finder of the first Python with torch but without the probe. pids: function that returns the job's processes."""

    def __init__(self, folder: Path, pids: Callable[[], Iterable[int]]) -> None:
        self._seen = folder / "seen-python"
        self._pids = pids
        self._due = time.monotonic()
        self._sentence = ""

    def look(self) -> str:
        """Returns a message about such a process, with an action; "" if there is none. Reads the maps only of Pythons
        without the probe."""
        if not self._sentence and time.monotonic() >= self._due:
            self._due = time.monotonic() + PERIOD
            pids = self._pids()
            entered = frozenset(int(word) for word in _read(self._seen).split() if word.isdigit())
            missed = (pid for pid in pids if not _is_entered(pid, entered) and uses_torch(pid))
            self._sentence = next((reason for pid in missed if (reason := _reason(pid))), "")
        return self._sentence


def _is_entered(pid: int, entered: frozenset[int]) -> bool:
    """True if the process has the probe, or was forked by one that has it: then both stacks start at the same address.
    Also true if the system hides that address (0)."""
    stack = _stat(pid)[1]
    while pid not in entered:
        parent = _stat(pid)[0]
        if parent <= 1 or _stat(parent)[1] != stack:
            return False
        pid = parent
    return True


def _stat(pid: int) -> tuple[int, int]:
    fields = _read(PROC / str(pid) / "stat").rpartition(b")")[2].split()
    return (int(fields[1]), int(fields[25])) if len(fields) > 25 else (0, 0)


def same_stack(pid: int, other: int) -> bool:
    """True if both stacks start at the same address: one was forked from the other, and started no program since."""
    stack = _stat(pid)[1]
    return stack != 0 and stack == _stat(other)[1]


def uses_torch(pid: int) -> bool:
    """True if the process is a Python that has loaded torch."""
    folder = PROC / str(pid)
    with contextlib.suppress(OSError):
        return "python" in (folder / "exe").readlink().name and TORCH in _read(folder / "maps")
    return False


def command_of(pid: int) -> tuple[str, ...]:
    """Words of a process's command; one empty word if it has ended."""
    words = _read(PROC / str(pid) / "cmdline").rstrip(b"\0").split(b"\0")
    return tuple(word.decode(errors="replace") for word in words)


def environment_of(pid: int) -> dict[str, str]:
    """Environment that a process was started with, as far as it can be read."""
    pairs = (each.partition(b"=") for each in _read(PROC / str(pid) / "environ").split(b"\0"))
    return {name.decode(errors="replace"): value.decode(errors="replace") for name, _, value in pairs}


def _reason(pid: int) -> str:
    words, variables = command_of(pid), environment_of(pid)
    if not words[0]:
        return ""  # it has just ended
    install = f"install steptime in its environment ({shlex.quote(words[0])} -m pip install steptime)"
    options = _options(words)
    if "STEPTIME_PROBE" not in variables:
        why, help_ = "its environment was emptied", "put steptime run in front of this command instead"
    elif "S" in options:
        why, help_ = "it was started with python -S", "leave that out"
    elif options:
        why, help_ = f"it was started with python -{min(options)}", f"{install}, or leave that out"
    elif variables.get("STEPTIME_INJECT", "") not in variables.get("PYTHONPATH", "").split(":"):
        theirs = variables.get("PYTHONPATH", "")
        kept = f"PYTHONPATH={shlex.quote(theirs)}:$PYTHONPATH" if theirs else "PYTHONPATH alone"
        why, help_ = "a script replaced PYTHONPATH", f"{install}, or let the script keep what was there: {kept}"
    else:
        why, help_ = "it is older than 3.10, or its start-up files were replaced", install
    return (
        f"{words[0]} (process {pid}) imports torch but is not measured, because {why}. To measure it, {help_}. "
        "(not-entered)"
    )


def _options(words: Sequence[str]) -> set[str]:
    found: set[str] = set()
    for word in words[1:]:
        if word[:1] != "-" or word[:2] in ("-c", "-m"):
            break
        if word[1:2] not in ("-", "W", "X"):
            found |= set(word) & set(ISOLATED)
    return found


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
