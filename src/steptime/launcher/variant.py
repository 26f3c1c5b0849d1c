"""Starts a process of a trial: the user's command with a change, in its own folder and session, with a deadline.

Unlike in `launch`, the user neither sees nor controls it: its input is empty, and its output goes to a file. It is
ended with all its descendants at the deadline, or if steptime is interrupted or killed (`watchdog`).
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import inf
from pathlib import Path
from typing import IO

from steptime.changes import Change
from steptime.errors import CommandError
from steptime.launcher import contain, watchdog
from steptime.launcher.command import make_recording, resolve
from steptime.launcher.forks import ForkedJob, ForkServer
from steptime.launcher.launch import changed_variables, ended, outcome_of, probe_environment, start
from steptime.launcher.outcome import Outcome, ProbeOptions, Progress
from steptime.launcher.supervise import Pause, pack_recording, supervise
from steptime.launcher.turns import CannotAlternateError, Turn, TurnsEndedError
from steptime.recording.manifest import discard, extend_manifest, start_manifest

OUTPUT = "output.log"
"""File in the recording's folder with the job's standard output and standard error."""
ERRORS = "errors.log"
"""File with its standard error, if only its output is searched for a number."""
PATIENCE = 0.1
"""Seconds between two checks whether the job has ended."""
DEADLINE_PASSED = "It was ended after"
"""Start of an outcome's first problem if the job had to be ended."""
LOOKS = 0.5
"""Seconds between two checks whether a job must be ended."""
LONGEST_END = watchdog.GRACE + watchdog.PATIENCE + 5.0
"""Seconds in which a watchdog has ended a job and itself."""
OPEN = (sys.executable, "-I", "-S", contain.__file__, contain.NOT_CONTAINED)
"""Entry of a process without containment."""


KeptJob = subprocess.Popen[bytes] | ForkedJob
"""Watchdog of a job."""


@dataclass(frozen=True, slots=True)
class VariantPlace:
    """Place where a variant runs. directory: its working folder. environment: variables besides the user's own.
    deadline: seconds from its start after which it is ended, rests excluded. until: seconds of time.monotonic after
    which it is ended in any case. entry: words before the command, which becomes that process (`contain`). contained:
    see ProbeOptions. forks: server that may fork the process. janitor: remover of the trial's folders."""

    directory: Path
    environment: tuple[tuple[str, str], ...] = ()
    deadline: float = 600.0
    until: float = inf
    entry: tuple[str, ...] = OPEN
    contained: str = ""
    forks: ForkServer | None = None
    janitor: watchdog.Janitor = field(default_factory=watchdog.Janitor)


class JobDeadline(Pause):
    """Wait for a job until its deadline or its requested end, which then ends the job with all its descendants. turn:
    the job's turn, if it takes turns."""

    kept = True

    def __init__(self, job: KeptJob, place: VariantPlace, turn: tuple[Turn, Path] | None = None) -> None:
        self._job, self._turn = job, turn
        self._end, self._until = time.monotonic() + place.deadline, place.until
        self.passed = False
        self.ended = False

    def end(self) -> None:
        self.ended = True
        end_job(self._job)

    def interrupted(self) -> None:
        """Ends the job, since nobody waits for it any more."""
        end_job(self._job)

    def wait(self, seconds: float, send: Callable[[int], None]) -> None:
        """Waits like `Pause.wait`, but passes on no signals: the job has its own session."""
        until = min(time.monotonic() + seconds, self._end, self._until)
        try:
            while self._job.poll() is None and (left := until - time.monotonic()) > 0:
                if self._turn is not None and self._turn[0].over(self._turn[1]):
                    rested = self._turn[0].rest()
                    self._end += rested
                    until = min(until + rested, self._until)
                    continue
                time.sleep(min(PATIENCE if self._turn is None else self._turn[0].look, left))
        except (KeyboardInterrupt, TurnsEndedError, CannotAlternateError):
            end_job(self._job)
            raise
        if self._job.poll() is None and time.monotonic() >= min(self._end, self._until):
            self.passed = True
            end_job(self._job)

    def alternating(self) -> Iterable[int]:
        """Returns the watchdogs of the jobs that it takes turns with: their load is not foreign."""
        return self._turn[0].others() if self._turn is not None else ()


