"""Work of `steptime try`, whose options are in verbs/trial.py."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from pathlib import Path
from shutil import which
from types import FrameType
from typing import Any

from steptime.advice.evidence import Case
from steptime.advice.explain import find_fix
from steptime.advice.fix import Fix, Goal, Proposal, Snippet
from steptime.advice.fixes.input import fitting_workers, worker_option
from steptime.advice.kernels import least_step
from steptime.advice.propose import propose
from steptime.advice.rule import Finding
from steptime.advice.whole_run import other_work
from steptime.answer.answer import Answer, Item, Section
from steptime.answer.output import FORMATS, check, rendered, write_whole
from steptime.answer.screen import columns, notify, show
from steptime.answer.text import as_text
from steptime.cli.after_run import measure_peaks, nothing_measured
from steptime.cli.announcer import Announcer
from steptime.cli.delivery import write_all
from steptime.cli.exit_codes import INTERRUPTED, say
from steptime.cli.options import Delivery, named_or_newest
from steptime.clusters import import_ray
from steptime.errors import NothingMeasuredError, OutputError, RecordingError, UsageError, no_such_file
from steptime.launcher.command import default_recording, is_recording, job_name, resolve
from steptime.launcher.forks import ForkServer
from steptime.launcher.outcome import Outcome, ProbeOptions, Progress
from steptime.launcher.progress import PROFILED
from steptime.launcher.telemetry import crowded
from steptime.launcher.variant import DEADLINE_PASSED, OUTPUT, VariantPlace, run_variant
from steptime.quantities import format_count, format_duration
from steptime.recording.load import load
from steptime.recording.newest import listed
from steptime.recording.recording import Recording
from steptime.report.judge_answer import as_document
from steptime.report.sentences import place_text
from steptime.report.trial_answer import answer_of
from steptime.report.verdict_words import may_go_on
from steptime.trials.conduct import PROOF, PROOF_REHEARSALS, SECONDS, Notice, TrialRunner, combine, keep, seconds_for
from steptime.trials.containment import (
    Layer,
    Workspace,
    contained,
    explain,
    ground_of,
    leave,
    refuse_uncontained,
)
from steptime.trials.execute import NO_INPUT, last_lines, start_ahead
from steptime.trials.executor import Executor, LocalExecutor
from steptime.trials.judge import LEAST_ROUNDS, MIN_GAIN, NEVER, usual_metric, usual_step
from steptime.trials.names import own_folder
from steptime.trials.patch import make_patch, unwritten, write_patch
from steptime.trials.plan import (
    edits_of,
    next_stage,
    plain_workspace,
    plan_for,
    plan_variants,
    prove,
    script_of,
    workspace_for,
    writable,
)
from steptime.trials.results import NAME, PatchResult, Plan, append_result, read_results
from steptime.trials.switched import in_one_process
from steptime.trials.trial import (
    AS_IT_IS,
    MAX_ROUNDS,
    MIN_ROUNDS,
    Budget,
    Judgement,
    Run,
    TrialVerdict,
    Variant,
    processes_of,
)
from steptime.trials.until_loss import LossTarget
from steptime.trials.working_copy import offline_environment


class TrialAnnouncer:
    """Printer of a trial's progress: each process that starts, and, in a terminal, its current step, redrawn in place.
    The variants' own output goes to files."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._drawn = 0

    def show(self, notice: Notice | None) -> None:
        """Prints progress. Called when a process starts, twice a second, and with None when none runs any more."""
        if notice is not None and not notice.starts:
            if sys.stderr.isatty():
                endless = notice.scheduled.options.until_loss is not None or notice.scheduled.options.switched
                of = f" of {notice.steps}" if not endless else ""
                self._draw(f"  step {notice.done}{of}{_to_go(notice)}")
            return
        if self._drawn:
            self._draw("")
            self._draw("")
        if notice is not None:
            self._say(_line(notice))

    def _draw(self, text: str) -> None:
        sys.stderr.write(f"\r{text:<{self._drawn}}")
        sys.stderr.flush()
        self._drawn = len(text)


