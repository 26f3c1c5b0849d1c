"""The next slow step, named in advance, so that all ranks profile the very same one (`steptime run --catch`).

Where slow steps come at even distances, the rank that has caught a few of them knows when the next one will come. It
names that step in a file of the recording that nobody can write twice, so far ahead that all ranks read it in time,
where they look for requests anyway: there is no word in the job's own process groups. Ranks that train together count
their steps alike (`steps.StepNumber`).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Collection
from threading import get_ident
from typing import Any

ALIKE, ALIKE_AMONG_OTHERS, KEPT = 3, 4, 32
"""Slow steps at the same distance: with none between them, and where a busy machine makes others slow, too: of 32 that
lie anywhere in a thousand steps, three are at the same distance more often than not, four in one case of fifty. How
many of the latest are looked at."""


def distance(numbers: Collection[int]) -> int:
    """Steps from each slow step to the next, where the latest one and enough before it are always so far apart; else
    0. numbers: of the slow steps, the latest one last."""
    last = list(numbers)[-KEPT:]
    known, latest = set(last), max(last, default=0)
    chains = {apart: _chain(known, latest, apart) for each in known if (apart := latest - each) > 1}
    apart = max(chains, key=lambda each: (chains[each], each), default=0)
    length = chains.get(apart, 0)
    between = sum(number > latest - (length - 1) * apart for number in known) - (length - 1)
    return apart if length >= (ALIKE_AMONG_OTHERS if between else ALIKE) else 0


def _chain(known: Collection[int], latest: int, apart: int) -> int:
    return next(length for length in itertools.count(1) if latest - length * apart not in known)


def next_one(latest: int, distance: int, ended: int, lead: int) -> int:
    """The first slow step that begins `lead` steps from now or later, where `ended` have. latest: a slow one."""
    return latest + distance * max(1, -(-(ended + 1 + lead - latest) // distance))


class Occurrences:
    """The slow steps of a job that are profiled, one after the other, as this rank knows of them."""

    MOST = 3
    """They differ, as other steps do."""

    def __init__(self, recording: str, caught: Collection[int]) -> None:
        """caught: numbers of slow steps that this rank has seen, newest last; more come."""
        self._recording, self._caught = recording, caught
        self.number, self.step = 1, 0
        """Which occurrence comes next, and its step: 0 where that is not known."""

    def look(self, ended: int, lead: int) -> None:
        """Reads which step was named; names one where nobody has. ended: steps so far; lead: steps until one that all
        ranks can know of in time. Where the recording cannot be written, none is named."""
        if self.step or self.number > self.MOST:
            return
        self.step = self._named()
        if not self.step and (apart := distance(self._caught)):
            try:
                written_once(self._path(), {"step": next_one(max(self._caught), apart, ended, lead)})
            except OSError:  # no room, or a file system without hard links: the watch goes on
                self.number = self.MOST + 1
                return
            self.step = self._named()

    def near(self, ended: int, steps: int) -> bool:
        """Whether it begins within so many steps."""
        return bool(self.step) and self.step - 1 - ended <= steps

    def over(self) -> None:
        """It was profiled, or missed."""
        self.number, self.step = self.number + 1, 0

    def _named(self) -> int:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, OverflowError), open(self._path()) as file:
            return int(json.load(file)["step"])
        return 0

    def _path(self) -> str:
        return os.path.join(self._recording, f"slow-step-{self.number}.json")


def written_once(path: str, content: dict[str, Any]) -> bool:
    """Writes a JSON file, whole or not at all, and only once, on shared file systems too: False where it is there
    already. Raises OSError."""
    partial = f"{path}.{os.uname().nodename}-{os.getpid()}-{get_ident()}"
    with open(partial, "w", encoding="utf-8") as file:
        json.dump(content, file)
    try:
        os.link(partial, path)
    except FileExistsError:
        return False
    finally:
        os.unlink(partial)
    return True
