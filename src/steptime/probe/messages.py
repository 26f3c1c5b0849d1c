"""Messages of the probe on the job's standard error: few lines, and no exceptions."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TypeVar

from steptime.probe.bars import bar_is_open
from steptime.probe.ours import pass_on

T = TypeVar("T")


def switched_off(reason: str) -> None:
    """Writes one line: the probe is off. The job may have closed or replaced standard error."""
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
