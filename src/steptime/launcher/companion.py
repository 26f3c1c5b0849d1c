"""Companion of a job that records itself (`steptime.record`), in the place of `steptime run`.

    python -m steptime.launcher.companion FOLDER PID ROOT

It detaches from the process that starts it at once, so that the job has no unknown child. It takes telemetry, keeps the
recording small, and ends with the job, or after the probe has left it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path

from steptime.recording.manifest import NAME, extend_manifest


def main(folder: Path, pid: int, root: int) -> None:
    """Runs next to the job until it ends. pid: the recording process. root: the job's first process. Raises OSError if
    the folder was removed."""
    from steptime.launcher.attach import PERIOD, lives
    from steptime.launcher.supervise import pack_recording
    from steptime.launcher.telemetry import Telemetry
    from steptime.launcher.thin import JournalThinner

    telemetry = Telemetry(folder, root)
    thinner = JournalThinner(folder, lambda: telemetry.pids)
    while lives(pid) and not (folder / f"left-{pid}").exists() and folder.exists():
        time.sleep(PERIOD)
        for timer in (telemetry, thinner):
            if time.monotonic() >= timer.due:
                timer.look()
    extend_manifest(folder, json.loads((folder / NAME).read_bytes()), ended_epoch_ns=time.time_ns())
    pack_recording(folder)


if __name__ == "__main__":
    if os.fork():
        os._exit(0)
    os.setsid()
    with contextlib.suppress(OSError, ValueError):
        main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
