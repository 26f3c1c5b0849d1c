"""Detection of a tqdm progress bar on the current line of standard error. Without a terminal, only tqdm knows of it."""

from __future__ import annotations

import os
import sys

from steptime.probe.ours import pass_on

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
    """Tells the launcher by a file whether a bar is open, since the launcher prints lines between those of the bar."""

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
