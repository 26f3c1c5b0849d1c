"""What is watched while a process of a trial runs: the disk that it writes to, and the user's folder."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from steptime.trials.containment import Layer, Stand, ground_of, named
from steptime.trials.working_copy import differences, tree_of

LEAST_ROOM = 1 << 30
"""Bytes that a process leaves on the disk of its workspace, or half of what was free."""


class Room:
    """The disk that workspaces lie on: what a process writes must not fill it."""

    def __init__(self, stand: Stand) -> None:
        self._place = next(path for path in (ground_of(stand).base, *stand.folder.parents) if path.is_dir())
        self._least = min(LEAST_ROOM, self._free() // 2)

    def is_left(self) -> bool:
        """Whether the disk is not about to be full."""
        return self._free() >= self._least

    def _free(self) -> int:
        return shutil.disk_usage(self._place).free


class Seen:
    """The user's folder, compared before and after a process, where nothing guards it."""

    def __init__(self, stand: Stand) -> None:
        self._stand = stand
        self._ours = (stand.folder, *stand.without)
        self._watching = ground_of(stand).layer is Layer.COPY
        self._before = tree_of(stand.directory, self._ours) if self._watching else {}

    def changes(self) -> tuple[str, ...]:
        """What differs now."""
        after = tree_of(self._stand.directory, self._ours) if self._watching else {}
        return tuple(str(path) for path in differences(self._before, after))


def refusal(outside: Sequence[str]) -> str:
    """Why a trial ends at once."""
    return (
        f"A process of the trial changed {named(outside)}, outside of its workspace: the trial was ended. Look at "
        "what is there; --uncontained goes on all the same."
    )
