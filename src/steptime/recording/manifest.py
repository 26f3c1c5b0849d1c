"""Manifest of a recording, manifest.json: written at a job's start, soon after, and at its end, each time atomically.

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


def manifest_in(folder: Path) -> dict[str, Any]:
    """Returns the fields of a folder's manifest; {} without one, and for one that cannot be read."""
    path = folder / NAME
    try:
        fields = json.loads(path.read_bytes() if path.is_file() else b"{}")  # a pipe would hold us for ever
    except (OSError, ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def extend_manifest(folder: Path, fields: Mapping[str, Any], **more: Any) -> None:
    """Replaces the manifest by one with more fields: commit, end of the job. Raises OSError; the old one then stays."""
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
    """Removes the manifest and empty folders of a job that never started. kept: innermost folder that existed."""
    (folder / NAME).unlink(missing_ok=True)
    remove_empty(folder, kept)


def remove_empty(folder: Path, kept: Path) -> None:
    """Removes a folder and its parents, up to `kept`, while they are empty: other launchers leave marks."""
    with contextlib.suppress(OSError):
        while folder != kept:
            folder.rmdir()
            folder = folder.parent


def innermost(folder: Path) -> Path:
    """Returns the innermost existing folder on the path of one that will be made."""
    whole = Path.cwd() / folder
    return next(path for path in (whole, *whole.parents) if path.exists() or path == path.parent)
