"""Starts the user's job with the probe in its environment, and stays beside it until it ends. The room's main function.

One law: nothing in the job depends on this process. Its input and output are the user's own, it finds the recording by
itself, and it goes on undisturbed when we are killed. Few modules are imported before the job starts: its start must
not wait.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import NoReturn

from steptime.capture.before_start import changed_variables
from steptime.capture.command import NOT_EXECUTABLE, make_recording, resolve
from steptime.capture.joining import join, leave, wait_for_others
from steptime.capture.kernel_kills import kernel_kills
from steptime.capture.outcome import Outcome, ProbeOptions, Progress
from steptime.capture.revision import Inspection, commit_of, find
from steptime.capture.signals import Switchboard
from steptime.capture.supervise import HEAD_START, PATIENCE, pack, supervise
from steptime.errors import CommandError
from steptime.recording.manifest import begin_manifest, discard, end_manifest

__all__ = ["Outcome", "ProbeOptions", "Progress", "exit_as", "launch", "probe_environment"]

INJECT = Path(__file__).parent / "inject"
PLAN = "STEPTIME_PROBE"
QUIET = {"KINETO_LOG_LEVEL": "99", "TEARDOWN_CUPTI": "1"}
"""Silences Kineto's lines on stderr (torch 2.13); takes CUPTI down after a profile, which else slows later steps by
10-20 %."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def launch(
    command: Sequence[str],
    recording: Path,
    options: ProbeOptions,
    progress: Callable[[Progress], None] | None = None,
    *,
    shared: bool = False,
) -> Outcome:
    """Runs the user's command to its end and leaves a recording in a new folder. `progress` is called twice a second.
    shared: others record into the same folder, and one of us leads (`joining`).

    Raises, before anything is started: UsageError (no command), CommandError (not found, not executable), OutputError
    (no recording can be written there).
    """
    words = resolve(command)
    if shared:
        folder, leads = join(recording)
        if not leads:
            return _follow(words, folder, options)
    else:
        folder = make_recording(recording)
    chosen = {name: str(getattr(options, name)) for name in ("profile", "profile_steps", "max_profile_seconds")}
    if options.numerics is not None:
        chosen["numerics"] = options.numerics.mode
    repository = find(Path.cwd())
    with Switchboard() as signals:
        manifest = begin_manifest(folder, command, chosen, commit_of(repository) if repository is not None else "")
        begin, kills = time.monotonic(), kernel_kills()
        try:
            job = _start(words, probe_environment(folder, options))
        except CommandError:
            discard(folder)
            raise
        inspection = Inspection(repository, HEAD_START) if repository is not None else None
        problems = supervise(job, folder, signals, progress)
        if shared:
            problems += [*wait_for_others(folder), *pack(folder)]
        outcome = _outcome(job.returncode, folder, time.monotonic() - begin)
        if outcome.status and (kernel_kills() or 0) > (kills or 0):
            outcome = replace(outcome, killed_for_memory=True)
        try:
            end_manifest(
                folder,
                manifest,
                ended_epoch_ns=time.time_ns(),
                exit_status=outcome.status,
                ended_by_signal=outcome.signal,
                torch_imported=outcome.torch_seen,
                dirty=inspection.result() if inspection is not None else None,
            )
        except OSError as error:
            loss = _loss(folder, error)
            return replace(outcome, problems=(loss, *problems) if folder.exists() else (loss,), whole=False)
    return replace(outcome, problems=tuple(problems))


def _follow(words: Sequence[str], folder: Path, options: ProbeOptions) -> Outcome:
    """Runs this part of a job whose recording another launcher leads: the leader does all but start it."""
    begin = time.monotonic()
    try:
        with Switchboard() as signals:
            job = _start(words, probe_environment(folder, options))
            while job.poll() is None:
                signals.wait(PATIENCE, job.send_signal)
    finally:
        leave(folder)
    return replace(_outcome(job.returncode, folder, time.monotonic() - begin), leads=False)


def probe_environment(folder: Path, options: ProbeOptions) -> dict[str, str]:
    """The environment of the job: the user's, and what lets the probe in. `folder`: absolute."""
    plan = json.dumps({"recording": str(folder), **asdict(options)}, ensure_ascii=False)
    theirs = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(INJECT), theirs] if theirs else [str(INJECT)])
    repeatable = {"PYTHONHASHSEED": "0"} if options.arm is not None or options.numerics is not None else {}
    return {**QUIET, **repeatable, **os.environ, **changed_variables(options.changes), "PYTHONPATH": path, PLAN: plan}


def exit_as(outcome: Outcome) -> NoReturn:
    """Ends this process as the job ended: with its status, or by its signal, so that a shell sees what it knows."""
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


def _start(words: Sequence[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(words, env=environment, close_fds=False)  # files that the user passes down must arrive
    except OSError as error:
        raise CommandError(
            "command-not-executable",
            f"{words[0]} cannot be executed ({os.strerror(error.errno or 0)}): put the interpreter of a script first, "
            f"as in: bash {words[0]}",
            exit_status=NOT_EXECUTABLE,
        ) from None


def _outcome(returncode: int, folder: Path, seconds: float) -> Outcome:
    return Outcome(
        recording=folder,
        status=returncode if returncode >= 0 else 128 - returncode,
        signal=-returncode if returncode < 0 else None,
        seconds=seconds,
        python_seen=(folder / "seen-python").exists(),
        torch_seen=(folder / "seen-torch").exists(),
        steps_seen=any(True for _ in folder.glob("process-*")),
    )


def _loss(folder: Path, error: OSError) -> str:
    if not folder.exists():
        return (
            f"The recording {folder} was removed while the job ran: nothing of it is left to account for. "
            "(recording-cut-short)"
        )
    reason = os.strerror(error.errno or 0)
    advice = "free some room before the next run" if error.errno in NO_ROOM else "name another folder with --recording"
    return (
        f"The recording {folder} could not be written to its end ({reason}): {advice}. What it holds is kept. "
        "(recording-cut-short)"
    )