def _line(notice: Notice) -> str:
    scheduled = notice.scheduled
    number = scheduled.round + 1
    rounds = f"round {number} of {MIN_ROUNDS}" if number <= MIN_ROUNDS else f"round {number} of {MAX_ROUNDS} at most"
    target = scheduled.options.until_loss
    if scheduled.options.switched:
        return (
            f"{format_count(len(scheduled.options.switched), 'change')} within one process: {scheduled.variant.label}"
        )
    goes_on = f"until a loss of {target:g}" if target is not None else f"{notice.steps} steps"
    rehearsal = "rehearsal in float64" if scheduled.options.exact else "rehearsal"
    what = rehearsal if scheduled.rehearsal else rounds if scheduled.metric else f"{rounds}, {goes_on}"
    label = f" {scheduled.variant.label}" if scheduled.variant.label else ""
    return f"{scheduled.variant.name}{label}: {what}{_to_go(notice)}"


def _to_go(notice: Notice) -> str:
    if not notice.eta:
        return ""
    left = format_duration(notice.eta * 1e9)
    return f"; about {left} to go" if notice.scheduled.round < MIN_ROUNDS else f"; this round: about {left}"


@dataclass(frozen=True, slots=True)
class TrialOptions:
    """Options of the command line. min_gain: least gain that counts, as a fraction. executor: "local" or "ray". goal:
    of a new trial. fixes: codes or names of the fixes to try, () for those that answer the findings. workers: values of
    num_workers to try instead. separate: True to switch no fix within a process."""

    budget: Budget
    quiet: bool
    executor: str
    uncontained: bool
    max_trials: int = 0
    min_gain: float = MIN_GAIN
    write: bool = False
    keep: bool = False
    goal: Goal = Goal.SPEED
    fixes: tuple[str, ...] = ()
    workers: tuple[int, ...] = ()
    separate: bool = False


MEASURED_STEPS, MEASURED_SECONDS = 20, 8.0
"""Unprofiled steps after the profile, and seconds in which the always-on timers measure their own cost."""
MEASURED_SHARE = 0.05
"""Upper bound on these seconds, as a fraction of the budget: processes of a trial time the step again."""
SHARE = 0.5
"""Fraction of the budget after which a job without steady steps leaves no time for trials."""


def enough(announcer: Announcer | None, least: float = MEASURED_SECONDS) -> Callable[[Progress], bool]:
    """Callback that decides, twice a second, whether the job has run long enough. least: seconds after the profile."""
    since: Progress | None = None

    def seen(progress: Progress) -> bool:
        nonlocal since
        if announcer is not None:
            announcer.show(progress)
        if progress.stage != PROFILED:
            return False
        since = since or progress
        seconds = progress.elapsed_seconds - since.elapsed_seconds
        return seconds >= least and progress.steps - since.steps >= MEASURED_STEPS

    return seen


def measure(
    command: Sequence[str],
    options: TrialOptions,
    recording: Path | None = None,
    *,
    peaks: bool = True,
    sources: Sequence[tuple[str, str]] = (),
    least: float = MEASURED_SECONDS,
    forks: ForkServer | None = None,
) -> Path:
    """Runs the command until it is measured, and returns the recording (by default in `runs`). If the system permits no
    overlays, it runs in its own folder, and only with --uncontained: lines of a copy would belong to none of the user's
    files. peaks: also measure the machine's peaks. sources: (path relative to the folder, new text) of files, with
    overlays only. least: seconds after the profile. forks: server that starts meanwhile, for a trial.

    Its input is empty, its output next to the recording. Raises what `run_variant` does, and NothingMeasuredError."""
    resolve(command)
    folder = (recording or default_recording(command)).absolute()
    workspace = own_folder(folder.parent, f"workspace-{os.getpid()}")
    contained_workspace = Workspace(tuple(command), workspace, Path.cwd(), uncontained=options.uncontained)
    seconds = SHARE * options.budget.seconds
    if not options.quiet:
        say("measuring the unchanged job until its step time is known")
    try:
        ground_of(contained_workspace).janitor.take(workspace)
        refuse_uncontained(contained_workspace)
        least = min(least, MEASURED_SHARE * options.budget.seconds)
        if forks is not None:
            start_ahead(forks, contained_workspace)
        outcome = _watched(
            contained_workspace, folder, seconds, enough(None if options.quiet else Announcer(say), least), sources
        )
    finally:
        leave(contained_workspace)
        with contextlib.suppress(OSError):  # there is a recording in it, or it was never made
            folder.parent.rmdir()
    if not outcome.steps_seen:
        raise _reason(outcome, folder, seconds)
    if peaks:
        measure_peaks(folder, quiet=options.quiet)
    return folder


