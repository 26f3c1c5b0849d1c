"""`steptime run -- CMD…`: measures an unchanged job, and writes its recording and its diagnosis.

The job starts before anything heavy is imported, its output is never touched, and this command ends as it did."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import click

from steptime.cli.announcer import Announcer, end_bar, say_above
from steptime.cli.exit_codes import say, shield
from steptime.cli.options import Delivery, WholeNumber, files, output_options
from steptime.errors import NothingMeasuredError, OutputError, SteptimeError, UsageError
from steptime.launcher.command import default_recording, job_name, numbered
from steptime.launcher.joining import part_of_launcher, tasks_of_launcher
from steptime.launcher.launch import exit_as, launch, launch_bare
from steptime.launcher.outcome import CatchOptions, Outcome, ProbeOptions, Progress
from steptime.recording.inventory import COMPILE_LOGS
from steptime.remote import check, is_url, upload

WORDS = ("auto", "all")
NUMBER = re.compile(r"[0-9]{1,9}")


def ranks(context: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
    """Ranks to trace, parsed from --trace-ranks by click. Raises click.BadParameter for a word that is neither a number
    nor known."""
    given = tuple(word.strip() for word in value.split(",") if word.strip())
    wrong = next((word for word in given if word not in WORDS and not NUMBER.fullmatch(word)), None)
    if wrong is not None or not given:
        displayed = wrong if wrong is not None else value
        raise click.BadParameter(
            f"{displayed[:40]!r} is not a rank. Expected numbers separated by commas, all, or auto, as in 0,7,auto."
        )
    return tuple(word if word in WORDS else str(int(word)) for word in given)


CAUGHT = re.compile(r"(?:step)?\s*>?\s*(?P<number>\d{1,9}(?:\.\d{1,9})?)\s*(?P<unit>x|ms|s)")
EVERY = re.compile(r"every\s+(\d{1,9})")


def slow_steps(context: click.Context, parameter: click.Parameter, value: str | None) -> CatchOptions | None:
    """Steps to sample, parsed from --catch by click. Raises click.BadParameter."""
    if value is None:
        return None
    words = value.strip().lower()
    if (numbered := EVERY.fullmatch(words)) and int(numbered[1]) > 0:
        return CatchOptions(every=int(numbered[1]))
    found = CAUGHT.fullmatch(words)
    number, unit = (float(found["number"]), found["unit"]) if found else (0.0, "")
    if unit == "x" and number > 1:
        return CatchOptions(times=number)
    if unit in ("ms", "s") and number > 0:
        return CatchOptions(ns=int(number * (1e6 if unit == "ms" else 1e9)))
    raise click.BadParameter(
        f"{value[:40]!r} does not choose steps. Expected a factor above 1x (2x), a time (500ms), or 'every 1000'."
    )


UNTIL_MEASURED = 600.0
"""Budget of --until-measured, s, half of which may pass until the steps are known."""


AFTERWARDS = (
    "steptime.diagnosis",
    "steptime.cli.after_run",
    "steptime.cli.delivery",
    "numpy.ma",
    "numpy.fft",
    "numpy.random",
)
"""Modules that the end of a run needs. numpy imports its own of these on first use."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of `steptime run` from the command line."""

    job: tuple[str, ...]
    delivery: Delivery
    recording: str | None
    join: bool
    steps: int | None
    max_profile_seconds: int | None
    trace_ranks: tuple[str, ...]
    no_profile: bool
    no_peaks: bool
    explain_compile: bool
    catch: CatchOptions | None
    log: bool
    no_progress: bool
    until_measured: bool
    uncontained: bool
    quiet: bool


