"""Inventory of a recording, by name, and its removal, which removes nothing else.

A recording is a user's folder, which may contain notes, plots or checkpoints anywhere. docs/recording-format.md lists
the same names. `.partial` is a file being written; a killed process leaves one.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from steptime.errors import OutputError
from steptime.recording.manifest import NAME as MANIFEST

FILES = re.compile(
    r"manifest\.json\.partial|telemetry\.jsonl|machine\.json|(profile|slow-step)-\d+\.json(\..+-\d+-\d+)?"
    r"|variant-end-\d+|output\.log|blocks\.jsonl"
)
"""Files of the recording itself."""
REQUEST = "profile-request"
"""File that asks every process for one more window of the profiler; the probe looks for it once a second."""
LEAVE = "leave-request"
"""File that asks the probe to leave a job that was attached to. Each process that it has left writes a mark."""
WARM = "warm"
"""File with the state after the warm-up of a process that takes turns: its pid, pid namespace, and whether it uses a
device."""
REST, RESTS = "rest-request", "rests"
"""REST: file that asks a process to rest at a step's end. RESTS: times at which it and its device became idle and went
on."""
CLOCKS = "clock-started-", "clock-ended-"
"""Starts of the names of two files, which a process's pid follows: times of its clock, at which the system wrote
them."""
BLOCKS, GOING = "blocks.jsonl", "going"
"""Files of a process that runs several variants in blocks. BLOCKS: measurements. GOING: masks of variants that go
on."""
MARKS = re.compile(
    rf"seen-(python|torch|importing)|refused-\d+|{REQUEST}|{LEAVE}|{WARM}|{REST}|{RESTS}|{GOING}|({'|'.join(CLOCKS)})\d+|left-\d+|leader|joined-(.+-\d+|task-\d+)(\.ended)?|variant-ended-\d+"
)
"""Marks of the recording: files whose existence is the message. One with other content than MARK_TEXT is not ours."""
MARK_TEXT = re.compile(rb"(\d+\n)*|(\S+ \d+ \d*\n)?(ended\n)?")
"""Content of a mark: nothing; pids; or the leader and that the run has ended."""
MOST_MARK_BYTES = 1 << 20
PROCESS_FOLDERS = re.compile(r"process-\d{1,10}(-\d{1,4})?")
PROCESS_FILES = re.compile(
    r"(process\.json|numerics\.json|(journal|loader)\.packed|memory-(\d+|full)\.pickle|trace-\d+\.json(\.gz)?)(\.partial)?"
    r"|(journal|loader)\.(bin|aside)|facts\.jsonl|parity\.jsonl|bar-open"
)
VARIANTS = "variants"
"""Folder in a trial's that holds the recordings of its variants."""
CLAIM = re.compile(rb'^\s*\{\s*"format_version":\s*\d')
"""Start of steptime's manifests; other programs have a manifest.json, too."""
COMPILE_LOGS = "compile-logs"
"""Folder for TORCH_TRACE in a job with compile logs."""
HERE, EXCHANGE = -100, 2
"""HERE: AT_FDCWD of fcntl.h. EXCHANGE: RENAME_EXCHANGE of linux/fs.h."""
COMPILE_LOG_FILES = re.compile(r"dedicated_log_torch_trace_.*\.log")


@dataclass(frozen=True, slots=True)
class Inventory:
    """Entries of a recording. files: steptime's files, except the manifest, which identifies the folder. folders:
    folders of its processes and compile logs that hold nothing else. strange: paths, relative to the recording, that
    steptime did not write."""

    files: tuple[Path, ...]
    folders: tuple[Path, ...]
    strange: tuple[str, ...]


