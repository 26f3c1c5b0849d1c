"""From a diagnosis to what is tried: arms from proposals, and the place where they run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from steptime.changes import Change
from steptime.errors import UsageError
from steptime.findings.case import StepSummary
from steptime.quantities import Estimate
from steptime.recording.recording import Manifest, Recording
from steptime.remedies.remedy import Edit, Goal, Proposal
from steptime.trials.conduct import MOST, SECONDS, Bench
from steptime.trials.containment import Layer, Stand, ground_of
from steptime.trials.execute import seconds_to_first_step
from steptime.trials.patch import Patch
from steptime.trials.results import NAME, WARM_UP, Plan
from steptime.trials.trial import Arm, Judgement
from steptime.trials.working_copy import find_outputs, outputs_outside

PATCH = "patch"
"""Name of the arm that runs the patch by itself."""
MARGIN = 3_000_000_000
"""ns after the end of a job in which its last files may still be written."""


def plan_arms(proposals: Sequence[Proposal], most: int, step: float) -> tuple[Arm, ...]:
    """The first `most` proposals that can be applied, as arms in the same order. step: ns, of the recording."""
    possible = [each for each in proposals if not each.advice_only][:most]
    several = Counter(each.remedy.code for each in possible)
    names: Counter[str] = Counter()
    arms = []
    for proposal in possible:
        code = proposal.remedy.code
        names[code] += 1
        arms.append(_arm(proposal, f"{code}.{names[code]}" if several[code] > 1 else code, step))
    return tuple(arms)


def _arm(proposal: Proposal, name: str, step: float) -> Arm:
    remedy, option = proposal.remedy, proposal.option
    return Arm(
        name=name,
        changes=option.changes,
        proposal=remedy.code,
        label=option.label,
        promise=remedy.promise,
        streams=option.streams,
        other_data=option.other_data,
        low_precision=remedy.low_precision,
        predicted=_speed(option.saving, step),
    )


def _speed(saving: Estimate | None, step: float) -> Estimate | None:
    """What a saving of ns per step makes of a step: before over after. None without a saving, or where all of the step
    would be saved."""
    if saving is None or saving.high >= step:
        return None
    value, low, high = (step / (step - each) for each in (saving.value, saving.low, saving.high))
    return Estimate(value, low, high, saving.samples, "1")


def plan_for(
    known: Recording,
    recording: Path,
    arms: tuple[Arm, ...],
    step: StepSummary,
    min_gain: float,
    *,
    uncontained: bool = False,
    goal: Goal = Goal.SPEED,
) -> Plan:
    """The plan of a trial. known: what is in `recording`. min_gain: a fraction."""
    return Plan(
        tuple(known.manifest.command),
        known.manifest.directory,
        str(recording.absolute()),
        arms,
        min_gain,
        uncontained,
        step_seconds=step.duration.value / 1e9,
        start_seconds=max((seconds_to_first_step(process) for process in known.processes), default=0.0),
        goal=goal,
        warm_up=warm_up_of(step),
    )


def warm_up_of(step: StepSummary) -> int:
    """Steps that a process takes before it is timed: those of the recording's warm-up, as far as they take no longer
    than what is timed. What a job still does at its start, it would not do for long."""
    longest = round(SECONDS * 1e9 / step.duration.value) if step.duration.value else 0
    return max(WARM_UP, min(step.warm_up, longest, MOST))


def edits_of(taken: Arm, arms: Sequence[Arm], proposals: Sequence[Proposal]) -> tuple[Edit, ...]:
    """The source edits of an arm, which may be several put together (`conduct.together` joins their names)."""
    parts = [arm for arm in arms if arm.name in taken.name.split("+")]
    known = {(each.remedy.code, each.option.label): each.option.edit for each in proposals}
    found = [known.get((arm.proposal, arm.label)) for arm in parts]
    return tuple(edit for edit in found if edit is not None)


def script_of(stand: Stand) -> Path | None:
    """The script in the command; None for a module or a program."""
    return next((Path(word) for word in stand.command if word.endswith(".py")), None)


def prove(bench: Bench, taken: Arm, patch: Patch) -> Judgement | None:
    """Runs the patch by itself, none of our changes in force, against the job as it is; None where it is empty, or no
    time is left."""
    if not (patch.files or patch.environment) or bench.budget.left() <= 0:
        return None
    variables = (Change("environment", arguments=patch.environment),) if patch.environment else ()
    arm = replace(taken, name=PATCH, label="alone", changes=variables, predicted=None)
    proving = {run.stage for run in bench.runs if run.arm == PATCH}
    going_on = bench.runs[-1].stage in proving  # it was interrupted
    stage = max(run.stage for run in bench.runs) + (not going_on)
    (judgement,) = bench.conduct(stage, (arm,), patched=tuple((str(path), new) for path, _, new in patch.files))
    return judgement


def stand_for(manifest: Manifest, recording: Path, folder: Path, *, uncontained: bool, keep: bool = False) -> Stand:
    """Where the job of a recording is tried. folder: of the trial. Raises UsageError where the job's own folder is gone
    or too large to be copied."""
    directory = Path(manifest.directory)
    if not directory.is_dir():
        raise UsageError(
            "folder-gone",
            f"The job was recorded in {directory}, which is not there: give the command itself, as in: steptime try -- "
            "python train.py",
        )
    ours = ours_in(recording.absolute().parent) + ours_in(folder.absolute().parent)
    begin, end = manifest.started_epoch_ns, manifest.ended_epoch_ns
    last = end + MARGIN if end is not None else 1 << 62  # nobody knows what a job still wrote whose launcher was killed
    stand = Stand(
        tuple(manifest.command),
        folder.absolute(),
        directory,
        outside=outputs_outside(manifest.command, directory, begin, last),
        without=ours,
        keep=keep,
        uncontained=uncontained,
    )
    if ground_of(stand).layer is Layer.OVERLAY:
        return stand
    return replace(stand, outputs=find_outputs(directory, begin, last, ours))


def ours_in(folder: Path) -> tuple[Path, ...]:
    """Recordings and trials that lie in a folder: no arm needs them, and TensorBoard may write beside them."""
    if not folder.is_dir():
        return ()
    children = [path for path in folder.iterdir() if path.is_dir()]
    return tuple(path for path in children if (path / "manifest.json").is_file() or (path / NAME).is_file())