def _watched(
    workspace: Workspace,
    folder: Path,
    deadline: float,
    seen: Callable[[Progress], bool],
    sources: Sequence[tuple[str, str]],
) -> Outcome:
    if ground_of(workspace).layer is Layer.OVERLAY:
        with contained(workspace, "measured", folder, sources, deadline) as (command, place):
            return run_variant(command, folder, ProbeOptions(), place, seen)
    if not workspace.uncontained:
        raise UsageError(
            "not-contained",
            "Measuring the job could change your files: this system forbids user namespaces and overlays. Record it: "
            f"steptime run -- {shlex.join(workspace.command)}, then try the recording; or give --uncontained.",
        )
    place = VariantPlace(workspace.directory, offline_environment(folder), deadline)
    return run_variant(workspace.command, folder, ProbeOptions(), place, seen)


def _reason(outcome: Outcome, folder: Path, seconds: float) -> NothingMeasuredError:
    if any(problem.startswith(DEADLINE_PASSED) for problem in outcome.problems):
        return NothingMeasuredError(
            "no-steps",
            f"The job took no training step in {seconds:.0f} s, half of the budget. Give a larger --budget, or "
            f"check that the job trains here. Its output is in {folder / OUTPUT}.",
        )
    reason = nothing_measured(outcome, folder)
    message = last_lines(folder / OUTPUT)
    if reason is None or not message:
        return reason or NothingMeasuredError("no-steps", "The job took no training step.")
    hint = f" ({NO_INPUT})" if "EOFError" in message else ""
    return NothingMeasuredError(reason.slug, f"{reason.sentence} Its last output: {message}{hint}")


@dataclass(frozen=True, slots=True)
class TrialOutput:
    """Outcome of a trial. folder: None if there was nothing to try. by_steps: True if step times were compared."""

    folder: Path | None
    answer: Answer
    status: int = 0
    by_steps: bool = True

    def whole(self) -> Answer:
        """Answer with the formats that need the files of the trial."""
        folder, text = self.folder, as_text(self.answer)
        exports: dict[str, Callable[[], str | bytes]] = {}
        if folder is None:
            exports[".jsonl"] = lambda: text
            return replace(self.answer, data={"folder": None, "candidates": [], "text": text}, exports=exports)
        exports[".jsonl"] = partial((folder / NAME).read_text, encoding="utf-8")
        if self.by_steps:
            exports[".html"] = partial(_page, folder)
        found = as_document(read_results(folder))
        return replace(self.answer, data={"folder": str(folder.absolute()), **found, "text": text}, exports=exports)


def _page(folder: Path) -> str:
    from steptime.diagnosis import diagnose_paths
    from steptime.report.page import page

    return page.render(diagnose_paths((str(folder),)))


def start(target: Sequence[str], options: TrialOptions) -> TrialOutput:
    named = [named_fix(word) for word in options.fixes]  # before the job is measured
    recording = recording_of(target, options)
    case, findings = case_and_findings(recording)
    proposals = propose(case, findings, goal=options.goal)
    most = options.max_trials
    if named:
        proposals = only(named, proposals, case)
    if options.workers:
        proposals, most = sweep(options.workers, case), len(options.workers)
    manifest = load(recording).manifest
    job = Path(manifest.directory), manifest.command
    proposals = writable(proposals, *job)
    variants = plan_variants(proposals, most, case.step.duration.value, *job)
    if not variants:
        return TrialOutput(None, _nothing_to_try(proposals, recording, options.goal))
    return _conduct(new_trial(recording, "try", variants, case, options), proposals, options)


