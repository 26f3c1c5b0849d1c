"""Starts the user's job with the probe in its environment, and stays next to it until it ends.

Nothing in the job depends on this process. Its input and output are the user's own, it finds the recording by itself,
and it goes on if we are killed. Few modules are imported before the job starts, which must not wait.
"""

from __future__ import annotations

import contextlib
import ctypes.util
import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from steptime.changes import Change
from steptime.errors import CommandError
from steptime.launcher.command import NOT_EXECUTABLE, cannot_record, make_recording, resolve
from steptime.launcher.joining import RecordingPlace, join, leave, wait_for_others
from steptime.launcher.outcome import THINNING_PERIOD, Outcome, ProbeOptions, Progress
from steptime.launcher.revision import Inspection, Revision
from steptime.launcher.supervise import HEAD_START, PATIENCE, Switchboard, pack_recording, supervise
from steptime.recording.inventory import COMPILE_LOGS
from steptime.recording.manifest import discard, extend_manifest, innermost, start_manifest

PRELOAD = "LD_PRELOAD"


def changed_variables(changes: Iterable[Change]) -> dict[str, str]:
    """Returns the environment variables for changes "environment" (arguments: name and value) and "preload" (target: a
    library's name, such as "jemalloc", or its path). A missing library is left out, which the probe reports."""
    variables: dict[str, str] = {}
    for change in changes:
        if change.kind == "environment":
            variables.update({name: str(value) for name, value in change.arguments})
        elif change.kind == "preload" and (library := find_library(change.target)):
            before = variables.get(PRELOAD, os.environ.get(PRELOAD, ""))
            variables[PRELOAD] = ":".join(filter(None, (library, before)))
    return variables


def find_library(name: str) -> str:
    """Returns the name by which the dynamic loader knows the library; "" if it is not found."""
    if os.sep in name:
        return name if Path(name).exists() else ""
    short = [name, f"{name}_minimal"] if name == "tcmalloc" else [name]
    return next((found for each in short if (found := ctypes.util.find_library(each))), "")


EVENTS = Path("/sys/fs/cgroup/memory.events")
"""Events of our own control group (version 2), which a container sees as the root."""
MACHINE = Path("/proc/vmstat")
"""Counters of the whole machine, in a container too: other jobs may raise them."""


def oom_kills() -> int | None:
    """Returns the number of OOM kills so far, of our control group if it counts them, else of the machine; None if
    unknown."""
    for path in (EVENTS, MACHINE):
        try:
            text = path.read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError):
            continue
        for line in text.splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill" and count.strip().isdigit():
                return int(count)
    return None


__all__ = ["Outcome", "ProbeOptions", "Progress", "exit_as", "launch", "launch_bare", "probe_environment"]

INJECT = Path(__file__).parent.parent / "probe" / "inject"
PLAN = "STEPTIME_PROBE"
START = "STEPTIME_INJECT"
"""Variable that shows the probe's entry to steptime-start.pth, which is in every environment with steptime."""
WRITTEN_BY_COMPILER = {"INDUCTOR_PROVENANCE": "1"}
"""Variable besides TORCH_TRACE that adds the lines of C++ kernels."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def launch(
    command: Sequence[str],
    recording: Path,
    options: ProbeOptions,
    progress: Callable[[Progress], None] | None = None,
    *,
    keep_earlier: bool = False,
    part: str | None = None,
    waited: bool = False,
) -> Outcome:
    """Runs the user's command to its end and leaves a recording in a new folder. `progress`: function called twice a
    second. keep_earlier: True to number the name if the folder has an earlier recording. part: this launcher's, if
    several share the folder and one leads (`joining.join`). waited: True if this process runs for the job alone, so
    that its own start has delayed the job.

    Raises, before the start: UsageError (no command), CommandError (not found, not executable), OutputError (no
    recording can be written there)."""
    words, kept = resolve(command), innermost(recording)
    place = join(recording, part) if part is not None else None
    if place is not None and not place.leads:
        return _follow(words, place, options)
    folder = place.folder if place is not None else make_recording(recording, keep_earlier=keep_earlier)
    with Switchboard() as signals:
        try:
            manifest = start_manifest(folder, command, _chosen(options))
        except OSError as error:
            discard(folder, kept)
            raise cannot_record(recording, error) from None
        kills, before = oom_kills(), age() if waited else 0
        since = time.monotonic()
        try:
            job = start(words, probe_environment(folder, options), close_fds=False)
        except CommandError:
            discard(folder, kept)
            raise
        inspection = _inspect(folder, manifest)
        problems = supervise(job, folder, signals, progress)
        over = time.monotonic()
        if place is not None:
            problems += wait_for_others(folder)
        packing = time.monotonic()
        problems += pack_recording(folder)
        times = {"before_ns": before, "job_ns": int(1e9 * (over - since))}
        outcome = outcome_of(job.returncode, folder, time.monotonic() - since)
        outcome = replace(outcome, asked_to_end=signals.asked_to_end)
        if outcome.status and (oom_kills() or 0) > (kills or 0):
            outcome = replace(outcome, killed_for_memory=True)
        try:
            extend_manifest(
                folder,
                manifest,
                ended_epoch_ns=time.time_ns(),
                exit_status=outcome.status,
                ended_by_signal=outcome.signal,
                torch_imported=outcome.torch_seen,
                **times,
                after_ns=int(1e9 * (time.monotonic() - packing)),
                **asdict(inspection.end()),
            )
        except OSError as error:
            loss = _loss(folder, error)
            return replace(outcome, problems=(loss, *problems) if folder.exists() else (loss,), whole=False)
    return replace(outcome, problems=tuple(problems))


def age() -> int:
    """Returns the ns since the start of this process, to a hundredth of a second; 0 if unknown (proc(5))."""
    try:
        started = int(Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19])
        return max(0, time.clock_gettime_ns(time.CLOCK_BOOTTIME) - started * 10**9 // os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError, AttributeError):
        return 0


def launch_bare(command: Sequence[str]) -> Outcome:
    """Runs the user's command without steptime, if no recording can be made. Raises the errors of `launch` about it."""
    words, start = resolve(command), time.monotonic()
    status, number = ended(_run(words, None))
    return Outcome(Path(), status, number, time.monotonic() - start, False, False, False, whole=False)


