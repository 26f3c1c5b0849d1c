"""Writes manifest.json of a recording: at the start of a job, soon after, and at its end, each time in one piece.

Standard library only, so that the job need not wait for numpy or msgspec. The fields are those of `recording.Manifest`.
"""

from __future__ import annotations

import contextlib
import json
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from steptime._version import __version__
from steptime.journal import FORMAT_VERSION

NAME = "manifest.json"


def start_manifest(folder: Path, command: Sequence[str], options: Mapping[str, str]) -> dict[str, Any]:
    """Writes the manifest of a job that is about to start, and returns its fields. Raises OSError."""
    fields: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "steptime": __version__,
        "command": list(command),
        "directory": str(Path.cwd()),
        "host": platform.node(),
        "started_epoch_ns": time.time_ns(),
        "options": dict(options),
    }
    _write(folder / NAME, fields)
    return fields


def extend_manifest(folder: Path, fields: Mapping[str, Any], **more: Any) -> None:
    """Replaces the manifest by a longer one: the commit, how the job ended. Raises OSError, and the old one stays."""
    _write(folder / NAME, {**fields, **more})


def _write(path: Path, fields: Mapping[str, Any]) -> None:
    partial = path.with_name(path.name + ".partial")
    try:
        partial.unlink(missing_ok=True)
        with partial.open("x", encoding="utf-8", errors="backslashreplace") as file:  # through no link of a job's
            json.dump(fields, file, indent=1)
            file.write("\n")
        partial.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


def discard(folder: Path, kept: Path) -> None:
    """Takes back what `start_manifest` did, for a job that never started. kept: the innermost that was there."""
    (folder / NAME).unlink(missing_ok=True)
    remove_empty(folder, kept)


def remove_empty(folder: Path, kept: Path) -> None:
    """Removes a folder and those above it, up to `kept`, as far as they are empty: other launchers leave marks."""
    with contextlib.suppress(OSError):
        while folder != kept:
            folder.rmdir()
            folder = folder.parent


def innermost(folder: Path) -> Path:
    """The innermost folder that exists already, of the path of one that is to be made."""
    whole = Path.cwd() / folder
    return next(path for path in (whole, *whole.parents) if path.exists() or path == path.parent)