def named_fix(word: str) -> Fix:
    """Fix with this code or name. Raises UsageError if there is none."""
    fix = find_fix(word)
    if fix is None:
        raise UsageError("unknown-code", f"There is no fix {word!r}. List all fixes (RM101 …): steptime explain")
    return fix


def only(named: Sequence[Fix], proposals: Sequence[Proposal], case: Case) -> tuple[Proposal, ...]:
    """Proposals of the named fixes, in order; all that fit of a fix that answers no finding. Raises UsageError."""
    found: list[Proposal] = []
    for fix in named:
        fitting = [each for each in proposals if each.fix is fix]
        fitting = fitting or [Proposal(fix, option, "") for option in fix(case)]
        if not fitting:
            raise UsageError(
                "fix-unfit",
                f"{fix.code} ({fix.name}) does not apply to this job: it finds nothing to change, or the "
                f"change is already made. For its conditions: steptime explain {fix.code}",
            )
        found += fitting
    return tuple(found)


def far_end_first(numbers: Sequence[int]) -> list[int]:
    """Numbers in the order to try: the largest, then the others ascending, so that a small budget covers both ends."""
    largest, *others = sorted(set(numbers), reverse=True)
    return [largest, *reversed(others)]


def sweep(workers: Sequence[int], case: Case) -> tuple[Proposal, ...]:
    """Proposals of these numbers of workers; the job's own is tried anyway. Raises UsageError if none can be tried."""
    options = (worker_option(case, number) for number in far_end_first(workers))
    found = tuple(Proposal(fitting_workers, option, "") for option in options if option is not None)
    if not found:
        why = (
            "it trains without a DataLoader"
            if case.loader is None
            else "each worker of its IterableDataset would yield every sample"
        )
        why = why if case.loader is None or case.loader.iterable else "it already uses that number"
        raise UsageError("no-sweep", f"steptime cannot try other numbers of workers on this job: {why}.")
    return found


def go_on(folder: Path, options: TrialOptions) -> TrialOutput:
    """Continues a trial that was interrupted, or whose budget was too small."""
    plan = read_results(folder).plan
    proposals = propose(*case_and_findings(Path(plan.recording)), goal=plan.goal)
    return _conduct(folder, writable(proposals, Path(plan.directory), plan.command), options)


def new_trial(
    recording: Path,
    kind: str,
    variants: tuple[Variant, ...],
    case: Case,
    options: TrialOptions,
    baseline: Variant = AS_IT_IS,
    until_loss: LossTarget | None = None,
) -> Path:
    """Folder of a new trial, with its plan."""
    known = load(recording)
    folder = default_recording((f"{job_name(known.manifest.command)}-{kind}",), recording.absolute().parent)
    plan = plan_for(known, recording, variants, case.step, options.min_gain, goal=options.goal)
    refuse_uncontained(workspace_for(known.manifest, recording, folder, uncontained=options.uncontained))
    folder.mkdir(parents=True)
    other = other_work(case.segments, case.step.duration.value)
    more = replace(plan, baseline=baseline, until_loss=until_loss, least_step_ns=least_step(case), other=other)
    append_result(folder, plan=replace(more, measured_on=tuple(_measured_on(known, case))))
    return folder


def _measured_on(known: Recording, case: Case) -> Iterator[str]:
    """Machine, versions and commit of a recording, a line each."""
    first = next(iter(known.processes), None)
    machine = case.machine.name if case.machine is not None else ""
    if first is not None:
        settings, name = first.settings, first.facts.device_name or machine or first.facts.device
        threads = f", {settings.intra_op_threads} torch threads on {settings.usable_cpus} CPUs" if settings else ""
        yield f"{name}{threads}"
        yield f"torch {first.facts.torch}, Python {first.facts.python}, steptime {known.manifest.steptime}"
    if known.manifest.commit:
        changed = ", with uncommitted changes" if known.manifest.dirty else ""
        yield f"Commit {known.manifest.commit[:12]}{changed}"


