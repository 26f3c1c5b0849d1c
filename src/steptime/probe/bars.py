"""Whether a progress bar of tqdm's stands in the line of standard error that is written to: without a terminal nothing
but the bar itself knows that."""

from __future__ import annotations

import os
import sys

from steptime.probe.ours import pass_on

OPEN = "bar-open"
"""A file of this name in a process's folder, while one stands there."""
STANDARD_ERROR = 2
PERIOD = 200_000_000
"""ns between two looks."""


def bar_is_open() -> bool:
    """Where tqdm is loaded, and one of its bars is drawn on standard error."""
    bars = getattr(getattr(sys.modules.get("tqdm.std"), "tqdm", None), "_instances", None)
    if not bars:
        return False
    try:
        return any(not each.disable and each.fp.fileno() == STANDARD_ERROR for each in list(bars))
    except Exception as error:  # noqa: BLE001 - the probe's boundary: bars of other versions, or made by other threads
        pass_on(error)
        return False


class BarMark:
    """Tells the launcher, whose lines come between, by a file."""

    def __init__(self) -> None:
        self._known = False
        self._due = 0

    def look(self, folder: str, time_ns: int) -> None:
        """folder: the process's. time_ns: now; we may be asked at every step, and a bar stays for many. Raises
        nothing: a recording that cannot be written is told of elsewhere."""
        if time_ns < self._due:
            return
        self._due = time_ns + PERIOD
        if bar_is_open() != self._known and folder:
            self._known = not self._known
            self._mark(folder, self._known)

    def end(self, folder: str) -> None:
        """The process ends, and its bars with it."""
        if self._known:
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
            return