@click.command("run", context_settings={"allow_interspersed_args": False})
@click.argument("job", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND [ARGUMENT]...", shell_complete=files)
@output_options
@click.option(
    "--recording",
    metavar="DIR",
    help="Folder of the recording, or an fsspec URL to copy it to at the end. Default: runs/<job>-<time>.",
)
@click.option(
    "--join",
    is_flag=True,
    help="Record one job from several steptime run commands (one per node) into a shared folder. The first command "
    "prints the report. Tasks of srun join by themselves.",
)
@click.option(
    "--steps",
    metavar="N",
    type=WholeNumber(1, 1000),
    help="Steady steps to profile. Default: chosen from the step time.",
)
@click.option("--max-profile-seconds", metavar="N", type=WholeNumber(1, 3600), help="Longest time in the profiler.")
@click.option(
    "--trace-ranks",
    metavar="RANKS",
    callback=ranks,
    default="auto",
    show_default=True,
    help="Ranks that record traces: numbers separated by commas, all, or auto (all of up to 16 ranks, a sample of "
    "more). The others record step times only.",
)
@click.option("--no-profile", is_flag=True, help="Time the steps without profiling operators.")
@click.option("--no-peaks", is_flag=True, help="Do not benchmark this machine after the job.")
@click.option(
    "--explain-compile",
    is_flag=True,
    help="Record torch.compile's logs (TORCH_TRACE): graph breaks with reason and line, failed guards, recompile "
    "limits, and the source lines of generated kernels.",
)
@click.option(
    "--catch",
    callback=slow_steps,
    metavar="STEPS",
    help="Sample slow steps while they run: 2x (twice the usual step), 500ms, or every 1000. The report names their "
    "lines. If slow steps are periodic, the next ones are profiled on all ranks.",
)
@click.option(
    "--log", is_flag=True, help="Log step times to the job's open logger: TensorBoard, Weights & Biases or MLflow."
)
@click.option("--no-progress", is_flag=True, help="Print no progress while the job runs.")
@click.option(
    "--until-measured",
    is_flag=True,
    help="Run a copy of the job, leave its files unchanged, and stop it as soon as its steps are measured (5 minutes "
    "at most).",
)
@click.option(
    "--uncontained", is_flag=True, help="With --until-measured: run the job itself where no copy can be made."
)
@click.option("-q", "--quiet", is_flag=True, help="Print errors only; with -o or --json, write those files only.")
def command(**given: Any) -> int:
    """Run a training job unchanged and report where the time of its steps goes. COMMAND can be anything: python
    train.py, python -m package, torchrun, accelerate launch, a shell script; train.py alone means python train.py.
    The exit status is the job's.

    \b
    steptime run -- python train.py --epochs 3
    steptime run -o report.md -- torchrun --nproc-per-node 2 train.py
    """
    options = RunOptions(**given)
    if options.no_profile and options.steps:
        raise UsageError(
            "usage", "--steps and --no-profile exclude each other: --no-profile profiles no step. Drop one."
        )
    options.delivery.check()
    if options.until_measured:
        return _run_until_measured(options)
    url = _destination(options.recording) if options.recording is not None and is_url(options.recording) else None
    folder = Path(options.recording) if options.recording is not None and not is_url(options.recording) else None
    wanted = folder or _default_folder(options.job)
    part = "" if options.join else part_of_launcher() or None
    replaces = options.delivery.force and folder is not None and part is None  # else others record there as well
    probe = ProbeOptions(
        not options.no_profile,
        options.steps,
        options.max_profile_seconds or 0,
        trace_ranks=options.trace_ranks,
        compile_logs=options.explain_compile,
        catch=options.catch,
        log=options.log,
    )
    parent_is_ours = not wanted.parent.exists()
    announcer = None if options.quiet or options.no_progress else Announcer(say_above, end_bar)
    try:
        outcome = launch(options.job, wanted, probe, _meanwhile(announcer), keep_earlier=True, part=part, waited=True)
    except OutputError as refusal:
        say(f"{refusal.sentence} The job runs without steptime. ({refusal.slug})")
        return _end(launch_bare(options.job), 0)
    if not outcome.leads:
        return _end(outcome, 0)
    made = wanted.with_name(outcome.recording.name) if wanted.name else wanted
    if made != wanted and replaces and shield(lambda: _take_place(outcome.recording, made, wanted)) == 0:
        outcome, made = replace(outcome, recording=outcome.recording.with_name(wanted.name)), wanted
    elif made != wanted and options.recording is not None:
        say(f"{wanted} contains {_why_it_stays(wanted, replaces)}. This run is recorded in {made}. (recording-exists)")
    status = shield(lambda: _after_job(outcome, made, options))
    if options.recording is None and part is None and not outcome.torch_seen:
        _leave_nothing(outcome.recording, made.parent if parent_is_ours else None)
    if url is not None:
        status = shield(lambda: _copy(outcome, url)) or status
    return _end(outcome, status)


def _run_until_measured(options: RunOptions) -> int:
    """Measures the job in a copy, as trials do."""
    for given, option in (
        (is_url(options.recording or ""), "A URL"),
        (options.join, "--join"),
        (options.steps, "--steps"),
        (options.max_profile_seconds, "--max-profile-seconds"),
        (options.no_profile, "--no-profile"),
        (options.explain_compile, "--explain-compile"),
        (options.catch, "--catch"),
        (options.log, "--log"),
    ):
        if given:
            raise UsageError(
                "usage", f"{option} does not work with --until-measured, which profiles a copy of the job. Drop one."
            )
    from steptime.cli.delivery import deliver
    from steptime.cli.trial import TrialOptions, measure
    from steptime.diagnosis import diagnose_paths
    from steptime.recording.inventory import replaceable
    from steptime.trials.trial import Budget

    quiet = options.quiet or options.no_progress
    wanted = Path(options.recording) if options.recording is not None else None
    first = wanted
    if options.delivery.force and wanted is not None and replaceable(wanted):
        first = next(path for number in count(2) if not os.path.lexists(path := numbered(wanted, number)))
    asked = TrialOptions(Budget(UNTIL_MEASURED), quiet, "local", options.uncontained)
    folder = measure(options.job, asked, first, peaks=not options.no_peaks)
    place = os.path.relpath(folder)
    if wanted is not None and (first == wanted or _take_place(folder, folder, wanted) == 0):
        place = str(wanted)
    report = diagnose_paths((place,))
    deliver(report, options.delivery, text_to_stderr=None if options.quiet else True)
    return 0


NO_STEP = 1


def _take_place(made: Path, reported: Path, wanted: Path) -> int:
    """Replaces an earlier recording, with --force, if the new one holds a step; else returns NO_STEP."""
    from steptime.live.watching import still_recorded
    from steptime.recording.inventory import replaceable, take_place

    if not replaceable(wanted) or still_recorded(made) or not _holds_a_step(made):
        return NO_STEP
    try:
        take_place(made, wanted)
    except OSError as error:
        raise OutputError(
            "recording-exists", f"{reported} cannot replace {wanted} ({error.strerror}). Both are kept."
        ) from None
    return 0


def _holds_a_step(recording: Path) -> bool:
    from steptime.analysis.layout import lay_out
    from steptime.recording.load import load

    try:
        return any(len(lay_out(process).steps.end) for process in load(recording).processes)
    except SteptimeError:
        return False


def _why_it_stays(wanted: Path, replaces: bool) -> str:
    from steptime.recording.inventory import replaceable

    if not replaces:
        return "an earlier recording"
    if not replaceable(wanted):
        return "files that are not a recording's"
    return "an earlier recording, kept because this run recorded no step"


def _default_folder(job: tuple[str, ...]) -> Path:
    tasks, number = tasks_of_launcher()
    if tasks > 1:
        return Path("runs") / f"{job_name(job or ('job',))}-{number}"  # one name on all nodes
    return default_recording(job or ("job",))


def _destination(url: str) -> str | None:
    """URL to which the recording is copied at the end; None if that is impossible, which is reported."""
    try:
        check(url)
    except OutputError as refusal:
        say(f"{refusal.sentence} The recording stays on this machine. ({refusal.slug})")
        return None
    return url


def _end(outcome: Outcome, status: int) -> int:
    """Exit status: `status` if the job succeeded, else this process ends as the job did."""
    if outcome.status == 0 and outcome.signal is None:
        return status
    exit_as(outcome)


def _copy(outcome: Outcome, url: str) -> int:
    upload(outcome.recording, url)
    say(f"Wrote {url}")
    return 0


def _meanwhile(announcer: Announcer | None) -> Callable[[Progress], None]:
    """Callback while the job runs: it prints progress, and, once the job trains, imports the modules that the end
    needs. Importing them takes 0.4 s, for which the user would otherwise wait."""

    def show(progress: Progress) -> None:
        if announcer is not None:
            announcer.show(progress)
        if progress.steps:
            for module in AFTERWARDS:
                importlib.import_module(module)

    return show


def _after_job(outcome: Outcome, folder: Path, options: RunOptions) -> int:
    """Does everything after the job. If there is nothing to report, it says so, and fails only if a report was
    requested, because the job itself succeeded."""
    from steptime.cli.after_run import (
        compiled_text,
        crashed_after_profile,
        made_since,
        measure_peaks,
        nothing_measured,
        out_of_memory,
    )

    start = time.perf_counter_ns()
    reasons = (*out_of_memory(outcome, folder), *crashed_after_profile(outcome, folder)) if outcome.status else ()
    for sentence in (*outcome.problems, *reasons):
        say(sentence)
    try:
        if (reason := nothing_measured(outcome, folder)) is not None:
            raise reason
        if not options.no_peaks:
            measure_peaks(folder, quiet=options.quiet, only_known=outcome.asked_to_end)
        from steptime.cli.delivery import deliver
        from steptime.diagnosis import CompanionFiles, diagnose_paths

        report = diagnose_paths((str(folder),), companions=CompanionFiles(_compile_logs(folder, options)))
        report = made_since(report, start)
        deliver(report, options.delivery, text_to_stderr=None if options.quiet else True)
        if options.explain_compile and not options.quiet:
            for sentence in compiled_text(report):
                say(sentence)
    except NothingMeasuredError as nothing:
        if outcome.whole:
            say(str(nothing))
        return 1 if options.delivery.outputs or options.delivery.as_json else 0
    return 0


def _compile_logs(folder: Path, options: RunOptions) -> Path | None:
    """Folder of the requested compile logs, which the user named or which is in the recording. None if they were not
    requested, or nothing was compiled, which is reported."""
    if not options.explain_compile:
        return None
    written = Path(os.environ.get("TORCH_TRACE") or folder / COMPILE_LOGS)
    if written.is_dir():
        return written
    say("This job compiled nothing with torch.compile, so --explain-compile has nothing to report.")
    return None


def _leave_nothing(recording: Path, parent: Path | None) -> None:
    """Removes the recording of a job without torch, unless a process still records. parent: its folder, if new."""
    from steptime.live.watching import still_recorded
    from steptime.recording.inventory import remove, replaceable

    if still_recorded(recording):
        return
    try:
        if replaceable(recording):  # a folder with other content stays as it is
            remove(recording)
    except OutputError as refusal:  # the job runs all the same
        say(str(refusal))
    if parent is not None:
        with contextlib.suppress(OSError):  # other runs have come to it
            parent.rmdir()