@contextmanager
def trial_runner(folder: Path, options: TrialOptions, forks: ForkServer | None = None) -> Iterator[TrialRunner]:
    """Context manager with the runner of the trial in a folder. forks: server that was started ahead, if any."""
    known = read_results(folder)
    plan, path = known.plan, Path(known.plan.recording)
    recording = load(path) if plan.recording else None
    with closing(_executor(recording, options, plan.goal, forks)) as executor:
        if recording is None:
            workspace = plain_workspace(plan, folder, uncontained=options.uncontained, keep=options.keep)
        else:
            workspace = workspace_for(
                recording.manifest, path, folder, uncontained=options.uncontained, keep=options.keep
            )
        refuse_uncontained(workspace)
        if not options.quiet:
            say(f"{len(plan.variants)} to try, {explain(workspace)}; Ctrl-C keeps what is done")
            if busy := crowded():
                say(busy)
            if plan.metric is None:
                _say_what_it_takes(plan, options.budget, forking=executor.forking, at_once=executor.at_once)
        notify = (lambda _: None) if options.quiet else TrialAnnouncer(say).show
        one = recording is not None and not options.separate and _one_process(recording) and options.executor != "ray"
        runner = TrialRunner(workspace, plan, known.runs, budget=options.budget, executor=executor, notify=notify)
        runner.switching = one
        try:
            yield runner
        finally:
            leave(workspace)
            changed = sorted({path for run in runner.runs for path in run.outside})
            if changed:
                more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
                say(f"Not contained: trial processes changed your own {changed[0]}{more}, outside their workspaces")


def _one_process(recording: Recording) -> bool:
    """True if a single process trains, on a device that reports when it is idle."""
    return len(recording.processes) == 1 and recording.processes[0].facts.device in ("", "cpu", "cuda")


def _executor(recording: Recording | None, options: TrialOptions, goal: Goal, forks: ForkServer | None) -> Executor:
    """Executor of the variants. forks: as in `trial_runner`."""
    if options.executor != "ray":
        if recording is None or len(recording.processes) != 1:
            return LocalExecutor()
        device = recording.processes[0].facts.device
        resident = max((sample.resident_bytes for sample in recording.telemetry), default=0)
        if device != "cuda":  # what was launched on another one goes on while its process is stopped
            forking = device == "cpu" and goal is Goal.SPEED
            host = resident if device == "cpu" else None
            return LocalExecutor(alternating=device in ("", "cpu"), forking=forking, host=host, forks=forks)
        devices = [each.uuid for each in recording.processes[0].devices]
        return LocalExecutor(alternating=resident > 0, resident=resident, devices=devices)
    if recording is None:
        raise UsageError("usage", "--metric works on this machine only. Leave out --executor ray.")
    from steptime.trials.cluster import RayExecutor

    executor = RayExecutor(sum(process.facts.device not in ("", "cpu") for process in recording.processes))
    if not options.quiet:
        say(f"on a Ray cluster: {executor.width} variants at a time, each on its own device")
    return executor


def _say_what_it_takes(plan: Plan, budget: Budget, *, forking: bool, at_once: int = 1) -> None:
    """Warns of a budget too short to prove a change, or to time the user's. forking, at_once: see `seconds_for`."""
    seconds = partial(seconds_for, plan, rounds=MIN_ROUNDS, forking=forking, at_once=at_once)
    needed = seconds(PROOF_REHEARSALS, PROOF - PROOF_REHEARSALS)
    if budget.left() < needed:
        takes = f"two rounds take {PROOF} processes, about {format_duration(needed * 1e9)} in all"
        return say(f"The budget is too short to prove a change: {takes}. Give --budget {longer(budget, needed)}m.")
    handed = sum(variant.foreign for variant in plan.variants)
    rehearsals, timed = 2 * (1 + handed), MIN_ROUNDS * processes_of(handed, alternating=True)
    needed = seconds(rehearsals, timed)
    if handed and plan.compared is None and budget.left() < needed:
        say(
            f"The budget may be too short to decide all {handed}: rehearsals and {MIN_ROUNDS} rounds take "
            f"{rehearsals + timed} processes, about {format_duration(needed * 1e9)} in all. "
            f"--budget {ceil(needed / 60)}m is enough for all."
        )


