"""At which step the ranks of a job profile: at the same one, agreed through the recording, without a word in the
user's process groups.

The first rank that is ready names a step a little ahead, in a file that nobody can write twice; the others read it.
Ranks that train together count their steps alike. A rank that comes too late profiles at once, and its steps say so.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from threading import get_ident

AHEAD_STEPS, AHEAD_TIME = 4, 500_000_000
"""How far ahead: for the ranks that are ready some steps later, and for a shared file system to show the file."""


@dataclass(frozen=True)
class Agreed:
    """step: after which the window begins; steps: in it; stacks: whether one with stacks follows."""

    step: int
    steps: int
    stacks: bool


def ahead(duration: int) -> int:
    """Steps until one that all ranks can agree on. duration: ns of one."""
    return max(AHEAD_STEPS, AHEAD_TIME // max(1, duration))


def agree(recording: str, number: int, ready: int, duration: int, steps: int, stacks: bool) -> Agreed:
    """What all ranks do for window `number`. ready: steps of this rank from which on it may be; duration: ns of one.
    Raises OSError where the recording cannot be written."""
    mine = Agreed(ready + ahead(duration), steps, stacks)
    path = os.path.join(recording, f"profile-{number}.json")
    partial = f"{path}.{os.uname().nodename}-{os.getpid()}-{get_ident()}"
    try:
        with open(partial, "w", encoding="utf-8") as file:
            json.dump(asdict(mine), file)
        try:
            os.link(partial, path)  # whole or not at all, and only once, on shared file systems too
        finally:
            os.unlink(partial)
    except FileExistsError:
        return _theirs(path, mine)
    return mine


def _theirs(path: str, mine: Agreed) -> Agreed:
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        return Agreed(int(found["step"]), int(found["steps"]), bool(found["stacks"]))
    except (OSError, ValueError, KeyError, TypeError):
        return mine
