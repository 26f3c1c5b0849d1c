"""Inventory of a recording, by name, and its removal: nothing else in one is ever removed.

A recording is a folder of the user's, who may keep notes, plots or checkpoints anywhere in it. docs/recording-format.md
lists the same names. `.partial` is the name of a file while it is written; a process that was killed leaves one.
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
    r"|arm-end-\d+|output\.log|blocks\.jsonl"
)
"""Files of the recording itself."""
REQUEST = "profile-request"
"""Asks every process for one more window of the profiler; the probe looks for it once a second."""
LEAVE = "leave-request"
"""Asks the probe to leave: the job was attached to, and goes on without us. Each process that it has left says so."""
WARM = "warm"
"""Says that the warm-up of a process that takes turns is over: its number, that of its namespace, and whether it works
on a device."""
REST, RESTS = "rest-request", "rests"
"""Asks a process to rest at the end of a step; in the other it says when it had done what it launched, on a device too,
and when it went on."""
BLOCKS, GOING = "blocks.jsonl", "going"
"""Files of a process that runs several variants in blocks: its measurements; and which go on, a number each."""
MARKS = re.compile(
    rf"seen-(python|torch|importing)|refused-\d+|{REQUEST}|{LEAVE}|{WARM}|{REST}|{RESTS}|{GOING}|left-\d+|leader|joined-(.+-\d+|task-\d+)(\.ended)?|arm-ended-\d+"
)
"""Marks of the recording, too: files that say something by being there. One that holds anything but MARK_TEXT is not
ours."""
MARK_TEXT = re.compile(rb"(\d+\n)*|(\S+ \d+ \d*\n)?(ended\n)?")
"""Nothing; numbers of processes; or who leads, and that the run has ended."""
MOST_MARK_BYTES = 1 << 20
PROCESS_FOLDERS = re.compile(r"process-\d{1,10}(-\d{1,4})?")
PROCESS_FILES = re.compile(
    r"(process\.json|numerics\.json|(journal|loader)\.packed|memory-(\d+|full)\.pickle|trace-\d+\.json(\.gz)?)(\.partial)?"
    r"|(journal|loader)\.(bin|aside)|facts\.jsonl|parity\.jsonl|bar-open"
)
VARIANTS = "variants"
"""The folder in a trial's that holds the recordings of its variants."""
CLAIM = re.compile(rb'^\s*\{\s*"format_version":\s*\d')
"""How steptime's manifests start; other programs have a manifest.json, too."""
COMPILE_LOGS = "compile-logs"
"""The folder that TORCH_TRACE names in a job that was asked to explain its compilations."""
HERE, EXCHANGE = -100, 2
"""AT_FDCWD of fcntl.h, RENAME_EXCHANGE of linux/fs.h."""
COMPILE_LOG_FILES = re.compile(r"dedicated_log_torch_trace_.*\.log")


@dataclass(frozen=True, slots=True)
class Inventory:
    """The entries of a recording. files: steptime's, without the manifest, which says what the folder is. folders: of
    its processes and of its compiler, in which nothing else lies. strange: what steptime did not write, relative to the
    recording."""

    files: tuple[Path, ...]
    folders: tuple[Path, ...]
    strange: tuple[str, ...]


def take_inventory(recording: Path) -> Inventory:
    """Looks at every entry of a recording. Symbolic links are never steptime's, nor followed. Raises OSError."""
    files: list[Path] = []
    folders: list[Path] = []
    strange: list[str] = []
    for path in sorted(recording.iterdir()):
        if path.name == MANIFEST:
            continue
        if path.is_dir() and not path.is_symlink() and (names := _names_inside(path.name)) is not None:
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
    """Files of this name (a pattern) in the folders of a recording's processes. A job can make a link anywhere in its
    recording: what that leads to is the user's, and is not packed or removed."""
    for folder in sorted(recording.glob("process-*")):
        if not folder.is_symlink():
            yield from (path for path in sorted(folder.glob(name)) if _is_file(path))


def _names_inside(folder: str) -> re.Pattern[str] | None:
    """Names of steptime's files in a folder of a recording, None where the folder is not its."""
    if folder == COMPILE_LOGS:
        return COMPILE_LOG_FILES
    return PROCESS_FILES if PROCESS_FOLDERS.fullmatch(folder) else None


def _is_file(path: Path) -> bool:
    return stat.S_ISREG(path.lstat().st_mode)


def _is_mark(path: Path) -> bool:
    return path.stat().st_size <= MOST_MARK_BYTES and MARK_TEXT.fullmatch(path.read_bytes()) is not None


def claimed(folder: Path) -> bool:
    """True if a folder, no link to one, has a manifest as steptime writes it: what may be listed, and removed."""
    path = folder / MANIFEST
    try:
        if folder.is_symlink() or path.is_symlink() or not path.is_file():
            return False
        with path.open("rb") as file:
            return CLAIM.match(file.read(256)) is not None
    except OSError:
        return False


def replaceable(folder: Path) -> bool:
    """True if a folder is a recording and holds nothing else: one that another may take the place of."""
    try:
        return claimed(folder) and not take_inventory(folder).strange
    except OSError:
        return False


def take_place(new: Path, old: Path) -> None:
    """A recording in the place of an earlier one, which is removed, and is lost at no moment. Raises OSError, and
    OutputError for what cannot be removed."""
    if not _exchange(new, old):
        aside = new.with_name(f"{new.name}.replaced")
        old.rename(aside)
        new.rename(old)
        new = aside
    remove(new)


def _exchange(one: Path, other: Path) -> bool:
    """True if the file system can exchange two names in one instant (Linux's renameat2)."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    return rename is not None and rename(HERE, os.fsencode(one), HERE, os.fsencode(other), EXCHANGE) == 0


@contextlib.contextmanager
def set_aside(parts: Sequence[Path]) -> Iterator[None]:
    """Recordings out of the way of new ones, and removed where a new one is there afterwards; else they come back."""
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
    """Removes a recording; what was not steptime's and stays, relative to it. Raises OutputError where it cannot be
    removed.

    The manifest goes last, so that what an interruption leaves is still known as a recording."""
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
