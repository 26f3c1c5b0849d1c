"""From a diagnosis to what is tried: variants from proposals, and the place where they run."""

from __future__ import annotations

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
"""ns after the end of a job in which its last files may still be written."""


def writable(proposals: Sequence[Proposal], directory: Path, command: Sequence[str]) -> tuple[Proposal, ...]:
    """The proposals, of which those that are tried as they are written are advice where they cannot be. directory,
    command: of the job."""
    return tuple(
        replace(each, option=replace(each.option, as_written=False, edit=_example(each.option.edit)))
        if each.option.as_written and not sources_of(each, directory, command)
        else each
        for each in proposals
    )


def _example(edit: Edit | None) -> Edit | None:
    return edit.example if isinstance(edit, JointEdit) else edit


def sources_of(proposal: Proposal, directory: Path, command: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """The files with a proposal's edit in them, where that is what is tried; none for any other, and where it cannot be
    written."""
    edit = proposal.option.edit
    if not proposal.option.as_written or edit is None:
        return ()
    patch = make_patch((edit,), directory, script_of(command), command)
    return tuple((str(path), new) for path, _, new in patch.files)


def plan_variants(
    proposals: Sequence[Proposal], most: int, step: float, directory: Path, command: Sequence[str]
) -> tuple[Variant, ...]:
    """The first `most` proposals that can be applied, as variants in the same order. step: ns, of the recording.
    directory, command: of the job."""
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
    """Speed-up by a saving of ns per step: before over after. None without a saving, or where all of the step would be
    saved."""
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
    """The plan of a trial. known: what is in `recording`. min_gain: a fraction."""
    return Plan(
        tuple(known.manifest.command),
        known.manifest.directory,
        str(recording.absolute()),
        variants,
        min_gain,
        step_seconds=step.duration.value / 1e9,
        start_seconds=max((start_seconds(process, lay_out(process).steps) for process in known.processes), default=0.0),
        goal=goal,
        warm_up=warm_up_of(step),
    )


def warm_up_of(step: StepSummary) -> int:
    """Steps that a process takes before it is timed: those of the recording's warm-up, as far as they take no longer
    than what is timed. Work at a job's start, which does not last."""
    longest = round(SECONDS * 1e9 / step.duration.value) if step.duration.value else 0
    return max(WARM_UP, min(step.warm_up, longest, MOST))


def edits_of(taken: Variant, variants: Sequence[Variant], proposals: Sequence[Proposal]) -> tuple[Edit, ...]:
    """The source edits of a variant, which may be several put together (`conduct.together` joins their names)."""
    parts = [variant for variant in variants if variant.name in taken.name.split("+")]
    known = {(each.fix.code, each.option.label): each.option.edit for each in proposals}
    found = [known.get((variant.proposal, variant.label)) for variant in parts]
    return tuple(edit for edit in found if edit is not None)


def script_of(command: Sequence[str]) -> Path | None:
    """The script in the command; None for a module or a program."""
    return next((Path(word) for word in command if word.endswith(".py")), None)


def prove(bench: TrialRunner, taken: Variant, patch: Patch) -> Judgement | None:
    """Runs the patch by itself, none of our changes in force, against the job as it is; None where it is empty, or no
    time is left."""
    if not (patch.files or patch.environment) or bench.budget.left() <= 0:
        return None
    variables = (Change("environment", arguments=patch.environment),) if patch.environment else ()
    sources = tuple((str(path), new) for path, _, new in patch.files)
    variant = replace(taken, name=PATCH, label="alone", changes=variables, predicted=None, sources=sources)
    proving = {run.stage for run in bench.runs if run.variant == PATCH}
    going_on = bench.runs[-1].stage in proving  # it was interrupted
    (judgement,) = bench.conduct(next_stage(bench) - going_on, (variant,))
    return judgement


def next_stage(bench: TrialRunner) -> int:
    """Time and processes of a trial that has run something."""
    return max(run.stage for run in bench.runs) + 1


def workspace_for(
    manifest: Manifest, recording: Path, folder: Path, *, uncontained: bool, keep: bool = False
) -> Workspace:
    """Workspace for the job of a recording. folder: of the trial. Raises UsageError where the job's own folder is gone
    or too large to be copied."""
    directory = Path(manifest.directory)
    if not directory.is_dir():
        raise UsageError(
            "folder-gone",
            f"The job was recorded in {directory}, which is not there: give the command itself, as in: steptime try -- "
            "python train.py",
        )
    ours = ours_in(recording.absolute().parent) + ours_in(folder.absolute().parent)
    start, end = manifest.started_epoch_ns, manifest.ended_epoch_ns
    last = end + MARGIN if end is not None else 1 << 62  # nobody knows what a job still wrote whose launcher was killed
    command = tuple(manifest.command)
    workspace = Workspace(command, folder.absolute(), directory, without=ours, keep=keep, uncontained=uncontained)
    return with_outputs(workspace, (start, last))


def plain_workspace(plan: Plan, folder: Path, *, uncontained: bool, keep: bool = False) -> Workspace:
    """Workspace for a job that was not recorded. Raises UsageError where its folder is gone."""
    directory = Path(plan.directory)
    if not directory.is_dir():
        raise UsageError("folder-gone", f"The job is run in {directory}, which is not there any more.")
    without = ours_in(folder.absolute().parent)
    return Workspace(plan.command, folder.absolute(), directory, without=without, keep=keep, uncontained=uncontained)


def with_outputs(workspace: Workspace, ran: tuple[int, int]) -> Workspace:
    """A workspace, with what the job wrote when it ran between two instants (epoch, ns)."""
    workspace = replace(workspace, outside=outputs_outside(workspace.command, workspace.directory, *ran))
    if ground_of(workspace).layer is Layer.OVERLAY:
        return workspace
    return replace(workspace, outputs=find_outputs(workspace.directory, *ran, workspace.without))


def ours_in(folder: Path) -> tuple[Path, ...]:
    """Recordings and trials that lie in a folder: no variant needs them, and TensorBoard may write there, too."""
    if not folder.is_dir():
        return ()
    children = [path for path in folder.iterdir() if path.is_dir()]
    return tuple(path for path in children if (path / "manifest.json").is_file() or (path / NAME).is_file())


NO_INPUT = "no-input"
_MASKS = "dropout masks"
MODES = ("default", "reduce-overhead", "max-autotune")
"""Modes of torch.compile, as its documentation lists them."""


def lab_variants(compile_modes: bool = False, on_cuda: bool = False) -> tuple[Variant, ...]:
    """bfloat16, bfloat16 and compiled, no input, and on CUDA no launch; then every compile mode in the job's own
    precision."""
    cast = Change("autocast", arguments=(("dtype", "bfloat16"),))
    both = (cast, Change("compile"))
    curve, new = Promise.SAME_CURVE, Promise.NEW_TRAINING
    variants = [
        Variant("bf16", (cast,), "", "bfloat16 autocast", curve, low_precision=True),
        Variant("bf16+compile", both, "", "bfloat16 autocast, compiled", curve, _MASKS, low_precision=True),
        Variant(NO_INPUT, (Change("cached-batch"),), "", "no input (one batch repeated)", new),
    ]
    compiled = [("no-launch", "no launch (CUDA graphs)", "backend", "cudagraphs")] if on_cuda else []
    compiled += [(f"compile-{mode}", f"compiled, {mode}", "mode", mode) for mode in MODES if compile_modes]
    for name, label, argument, value in compiled:
        variants.append(Variant(name, (Change("compile", arguments=((argument, value),)),), "", label, curve, _MASKS))
    return tuple(variants)


def batch_variant(size: int) -> Variant:
    """Batches of another size."""
    change = Change("batch-size", arguments=(("size", size),))
    return Variant(f"{BATCH}{size}", (change,), "", f"batches of {size}", Promise.NEW_TRAINING)


def workers_of(variant: Variant) -> int | None:
    """The number of workers of a variant that changes nothing else."""
    (change, *others) = variant.changes or (None,)
    workers = change.argument("num_workers") if change is not None and change.kind == "loader" else None
    return workers if isinstance(workers, int) and not others else None


TOGETHER = 2
"""Sizes that are tried at a time: at most one is tried needlessly after the plateau."""
MOST_DOUBLINGS = 12
OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "Cannot allocate memory", "MemoryError", "by signal 9")
"""Messages of PyTorch, Python and the kernel (which ends a process with SIGKILL)."""


