"""Waits in a job that was started with STEPTIME_STANDBY=1 until `steptime attach` asks the probe in: a signal's
handler, and nothing else. A step of the job costs what it costs without us.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from steptime.probe.messages import switched_off
from steptime.probe.ours import pass_on

NUMBER = signal.SIGRTMIN + 7
"""Signal that no program is known to use. A job that uses it keeps it: then we stand by for nothing."""
SHELTERED = 0o077
"""Rights that nobody else may have to the folder."""


def folder_of(user: int) -> str:
    """Folder in which `steptime attach` leaves what a job is to run."""
    return f"/tmp/steptime-{user}"


def entry_of(folder: str, pid: int) -> str:
    return os.path.join(folder, f"attach-{pid}.py")


def wake(number: int, frame: Any) -> None:
    """The signal's handler: runs what lies in our user's own folder for this process."""
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
    """Does nothing where the signal is somebody's already."""
    if signal.getsignal(NUMBER) is signal.SIG_DFL:
        signal.signal(NUMBER, wake)
        signal.siginterrupt(NUMBER, False)


enter_standby()
