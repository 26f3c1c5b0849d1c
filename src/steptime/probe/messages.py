"""Messages of the probe on the job's standard error: few lines, and no exceptions.

Also whether a tqdm progress bar is on its current line: without a terminal, only tqdm knows of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TypeVar

from steptime.probe.ours import pass_on

T = TypeVar("T")
OPEN = "bar-open"
"""Name of a file in a process's folder. It exists while a bar is open."""
STANDARD_ERROR = 2
PERIOD = 200_000_000
"""Time between two looks, ns."""


def bar_is_open() -> bool:
    """True if tqdm is loaded and draws a bar on standard error."""
    bars = getattr(getattr(sys.modules.get("tqdm.std"), "tqdm", None), "_instances", None)
    if not bars:
        return False
    try:
        return any(not each.disable and each.fp.fileno() == STANDARD_ERROR for each in list(bars))
    except Exception as error:  # noqa: BLE001 - the probe's boundary: bars of other versions, or made by other threads
        pass_on(error)
        return False


class BarMark:
    """File that shows the launcher, which prints lines between those of a progress bar, whether one is open."""

    def __init__(self) -> None:
        self._known = False
        self._due = 0

    def look(self, folder: str, time_ns: int) -> None:
        """Updates the file, at most every PERIOD: this runs at every step, and a bar stays for many. folder: the
        process's; time_ns: now. Raises nothing: a recording that cannot be written is reported elsewhere."""
        if time_ns < self._due:
            return
        self._due = time_ns + PERIOD
        if bar_is_open() != self._known and folder:
            self._known = not self._known
            self._mark(folder, self._known)

    def end(self, folder: str) -> None:
        """Removes the file when the process ends."""
        if self._known and folder:
            self._known = False
            self._mark(folder, False)

    def _mark(self, folder: str, there: bool) -> None:
        path = os.path.join(folder, OPEN)
        try:
            if there:
                os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o666))
            else:
                os.unlink(path)
        except OSError as error:
            pass_on(error)


def switched_off(reason: str) -> None:
    """Writes one line to standard error: the probe is off. The job may have closed or replaced standard error."""
    say(f"switched off: {reason}; the job goes on")


def say(sentence: str) -> None:
    """Writes one line on standard error, if there is one."""
    try:
        above = "\n" if not sys.stderr.isatty() and bar_is_open() else ""
        sys.stderr.write(f"{above}steptime: {sentence}\n")
    except Exception as error:  # noqa: BLE001 - the probe's boundary: nothing of ours may raise into the user's program
        pass_on(error)


def guarded(start: Callable[[], T]) -> T | None:
    """Returns the result of `start`; None if it fails, after one line on stderr."""
    try:
        return start()
    except Exception as error:  # the probe's boundary: nothing of ours may raise into the user's program
        if os.environ.get("STEPTIME_DEBUG"):
            raise
        switched_off(f"{type(error).__name__}: {error}")
        pass_on(error)
        return None
