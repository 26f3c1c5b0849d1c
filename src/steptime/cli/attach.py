"""`steptime attach PID`: measures a running job without restarting it."""

from __future__ import annotations

import os
from pathlib import Path

import click

from steptime.answer.screen import columns, show
from steptime.cli.announcer import Announcer, say_above
from steptime.cli.exit_codes import say
from steptime.cli.options import Delivery, WholeNumber, output_options
from steptime.errors import NothingMeasuredError, UsageError


@click.command("attach")
@click.argument("pid", type=WholeNumber(1, 1 << 30), metavar="PID")
@output_options
@click.option("--recording", metavar="DIR", help="Folder of the recording. Default: runs/<job>-<time>.")
@click.option("--stay", is_flag=True, help="Stay until the job ends. Default: leave when its steps are profiled.")
@click.option(
    "--no-profile", is_flag=True, help="Time the steps until Ctrl-C or the job's end, without profiling operators."
)
@click.option("-q", "--quiet", is_flag=True, help="Print errors only; with -o or --json, write those files only.")
def command(pid: int, delivery: Delivery, recording: str | None, stay: bool, no_profile: bool, quiet: bool) -> int:
    """Enter a running job, measure its steps, leave it again, and report where its time goes. PID is the job's
    process, or the launcher of its ranks. The job continues whatever happens to this command; Ctrl-C leaves it, too.

    A job that was started with STEPTIME_STANDBY=1, in an environment that has steptime, is entered by a signal; any
    other by gdb, which must be installed and allowed to trace it. With py-spy in place of gdb, only lines are
    reported.

    \b
    steptime attach 4711
    STEPTIME_STANDBY=1 python train.py
    """
    from steptime.cli.delivery import deliver
    from steptime.diagnosis import diagnose_paths
    from steptime.launcher.attach import attach, has_way_in, processes_to_enter
    from steptime.launcher.command import PROOF, default_recording, make_recording
    from steptime.launcher.outcome import ProbeOptions
    from steptime.launcher.progress import command_of
    from steptime.launcher.py_spy import find
    from steptime.recording.inventory import remove
    from steptime.recording.manifest import discard, innermost, remove_empty

    delivery.check()
    pids = processes_to_enter(pid)
    if not has_way_in(pids[0]) and find():
        return _look(pids[0], stay=stay, wants_report=bool(delivery.outputs or delivery.as_json or recording))
    wanted = Path(recording) if recording is not None else default_recording(command_of(pids[0]))
    kept = innermost(wanted)
    folder = make_recording(wanted)
    announcer = None if quiet else Announcer(say_above)
    try:
        found = attach(
            pids, folder, ProbeOptions(not no_profile), announcer.show if announcer else None, stay=stay or no_profile
        )
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and not quiet:
            say("interrupted before a step was measured: no recording was saved, and the job goes on")
        remove(folder)
        for mark in (PROOF, "seen-python", "seen-torch", "seen-importing"):
            (folder / mark).unlink(missing_ok=True)
        discard(folder, kept)
        if kept == folder:  # it was there, empty
            folder.mkdir(exist_ok=True)
        else:
            remove_empty(folder.parent, kept)
        raise
    for problem in found.problems:
        say(problem)
    if not quiet:
        several = f"processes {', '.join(map(str, found.pids))}" if len(found.pids) > 1 else f"process {pids[0]}"
        left = f"left {several}" if found.left else f"steptime leaves {several} at the next step boundary"
        say(f"{several} ended" if found.ended else f"{left}: the job goes on")
    try:
        report = diagnose_paths((recording or os.path.relpath(folder),))
    except NothingMeasuredError as nothing:
        say(str(nothing))
        return 1
    deliver(report, delivery, text_to_stderr=None if quiet else True)
    return 0


def _look(pid: int, *, stay: bool, wants_report: bool) -> int:
    """Prints the lines of a process that cannot be entered. Raises UsageError if a report or a recording is wanted."""
    from steptime.answer.text import as_text
    from steptime.cli.outside import answer_of
    from steptime.launcher.progress import command_of
    from steptime.launcher.py_spy import SECONDS, look_from_outside

    if wants_report:
        raise UsageError(
            "usage",
            f"Without gdb, steptime can only sample the lines of process {pid} from outside, for the terminal. "
            "For a recording or a report, install gdb, or start the job with STEPTIME_STANDBY=1.",
        )
    command, duration = " ".join(command_of(pid)), "to its end" if stay else f"{SECONDS} s"
    say(f"gdb is not installed: sampling process {pid} from outside with py-spy for {duration}")
    found = look_from_outside(pid, None if stay else SECONDS)
    show(as_text(answer_of(pid, command, found), columns(error=True)), error=True)
    return 0
