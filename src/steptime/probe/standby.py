"""Standby in a job that was started with STEPTIME_STANDBY=1, until `steptime attach` starts the probe: only a signal
handler, so that a step costs the same as without it."""

from __future__ import annotations

import os
import signal
from typing import Any

from steptime.probe.messages import switched_off
from steptime.probe.ours import pass_on

NUMBER = signal.SIGRTMIN + 7
"""Signal that no known program uses. A job that uses it keeps it, and has no standby."""
SHELTERED = 0o077
"""Permission bits that the folder must not have: access for others."""


def folder_of(user: int) -> str:
    """Returns the folder where `steptime attach` leaves the code for a job."""
    return f"/tmp/steptime-{user}"


def entry_of(folder: str, pid: int) -> str:
    return os.path.join(folder, f"attach-{pid}.py")


def wake(number: int, frame: Any) -> None:
    """Signal handler: runs the code for this process in the user's own folder."""
    try:
        folder = folder_of(os.getuid())
        status = os.lstat(folder)
        if status.st_uid != os.getuid() or status.st_mode & SHELTERED:
            raise PermissionError(f"{folder} is not this user's alone")
        with open(entry_of(folder, os.getpid()), encoding="utf-8") as file:
            text = file.read()
        exec(compile(text, "<steptime>", "exec"), {"__name__": "steptime-attach"})
    except Exception as error:  # noqa: BLE001 - the probe's boundary: nothing of ours may raise into the user's program
        switched_off(f"{type(error).__name__}: {error}")
        pass_on(error)


def enter_standby() -> None:
    """Installs the handler, unless the signal has one."""
    if signal.getsignal(NUMBER) is signal.SIG_DFL:
        signal.signal(NUMBER, wake)
        signal.siginterrupt(NUMBER, False)


enter_standby()
