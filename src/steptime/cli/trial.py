"""`steptime try RECORDING` or `steptime try -- CMD…`: the fixes for what was found, tried on the job itself.

What is said while the variants of a trial run: a line for each process that begins, and in a terminal the step it is
at.

Their own output goes to files, so that line can be drawn in place.
"""

from __future__ import annotations

import contextlib
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from types import FrameType

import click

from steptime.advice.evidence import Case
from steptime.advice.fix import Goal, Proposal, Snippet
from steptime.advice.propose import propose
from steptime.advice.rule import Finding
from steptime.cli.after_run import measure_peaks, nothing_measured
from steptime.cli.exit_codes import INTERRUPTED, say, tell
from steptime.cli.options import RecordingOrCommand, seconds, variant_options
from steptime.cli.run import Announcer
from steptime.errors import NothingMeasuredError, OutputError, RecordingError, UsageError
from steptime.launcher.command import default_recording, is_recording, job_name, resolve
from steptime.launcher.outcome import Outcome, ProbeOptions, Progress
from steptime.launcher.progress import PROFILED
from steptime.launcher.variant import DEADLINE_PASSED, OUTPUT, VariantPlace, run_variant
from steptime.quantities import format_duration, format_source
from steptime.recording.load import load
from steptime.report.output import write_whole
from steptime.report.printable import wrap
from steptime.report.trial_text import COLUMNS_TRIAL_TEXT, render_lab, render_trial
from steptime.trials.conduct import (
    MAX_ROUNDS,
    MIN_ROUNDS,
    PROOF,
    SECONDS,
    Executor,
    LocalExecutor,
    Notice,
    TrialRunner,
    combine,
)
from steptime.trials.containment import (
    Layer,
    Workspace,
    clear,
    contained,
    explain,
    ground_of,
    leave,
    refuse_uncontained,
)
from steptime.trials.execute import NO_INPUT, last_lines
from steptime.trials.judge import LEAST_ROUNDS, usual_step
from steptime.trials.patch import make_patch, unwritten, write_patch
from steptime.trials.plan import (
    batch_variant,
    edits_of,
    groups,
    lab_variants,
    over,
    plan_for,
    plan_variants,
    points_of,
    prove,
    script_of,
    stand_for,
)
from steptime.trials.results import NAME, PatchResult, Plan, ResultsFile, read_results
from steptime.trials.trial import Budget, Judgement, TrialVerdict, Variant
from steptime.trials.working_copy import offline_environment