def _chosen(options: ProbeOptions) -> dict[str, str]:
    chosen = {name: str(getattr(options, name)) for name in ("profile", "profile_steps", "max_profile_seconds")}
    return {**chosen, "numerics": options.numerics.mode} if options.numerics is not None else chosen


def _inspect(folder: Path, manifest: Mapping[str, Any]) -> Inspection:
    """Asks for the commit next to the running job. The manifest gets it at once, in case the launcher is killed."""

    def notify(revision: Revision) -> None:
        with contextlib.suppress(OSError):  # the end of the job will say so
            extend_manifest(folder, manifest, **asdict(revision))

    return Inspection(Path.cwd(), HEAD_START, notify)


def _follow(words: Sequence[str], place: RecordingPlace, options: ProbeOptions) -> Outcome:
    """Runs this part of a job whose recording another launcher leads: the leader does everything but start it."""
    start = time.monotonic()
    try:
        returncode = _run(words, probe_environment(place.folder, options), place.folder)
    finally:
        leave(place)
    return replace(outcome_of(returncode, place.folder, time.monotonic() - start), leads=False)


def _run(words: Sequence[str], environment: Mapping[str, str] | None, recording: Path | None = None) -> int:
    """Runs a command, passes signals on to it, and keeps its records small; returns its return code."""
    with Switchboard() as signals:
        job = start(words, environment, close_fds=False)  # files that the user passes down must arrive
        thinner = None
        while job.poll() is None:
            signals.wait(THINNING_PERIOD if recording is not None else PATIENCE, job.send_signal)
            if recording is not None and job.poll() is None:
                from steptime.launcher.thin import JournalThinner, family

                thinner = thinner or JournalThinner(recording, partial(family, job.pid))
                thinner.look()
    return job.returncode


def probe_environment(folder: Path, options: ProbeOptions) -> dict[str, str]:
    """Returns the job's environment: the user's, and the probe's variables. `folder`: absolute."""
    plan = json.dumps({"recording": str(folder), **asdict(options)}, ensure_ascii=False)
    theirs = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(INJECT), theirs] if theirs else [str(INJECT)])
    repeatable = {"PYTHONHASHSEED": "0"} if options.variant is not None or options.numerics is not None else {}
    ours = {"PYTHONPATH": path, START: str(INJECT), PLAN: plan}
    compiler = {"TORCH_TRACE": str(folder / COMPILE_LOGS), **WRITTEN_BY_COMPILER} if options.compile_logs else {}
    return {**repeatable, **compiler, **os.environ, **changed_variables(options.changes), **ours}


def exit_as(outcome: Outcome) -> NoReturn:
    """Ends this process as the job ended: with its status, or by its signal, as a shell expects."""
    sys.stdout.flush()
    sys.stderr.flush()
    if outcome.signal is not None and outcome.signal != signal.SIGKILL:
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, most))  # the job has left its own core file
        signal.signal(outcome.signal, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {outcome.signal})
    if outcome.signal is not None:
        os.kill(os.getpid(), outcome.signal)
    sys.exit(outcome.status)


def start(words: Sequence[str], environment: Mapping[str, str] | None, **options: Any) -> subprocess.Popen[bytes]:
    """Starts a process that runs the command `words`; options: options of Popen. Raises CommandError."""
    try:
        return subprocess.Popen(words, env=environment, **options)
    except OSError as error:
        raise CommandError(
            "command-not-executable",
            f"{words[0]} cannot be executed ({os.strerror(error.errno or 0)}). Put the script's interpreter "
            f"first, as in: bash {words[0]}",
            exit_status=NOT_EXECUTABLE,
        ) from None


def ended(returncode: int) -> tuple[int, int | None]:
    """Exit of a process as (status in a shell's convention, signal that ended it or None)."""
    return (returncode, None) if returncode >= 0 else (128 - returncode, -returncode)


def outcome_of(returncode: int, folder: Path, seconds: float) -> Outcome:
    status, number = ended(returncode)
    return Outcome(
        recording=folder,
        status=status,
        signal=number,
        seconds=seconds,
        python_seen=(folder / "seen-python").exists(),
        torch_seen=(folder / "seen-torch").exists(),
        steps_seen=any(True for _ in folder.glob("process-*")),
    )


def _loss(folder: Path, error: OSError) -> str:
    if not folder.exists():
        return (
            f"Somebody removed the recording {folder} while the job ran, so there is no report. (recording-cut-short)"
        )
    reason = os.strerror(error.errno or 0)
    advice = "free some room before the next run" if error.errno in NO_ROOM else "name another folder with --recording"
    return (
        f"The recording {folder} is incomplete ({reason}): {advice}. Everything written so far is kept. "
        "(recording-cut-short)"
    )
