"""One recording for several launchers: `srun steptime run …` starts one of us for each rank, and nodes of one job may
each start their own.

The first to come leads: it writes the manifest, takes telemetry, and accounts for the job. The others record into the
same folder and leave a mark there until they have ended, which the leader waits for.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path

from steptime.errors import OutputError
from steptime.recording.manifest import NAME as MANIFEST

LEADER, JOINED = "leader", "joined-"
PATIENCE = 60.0
"""Seconds that a leader waits for the others' end after its own, and others for the leader's manifest."""
LOOK = 0.2


def tasks_of_launcher() -> tuple[int, str]:
    """(number of tasks, the launcher's name of the job) where a launcher has started one of us for each rank; (1, "")
    elsewhere."""
    tasks = os.environ.get("SLURM_NTASKS", "")
    if os.environ.get("SLURM_PROCID", "").isdigit() and tasks.isdigit() and int(tasks) > 1:
        step = f"{os.environ.get('SLURM_JOB_ID', '')}.{os.environ.get('SLURM_STEP_ID', '0')}"
        again = os.environ.get("SLURM_RESTART_COUNT", "")  # a job that was requeued keeps its number
        return int(tasks), f"{step}-{again}" if again.isdigit() and int(again) else step
    return 1, ""


def join(path: Path) -> tuple[Path, bool]:
    """Goes into the recording that several share: (its absolute path, whether this one leads). Raises OutputError."""
    folder = Path.cwd() / path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            os.close(os.open(folder / LEADER, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        except FileExistsError:
            if _ended_long_ago(folder):
                raise OutputError(
                    "recording-exists",
                    f"{path} holds the recording of a job that has ended: name another folder for this one.",
                ) from None
            mark_of(folder).touch()
            return folder, False
    except OSError as error:
        raise OutputError(
            "recording-not-writable",
            f"The recording cannot be written to {path} ({os.strerror(error.errno or 0)}): name another folder with "
            "--recording. The job was not started.",
        ) from None
    return folder, True


def _ended_long_ago(folder: Path) -> bool:
    """Whether a recording is of an earlier job: none of the others of one comes so late."""
    manifest = folder / MANIFEST
    try:
        ended = json.loads(manifest.read_bytes() if manifest.is_file() else b"{}").get("ended_epoch_ns")
        return isinstance(ended, int) and time.time_ns() - ended > PATIENCE * 1e9
    except (OSError, ValueError, AttributeError, RecursionError):
        return False


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
