"""The user's command, in a shell's interpretation, and the folder of its recording.

Standard library only and few modules: all of this runs before the job starts.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from steptime.errors import CommandError, OutputError, UsageError
from steptime.recording.manifest import NAME as MANIFEST, innermost, manifest_in, remove_empty

NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""Exit statuses of a POSIX shell for a command that it cannot start."""
PROOF = f"{MANIFEST}.partial"
"""First file of a recording."""
ROOM = 1 << 20
"""Bytes that must be free before a job starts: a disk that is full in its first second would be our fault."""


def resolve(command: Sequence[str], directory: Path = Path()) -> tuple[str, ...]:
    """Returns the words to execute in `directory`. `train.py …` is short for `python train.py …`.

    Raises UsageError without a command, CommandError (127 not found, 126 not executable) if it cannot be started."""
    if not command:
        raise UsageError(
            "no-command", "No command was given. Write it after --, as in: steptime run -- python train.py"
        )
    first = command[0]
    try:
        if first.endswith(".py") and not _is_program(first, directory):
            if not (directory / first).is_file():
                raise CommandError(
                    "script-not-found",
                    f"No such file: {first} in {directory.absolute()}. Give the path of the training script.",
                    exit_status=NOT_FOUND,
                )
            python = next((name for name in ("python", "python3") if shutil.which(name)), sys.executable)
            return (python, *command)
        if shutil.which(str(directory.absolute() / first) if os.sep in first else first) is None:
            raise _refusal(first, directory)
    except PermissionError:
        raise CommandError(
            "command-not-executable",
            f"You have no permission to read the path of {first}. Check the permissions of its folders.",
            exit_status=NOT_EXECUTABLE,
        ) from None
    return tuple(command)


def _is_program(name: str, directory: Path) -> bool:
    """True if a .py is executed by itself: found on PATH, or named by a path, executable, with an interpreter line."""
    if os.sep not in name:
        return shutil.which(name) is not None
    path = directory / name
    if not (path.is_file() and os.access(path, os.X_OK)):
        return False
    with path.open("rb") as script:
        return script.read(2) == b"#!"


def _refusal(first: str, directory: Path) -> CommandError:
    if os.sep in first and (directory / first).exists():
        what = "is a folder" if (directory / first).is_dir() else "may not be executed"
        return CommandError(
            "command-not-executable",
            f"{first} {what}. Give a program, or put the script's interpreter first, as in: bash {first}",
            exit_status=NOT_EXECUTABLE,
        )
    return CommandError(
        "command-not-found",
        f"There is no command {first}. Check its spelling, and that its environment is activated.",
        exit_status=NOT_FOUND,
    )


def job_name(command: Sequence[str]) -> str:
    """Returns a short name for a job: its script, its module, or its first word."""
    for position, word in enumerate(command):
        if word.endswith((".py", ".sh")) and not word.startswith("-"):
            return _clean(Path(word).stem)
        module = command[position + 1] if word in ("-m", "--module") and position + 1 < len(command) else ""
        if module and not module.startswith("torch."):
            return _clean(module.rpartition(".")[2])
    return _clean(Path(command[0]).name)


def _clean(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name).strip(".") or "job"


def default_recording(command: Sequence[str], parent: Path = Path("runs")) -> Path:
    """Returns `runs/<name>-<YYYYmmdd-HHMMSS>`, with a number appended if that exists."""
    path = parent / f"{job_name(command)}-{time.strftime('%Y%m%d-%H%M%S')}"
    taken, number = path, 1
    while os.path.lexists(path):
        number += 1
        path = taken.with_name(f"{taken.name}-{number}")
    return path


def make_recording(path: Path, *, keep_earlier: bool = False) -> Path:
    """Makes the folder of a recording and checks that it is writable; returns its absolute path. keep_earlier: True to
    add a number to the name if the folder has an earlier recording.

    Raises OutputError if it cannot be made, or is not empty: two jobs never share a recording."""
    number, kept = 1, innermost(path)
    folder = Path.cwd() / path
    try:
        while not _taken(folder := Path.cwd() / numbered(path, number)):
            if not (keep_earlier and (is_recording(folder) or (folder / PROOF).exists())):
                raise occupied(path)
            number += 1
        prove_room(folder)
    except OSError as error:
        remove_empty(folder, kept)
        raise cannot_record(path, error) from None
    return folder


def _taken(folder: Path) -> bool:
    """True if the folder was empty and is now ours: true for only one of several simultaneous callers."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        return False
    try:
        (folder / PROOF).touch(exist_ok=False)
    except FileExistsError:
        return False
    if (folder / MANIFEST).exists():  # the other one has gone on meanwhile
        (folder / PROOF).unlink()
        return False
    return True


def numbered(path: Path, number: int) -> Path:
    """Returns a folder's name for the first, second … run of that name."""
    return path.with_name(f"{path.name}-{number}") if number > 1 and path.name else path


def is_recording(folder: Path) -> bool:
    """True if steptime has recorded into a folder, judging by its manifest only."""
    return "format_version" in manifest_in(folder)


def prove_room(folder: Path) -> None:
    """Raises OSError if a folder cannot be written to."""
    proof = folder / PROOF
    try:
        with proof.open("wb") as file:
            file.write(bytes(4096))
        state = os.statvfs(folder) if hasattr(os, "statvfs") else None
        if state is not None and state.f_bavail * state.f_frsize < ROOM:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        with contextlib.suppress(OSError):
            proof.unlink()
        raise


def occupied(path: Path) -> OutputError:
    """Returns the error for a folder that is not empty."""
    return OutputError(
        "recording-exists", f"{path} is not empty. Give another folder for the recording, or remove this one first."
    )


def cannot_record(path: Path, error: OSError) -> OutputError:
    """Returns the error for a folder where no recording can be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return OutputError("no-room", f"There is no room for a recording in {path}: free some, or use another folder.")
    return OutputError(
        "recording-not-writable",
        f"The recording cannot be written to {path} ({os.strerror(error.errno or 0)}). Give another folder "
        "with --recording.",
    )
