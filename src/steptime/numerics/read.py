"""Reads what the probe of `steptime nan` has left in a recording. Untrusted, as everything in a recording."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from steptime.numerics.numerics import ProcessNumerics
from steptime.recording.documents import LARGEST_DOCUMENT, read_bytes

NAME = "numerics.json"


def read_numerics(recording: Path, moved: tuple[Path, Path] | None = None) -> tuple[ProcessNumerics, ...]:
    """The processes that trained, in the order of their ranks; what cannot be read is left out. moved: a folder that
    the job ran in, and the one that it stood for, whose paths are told.

    Raises RecordingError where reading is forbidden.
    """
    found = []
    for path in sorted(recording.glob(f"process-*/{NAME}")):
        data = read_bytes(path, LARGEST_DOCUMENT, [])
        if moved is not None:
            copy, original = (json.dumps(str(folder))[1:-1].encode() for folder in moved)
            data = data.replace(copy, original)
        try:
            found.append(msgspec.json.decode(data, type=ProcessNumerics))
        except (msgspec.MsgspecError, ValueError, RecursionError):
            continue  # a process that was killed while it wrote its first account
    return tuple(sorted(found, key=lambda process: (process.rank or 0, process.pid)))