class TrialAnnouncer:
    """Tells each process that begins, and, in a terminal, the step that it is at."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._live = sys.stderr.isatty()
        self._drawn = 0

    def show(self, notice: Notice | None) -> None:
        """Called when a process begins, twice a second, and with None when none runs any more."""
        if notice is None:
            self._clear()
        elif notice.begins:
            self._clear()
            self._say(_line(notice))
        elif self._live:
            text = f"  step {notice.done} of {notice.steps}{_to_go(notice)}"
            sys.stderr.write(f"\r{text:<{self._drawn}}")
            sys.stderr.flush()
            self._drawn = len(text)

    def _clear(self) -> None:
        if self._drawn:
            sys.stderr.write(f"\r{'':<{self._drawn}}\r")
            sys.stderr.flush()
            self._drawn = 0


def _line(notice: Notice) -> str:
    turn = notice.turn
    number = turn.round + 1
    rounds = f"round {number} of {MIN_ROUNDS}" if number <= MIN_ROUNDS else f"round {number} of {MAX_ROUNDS} at most"
    what = "rehearsal" if turn.rehearsal else f"{rounds}, {notice.steps} steps"
    label = f" {turn.variant.label}" if turn.variant.label else ""
    return f"{turn.variant.name}{label}: {what}{_to_go(notice)}"


def _to_go(notice: Notice) -> str:
    if not notice.eta:
        return ""
    left = format_duration(notice.eta * 1e9)
    return f"; about {left} to go" if notice.turn.round < MIN_ROUNDS else f"; this round: about {left}"


MEASURED_STEPS, MEASURED_SECONDS = 20, 8.0
"""After the profile: steps without it, and the time in which the watch measures its own cost."""
SHARE = 0.5
"""Of the budget: a job that has not come to its steady steps then leaves no time to try anything."""


class Enough:
    """Whether the job has been seen enough of."""

    def __init__(self, announcer: Announcer | None) -> None:
        self._announcer = announcer
        self._since: Progress | None = None

    def __call__(self, progress: Progress) -> bool:
        """Called twice a second."""
        if self._announcer is not None:
            self._announcer.show(progress)
        if progress.stage != PROFILED:
            return False
        if self._since is None:
            self._since = progress
        seconds = progress.elapsed_seconds - self._since.elapsed_seconds
        return seconds >= MEASURED_SECONDS and progress.steps - self._since.steps >= MEASURED_STEPS


def measure(command: Sequence[str], budget: float, *, quiet: bool, uncontained: bool) -> Path:
    """Runs the command until it has been measured, and returns the recording. budget: seconds. uncontained: in its
    own folder where the system permits no overlays: source lines of a copy would be nobody's.

    Its input is empty and its output goes beside the recording. Raises what `capture.arm.run_arm` raises, and
    NothingMeasuredError.
    """
    folder = default_recording(command).absolute()
    place = folder.with_name(f"{folder.name}-workspace")
    stand = Workspace(tuple(command), place, Path.cwd(), uncontained=uncontained)
    if not quiet:
        say("measuring the job as it is, until its steps are known")
    enough = Enough(None if quiet else Announcer(say))
    resolve(command)
    try:
        refuse_uncontained(stand)
        outcome = _watched(stand, folder, SHARE * budget, enough)
    finally:
        leave(stand)
        clear(stand.folder)
        with contextlib.suppress(OSError):  # there is a recording in it, or it was never made
            folder.parent.rmdir()
    if not outcome.steps_seen:
        raise _reason(outcome, folder, SHARE * budget)
    measure_peaks(folder, quiet=quiet)
    return folder


def _watched(stand: Workspace, folder: Path, deadline: float, enough: Enough) -> Outcome:
    if ground_of(stand).layer is Layer.OVERLAY:
        with contained(stand, "measured", folder) as setting:
            return run_variant(setting.command, folder, ProbeOptions(), setting.place(deadline), enough)
    if not stand.uncontained:
        raise UsageError(
            "not-contained",
            "This system permits no user namespaces with overlays, without which the job can only be measured where it "
            f"writes to your own files: steptime run -- {shlex.join(stand.command)}, and try its recording; or add "
            "--uncontained.",
        )
    place = VariantPlace(stand.directory, offline_environment(folder), deadline)
    return run_variant(stand.command, folder, ProbeOptions(), place, enough)


def _reason(outcome: Outcome, folder: Path, seconds: float) -> NothingMeasuredError:
    """Why there is nothing to try."""
    if any(problem.startswith(DEADLINE_PASSED) for problem in outcome.problems):
        return NothingMeasuredError(
            "no-steps",
            f"The job took no training step in {seconds:.0f} s, half of the budget: give it more with --budget, or "
            f"check that it trains here; its output is in {folder / OUTPUT}.",
        )
    reason = nothing_measured(outcome, folder)
    said = last_lines(folder / OUTPUT)
    if reason is None or not said:
        return reason or NothingMeasuredError("no-steps", "The job took no training step.")
    hint = f" ({NO_INPUT})" if "EOFError" in said else ""
    return NothingMeasuredError(reason.slug, f"{reason.sentence} It said: {said}{hint}")


@dataclass(frozen=True, slots=True)
class TrialOptions:
    """What the command line asks for. min_gain: a fraction. executor: "local" or "ray". goal: of a new trial."""

    budget: Budget
    max_trials: int
    min_gain: float
    uncontained: bool
    write: bool
    keep: bool
    quiet: bool
    executor: str = "local"
    goal: Goal = Goal.SPEED


@dataclass(frozen=True, slots=True)
class Sizes:
    """Batch sizes to try. go_on: doubled from the largest one on, to the plateau."""

    named: tuple[int, ...] = ()
    go_on: bool = False


@dataclass(frozen=True, slots=True)
class TrialOutput:
    """What a trial came to. folder: None where there was nothing to try. text: to print. status: to end with."""

    folder: Path | None
    text: str
    status: int = 0


def begin(target: Sequence[str], wishes: TrialOptions) -> TrialOutput:
    """A new trial."""
    recording = recording_of(target, wishes)
    case, findings = _diagnosed(recording)
    proposals = propose(case, findings, goal=wishes.goal)
    variants = plan_variants(proposals, wishes.max_trials, case.step.duration.value)
    if not variants:
        return TrialOutput(None, _nothing_to_try(proposals, recording, wishes.goal))
    folder = _new_trial(recording, "try", variants, case, wishes)
    return _conduct(folder, proposals, wishes)


def _new_trial(recording: Path, kind: str, variants: tuple[Variant, ...], case: Case, wishes: TrialOptions) -> Path:
    """The folder of a trial, with its plan in it."""
    known = load(recording)
    folder = default_recording((f"{job_name(known.manifest.command)}-{kind}",), recording.absolute().parent)
    plan = plan_for(
        known, recording, variants, case.step, wishes.min_gain, uncontained=wishes.uncontained, goal=wishes.goal
    )
    refuse_uncontained(stand_for(known.manifest, recording, folder, uncontained=wishes.uncontained))
    folder.mkdir(parents=True)
    ResultsFile(folder).plan(plan)
    return folder


def run_lab(recording: Path, wishes: TrialOptions, compile_modes: bool, sizes: Sizes) -> TrialOutput:
    """The lab's variants, then the batch sizes until more of them make no difference."""
    case, _ = _diagnosed(recording)
    variants = lab_variants(compile_modes, any(process.facts.device == "cuda" for process in load(recording).processes))
    folder = _new_trial(recording, "lab", variants, case, wishes)
    own_size = case.loader.batch_size if case.loader else None
    with _executor(recording, wishes) as executor, _bench(folder, wishes, executor) as bench:

        def run() -> None:
            bench.conduct(0, variants, later=PROOF if sizes.named else 0, anyway=True)
            _try_sizes(bench, sizes, own_size)

        status = _keeping(bench, run)
    next_command = f"steptime try {shlex.quote(str(recording))}"
    return TrialOutput(folder, render_lab(read_results(folder), own_size, next_command), status)


