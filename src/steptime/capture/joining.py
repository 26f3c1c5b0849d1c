"""One recording for several launchers: `srun steptime run …` starts one of us for each rank, and nodes of one job may
each start their own.

The first to come leads: it writes the manifest, takes telemetry, and accounts for the job. The others record into the
same folder and leave a mark there until they have ended, which the leader waits for.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from steptime.errors import OutputError

LEADER, JOINED = "leader", "joined-"
PATIENCE = 60.0
"""Seconds that a leader waits for the others' end after its own, and others for the leader's manifest."""
LOOK = 0.2


def tasks_of_launcher() -> tuple[int, str]:
    """(number of tasks, the launcher's name of the job) where a launcher has started one of us for each rank; (1, "")
    elsewhere."""
    tasks = os.environ.get("SLURM_NTASKS", "")
    if os.environ.get("SLURM_PROCID", "").isdigit() and tasks.isdigit() and int(tasks) > 1:
        return int(tasks), f"{os.environ.get('SLURM_JOB_ID', '')}.{os.environ.get('SLURM_STEP_ID', '0')}"
    return 1, ""


def join(path: Path) -> tuple[Path, bool]:
    """Goes into the recording that several share: (its absolute path, whether this one leads). Raises OutputError."""
    folder = Path.cwd() / path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            os.close(os.open(folder / LEADER, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        except FileExistsError:
            mark_of(folder).touch()
            return folder, False
    except OSError as error:
        raise OutputError(
            "recording-not-writable",
            f"The recording cannot be written to {path} ({os.strerror(error.errno or 0)}): name another folder with "
            "--recording. The job was not started.",
        ) from None
    return folder, True


def mark_of(folder: Path) -> Path:
    """What says that this launcher's part of the job is still running."""
    return folder / f"{JOINED}{os.uname().nodename}-{os.getpid()}"


def leave(folder: Path) -> None:
    """This launcher's part has ended."""
    with contextlib.suppress(OSError):
        mark_of(folder).unlink()


def wait_for_others(folder: Path, patience: float = PATIENCE) -> tuple[str, ...]:
    """Waits until all who joined have left; a sentence for those that did not in time."""
    end = time.monotonic() + patience
    while (left := sorted(folder.glob(f"{JOINED}*"))) and time.monotonic() < end:
        time.sleep(LOOK)
    if not left:
        return ()
    return (
        f"{len(left)} other parts of the job had not ended after {patience:.0f} s: their last steps may be missing.",
    )