def run_variant(
    command: Sequence[str],
    recording: Path,
    options: ProbeOptions,
    place: VariantPlace,
    progress: Callable[[Progress], bool | None] | None = None,
    turn: Turn | None = None,
) -> Outcome:
    """Runs the command to the end of its variant, and leaves a recording with its output. turn: the job's turn, which
    it has now.

    `progress`: function called twice a second; if it returns True, the job is ended, with status 0. A passed deadline
    is a problem of the outcome, whose status is then 128 + the signal. Raises the errors of `launch`, and
    KeyboardInterrupt after the job's end."""
    words = resolve(command, place.directory)
    folder = make_recording(recording)
    chosen = {"changes": json.dumps([asdict(change) for change in options.changes])}
    manifest = start_manifest(folder, command, chosen)
    start = time.monotonic()
    options = replace(options, contained=place.contained, began_epoch_ns=time.time_ns())
    try:
        environment = {**probe_environment(folder, options), **dict(place.environment)}
        with (folder / OUTPUT).open("wb") as output:
            job = start_kept(place, words, environment, output, subprocess.STDOUT)
    except CommandError:
        discard(folder, folder.parent)
        raise
    if turn is not None:
        turn.starts(job.pid, folder)
    deadline = JobDeadline(job, place, (turn, folder) if turn is not None else None)

    def show(now: Progress) -> None:
        if progress is not None and progress(now):
            deadline.end()

    try:
        problems = supervise(job, folder, deadline, show if progress is not None else None) + pack_recording(folder)
    finally:
        end_job(job)
        returncode = 0 if deadline.ended else job.returncode or 0
        status, number = ended(returncode)
        with contextlib.suppress(OSError):  # no room: the variant is lost, and its reading will say so
            extend_manifest(
                folder,
                manifest,
                ended_epoch_ns=time.time_ns(),
                exit_status=status,
                ended_by_signal=number,
                torch_imported=(folder / "seen-torch").exists(),
            )
    if deadline.passed:
        problems = [f"{DEADLINE_PASSED} {place.deadline:.0f} s", *problems]
    seconds = time.monotonic() - start - (turn.rested if turn is not None else 0.0)
    return replace(outcome_of(returncode, folder, seconds), problems=tuple(problems))


def run_plain(
    command: Sequence[str], folder: Path, changes: Sequence[Change], place: VariantPlace, over: Callable[[], bool]
) -> Outcome:
    """Runs the command without the probe, with its output in a new folder; ends it once `over` is True. A passed
    deadline is a problem of the outcome. Raises the errors of `launch`, and KeyboardInterrupt after the job's end."""
    words = resolve(command, place.directory)
    folder.mkdir(parents=True)
    start = time.monotonic()
    environment = {**os.environ, **changed_variables(changes), **dict(place.environment)}
    with (folder / OUTPUT).open("wb") as output, (folder / ERRORS).open("wb") as errors:
        job = start_kept(place, words, environment, output, errors)
    deadline = JobDeadline(job, place)
    try:
        while job.poll() is None and not deadline.passed:
            deadline.wait(LOOKS, lambda _: None)
            if over():
                deadline.end()
    finally:
        end_job(job)
    outcome = outcome_of(job.returncode or 0, folder, time.monotonic() - start)
    problems = (f"{DEADLINE_PASSED} {place.deadline:.0f} s",) if deadline.passed else ()
    return replace(outcome, problems=problems)


def start_kept(
    place: VariantPlace,
    words: Sequence[str],
    environment: Mapping[str, str],
    output: IO[bytes] | int,
    errors: IO[bytes] | int,
) -> KeptJob:
    """Starts a process under a watchdog, and returns the watchdog, which ends with the process and ends all its
    descendants. Raises CommandError."""
    held = place.janitor.held()
    if place.forks is not None and not isinstance(output, int):
        files = output, output if isinstance(errors, int) else errors, held
        if fork := place.forks.job(words, place.directory, environment, place.entry[-1], files):
            return fork
    with open(os.memfd_create("steptime"), "w+", encoding="ascii") as variables:  # noqa: PTH123 - it has no path
        json.dump(dict(environment), variables)
        variables.seek(0)
        ours = {**os.environ, contain.VARIABLES: str(variables.fileno())}
        command = (sys.executable, "-I", "-S", watchdog.__file__, str(held[0] if held else -1), *place.entry, *words)
        return start(
            command,
            ours,
            cwd=place.directory,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=errors,
            pass_fds=(variables.fileno(), *held),
            start_new_session=True,
        )


def end_job(job: KeptJob) -> None:
    """Ends a job with all its descendants, wherever they are. job: its watchdog."""
    assert job.stdin is not None
    with contextlib.suppress(OSError, ValueError):  # it has ended, or is being ended already
        if job.poll() is None:
            job.stdin.write(watchdog.ASKED)
            job.stdin.flush()
    try:
        job.wait(LONGEST_END)
    except subprocess.TimeoutExpired:  # somebody has stopped it
        job.kill()
        job.wait()
    job.stdin.close()
