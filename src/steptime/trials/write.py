"""Puts a proven patch into the user's own files: only into clean ones, and only when that was asked for."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

from steptime.errors import OutputError
from steptime.trials.patch import Patch, place_of


def write_patch(patch: Patch) -> tuple[Path, ...]:
    """Writes the patch's files; returns their paths. Refuses all of it when one is dirty.

    Raises OutputError for a file that has changes which git does not know, that has changed since it was read, or that
    cannot be written.
    """
    files = [(place_of(patch.folder, path), old, new) for path, old, new in patch.files]
    for path, old, _ in files:
        _check(path, old)
    try:
        for path, _, new in files:
            with path.open("w", encoding="utf-8", newline="") as file:
                file.write(new)
    except OSError as error:
        raise OutputError(
            "output-unwritable",
            f"{path} cannot be written ({error.strerror}): git checkout brings it back, and patch.diff holds the "
            "patch.",
        ) from None
    return tuple(path for path, _, _ in files)


def _check(path: Path, old: str) -> None:
    now: str | None = None
    with contextlib.suppress(OSError, UnicodeDecodeError), path.open(encoding="utf-8", newline="") as file:
        now = file.read()
    if now != old:
        raise OutputError(
            "patch-outdated", f"{path} has changed since the patch was made: try again, or apply patch.diff by hand."
        )
    if is_dirty(path):
        raise OutputError(
            "patch-dirty",
            f"{path} has changes that are not committed, or is unknown to git: commit it first, so that the patch can "
            "be told from your own work, or apply patch.diff by hand.",
        )


def is_dirty(path: Path) -> bool:
    """Whether git knows of changes in the file, or does not know the file: then it could not be brought back."""
    if path.is_symlink():  # git knows where it leads, and not what is there
        return True
    command = ["git", "-C", str(path.parent), "status", "--porcelain", "--ignored", "--", path.name]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return True
    return told.returncode != 0 or bool(told.stdout.strip())
