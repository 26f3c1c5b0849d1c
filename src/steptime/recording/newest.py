"""The recordings in a folder, the newest first: what a verb takes where nothing is named, and what a folder of them
lists. Only manifests are read, with the standard library.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from steptime.errors import RecordingError
from steptime.recording.manifest import NAME as MANIFEST, manifest_in

RUNS = Path("runs")
"""The folder that `steptime run` records into."""
LISTED = 5
"""Recordings of a folder that are named; the others are counted."""


@dataclass(frozen=True, slots=True)
class FoundRecording:
    """Recording as its manifest describes it. started: ns since the epoch, 0 if unknown."""

    path: Path
    command: tuple[str, ...]
    directory: str
    started: int


def recordings_in(folder: Path) -> tuple[FoundRecording, ...]:
    """Recordings in a folder, the newest first, without unreadable ones."""
    try:
        found = [each for manifest in folder.glob(f"*/{MANIFEST}") if (each := _found(manifest)) is not None]
    except OSError:
        return ()
    return tuple(sorted(found, key=lambda each: (-each.started, str(each.path))))


def _found(manifest: Path) -> FoundRecording | None:
    fields = manifest_in(manifest.parent)
    try:
        command = tuple(map(str, fields.get("command", ())))
        started = int(fields.get("started_epoch_ns", 0))
    except (ValueError, TypeError):
        return None
    known = FoundRecording(manifest.parent, command, str(fields.get("directory", "")), started)
    return known if "format_version" in fields else None


def newest() -> Path:
    """Path of the newest recording in runs/. Raises RecordingError if there is none."""
    found = recordings_in(RUNS)
    if not found:
        raise RecordingError(
            "no-recording",
            "Nothing was named, and runs/ here holds no recording: make one with steptime run -- python train.py, or "
            "name one.",
        )
    return found[0].path


def newest_two() -> tuple[Path, Path]:
    """Paths of two recordings in runs/, the older one first: the last two of the most recent command that was recorded
    twice. Raises RecordingError if there is none."""
    seen: dict[tuple[tuple[str, ...], str], list[Path]] = {}
    for each in recordings_in(RUNS):
        runs = seen.setdefault((each.command, each.directory), [])
        runs.append(each.path)
        if len(runs) == 2:
            return runs[1], runs[0]
    raise RecordingError(
        "no-recording",
        "Nothing was named, and runs/ here holds no two recordings of one command: name two, as in steptime compare "
        "runs/before runs/after.",
    )


def listed(folder: Path, verb: str = "diagnose") -> str:
    """Sentence about a folder of recordings, with the command for the newest; "" if the folder has none."""
    found = recordings_in(folder) or recordings_in(folder / RUNS)
    if not found:
        return ""
    names = [shlex.quote(str(each.path)) for each in found]
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    holds = f"holds recordings: {', '.join(names[:LISTED])}{more}" if len(names) > 1 else "holds a recording"
    newest_is = "The newest: " if len(names) > 1 else "Did you mean: "
    return f"{folder} is no recording but {holds}. {newest_is}steptime {verb} {names[0]}"
