"""Messages of the probe on the job's standard error: few lines, and never an error of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TypeVar

from steptime.probe.bars import bar_is_open
from steptime.probe.ours import pass_on

T = TypeVar("T")


def switched_off(reason: str) -> None:
    """One line on standard error, where there is one: a job may have closed it, or put something of its own there."""
    say(f"switched off: {reason}; the job goes on")


def say(sentence: str) -> None:
    """The same for what is no failure of all."""
    try:
        above = "\n" if not sys.stderr.isatty() and bar_is_open() else ""
        sys.stderr.write(f"{above}steptime: {sentence}\n")
    except Exception as error:  # noqa: BLE001 - the probe's boundary: nothing of ours may raise into the user's program
        pass_on(error)


def guarded(start: Callable[[], T]) -> T | None:
    """Returns its result; None where it fails, which is one line on stderr."""
    try:
        return start()
    except Exception as error:  # the probe's boundary: nothing of ours may raise into the user's program
        if os.environ.get("STEPTIME_DEBUG"):
            raise
        switched_off(f"{type(error).__name__}: {error}")
        pass_on(error)
        return None
