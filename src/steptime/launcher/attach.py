"""Starts the probe in running processes, and stays next to them until they are measured. No process is restarted; all
go on after we leave, or are killed.

A process is entered by a signal if it is in standby (`probe/standby.py`), by sys.remote_exec if both run the same
Python from 3.14 on (PEP 768), else by gdb (`attach_script.py`).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from steptime.errors import CommandError, SteptimeError
from steptime.launcher.launch import INJECT, PLAN, START
from steptime.launcher.outcome import ProbeOptions, Progress
from steptime.launcher.progress import (
    PROC,
    PROFILED,
    Journals,
    command_of,
    environment_of,
    same_stack,
    uses_torch,
)
from steptime.launcher.supervise import pack_recording
from steptime.launcher.telemetry import Telemetry
from steptime.launcher.thin import JournalThinner, family
from steptime.launcher.watchdog import stat_of
from steptime.probe.standby import NUMBER, SHELTERED, entry_of, folder_of
from steptime.recording.inventory import LEAVE
from steptime.recording.manifest import extend_manifest, start_manifest

SCRIPT = Path(__file__).parent / "attach_script.py"
REHEARSAL = (sys.executable, "-I", "-S", "-c", "import time; print(flush=True); time.sleep(600)")
"""Process that gdb enters first, in a system call as a job may be."""
GDB_SECONDS = 120.0
PERIOD = 0.25
"""Seconds between two looks at the processes."""
LONG_CALL_SECONDS = 3.0
"""Seconds without an answer until the process is reported to be in a long call."""
LEAVING_SECONDS = 5.0
"""Seconds for a process to write its last records; it looks for the request once a second."""
PTRACE = Path("/proc/sys/kernel/yama/ptrace_scope")


@dataclass(frozen=True, slots=True)
class Attached:
    """Result of an attach. pids: process IDs of the entered processes. ended: True if the job ended meanwhile. left:
    True if the probe has left all processes. problems: sentences on what was lost."""

    pids: tuple[int, ...]
    ended: bool
    left: bool
    problems: tuple[str, ...]


def processes_to_enter(pid: int) -> tuple[int, ...]:
    """Returns the process and its descendants that are Pythons with torch, except those forked by another one (a
    loader's workers). Raises CommandError."""
    if pid == 1:
        raise _refused("Process 1 is the init process. Give a process of the job.")
    if not (PROC / str(pid)).exists():
        raise CommandError(
            "no-such-process",
            f"There is no process {pid}. List the GPU's processes with nvidia-smi, or all with ps aux.",
            exit_status=1,
        )
    if (PROC / str(pid)).stat().st_uid != os.getuid():  # nor root: the job must write into the recording
        raise _refused(f"Process {pid} belongs to another user. Attach as that user.")
    found = [each for each in family(pid) if uses_torch(each)]
    found = [each for each in found if not any(same_stack(each, other) for other in found if other < each)]
    if not found:
        raise _refused(
            f"Neither process {pid} nor any of its children is a Python process with torch imported. Give the "
            "training process, or wait until it has imported torch."
        )
    recorded = next((each for each in found if PLAN in environment_of(each)), None)
    if recorded is not None:
        raise _refused(f"steptime already records process {recorded}. Watch it: steptime watch {recorded}")
    return tuple(found)


def _refused(sentence: str) -> CommandError:
    return CommandError("attach-refused", sentence, exit_status=1)


def attach(
    pids: Sequence[int], folder: Path, options: ProbeOptions, show: Callable[[Progress], None] | None, *, stay: bool
) -> Attached:
    """Enters the processes, and leaves them once their steps are profiled, or at Ctrl-C; with `stay`, at their end.
    folder: the recording's, made and empty. Raises CommandError, with none entered, if a living one cannot be."""
    with _alone(pids):
        manifest = start_manifest(folder, command_of(pids[0]), {"attached": ",".join(map(str, pids))})
        with contextlib.suppress(OSError):
            manifest["directory"] = str((PROC / str(pids[0]) / "cwd").readlink())
        try:
            for pid in pids:
                _enter(pid, folder, options)
            _wait_for_one(pids, folder, show)
        except BaseException:  # all of a job or none of it
            _leave(folder, pids)
            for mark in (LEAVE, *(f"{word}-{pid}" for pid in pids for word in ("left", "refused"))):
                (folder / mark).unlink(missing_ok=True)
            raise
        telemetry = Telemetry(folder, pids[0])
        thinner = JournalThinner(folder, lambda: telemetry.pids)
        journals, start = Journals(folder), time.monotonic()
        while living := [pid for pid in pids if lives(pid)]:
            try:
                time.sleep(PERIOD)
                _ask_again(living, folder)
                progress = Progress(time.monotonic() - start, *journals.look())
                if show is not None:
                    show(progress)
                for timer in (telemetry, thinner):
                    if time.monotonic() >= timer.due:
                        timer.look()
                if progress.stage == PROFILED and _is_measured(folder) and not stay:
                    break
            except KeyboardInterrupt:
                break
        left = _leave(folder, pids)
        extend_manifest(folder, manifest, ended_epoch_ns=time.time_ns(), torch_imported=True)
        return Attached(tuple(pids), not living, left, tuple(pack_recording(folder)))


@contextlib.contextmanager
def _alone(pids: Sequence[int]) -> Iterator[None]:
    """Locks the processes. Raises CommandError if another attach holds one."""
    with contextlib.ExitStack() as held:
        for pid in pids:
            lock = held.enter_context(_lock_of(pid).open("w"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise _refused(
                    f"Another steptime attach is measuring process {pid}. Wait for it, or stop it."
                ) from None
            held.callback(Path(lock.name).unlink, missing_ok=True)
        yield


def lives(pid: int) -> bool:
    """True if the process runs; False for a zombie."""
    return stat_of(pid)[:1] not in ([], ["Z"])


STEADY_WINDOWS = ("trace-2.json*", "trace-3.json*")
"""Windows as `probe/schedule.py` numbers them: the plain one and, for most jobs, the one with stacks."""
SETTLE_SECONDS = 2.0


def _is_measured(folder: Path) -> bool:
    """True if all training processes have had the profile of their steady steps for SETTLE_SECONDS."""
    processes = [each for each in folder.glob("process-*") if each.is_dir()]
    newest = [max((file.stat().st_mtime for name in STEADY_WINDOWS for file in each.glob(name)), default=None)
              for each in processes]  # fmt: skip
    return bool(newest) and all(each is not None and time.time() - each > SETTLE_SECONDS for each in newest)


def _leave(folder: Path, pids: Sequence[int]) -> bool:
    """Asks the probe to leave, also where it has not started yet, and waits for its last records. Returns False if some
    have not left: one that never trains, or is not measured yet, leaves later."""
    (folder / LEAVE).touch()
    for pid in pids:
        _close_entry(pid, folder)
    living = [pid for pid in pids if pid in _come(folder) and lives(pid)]
    end = time.monotonic() + LEAVING_SECONDS
    while time.monotonic() < end and not all((folder / f"left-{pid}").exists() for pid in living):
        time.sleep(PERIOD / 5)
    return all((folder / f"left-{pid}").exists() for pid in living)


def _enter(pid: int, folder: Path, options: ProbeOptions) -> None:
    """Asks the process to run its entry, which it does as soon as it runs Python. A process that has ended meanwhile,
    such as a pool's worker, is ignored. Raises CommandError, or OSError."""
    entry = _write_entry(pid, folder, options)
    try:
        if _in_standby(pid):
            os.kill(pid, NUMBER)
        elif hasattr(sys, "remote_exec") and _same_python(pid):
            sys.remote_exec(pid, str(entry))
        else:
            _enter_by_gdb(pid, entry)
    except (OSError, CommandError):
        entry.unlink(missing_ok=True)
        if lives(pid):
            raise


def _close_entry(pid: int, folder: Path) -> None:
    """Removes the entry. A process that was asked but has not run it yet (a pool's idle worker) gets an empty one,
    since it would complain about a missing file."""
    entry = Path(entry_of(str(_shelter()), pid))
    if lives(pid) and entry.exists() and pid not in _come(folder):
        entry.write_text("", encoding="utf-8")
    else:
        entry.unlink(missing_ok=True)


def _shelter() -> Path:
    """Returns this user's own folder, which a process in standby knows. Raises SteptimeError."""
    shelter = Path(folder_of(os.getuid()))
    shelter.mkdir(mode=0o700, exist_ok=True)
    status = shelter.lstat()
    if status.st_uid != os.getuid() or status.st_mode & SHELTERED:
        raise SteptimeError("attach-refused", f"{shelter} must belong to this user alone. Remove it and attach again.")
    for entry in shelter.glob("attach*-*"):  # of processes that ended meanwhile
        if not lives(int(entry.stem.rpartition("-")[2])):
            entry.unlink(missing_ok=True)
    return shelter


def _lock_of(pid: int) -> Path:
    """Returns the lock file that a living attach holds."""
    return _shelter() / f"attached-{pid}"


def _write_entry(pid: int, folder: Path, options: ProbeOptions) -> Path:
    """Writes the code that the process will run, the same as in a job that we start."""
    lock = str(_lock_of(pid))
    plan = json.dumps({"recording": str(folder), "attached": lock, **asdict(options)}, ensure_ascii=False)
    variables = {PLAN: plan, START: str(INJECT)}
    door = str(INJECT / "sitecustomize.py")
    entry = Path(entry_of(str(_shelter()), pid))
    entry.write_text(
        "import os, _frozen_importlib_external as machinery\n"
        f"os.environ.update({variables!r})\n"
        f"file = {door!r}\n"
        "exec(machinery.SourceFileLoader('steptime-start', file).get_code('steptime-start'), "
        "{'__name__': 'steptime-start', '__file__': file})\n",
        encoding="utf-8",
    )
    return entry


def _in_standby(pid: int) -> bool:
    """True if the process was started with STEPTIME_STANDBY, and has a handler for our signal."""
    if not environment_of(pid).get("STEPTIME_STANDBY"):
        return False
    lines = (PROC / str(pid) / "status").read_text(encoding="ascii", errors="replace").splitlines()
    caught = next((line.split()[1] for line in lines if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (NUMBER - 1) & 1)


def has_way_in(pid: int) -> bool:
    """True if a process can probably be entered."""
    script = hasattr(sys, "remote_exec") and _same_python(pid)
    return _in_standby(pid) or script or shutil.which("gdb") is not None


def _same_python(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return (PROC / str(pid) / "exe").readlink().resolve() == Path(sys.executable).resolve()
    return False


def _enter_by_gdb(pid: int, entry: Path) -> None:
    """Enters the process after gdb has entered one of ours. A gdb that cannot call functions breaks the current system
    call of the process, as gdb 13 does on processors with AMX. Raises CommandError."""
    gdb = shutil.which("gdb")
    if gdb is None:
        raise _refused(
            f"steptime cannot enter process {pid}: gdb is not installed, and the job was not started with "
            "STEPTIME_STANDBY=1. Install gdb, or py-spy (pip install py-spy) for a report of its lines only."
        )
    line = f"try: exec(open({str(entry)!r}).read(), {{'__name__': 'steptime-attach'}})\nexcept Exception: pass\n"
    with subprocess.Popen(
        REHEARSAL, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as ours:
        try:
            assert ours.stdout is not None
            ours.stdout.readline()
            _run_gdb(gdb, ours.pid, "pass\n", pid)
        finally:
            ours.kill()
    _run_gdb(gdb, pid, line, pid)


def _run_gdb(gdb: str, entered: int, line: str, pid: int) -> None:
    """Enters a process with gdb. pid: the job's, for messages. Raises CommandError."""
    words = [gdb, "-nx", "-batch", "-iex", "set auto-solib-add off", "-iex", "set debuginfod enabled off"]
    variables = {**os.environ, "STEPTIME_PID": str(entered), "STEPTIME_LINE": line}
    with contextlib.suppress(subprocess.TimeoutExpired):
        done = subprocess.run(
            [*words, "-x", str(SCRIPT)], env=variables, capture_output=True, text=True,
            stdin=subprocess.DEVNULL, timeout=GDB_SECONDS, check=False,
        )  # fmt: skip
        if "entered" in done.stdout.splitlines():
            return
        raise _refused(_refusal(pid, done.stdout + done.stderr, touched=entered == pid))
    raise _refused(f"gdb did not return from process {entered}. Try again, or start the job with STEPTIME_STANDBY=1.")


def _refusal(pid: int, message: str, touched: bool) -> str:
    if "not permitted" in message or "ptrace" in message.lower():
        scope = ""
        with contextlib.suppress(OSError):
            scope = PTRACE.read_text(encoding="ascii").strip()
        how = (
            "run it as root, or with kernel.yama.ptrace_scope=0"
            if scope not in ("", "0")
            else "in a container, it needs SYS_PTRACE (docker run --cap-add SYS_PTRACE)"
        )
        return f"The system forbids tracing process {pid}: {how}, or start the job with STEPTIME_STANDBY=1."
    if touched and "busy" in message.splitlines():
        return f"Process {pid} never reached a point where steptime could enter it. Try again."
    words = next((line for line in reversed(message.splitlines()) if line.strip()), "no reason was given").rstrip(".")
    if touched:
        return (
            f"gdb could not enter process {pid} ({words}). Check that the job still runs; a job started with "
            "STEPTIME_STANDBY=1 needs no gdb."
        )
    return (
        f"This gdb failed to enter a test process, so steptime did not touch process {pid} ({words}). Try a "
        "newer gdb, or start the job with STEPTIME_STANDBY=1."
    )


def _wait_for_one(pids: Sequence[int], folder: Path, show: Callable[[Progress], None] | None) -> None:
    """Waits until all living processes have answered, or one has and the others had LONG_CALL_SECONDS: one in a long
    call answers later, an idle one (of a pool) perhaps never. Raises CommandError if all have refused."""
    start = time.monotonic()
    while missing := [pid for pid in pids if lives(pid) and pid not in _come(folder) and not _why_not(pid, folder)]:
        elapsed = time.monotonic() - start
        if elapsed > LONG_CALL_SECONDS:
            if len(missing) < len(pids):
                break
            if show is not None:
                show(Progress(elapsed, 0, 0, f"waiting for process {missing[0]}, which is in a long call"))
        time.sleep(PERIOD / 5)
        _ask_again(pids, folder)
    refused = [
        f"steptime could not enter process {pid}: {reason}. Try again."
        for pid in pids
        if (reason := _why_not(pid, folder))
    ]
    if refused and not _come(folder).intersection(pids):
        raise _refused(refused[0])


def _why_not(pid: int, folder: Path) -> str:
    """Returns why the probe could not start in a process; "" if it did not refuse."""
    with contextlib.suppress(OSError):
        return (folder / f"refused-{pid}").read_text("utf-8", "replace")
    return ""


def _ask_again(pids: Sequence[int], folder: Path) -> None:
    """Asks again the processes that were importing torch, and have not answered yet."""
    asked = _numbers(folder / "seen-importing") - _come(folder)
    for pid in asked.intersection(each for each in pids if not _why_not(each, folder)):
        with contextlib.suppress(OSError):  # it has ended
            if _in_standby(pid):
                os.kill(pid, NUMBER)


def _come(folder: Path) -> frozenset[int]:
    """Returns the processes in which the probe runs."""
    return _numbers(folder / "seen-torch")


def _numbers(path: Path) -> frozenset[int]:
    with contextlib.suppress(OSError):
        return frozenset(int(word) for word in path.read_text("ascii").split() if word.isdigit())
    return frozenset()
