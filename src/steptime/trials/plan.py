"""Variants from the proposals of a diagnosis, the plan of a trial, and its workspace."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from steptime.advice.fix import Edit, Goal, JointEdit, Promise, Proposal
from steptime.advice.run_uses import StepSummary
from steptime.analysis.layout import lay_out
from steptime.changes import Change
from steptime.errors import UsageError
from steptime.quantities import Estimate
from steptime.recording.recording import Manifest, Recording
from steptime.trials.conduct import MOST, SECONDS, TrialRunner
from steptime.trials.containment import Layer, Workspace, ground_of
from steptime.trials.execute import start_seconds
from steptime.trials.judge import MIN_GAIN
from steptime.trials.patch import Patch, make_patch
from steptime.trials.results import NAME, WARM_UP, Plan
from steptime.trials.trial import BATCH, PATCH, Judgement, TrialVerdict, Variant, batch_of
from steptime.trials.working_copy import find_outputs, outputs_outside

MARGIN = 3_000_000_000
"""Time after the end of a job in which it may still write its last files, ns."""


def writable(proposals: Sequence[Proposal], directory: Path, command: Sequence[str]) -> tuple[Proposal, ...]:
    """Proposals, in which an edit that cannot be written to the sources, but should be, has become advice. directory,
    command: the job's folder and command."""
    return tuple(
        replace(each, option=replace(each.option, as_written=False, edit=_example(each.option.edit)))
        if each.option.as_written and not sources_of(each, directory, command)
        else each
        for each in proposals
    )


def _example(edit: Edit | None) -> Edit | None:
    return edit.example if isinstance(edit, JointEdit) else edit