def _try_sizes(bench: TrialRunner, sizes: Sizes, own_size: int | None) -> None:
    judged: list[Judgement] = []
    for number, several in enumerate(groups(sizes.named, sizes.go_on)):
        step = usual_step(bench.runs)
        if step is None or bench.budget.left() <= 0:
            return
        if over(points_of(judged, step.value, own_size), sizes.go_on):
            return
        variants = tuple(batch_variant(size) for size in several if size != own_size)
        judged += bench.conduct(1 + number, variants) if variants else ()


@contextmanager
def _executor(recording: Path, wishes: TrialOptions) -> Iterator[Executor]:
    """Where the variants run."""
    if wishes.executor == "ray":
        from steptime.trials.cluster import RayExecutor

        devices = [process.facts.device for process in load(recording).processes]
        executor: Executor = RayExecutor(sum(device not in ("", "cpu") for device in devices))
        if not wishes.quiet:
            say(f"on a Ray cluster: {executor.width} at the same time, each on a device of its own")
    else:
        executor = LocalExecutor()
    with closing(executor):
        yield executor


@contextmanager
def _bench(folder: Path, wishes: TrialOptions, executor: Executor) -> Iterator[TrialRunner]:
    """What is in a trial's folder, ready to go on."""
    known = read_results(folder)
    plan, recording = known.plan, Path(known.plan.recording)
    accepted = plan.uncontained or wishes.uncontained
    stand = stand_for(load(recording).manifest, recording, folder, uncontained=accepted, keep=wishes.keep)
    refuse_uncontained(stand)
    if not wishes.quiet:
        say(f"{len(plan.variants)} to try, {explain(stand)}; Ctrl-C keeps what is done")
        _say_what_it_takes(plan, wishes.budget)
    tell = (lambda _: None) if wishes.quiet else TrialAnnouncer(say).show
    bench = TrialRunner(stand, plan, known.runs, budget=wishes.budget, executor=executor, tell=tell)
    try:
        yield bench
    finally:
        leave(stand)
        _say_what_was_changed(bench)