def longer(budget: Budget, needed: float) -> int:
    """Sufficient budget, minutes: at least twice this one, and enough for a proof. needed: seconds of the proof."""
    return ceil(max(2 * budget.seconds, needed) / 60)


def proof_seconds(plan: Plan, runs: Sequence[Run]) -> float:
    """Seconds that a proof takes, estimated by the longest timed process of a trial."""
    took = max((run.seconds for run in runs if not run.rehearsal), default=0.0)
    return PROOF * took or seconds_for(plan, PROOF_REHEARSALS, PROOF - PROOF_REHEARSALS, MIN_ROUNDS, forking=False)


def go_on_command(verb: str, folder: Path, options: TrialOptions, minutes: int | None = None) -> str:
    """Command that continues a trial. minutes: its budget."""
    lifted = "--uncontained " if options.uncontained else ""
    budget = f"--budget {minutes}m " if minutes is not None else ""
    return f"steptime {verb} {lifted}{budget}--resume {shlex.quote(str(folder))}"


def recording_of(
    target: Sequence[str],
    options: TrialOptions,
    sources: Sequence[tuple[str, str]] = (),
    least: float = MEASURED_SECONDS,
    forks: ForkServer | None = None,
) -> Path:
    """Path of a recording: the named one, else the newest, or a new one. sources, least, forks: as in `measure`."""
    if options.executor == "ray":
        import_ray("--executor ray")  # before anything is written
    target = target or named_or_newest(())
    if is_recording(Path(target[0])):
        if len(target) > 1:
            raise UsageError("usage", f"{target[0]} is a recording, and only options may follow it.")
        return Path(target[0])
    if Path(target[0]).is_dir() and (len(target) == 1 or which(target[0]) is None):
        message = f"{target[0]} is not a recording. Give a folder written by steptime run, or a command."
        raise RecordingError("no-recording", listed(Path(target[0])) or message)
    if len(target) == 1 and os.sep in target[0] and not Path(target[0]).exists():
        raise no_such_file(target[0], "a recording (a folder written by steptime run), or a command")
    return measure(target, options, sources=sources, least=least, forks=forks)


def case_and_findings(recording: Path) -> tuple[Case, tuple[Finding, ...]]:
    """Case and findings of the first process of a recording."""
    from steptime.diagnosis import diagnose_paths

    displayed = diagnose_paths((str(recording),)).processes[0]
    return displayed.case, displayed.findings


def _nothing_to_try(proposals: Sequence[Proposal], recording: Path, goal: Goal) -> Answer:
    verb, headline, items = "lab", "steptime cannot apply a fix for any of these findings by itself.", []
    if goal is Goal.MEMORY:
        verb, headline = "memory", "steptime cannot apply a memory fix to this job by itself."
        items.append(Item("What limits it, and what you can do:"))
    else:
        for proposal in (each for each in proposals if each.advice_only):
            edit = proposal.option.edit
            lines = edit.text.splitlines() if isinstance(edit, Snippet) else []
            items.append(Item(f"Yours: {advice_of(proposal)}", lines=tuple(lines)))
        items.append(Item("You can still try precision and compilation:"))
    next_command = f"steptime {verb} {shlex.quote(str(recording))}"
    return Answer(f"Trials of {recording}", headline, parts=(Section("", tuple(items)),), next_command=next_command)


