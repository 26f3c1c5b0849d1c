"""Checks of names that become file names, and the folders of a trial.

The files of a trial may come from a stranger. `Variant` and `Run` check their names on construction, so a file with a
bad name is rejected as a whole. Only `own_folder` makes a folder that may be removed."""

from __future__ import annotations

import re
from pathlib import Path

from steptime.errors import RecordingError
from steptime.launcher.watchdog import OwnFolder

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,199}")
"""Pattern of a name. The plus sign joins the names of combined variants."""


def check_name(name: str) -> None:
    """Raises ValueError for an unsafe file name."""
    if not NAME.fullmatch(name):
        raise ValueError(f"{name[:60]!r} is not a valid name: expected letters, digits and ._+-")


def check_source(path: str) -> None:
    """Raises ValueError unless the path is relative, with `..` only at its start."""
    parts = Path(path).parts
    inner = [part for part in parts if part != ".."]
    if not inner or Path(path).is_absolute() or "\0" in path or list(parts[len(parts) - len(inner) :]) != inner:
        raise ValueError(f"{path[:60]!r} is not a relative path of a file")


def own_folder(folder: Path, *names: str) -> OwnFolder:
    """Nested folder of these names below `folder`, which need not exist. Raises RecordingError for a bad name, or if a
    link is in its place."""
    place = folder
    for name in names:
        try:
            check_name(name)
        except ValueError as error:
            raise RecordingError("trial-damaged", f"{folder} is not a valid folder of a trial: {error}.") from None
        place /= name
        if place.is_symlink():
            raise RecordingError(
                "trial-damaged",
                f"{place} is a symbolic link, which steptime never creates there. Remove it, or start the trial again.",
            )
    return OwnFolder(place)