def _say_what_it_takes(plan: Plan, budget: Budget) -> None:
    """Where the way to a job's first step is so long that the budget pays for too few processes."""
    each = plan.start_seconds + SECONDS
    needed = PROOF * each
    if budget.left() < needed:
        say(
            f"The budget is too short to prove a change: two rounds of one take {PROOF} processes, and each takes "
            f"about {format_duration(plan.start_seconds * 1e9)} to its first step. Give --budget {ceil(needed / 60)}m."
        )


def go_on(folder: Path, wishes: TrialOptions) -> TrialOutput:
    """A trial that was interrupted, or whose budget was too small."""
    plan = read_results(folder).plan
    return _conduct(folder, propose(*_diagnosed(Path(plan.recording)), goal=plan.goal), wishes)


def recording_of(target: Sequence[str], wishes: TrialOptions) -> Path:
    """The recording that was named, or one that is made now of the command."""
    if is_recording(Path(target[0])):
        if len(target) > 1:
            raise UsageError("usage", f"{target[0]} is a recording, and nothing follows one but options.")
        return Path(target[0])
    if len(target) == 1 and Path(target[0]).is_dir():
        raise RecordingError(
            "no-recording", f"{target[0]} is no recording: name a folder that steptime run wrote, or give a command."
        )
    # INNER

    return measure(target, wishes.budget.seconds, quiet=wishes.quiet, uncontained=wishes.uncontained)


def _diagnosed(recording: Path) -> tuple[Case, tuple[Finding, ...]]:
    from steptime.diagnosis import diagnose_paths

    shown = diagnose_paths((str(recording),)).processes[0]
    return shown.case, shown.findings


def _nothing_to_try(proposals: Sequence[Proposal], recording: Path, goal: Goal) -> str:
    if goal is Goal.MEMORY:
        lines = [
            "Nothing that takes less memory can be applied to this job by itself. What holds it, and what you could do:"
        ]
        return "\n".join([*lines, f"Next:  steptime memory {shlex.quote(str(recording))}"]) + "\n"
    lines = ["Nothing that was found has a fix that steptime can apply by itself."]
    for proposal in (each for each in proposals if each.advice_only):
        edit = proposal.option.edit
        lines += wrap(advice_of(proposal), "Yours: ", 3, COLUMNS_TRIAL_TEXT)
        lines += [f"    {line}" for line in edit.text.splitlines()] if isinstance(edit, Snippet) else []
    lines.append("Precision and compilation can be tried all the same:")
    return "\n".join([*lines, f"Next:  steptime lab {shlex.quote(str(recording))}"]) + "\n"


def advice_of(proposal: Proposal) -> str:
    """What only the user can do: the line, what to do there, and the most that it could save (Amdahl's upper bound)."""
    edit = proposal.option.edit
    place = f"{format_source(edit.site)}: " if isinstance(edit, Snippet) and edit.site is not None else ""
    most = f" It saves {format_duration(proposal.upper_bound)} a step at most." if proposal.upper_bound else ""
    return f"{place}{proposal.option.advice}{most} steptime explain {proposal.fix.code} shows how."


def _conduct(folder: Path, proposals: Sequence[Proposal], wishes: TrialOptions) -> TrialOutput:
    plan = read_results(folder).plan
    next_command = f"steptime try --resume {shlex.quote(str(folder))}"
    with _executor(Path(plan.recording), wishes) as executor, _bench(folder, wishes, executor) as bench:

        def run() -> None:
            nonlocal next_command
            judgements = bench.conduct(0, plan.variants, later=PROOF)
            taken = combine(bench, judgements)
            if taken is not None:
                _patch(bench, taken, proposals, wishes)
            next_command = _next(judgements, proposals, folder, wishes)

        status = _keeping(bench, run)
    advice = [advice_of(each) for each in proposals if each.advice_only]
    return TrialOutput(folder, render_trial(read_results(folder), advice, next_command), status)