def advice_of(proposal: Proposal) -> str:
    """Advice that only the user can follow: the line, what to do, and the largest possible saving (Amdahl's law)."""
    edit = proposal.option.edit
    place = f"{place_text(edit.site)}: " if isinstance(edit, Snippet) and edit.site is not None else ""
    advice, most = proposal.option.advice, ""
    if proposal.upper_bound and "at most" not in advice.lower():
        most = f" It saves at most {format_duration(proposal.upper_bound)} per step."
    return f"{place}{advice}{most} steptime explain {proposal.fix.code} shows how."


def _conduct(folder: Path, proposals: Sequence[Proposal], options: TrialOptions) -> TrialOutput:
    next_command = go_on_command("try", folder, options)
    with trial_runner(folder, options) as runner:

        def run() -> None:
            nonlocal next_command
            judgements = _decided(runner, proposals, options)
            next_command = _next(judgements, proposals, folder, options)

        status = keeping(runner, run)
    advice = [advice_of(each) for each in proposals if each.advice_only]
    return TrialOutput(folder, answer_of(read_results(folder), str(folder), advice, next_command), status)


def _decided(runner: TrialRunner, proposals: Sequence[Proposal], options: TrialOptions) -> tuple[Judgement, ...]:
    """Judgements of all variants. Those that can be switched are measured in one process, the rest in separate ones,
    and the combination that is taken is proved as a whole. If that breaks its promise, each part is tried by itself."""
    switched = in_one_process(runner)
    known = [each for each in runner.plan.variants if switched is not None and switched.proved(each)]
    others = [each for each in runner.plan.variants if each not in known]
    best = switched.together() if switched is not None else None
    patched = best is not None or any(
        each.option.edit is not None and not isinstance(each.option.edit, Snippet) for each in proposals
    )
    judgements = _tried_apart(runner, others, best, PROOF if patched else 0) if others else ()
    if switched is None or best is None:
        if (taken := combine(runner, judgements)) is not None:
            _patch(runner, taken, proposals, options)
        return judgements if switched is None else (*judgements, *keep(runner, 0, switched.judgements(None)))
    confirmed = None
    if (taken := combine(runner, (*judgements, best))) is not None:
        # Its rehearsal, without dropout, compiles another graph.
        pays = runner.budget.left() > PROOF * runner.plan.start_seconds + switched.preparing_ns / 1e9
        # How fast it is, is known: processes that only compare its training are as short as a loss curve.
        runner.plan = replace(runner.plan, start_seconds=0.0)
        confirmed = _patch(runner, taken, proposals, options, proving=pays)
        # A patch that failed, or trains otherwise, may itself be wrong: then what it represents is run.
        if pays and (confirmed is None or confirmed.verdict in NEVER) and runner.budget.left() > 0:
            (confirmed,) = runner.conduct(next_stage(runner), (taken,))
    if confirmed is not None and confirmed.verdict is TrialVerdict.BROKE_PROMISE and runner.budget.left() > 0:
        runner.switching = False
        return _decided(runner, proposals, options)
    return (*judgements, *keep(runner, 0, switched.judgements(confirmed)))


def _tried_apart(
    runner: TrialRunner, others: Sequence[Variant], best: Judgement | None, later: int
) -> tuple[Judgement, ...]:
    """Judgements of the variants that run in separate processes. best: the combination from one process, still to be
    proved: the others get the remaining budget, except `later` processes, which prove the patch. If one process has
    used the budget up, nothing starts that could not end."""
    proof = PROOF if best is not None else 0
    needed = (proof + LEAST_ROUNDS * processes_of(1) + 1) * (runner.plan.start_seconds + SECONDS)
    if any(run.switched_names for run in runner.runs) and runner.budget.left() < needed:
        return runner.settle(0, others)
    return runner.conduct(0, others, later=later, anyway=best is not None)


