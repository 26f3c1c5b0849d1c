"""Work of `steptime nan`, whose options are in verbs/nan.py."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from steptime.answer.output import FORMATS, STANDARD_OUTPUT
from steptime.cli.after_run import nothing_measured
from steptime.cli.delivery import hand_over
from steptime.cli.exit_codes import say
from steptime.cli.options import Delivery
from steptime.errors import UsageError
from steptime.launcher.command import default_recording, job_name, resolve
from steptime.launcher.launch import exit_as, launch
from steptime.launcher.outcome import NumericsOptions, Outcome, ProbeOptions
from steptime.launcher.variant import OUTPUT, run_variant
from steptime.nan.answer import answer_of
from steptime.nan.cause import first_sign, trace_back
from steptime.nan.nonfinite import ProcessNumerics, Trigger, read_numerics
from steptime.recording.inventory import set_aside
from steptime.trials.containment import Workspace, contained, leave, refuse_uncontained
from steptime.trials.plan import ours_in, with_outputs

FOUND = 1
"""Exit status if something was not finite."""
LONGEST, SLOWER = 900.0, 3.0
"""Longest time of an instrumented run: LONGEST seconds plus SLOWER times the duration of the first run."""


@dataclass(frozen=True, slots=True)
class NanOptions:
    """Options of `steptime nan` from the command line."""

    job: tuple[str, ...]
    at: int | None
    max_steps: int
    go_on: bool
    no_replay: bool
    uncontained: bool
    recording: Path | None
    quiet: bool
    delivery: Delivery


@dataclass(frozen=True, slots=True)
class MonitoredRun:
    """First, monitored run of the job. outcome: None if it was skipped (--at). started, ended: ns since the epoch."""

    outcome: Outcome | None
    processes: tuple[ProcessNumerics, ...]
    started: int
    ended: int


def _search(options: NanOptions, folder: Path) -> int:
    """Searches for the fault, and returns the exit status. Does not return if the job failed by itself."""
    seed = secrets.randbelow(1 << 31)
    monitored = _monitored(options, folder, seed)
    sign = _sign(options, monitored)
    instrumented: tuple[ProcessNumerics, ...] = ()
    if sign is not None and not options.no_replay:
        instrumented = _instrument(options, folder, seed, monitored, sign)
    found = trace_back(options.job, monitored.processes, instrumented)
    notes = found.notes
    if found.trigger is not None and sign is not None and not (options.no_replay or found.reproduced):
        notes += (
            f"it did not recur in the second run up to step {sign.step + options.max_steps}: the job depends "
            "on something that no seed controls (time, threads, files written by the first run)",
        )
    seconds = (time.time_ns() - monitored.started) / 1e9
    found = replace(found, seconds=seconds, directory=str(Path.cwd()), notes=notes)
    outcome = monitored.outcome
    if found.trigger is None and outcome is not None and not monitored.processes:
        reason = nothing_measured(outcome, folder)
        if reason is not None:  # a job in which nothing was monitored is no job in which all was finite
            say(str(reason))
            exit_as(outcome)
    hand_over(answer_of(found), options.delivery, error=STANDARD_OUTPUT not in options.delivery.outputs)
    if found.trigger is not None:
        return FOUND
    return 0 if outcome is None or outcome.status == 0 else exit_as(outcome)


def _monitored(options: NanOptions, folder: Path, seed: int) -> MonitoredRun:
    started = time.time_ns()
    if options.at is not None:
        return MonitoredRun(None, (), started, started)
    numerics = NumericsOptions("watch", seed, go_on=options.go_on)
    outcome = launch(options.job, folder / "watch", ProbeOptions(profile=False, numerics=numerics))
    for problem in outcome.problems:
        say(problem)
    return MonitoredRun(outcome, read_numerics(folder / "watch"), started, time.time_ns())


def _sign(options: NanOptions, monitored: MonitoredRun) -> Trigger | None:
    """Sign to look for, or None. A job that failed by itself may have seen a bad loss before steptime did."""
    if options.at is not None:
        return Trigger("loss", options.at)
    found = first_sign(monitored.processes)
    outcome = monitored.outcome
    if found is not None or outcome is None or outcome.status == 0 or outcome.signal is not None:
        return found
    if not outcome.torch_seen:
        return None
    return Trigger("read", max((process.steps for process in monitored.processes), default=0) + 1)


def _instrument(
    options: NanOptions, folder: Path, seed: int, monitored: MonitoredRun, sign: Trigger
) -> tuple[ProcessNumerics, ...]:
    """Results of a second, contained run, which finds the files as they were before the first run."""
    more = 0 if sign.kind == "skipped" else options.max_steps
    first = max(1, sign.step - sign.steps_before)
    numerics = NumericsOptions("instrument", seed, False, first, sign.step + more, sign.kind)
    recording = folder / "instrumented"
    if not options.quiet:
        say(f"checking every operator from step {first} on, in a second run; its output goes to {recording / OUTPUT}")
    took = monitored.outcome.seconds if monitored.outcome is not None else 0.0
    whole = folder.absolute()
    ours = (*ours_in(whole.parent), whole)
    workspace = Workspace(options.job, whole, Path.cwd(), without=ours, uncontained=options.uncontained)
    workspace = with_outputs(workspace, (monitored.started, monitored.ended))
    try:
        refuse_uncontained(workspace)
        deadline = LONGEST + SLOWER * took
        with contained(workspace, "instrumented", recording, deadline=deadline) as (command, place):
            outcome = run_variant(command, recording, ProbeOptions(profile=False, numerics=numerics), place)
    finally:
        leave(workspace)
    for problem in outcome.problems:
        say(problem)
    found = read_numerics(recording, (place.directory, Path.cwd()))
    if not found:
        say(f"The second run ended with status {outcome.status} before it trained: see {recording / OUTPUT}")
    return found


def run(**given: Any) -> int:
    """Runs the job, again around the step of a fault; returns the exit status. given: `NanOptions`. Raises
    SteptimeError."""
    options = NanOptions(**given)
    if options.at is not None and (options.go_on or options.no_replay):
        raise UsageError("usage", "--at makes a single instrumented run. Drop --continue and --no-replay.")
    options.delivery.check(FORMATS)
    resolve(options.job)
    if options.recording is None:
        return _search(options, default_recording((f"{job_name(options.job)}-nan",)))
    parts = [options.recording / name for name in ("watch", "instrumented")] if options.delivery.force else []
    with set_aside(parts):
        return _search(options, options.recording)
