"""Trials in a report: every variant with its speed, its promise and its losses, as plain data."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from steptime.advice.evidence import record_of
from steptime.advice.whole_run import NO_OTHER_WORK, OtherWork
from steptime.quantities import Estimate
from steptime.trials.judge import BROKEN, KEPT, LEAST_ROUNDS, MIN_GAIN, usual_step
from steptime.trials.results import Results
from steptime.trials.trial import BASELINE, CONTROL, MAX_ROUNDS, PATCH, Judgement, Run, TrialVerdict, Variant, batch_of

MOST_LOSSES = 300
"""Most points of a curve; in a longer one, each point is the mean of several steps."""
_CANDIDATE = re.compile(r"(?:diff|ref|args|against)-[0-9]+|env")
"""Pattern of the names that `steptime judge` gives."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Losses of one process. losses: one per point, the mean over `stride` steps; None if no loss was seen."""

    name: str
    seed: int
    stride: int
    losses: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Tried:
    """Variant with its results. speed: baseline's time over the variant's; predicted: prediction of the speed; noise:
    factor, at least 1, by which the control may seem faster or slower. kept: True if the promise about the numbers was
    kept, None if unknown. stage: 0 for single fixes, then for their combination, and for the patch. of_run: speed-up of
    the run, None if steps are nearly all of it."""

    name: str
    label: str
    proposal: str
    stage: int
    verdict: str
    sentence: str
    promise: str
    kept: bool | None
    agreement: str
    speed: Estimate | None
    predicted: Estimate | None
    noise: float | None
    step_ns: float | None
    peak_bytes: int | None
    rounds: int
    of_run: Estimate | None = None

    @property
    def predicted_error(self) -> float | None:
        """Predicted over measured speed, less 1; None if one of them is unknown."""
        return self.predicted.value / self.speed.value - 1 if self.predicted and self.speed else None


@dataclass(frozen=True, slots=True)
class TrialReport:
    """Trial of a recording. step_ns, peak_bytes: values of the unchanged job. curves: the baselines' first, then one of
    each variant. diff: the patch that was run, "" for none; apply: command that applies it. min_gain: least gain that
    counts, as a fraction. other: work between the steps."""

    folder: str
    command: str
    processes: int
    seconds: float
    step_ns: float | None
    peak_bytes: int | None
    variants: tuple[Tried, ...]
    curves: tuple[Curve, ...]
    diff: str = ""
    apply: str = ""
    min_gain: float = MIN_GAIN
    other: OtherWork = NO_OTHER_WORK

    @property
    def kind(self) -> str:
        """ "try", "judge" or "lab": steptime's fixes, a user's own candidates, or the lab's variants."""
        if any(_CANDIDATE.fullmatch(each.name) for each in self.variants):
            return "judge"
        return "try" if any(each.proposal for each in self.variants) else "lab"

    @property
    def next_command(self) -> str:
        """Command that applies a patch that was timed by itself, else continues a trial that is undecided; else ""."""
        timed = any(each.name == PATCH and each.rounds >= LEAST_ROUNDS for each in self.variants)
        if self.apply and timed:
            return self.apply
        undecided = any(
            each.verdict == TrialVerdict.UNDECIDED.value and each.rounds < MAX_ROUNDS for each in self.variants
        )
        goes_on = undecided or (self.apply and not timed)
        return f"steptime {self.kind} --resume {shlex.quote(self.folder)}" if goes_on else ""


def trial_report(results: Results, folder: str) -> TrialReport:
    """Trial in the form of a report. folder: its path as the user gave it."""
    timed = [run for run in results.runs if not run.rehearsal and not run.failure]
    base = [run for run in timed if run.variant in (BASELINE, CONTROL)]
    first = min((run.stage for run in base), default=0)
    sized = any(batch_of(judgement.variant) is not None for _, judgement in results.judgements)
    base = [run for run in base if sized or run.stage == first]  # later ones of a trial are next to what was taken
    step, patch = usual_step([run for run in results.runs if sized or run.stage == first]), results.patch
    judged = list(results.judgements)
    if patch is not None and patch.judgement is not None:
        judged.append((max((stage for stage, _ in judged), default=0) + 1, patch.judgement))
    tried = [_tried(stage, judgement) for stage, judgement in judged]  # the patch perhaps twice
    return TrialReport(
        folder=folder,
        command=shlex.join(results.plan.command),
        processes=len(results.runs),
        seconds=sum(run.seconds for run in results.runs),
        step_ns=step.value if step is not None else None,
        peak_bytes=max((run.peak_bytes for run in base if run.peak_bytes is not None), default=None),
        variants=tuple({(each.name, each.name != PATCH and each.stage): each for each in tried}.values()),
        curves=tuple(_curves(timed)),
        diff=patch.diff if patch is not None else "",
        apply=patch.apply if patch is not None and patch.diff else "",
        min_gain=results.plan.min_gain,
        other=results.plan.other,
    )


def _tried(stage: int, judgement: Judgement) -> Tried:
    variant: Variant = judgement.variant
    return record_of(
        Tried,
        judgement,
        name=variant.name,
        label=variant.label or variant.name,
        proposal=variant.proposal,
        stage=stage if batch_of(variant) is None else 0,  # tried a few at a time, each by itself
        verdict=judgement.verdict.value,
        promise=variant.promise.value,
        kept=True if judgement.agreement in KEPT else False if judgement.agreement in BROKEN else None,
        agreement=judgement.agreement.value,
        predicted=variant.predicted if variant.predicted is not None and variant.predicted.unit == "1" else None,
    )


def _curves(runs: Sequence[Run]) -> list[Curve]:
    """Loss curves of the first run of each baseline seed, and of each variant."""
    found: dict[tuple[str, int], Curve] = {}
    for run in runs:
        if run.stage or not any(loss is not None for loss in run.losses):
            continue
        key = (run.variant, run.seed if run.variant == BASELINE else 0)
        if key not in found and run.variant != CONTROL:
            found[key] = _curve(run)
    return sorted(found.values(), key=lambda curve: curve.name != BASELINE)


def _curve(run: Run) -> Curve:
    stride = max(-(-len(run.losses) // MOST_LOSSES), 1)
    parts = [run.losses[at : at + stride] for at in range(0, len(run.losses), stride)]
    seen = [[loss for loss in part if loss is not None] for part in parts]
    return Curve(run.variant, run.seed, stride, tuple(fmean(each) if each else None for each in seen))