def keeping(runner: TrialRunner, run: Callable[[], None]) -> int:
    """Runs a trial; if it ends early, its finished runs are judged and shown. Returns the exit status. Raises
    NothingMeasuredError if the unchanged job was never measured."""
    try:
        with _interruptible():
            run()
        return 0
    except KeyboardInterrupt:
        say("interrupted: finished runs are kept")
        status = INTERRUPTED
    except NothingMeasuredError as error:
        judged_by = usual_step if runner.plan.until_loss is None and runner.plan.metric is None else usual_metric
        if judged_by(runner.runs) is None:
            raise
        say(str(error))
        status = error.exit_status
    runner.settle(0, runner.plan.variants)
    return status


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP end a trial here like Ctrl-C: its processes, in sessions of their own, would go on."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _patch(
    runner: TrialRunner, taken: Variant, proposals: Sequence[Proposal], options: TrialOptions, *, proving: bool = True
) -> Judgement | None:
    """Writes the adopted edits as a diff, runs it without instrumented changes, and saves both. proving: the budget
    pays for that run. Returns its judgement."""
    workspace = runner.workspace
    edits = edits_of(taken, runner.plan.variants, proposals)
    patch = make_patch(edits, workspace.directory, script_of(workspace.command), workspace.command)
    proved = prove(runner, taken, patch) if proving else None
    if proved is not None and proved.verdict in (TrialVerdict.FAILED, TrialVerdict.BROKE_PROMISE):
        patch = unwritten(patch, edits)
    folder, diff = workspace.folder, patch.diff
    file = folder / "patch.diff"
    apply = patch.apply_command(file) if diff else ""
    append_result(folder, patch=PatchResult(diff, patch.environment, patch.snippets, proved, patch.replaced, apply))
    if diff:
        write_whole(file, diff.encode())
        say(f"Wrote {file}")
    if options.write and proved is not None and proved.verdict is TrialVerdict.ADOPT:
        for path in write_patch(patch):
            say(f"Wrote {path}")
    elif options.write:
        say("--write changed no file: run by itself, the patch showed no certain gain")
    return proved


def _next(judgements: Sequence[Judgement], proposals: Sequence[Proposal], folder: Path, options: TrialOptions) -> str:
    """Next command: the rest of the trial if the budget was too small for it or for its patch; else the page of the
    adopted fix, or of the first one tried."""
    results = read_results(folder)
    go_on = go_on_command("try", folder, options, longer(options.budget, proof_seconds(results.plan, results.runs)))
    patch = results.patch
    proved = patch.judgement.gain(results.plan.goal) if patch is not None and patch.judgement is not None else None
    if patch is not None and patch.diff and proved is None:
        return go_on
    adopted = next((each.variant.proposal for each in judgements if each.verdict is TrialVerdict.ADOPT), None)
    if adopted is not None:
        return f"steptime explain {adopted}"
    if any(map(may_go_on, judgements)):
        return go_on
    return f"steptime explain {proposals[0].fix.code}"


TRIAL_FORMATS = (*FORMATS, ".jsonl")


def check_output(delivery: Delivery) -> None:
    """Checks the destinations before the work. Raises OutputError."""
    for output in delivery.outputs:
        check(output, TRIAL_FORMATS, force=delivery.force)
        if not Path(output).absolute().parent.is_dir():
            raise OutputError("output-unwritable", f"{output} cannot be written: its folder does not exist.")


def print_trial(reported: TrialOutput, delivery: Delivery, printed: str = ".jsonl") -> int:
    """Prints a trial, and writes its files; returns the exit status. printed: the format that --json prints."""
    answer = reported.whole()
    if delivery.as_json and reported.folder is not None:
        notify(str(rendered(answer, printed)))
    show(as_text(answer, columns(error=delivery.as_json)), error=delivery.as_json)
    write_all(answer, delivery, TRIAL_FORMATS)
    if reported.folder is not None:
        say(f"Wrote {reported.folder / NAME}")
    return reported.status


def run(target: tuple[str, ...], resume: Path | None, delivery: Delivery, **given: Any) -> int:
    """Starts or continues a trial, and prints it. Returns the exit status. Raises SteptimeError."""
    if target and resume is not None:
        raise UsageError("usage", "Give a recording, or a command after --, or --resume with the folder of a trial.")
    check_output(delivery)
    options = TrialOptions(**given)
    reported = go_on(resume, options) if resume is not None else start(target, options)
    return print_trial(reported, delivery)