def _keeping(bench: TrialRunner, run: Callable[[], None]) -> int:
    """Runs a trial; whatever ends it early, what was run is judged and told. Returns the exit status. Raises
    NothingMeasuredError where the job as it is was not run at all."""
    try:
        with _interruptible():
            run()
        return 0
    except KeyboardInterrupt:
        say("interrupted: what was run is kept")
        status = INTERRUPTED
    except NothingMeasuredError as error:
        if usual_step(bench.runs) is None:
            raise
        say(str(error))
        status = error.exit_status
    bench.settle(0, bench.plan.variants)
    return status


def _say_what_was_changed(bench: TrialRunner) -> None:
    """Says which of the user's own files were changed."""
    several = sorted({path for run in bench.runs for path in run.outside})
    if several:
        more = f" and {len(several) - 1} more" if len(several) > 1 else ""
        say(f"Not contained: processes of the trial changed your own {several[0]}{more}, outside of their workspaces")


def _patch(bench: TrialRunner, taken: Variant, proposals: Sequence[Proposal], wishes: TrialOptions) -> None:
    """Writes what was adopted as a diff, runs that without any change of ours, and keeps both."""
    stand = bench.stand
    edits = edits_of(taken, bench.plan.variants, proposals)
    patch = make_patch(edits, stand.directory, script_of(stand))
    proved = prove(bench, taken, patch)
    if proved is not None and proved.verdict in (TrialVerdict.FAILED, TrialVerdict.BROKE_PROMISE):
        patch = unwritten(patch, edits)
    folder, diff = stand.folder, patch.diff
    file = folder / "patch.diff"
    apply = patch.apply_command(file) if diff else ""
    ResultsFile(folder).patch(PatchResult(diff, patch.environment, patch.snippets, proved, patch.replaced, apply))
    if diff:
        write_whole(file, diff.encode())
        say(f"Wrote {file}")
    if wishes.write and proved is not None and proved.verdict is TrialVerdict.ADOPT:
        for path in write_patch(patch):
            say(f"Wrote {path}")
    elif wishes.write:
        say("The patch is not written into your files: run by itself, its gain was not beyond doubt")


def _next(judgements: Sequence[Judgement], proposals: Sequence[Proposal], folder: Path, wishes: TrialOptions) -> str:
    """The rest of the trial where the budget was too small for it or for its patch; else the page of what was adopted,
    or of what was tried first."""
    minutes = ceil(2 * wishes.budget.seconds / 60)
    go_on = f"steptime try --budget {minutes}m --resume {shlex.quote(str(folder))}"
    results = read_results(folder)
    patch = results.patch
    proved = patch.judgement.gain(results.plan.goal) if patch is not None and patch.judgement is not None else None
    if patch is not None and patch.diff and proved is None:
        return go_on
    adopted = next((each.variant.proposal for each in judgements if each.verdict is TrialVerdict.ADOPT), None)
    if adopted is not None:
        return f"steptime explain {adopted}"
    if any(each.rounds < LEAST_ROUNDS and each.verdict is TrialVerdict.UNDECIDED for each in judgements):
        return go_on
    return f"steptime explain {proposals[0].fix.code}"


def check_output(output: str | None, *, force: bool) -> None:
    """Refuses before the work what could not be written after it. Raises OutputError."""
    if output is None:
        return
    if Path(output).suffix not in (".txt", ".jsonl", ".html"):
        raise OutputError("output-format", f"{output} must end in .txt, .html, or in .jsonl for all results.")
    if Path(output).exists() and not force:
        raise OutputError("output-exists", f"{output} exists and is not overwritten; add --force or name another.")
    if not Path(output).absolute().parent.is_dir():
        raise OutputError("output-unwritable", f"{output} cannot be written: there is no such folder.")


