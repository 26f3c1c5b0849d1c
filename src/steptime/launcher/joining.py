"""One recording for several launchers: `srun steptime run …` starts one of them for each rank.

The first one leads: it writes the manifest, takes telemetry, and reports on the job. The others record into the same
folder, with a mark there until they end, for which the leader waits. A launcher never joins an earlier run of the same
script: a recording whose run has ended, or in which another launcher has its part of the job (the task number). It then
takes the next free name (runs/train-77.0-2).
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from steptime.launcher.command import cannot_record, is_recording, numbered, occupied, prove_room
from steptime.launcher.watchdog import stat_of
from steptime.recording.manifest import NAME as MANIFEST, manifest_in

LEADER, JOINED, LEFT = "leader", "joined-", ".ended"
ENDED = "ended"
"""Last line of the leader's file once it waits for nobody any more."""
TELEMETRY = "telemetry.jsonl"
PATIENCE = 60.0
"""Seconds that a leader waits for the others after its own end."""
SILENCE = 300.0
"""Seconds without telemetry, written every second, after which a leader on another machine counts as dead."""
LOOK = 0.2


@dataclass(frozen=True, slots=True)
class RecordingPlace:
    """Place where a launcher records. mark: file while its job runs. leads: True for the launcher that reports."""

    folder: Path
    mark: Path
    leads: bool


def tasks_of_launcher() -> tuple[int, str]:
    """Returns (number of tasks, SLURM's name of the job) if srun has started one launcher per rank; else (1, ""). A
    batch script itself has the variables of task 0, without a step number."""
    tasks = os.environ.get("SLURM_NTASKS", "")
    if os.environ.get("SLURM_PROCID", "").isdigit() and tasks.isdigit() and int(tasks) > 1:
        step = f"{os.environ.get('SLURM_JOB_ID', '')}.{os.environ.get('SLURM_STEP_ID', '0')}"
        again = os.environ.get("SLURM_RESTART_COUNT", "")  # a job that was requeued keeps its number
        return int(tasks), f"{step}-{again}" if again.isdigit() and int(again) else step
    return 1, ""


def part_of_launcher() -> str:
    """Returns this task's number; "" if there is only one."""
    return os.environ["SLURM_PROCID"] if tasks_of_launcher()[0] > 1 else ""


def join(path: Path, part: str = "") -> RecordingPlace:
    """Joins or starts a shared recording. part: unique among the launchers of a run; "": any number of them may come.
    Raises OutputError."""
    number = 1
    try:
        while True:
            place = _enter(Path.cwd() / numbered(path, number), part)
            if place is not None:
                return place
            number += 1
    except OSError as error:
        raise cannot_record(path, error) from None


def _enter(folder: Path, part: str) -> RecordingPlace | None:
    """Returns a place in this folder; None if another run has it. Raises OutputError if it is no recording."""
    folder.mkdir(parents=True, exist_ok=True)
    names = {path.name for path in folder.iterdir()}
    if names and LEADER not in names and not any(name.startswith(JOINED) for name in names):
        if is_recording(folder):
            return None
        raise occupied(folder)
    mark = folder / (f"{JOINED}task-{part}" if part else f"{JOINED}{os.uname().nodename}-{os.getpid()}")
    if not _created(mark):
        return None
    if _left(mark).exists():
        mark.unlink()
        return None
    if _created(folder / LEADER):
        (folder / LEADER).write_text(f"{_machine()} {os.getpid()} {_started(os.getpid())}\n")
        place = RecordingPlace(folder, mark, leads=True)
        leave(place)  # nobody waits for the leader
        prove_room(folder)
        return place
    if _is_over(folder, mark):
        mark.unlink()
        return None
    return RecordingPlace(folder, mark, leads=False)


def _created(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    except FileExistsError:
        return False
    return True


def _is_over(folder: Path, mark: Path) -> bool:
    """True if the folder's run has ended, or its leader was killed. mark: a new file, whose time comes from the same
    clock as those of the leader's files."""
    words = (folder / LEADER).read_text(errors="replace").split()
    if ENDED in words or manifest_in(folder).get("ended_epoch_ns"):
        return True
    if len(words) == 3 and words[0] == _machine():
        return _started(int(words[1])) != words[2] if words[1].isdigit() else True
    signs = [each.stat().st_mtime for name in (LEADER, MANIFEST, TELEMETRY) if (each := folder / name).exists()]
    return mark.stat().st_mtime - max(signs) > SILENCE


def _machine() -> str:
    """Returns an identity shared by processes that see each other's pids."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115
    except OSError:
        return os.uname().nodename


def _started(pid: int) -> str:
    """Returns a process's start, in ticks of the machine; "" without such a process."""
    return "".join(stat_of(pid)[19:20])


def leave(place: RecordingPlace) -> None:
    """Ends this launcher's part of a recording. Its renamed mark keeps others from taking the part again."""
    with contextlib.suppress(OSError):
        place.mark.rename(_left(place.mark))


def _left(mark: Path) -> Path:
    return mark.with_name(mark.name + LEFT)


def wait_for_others(folder: Path, patience: float = PATIENCE) -> tuple[str, ...]:
    """Closes the recording to new launchers and waits for the others; returns a sentence if some end too late."""
    with contextlib.suppress(OSError), (folder / LEADER).open("a") as leader:
        leader.write(f"{ENDED}\n")
    end = time.monotonic() + patience
    while (left := sum(not mark.name.endswith(LEFT) for mark in folder.glob(f"{JOINED}*"))) and time.monotonic() < end:
        time.sleep(LOOK)
    if not left:
        return ()
    return (
        f"Other parts of the job ({left}) were still running after {patience:.0f} s. Their last steps may be missing.",
    )