def take_inventory(recording: Path) -> Inventory:
    """Returns the inventory of a recording. Symbolic links count as strange and are not followed. Raises OSError."""
    files: list[Path] = []
    folders: list[Path] = []
    strange: list[str] = []
    for path in sorted(recording.iterdir()):
        if path.name == MANIFEST:
            continue
        of_process = PROCESS_FILES if PROCESS_FOLDERS.fullmatch(path.name) else None
        names = COMPILE_LOG_FILES if path.name == COMPILE_LOGS else of_process
        if names is not None and path.is_dir() and not path.is_symlink():
            inside = sorted(path.iterdir())
            own = [each for each in inside if names.fullmatch(each.name) and _is_file(each)]
            files += own
            strange += [f"{path.name}/{each.name}" for each in inside if each not in own]
            if len(own) == len(inside):
                folders.append(path)
        elif _is_file(path) and (FILES.fullmatch(path.name) or (MARKS.fullmatch(path.name) and _is_mark(path))):
            files.append(path)
        else:
            strange.append(path.name)
    return Inventory(tuple(files), tuple(folders), tuple(strange))


def files_of_processes(recording: Path, name: str) -> Iterator[Path]:
    """Yields files that match the pattern `name` in the folders of a recording's processes. Skips links, which a job
    can make: their targets are the user's, and are not packed or removed."""
    for folder in sorted(recording.glob("process-*")):
        if not folder.is_symlink():
            yield from (path for path in sorted(folder.glob(name)) if _is_file(path))


def _is_file(path: Path) -> bool:
    return stat.S_ISREG(path.lstat().st_mode)


def _is_mark(path: Path) -> bool:
    return path.stat().st_size <= MOST_MARK_BYTES and MARK_TEXT.fullmatch(path.read_bytes()) is not None


def claimed(folder: Path) -> bool:
    """True if a folder, no link to one, has a manifest of steptime's, so that it may be listed and removed."""
    path = folder / MANIFEST
    try:
        if folder.is_symlink() or path.is_symlink() or not path.is_file():
            return False
        with path.open("rb") as file:
            return CLAIM.match(file.read(256)) is not None
    except OSError:
        return False


def replaceable(folder: Path) -> bool:
    """True if a folder is a recording and contains nothing else, so that another one may replace it."""
    try:
        return claimed(folder) and not take_inventory(folder).strange
    except OSError:
        return False


def take_place(new: Path, old: Path) -> None:
    """Replaces an earlier recording, which is removed, by a new one; neither is lost at any moment. Raises OSError, and
    OutputError if the old one cannot be removed."""
    if not _exchange(new, old):
        aside = new.with_name(f"{new.name}.replaced")
        old.rename(aside)
        new.rename(old)
        new = aside
    remove(new)


def _exchange(one: Path, other: Path) -> bool:
    """True if the file system has exchanged the two names atomically (Linux's renameat2)."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    return rename is not None and rename(HERE, os.fsencode(one), HERE, os.fsencode(other), EXCHANGE) == 0


@contextlib.contextmanager
def set_aside(parts: Sequence[Path]) -> Iterator[None]:
    """Renames recordings before new ones are written; then removes each that has a new one, and restores the rest."""
    kept = {part: part.with_name(f"{part.name}.{os.getpid()}.replaced") for part in parts if replaceable(part)}
    for part, aside in kept.items():
        part.rename(aside)
    try:
        yield
    finally:
        for part, aside in kept.items():
            if any(True for _ in part.glob("process-*")):
                remove(aside)
            elif not part.exists() or remove(part) == ():
                aside.rename(part)


def remove(folder: Path) -> tuple[str, ...]:
    """Removes a recording; returns the remaining entries that are not steptime's, relative to it. Raises OutputError if
    it cannot be removed.

    The manifest is removed last, so that an interrupted removal leaves a known recording."""
    if not claimed(folder):
        return ()
    try:
        inventory = take_inventory(folder)
        for file in inventory.files:
            file.unlink()
        for inner in inventory.folders:
            inner.rmdir()
        (folder / MANIFEST).unlink()
        if not inventory.strange:
            folder.rmdir()
            with contextlib.suppress(OSError):  # the folder of a trial's variants, when the last one is gone
                if folder.parent.name == VARIANTS:
                    folder.parent.rmdir()
    except OSError as error:
        raise OutputError("history-not-removed", f"{folder} cannot be removed ({error.strerror}).") from None
    return inventory.strange