def sources_of(proposal: Proposal, directory: Path, command: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """(path, new text) of each file that a proposal's edit changes, if that edit is itself what is tried; else (), and
    if it cannot be written."""
    edit = proposal.option.edit
    if not proposal.option.as_written or edit is None:
        return ()
    patch = make_patch((edit,), directory, script_of(command), command)
    return tuple((str(path), new) for path, _, new in patch.files)


def plan_variants(
    proposals: Sequence[Proposal], most: int, step: float, directory: Path, command: Sequence[str]
) -> tuple[Variant, ...]:
    """First `most` proposals that can be applied, as variants in the same order. step: time per step in the recording,
    ns. directory, command: the job's folder and command."""
    possible = [each for each in proposals if not each.advice_only][:most]
    several = Counter(each.fix.code for each in possible)
    names: Counter[str] = Counter()
    variants = []
    for proposal in possible:
        fix, option = proposal.fix, proposal.option
        names[fix.code] += 1
        variants.append(
            Variant(
                name=f"{fix.code}.{names[fix.code]}" if several[fix.code] > 1 else fix.code,
                changes=option.changes,
                proposal=fix.code,
                label=option.label,
                promise=fix.promise,
                streams=option.streams,
                other_data=option.other_data,
                low_precision=fix.low_precision,
                predicted=_speed(option.saving, step),
                sources=sources_of(proposal, directory, command),
            )
        )
    return tuple(variants)


def _speed(saving: Estimate | None, step: float) -> Estimate | None:
    """Speed-up from a saving of ns per step, as the ratio before / after. None without a saving, or if it is not below
    the step."""
    if saving is None or saving.high >= step:
        return None
    value, low, high = (step / (step - each) for each in (saving.value, saving.low, saving.high))
    return Estimate(value, low, high, saving.samples, "1")


def plan_for(
    known: Recording,
    recording: Path,
    variants: tuple[Variant, ...],
    step: StepSummary,
    min_gain: float,
    *,
    goal: Goal = Goal.SPEED,
) -> Plan:
    """Plan of a trial. known: the content of `recording`. min_gain: least gain that counts, as a fraction."""
    start = max((start_seconds(process, lay_out(process).steps) for process in known.processes), default=0.0)
    return Plan(
        tuple(known.manifest.command),
        known.manifest.directory,
        str(recording.absolute()),
        variants,
        min_gain,
        step_seconds=step.duration.value / 1e9,
        start_seconds=start,
        importing_seconds=min(start, _importing_seconds(known, recording)),
        goal=goal,
        warm_up=warm_up_of(step),
    )


def _importing_seconds(known: Recording, recording: Path) -> float:
    """Seconds from the start of the first process to the end of its import of torch, 0 if unknown: a file of the
    recording has that time."""
    with contextlib.suppress(OSError):
        imported = (recording / "seen-torch").stat().st_mtime_ns
        return max(0.0, min(imported - each.facts.process_started_epoch_ns for each in known.processes) / 1e9)
    return 0.0


def warm_up_of(step: StepSummary) -> int:
    """Number of untimed first steps of a process: the recording's warm-up, but no longer than the timed part. A job's
    initial work does not last."""
    longest = round(SECONDS * 1e9 / step.duration.value) if step.duration.value else 0
    return max(WARM_UP, min(step.warm_up, longest, MOST))


def edits_of(taken: Variant, variants: Sequence[Variant], proposals: Sequence[Proposal]) -> tuple[Edit, ...]:
    """Source edits of a variant, or of all variants that are combined in it (`conduct.together` joins their names)."""
    parts = [variant for variant in variants if variant.name in taken.name.split("+")]
    known = {(each.fix.code, each.option.label): each.option.edit for each in proposals}
    found = [known.get((variant.proposal, variant.label)) for variant in parts]
    return tuple(edit for edit in found if edit is not None)


def script_of(command: Sequence[str]) -> Path | None:
    """Path of the script in a command; None for a module or a program."""
    return next((Path(word) for word in command if word.endswith(".py")), None)


def prove(runner: TrialRunner, taken: Variant, patch: Patch) -> Judgement | None:
    """Runs the patch by itself, without instrumented changes, against the unchanged job; None if it is empty, or no
    time is left."""
    if not (patch.files or patch.environment) or runner.budget.left() <= 0:
        return None
    variables = (Change("environment", arguments=patch.environment),) if patch.environment else ()
    sources = tuple((str(path), new) for path, _, new in patch.files)
    variant = replace(taken, name=PATCH, label="alone", changes=variables, predicted=None, sources=sources)
    proving = {run.stage for run in runner.runs if run.variant == PATCH}
    going_on = runner.runs[-1].stage in proving  # it was interrupted
    (judgement,) = runner.conduct(next_stage(runner) - going_on, (variant,))
    return judgement


def next_stage(runner: TrialRunner) -> int:
    """Number of the next stage of a trial that has run something."""
    return max(run.stage for run in runner.runs) + 1


def workspace_for(
    manifest: Manifest, recording: Path, folder: Path, *, uncontained: bool, keep: bool = False
) -> Workspace:
    """Workspace for a recorded job. folder: the trial's folder. Raises UsageError if the job's folder is gone, or too
    large to copy."""
    directory = Path(manifest.directory)
    if not directory.is_dir():
        raise UsageError(
            "folder-gone",
            f"The job was recorded in {directory}, which does not exist. Give the command itself: steptime try "
            "-- python train.py",
        )
    ours = ours_in(recording.absolute().parent) + ours_in(folder.absolute().parent)
    start, end = manifest.started_epoch_ns, manifest.ended_epoch_ns
    last = end + MARGIN if end is not None else 1 << 62  # nobody knows what a job still wrote whose launcher was killed
    command = tuple(manifest.command)
    workspace = Workspace(command, folder.absolute(), directory, without=ours, keep=keep, uncontained=uncontained)
    return with_outputs(workspace, (start, last))


def plain_workspace(plan: Plan, folder: Path, *, uncontained: bool, keep: bool = False) -> Workspace:
    """Workspace for a job that was not recorded. Raises UsageError if its folder is gone."""
    directory = Path(plan.directory)
    if not directory.is_dir():
        raise UsageError(
            "folder-gone",
            f"The trial's job runs in {directory}, which no longer exists. Restore the folder, or start a new "
            "trial: steptime try -- python train.py",
        )
    without = ours_in(folder.absolute().parent)
    return Workspace(plan.command, folder.absolute(), directory, without=without, keep=keep, uncontained=uncontained)


def with_outputs(workspace: Workspace, ran: tuple[int, int]) -> Workspace:
    """Workspace with the files that the job wrote when it ran between two instants (ns since the epoch)."""
    workspace = replace(workspace, outside=outputs_outside(workspace.command, workspace.directory, *ran))
    if ground_of(workspace).layer is Layer.OVERLAY:
        return workspace
    return replace(workspace, outputs=find_outputs(workspace.directory, *ran, workspace.without))


def ours_in(folder: Path) -> tuple[Path, ...]:
    """Recordings and trials in a folder, which no variant needs; TensorBoard may write into the same folder."""
    if not folder.is_dir():
        return ()
    children = [path for path in folder.iterdir() if path.is_dir()]
    return tuple(path for path in children if (path / "manifest.json").is_file() or (path / NAME).is_file())


NO_INPUT, BF16, BF16_COMPILED = "no-input", "bf16", "bf16+compile"
_MASKS = "dropout masks"
MODES = ("default", "reduce-overhead", "max-autotune")
"""Modes of torch.compile, from its documentation."""


def lab_variants(compile_modes: bool = False, on_cuda: bool = False) -> tuple[Variant, ...]:
    """Variants of a lab: bfloat16; bfloat16 and compiled; no input; on CUDA, CUDA graphs; then every compile mode in
    the job's own precision."""
    cast = Change("autocast", arguments=(("dtype", "bfloat16"),))
    both = (cast, Change("compile"))
    curve, new = Promise.SAME_CURVE, Promise.NEW_TRAINING
    variants = [
        Variant(BF16, (cast,), "", "bfloat16", curve, low_precision=True),
        Variant(BF16_COMPILED, both, "", "bfloat16, compiled", curve, _MASKS, low_precision=True),
        Variant(NO_INPUT, (Change("cached-batch"),), "", "no input (one batch repeated)", new),
    ]
    compiled = [("no-launch", "no launch (CUDA graphs)", "backend", "cudagraphs")] if on_cuda else []
    compiled += [(f"compile-{mode}", f"compiled, {mode}", "mode", mode) for mode in MODES if compile_modes]
    for name, label, argument, value in compiled:
        variants.append(Variant(name, (Change("compile", arguments=((argument, value),)),), "", label, curve, _MASKS))
    return tuple(variants)


def batch_variant(size: int) -> Variant:
    change = Change("batch-size", arguments=(("size", size),))
    return Variant(f"{BATCH}{size}", (change,), "", f"batches of {size}", Promise.NEW_TRAINING)


def workers_of(variant: Variant) -> int | None:
    """Number of workers that a variant sets, if it changes nothing else; None for any other variant."""
    (change, *others) = variant.changes or (None,)
    workers = change.argument("num_workers") if change is not None and change.kind == "loader" else None
    return workers if isinstance(workers, int) and not others else None


TOGETHER = 2
"""Batch sizes per stage: at most one size is tried needlessly after the plateau."""
MOST_DOUBLINGS = 12
OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "Cannot allocate memory", "MemoryError", "by signal 9")
"""Signs of out of memory in messages of PyTorch, Python and the kernel (which sends SIGKILL)."""


