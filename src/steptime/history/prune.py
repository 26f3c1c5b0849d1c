"""Recordings that are old, or more than there is room for, and their removal.

One law: nothing is touched but what steptime wrote. A folder is taken for a recording by its manifest; in it, and in
the folders of its processes, the files of the format are removed by name. Whatever else lies there stays, with its
folder.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from steptime.errors import OutputError
from steptime.history.history import Entry
from steptime.history.scan import ARMS, MANIFEST, is_recording
from steptime.recording.inventory import take_inventory


@dataclass(frozen=True, slots=True)
class Doomed:
    """A recording that is to go, and why in words."""

    entry: Entry
    why: str


def doomed_of(
    entries: Sequence[Entry], now_epoch_ns: int, *, older_than: float | None, keep_bytes: int | None
) -> tuple[Doomed, ...]:
    """What is to go, the oldest first: what is older than so many seconds, then the oldest ones until the others fit
    into so many bytes. A recording that may still be written to stays, and counts."""
    kept = sorted(entries, key=lambda entry: entry.started_epoch_ns)
    doomed: list[Doomed] = []
    if older_than is not None:
        border = now_epoch_ns - older_than * 1e9
        doomed += [Doomed(entry, "old") for entry in kept if entry.started_epoch_ns < border and not entry.running]
    gone = {each.entry.path for each in doomed}
    kept = [entry for entry in kept if entry.path not in gone]
    if keep_bytes is not None:
        size = sum(entry.bytes for entry in kept)
        for entry in kept:
            if size > keep_bytes and not entry.running:
                doomed.append(Doomed(entry, "room"))
                size -= entry.bytes
    return tuple(sorted(doomed, key=lambda each: each.entry.started_epoch_ns))


def replaceable(folder: Path) -> bool:
    """Whether a folder is a recording and holds nothing else: one that another may take the place of."""
    try:
        return is_recording(folder) and not take_inventory(folder).strange
    except OSError:
        return False


def remove(folder: Path) -> tuple[str, ...]:
    """Removes a recording; what was not steptime's and stays, relative to it. Raises OutputError where it cannot be
    removed.

    The manifest goes last, so that what an interruption leaves is still known as a recording."""
    if not is_recording(folder):
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
            with contextlib.suppress(OSError):  # the folder of a trial's arms, when the last one is gone
                if folder.parent.name == ARMS:
                    folder.parent.rmdir()
    except OSError as error:
        raise OutputError("history-not-removed", f"{folder} cannot be removed ({error.strerror}).") from None
    return inventory.strange