def tell_trial(told: TrialOutput, output: str | None, *, as_json: bool) -> int:
    """Prints what a trial came to, and writes it where that was asked for. Returns the exit status."""
    results = told.folder / NAME if told.folder is not None else None
    if as_json and results is not None:
        tell(results.read_text(encoding="utf-8"))
    tell(told.text, error=as_json)
    write_output(output, told.text, told.folder)
    if results is not None:
        say(f"Wrote {results}")
    return told.status


def write_output(output: str | None, text: str, folder: Path | None) -> None:
    """The text, or all results, into the file that was asked for. Raises OutputError."""
    if output is None:
        return
    content = text
    if folder is not None and Path(output).suffix == ".jsonl":
        content = (folder / NAME).read_text(encoding="utf-8")
    elif Path(output).suffix == ".html":
        content = _page(folder) if folder is not None else _no_page(output)
    try:
        write_whole(Path(output), content.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise OutputError("output-unwritable", f"{output} cannot be written ({error.strerror}).") from None
    say(f"Wrote {output}")


def _page(folder: Path) -> str:
    """The recording's page with the trial in it."""
    from steptime.diagnosis import diagnose_paths
    from steptime.report.page import page

    return page.render(diagnose_paths((str(folder),)))


def _no_page(output: str) -> str:
    raise OutputError(
        "output-nothing-tried", f"{output} was not written: nothing was tried. steptime report writes the page without."
    )


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP end a trial as Ctrl-C does: its processes are in sessions of their own, and would go on."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@click.command(
    "try",
    cls=RecordingOrCommand,
    short_help="Try the fixes for what was found, and prove which of them pay.",
    context_settings={"allow_interspersed_args": False},
)
@click.option(
    "--budget",
    callback=seconds,
    metavar="TIME",
    default="10m",
    show_default=True,
    help="Time for all of it: 90s, 10m, 2h.",
)
@click.option(
    "--max-trials",
    metavar="N",
    type=click.IntRange(1, 50),
    default=6,
    show_default=True,
    help="Fixes to try at most.",
)
@click.option(
    "--min-gain",
    metavar="PERCENT",
    type=click.FloatRange(0, 100),
    default=3.0,
    show_default=True,
    help="Least gain that is worth a change.",
)
@click.option(
    "--goal",
    type=click.Choice(["speed", "memory"]),
    default="speed",
    show_default=True,
    help="What to gain: shorter steps, or a lower peak of memory at a cost in time that is told.",
)
@click.option("--resume", metavar="DIR", type=click.Path(path_type=Path), help="Go on with an interrupted trial.")
@click.option("--write", is_flag=True, help="Apply the patch to the job's own files when it was run and adopted.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Also write FILE: what is printed (.txt), the page (.html), or all results (.jsonl).",
)
@click.option("--keep", is_flag=True, help="Keep the recordings of all variants.")
@variant_options
def command(
    budget: float,
    max_trials: int,
    min_gain: float,
    goal: str,
    uncontained: bool,
    resume: Path | None,
    write: bool,
    keep: bool,
    output: str | None,
    force: bool,
    as_json: bool,
    executor: str,
    quiet: bool,
    target: tuple[str, ...],
) -> int:
    """Try the fixes for what was found in a recording, each in a fresh process of the same unmodified command, in
    turns with the job as it is. A fix is adopted when its speed beats noise and the least gain, and its losses and
    gradients are what it promises. With --goal memory, what takes less memory is tried, whatever was found, and
    adopted when the peak is lower beyond doubt. Options come before the command.

    \b
    steptime try runs/train-20260801-101500
    steptime try --budget 5m -- python train.py
    steptime try --goal memory runs/train-20260801-101500
    steptime try --resume runs/train-try-20260801-102000
    """
    # INNER
    from steptime.advice.fix import Goal
    from steptime.trials.trial import Budget

    if bool(target) == (resume is not None):
        raise UsageError("usage", "Give a recording, or a command behind --, or --resume with the folder of a trial.")
    check_output(output, force=force)
    wishes = TrialOptions(
        Budget(budget), max_trials, min_gain / 100, uncontained, write, keep, quiet, executor, Goal(goal)
    )
    told = go_on(resume, wishes) if resume is not None else begin(target, wishes)
    return tell_trial(told, output, as_json=as_json)