@dataclass(frozen=True, slots=True)
class BatchSizePoint:
    """Result for a batch size. rate: samples per second, unit "1"; None if it was not measured. failure: why not, "" if
    no time was left. peak: bytes, as in `Run.peak_bytes`."""

    size: int
    rate: Estimate | None
    failure: str = ""
    peak: int | None = None

    @property
    def out_of_memory(self) -> bool:
        """True if memory was too small for this batch size."""
        return any(words in self.failure for words in OUT_OF_MEMORY)


def points_of(
    judgements: Sequence[Judgement], step_ns: float, own_size: int | None, own_peak: int | None = None
) -> tuple[BatchSizePoint, ...]:
    """Results per batch size, ascending, with the job's own. step_ns: time per step of the unchanged job, to which the
    speeds refer."""
    points = {}
    if own_size:
        rate = own_size / step_ns * 1e9
        points[own_size] = BatchSizePoint(own_size, Estimate(rate, rate, rate, 1, "1"), peak=own_peak)
    for judgement in judgements:
        size, speed = batch_of(judgement.variant), judgement.speed
        if size is None:
            continue
        each, failure = None, ""
        if speed is not None:
            rate = size / step_ns * 1e9
            each = Estimate(rate * speed.value, rate * speed.low, rate * speed.high, speed.samples, "1")
        elif judgement.verdict in (TrialVerdict.FAILED, TrialVerdict.NOT_EXERCISED):
            failure = judgement.sentence
        points[size] = BatchSizePoint(size, each, failure, judgement.peak_bytes)
    return tuple(points[size] for size in sorted(points))


def plateau(points: Sequence[BatchSizePoint]) -> int | None:
    """Smallest batch size beyond which no larger one gains MIN_GAIN in samples per second; None if the largest still
    does."""
    known = [(point.size, point.rate.value) for point in points if point.rate is not None]
    for number, (size, rate) in enumerate(known[:-1]):
        if all(later < rate * (1 + MIN_GAIN) for _, later in known[number + 1 :]):
            return size
    return None


def over(points: Sequence[BatchSizePoint], go_on: bool) -> bool:
    """True if no larger batch sizes are tried: a smaller size failed or was not timed, or, with go_on, the plateau is
    reached."""
    return any(point.rate is None for point in points) or (go_on and plateau(points) is not None)


def groups(sizes: Sequence[int], go_on: bool) -> Iterator[tuple[int, ...]]:
    """Groups of batch sizes to try together, ascending. go_on: continue by doubling the largest."""
    wanted = sorted(set(sizes))
    if go_on:
        wanted += [wanted[-1] << number for number in range(1, MOST_DOUBLINGS + 1)]
    for start in range(0, len(wanted), TOGETHER):
        yield tuple(wanted[start : start + TOGETHER])