@dataclass(frozen=True, slots=True)
class BatchSizePoint:
    """A batch size. rate: items per second, unit "1"; None where it was not reached, and why: "" where no time was left
    for it. peak: bytes, as in `Run.peak_bytes`."""

    size: int
    rate: Estimate | None
    failure: str = ""
    peak: int | None = None

    @property
    def out_of_memory(self) -> bool:
        """True if that is why."""
        return any(words in self.failure for words in OUT_OF_MEMORY)


def points_of(
    judgements: Sequence[Judgement], step_ns: float, own_size: int | None, own_peak: int | None = None
) -> tuple[BatchSizePoint, ...]:
    """By size, the job's own among them. step_ns: a step of the job as it is, which each speed is relative to."""
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
    """The size from which on larger batches bring less than MIN_GAIN more items a second; None where the largest one
    still does."""
    known = [(point.size, point.rate.value) for point in points if point.rate is not None]
    for number, (size, rate) in enumerate(known[:-1]):
        if all(later < rate * (1 + MIN_GAIN) for _, later in known[number + 1 :]):
            return size
    return None


def over(points: Sequence[BatchSizePoint], go_on: bool) -> bool:
    """True if larger sizes are not tried: what is smaller has failed or could not be timed, or, where they go on, the
    plateau is reached."""
    return any(point.rate is None for point in points) or (go_on and plateau(points) is not None)


def groups(sizes: Sequence[int], go_on: bool) -> Iterator[tuple[int, ...]]:
    """Sizes to try together, ascending; doubled from the largest on where these are not all."""
    wanted = sorted(set(sizes))
    if go_on:
        wanted += [wanted[-1] << number for number in range(1, MOST_DOUBLINGS + 1)]
    for start in range(0, len(wanted), TOGETHER):
        yield tuple(wanted[start : start + TOGETHER])
