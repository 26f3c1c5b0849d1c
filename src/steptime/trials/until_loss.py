"""Judgement of runs by the time to a loss, for candidates whose training may differ. It also checks for what makes that
time meaningless: another loss under the same name, trained initial weights, fewer samples.

Pure functions on runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from statistics import median

import numpy as np

from steptime.analysis.timeline import SegmentKind, Timeline
from steptime.changes import VariantOptions
from steptime.errors import NothingMeasuredError
from steptime.intervals import measure, union
from steptime.probe.changes.loss_course import LossCourse
from steptime.quantities import format_duration
from steptime.recording.parity import Parity
from steptime.recording.recording import Process
from steptime.trials.same_work import (
    SLACK,
    Precision,
    no_forward,
    other_weights,
    precision_of,
    repeats,
    replaced_functions,
    same_batch,
    shorter_pass,
)
from steptime.trials.trial import BASELINE, CONTROL, Agreement, NumbersCheck, Run, Variant

Losses = Sequence[float | None]

NOT_TIMED = (SegmentKind.EVALUATION, SegmentKind.CHECKPOINT, SegmentKind.PAUSE)
NO_END = 1 << 40
"""Step limit of a process that runs until its loss is reached."""
LONGER = 2.0
"""Time in which a candidate must reach the loss, as a multiple of the longest that the unchanged job takes."""
FEWER = 0.9
"""Fraction of the samples in a pass over the data below which a dropped last batch does not explain the difference."""
FEW = 0.5
"""Fraction of distinct recorded samples below which a candidate repeats too few batches."""
LOSSES_DIFFER = (1e-3, 2e-2)
"""Relative rounding difference of the loss of one batch from the same weights: in float32, and with 16-bit matmuls."""


@dataclass(frozen=True, slots=True)
class LossTarget:
    """Loss to reach: a training reaches it when the mean of its last losses (`LossCourse`) is first at or below
    `loss`."""

    loss: float

    def step(self, losses: Losses, backwards: Sequence[int]) -> int | None:
        """Number of the step, from 1, that reaches the loss; None if none does."""
        means = enumerate(means_of(losses, backwards), 1)
        return next((number for number, mean in means if mean <= self.loss), None)

    def cost(self, run: Run) -> tuple[float, ...]:
        """Seconds to the loss, as a tuple; () for a run that did not reach it."""
        return (run.metric,) if run.metric is not None else ()

    def missed(self, own: Sequence[Run], plain: Sequence[Run]) -> str:
        """Sentence on a timed run that did not reach the loss, "" for none."""
        run = next((run for run in own if not run.rehearsal and run.metric is None), None)
        if run is None:
            return ""
        there = [each.metric for each in plain if each.metric is not None]
        usual = format_duration(median(there) * 1e9) if there else ""
        return f"{self.fell_short(run)}{f', and the unchanged job reaches {self.loss:g} in {usual}' * bool(usual)}"

    def check(self, run: Run) -> None:
        """Raises NothingMeasuredError for a timed run of the unchanged job that shows that this loss is no usable
        target: it was not reached, or at once."""
        if run.rehearsal or run.variant not in (BASELINE, CONTROL):
            return
        if run.metric is None:
            raise NothingMeasuredError(
                "loss-not-reached",
                f"The unchanged job did not reach a mean loss of {self.loss:g}. {self.fell_short(run)}. Name a "
                "higher loss, or give a larger --budget; one process may use a seventh of it.",
            )
        if self.step(run.losses, run.backwards) == LossCourse.FEWEST:
            raise NothingMeasuredError(
                "loss-reached-at-once",
                f"The unchanged job's mean loss is below {self.loss:g} from its first {LossCourse.FEWEST} "
                "steps on. Name a lower loss.",
            )

    def fell_short(self, run: Run) -> str:
        """Sentence on a run's mean loss at its end."""
        mean = min(deque(means_of(run.losses, run.backwards), 1), default=inf)
        what = f"its mean loss was {mean:.4g}" if isfinite(mean) else "its mean loss was not finite, or not recorded"
        ended = "it ended by itself" if run.ended_early else "its time limit stopped it"
        return f"When {ended} after {len(run.losses):,} steps and {format_duration(run.seconds * 1e9)}, {what}"


def going_on(options: VariantOptions, target: LossTarget | None) -> VariantOptions:
    """Options of a process, changed to run until the target's loss, if there is a target."""
    return replace(options, steps=NO_END, until_loss=target.loss) if target is not None else options


def longest(runs: Sequence[Run], first: float) -> float:
    """Seconds within which a process must reach the loss. first: limit until the unchanged job's time is known."""
    took = [run.metric for run in runs if run.variant in (BASELINE, CONTROL) and run.metric is not None]
    return LONGER * max(took) if took else first


def means_of(losses: Losses, backwards: Sequence[int]) -> Iterator[float]:
    """Yields the mean of the last losses after each step: infinite while there are too few, or if one is not finite. A
    step without a backward repeats the mean."""
    course, mean = LossCourse(), inf
    for loss, count in zip(losses, backwards, strict=True):
        if count:
            mean = course.add(inf if loss is None else loss)
        yield mean


def losses_in(parity: Parity | None) -> tuple[float | None, ...]:
    """Sum of the losses of each step's backwards; None if unknown or not finite."""
    if parity is None:
        return ()
    seen = zip(parity.loss.tolist(), parity.backwards.tolist(), strict=True)
    return tuple(loss * count if count and isfinite(loss) else None for loss, count in seen)


def seconds_to(target: LossTarget, process: Process, timeline: Timeline) -> float | None:
    """Seconds from the import of torch to the end of the step that reaches the loss, without evaluations, checkpoints
    and pauses of the probe; None if no step does."""
    parity = process.parity
    step = target.step(losses_in(parity), parity.backwards.tolist()) if parity is not None else None
    if parity is None or step is None:
        return None
    start, end = parity.began_ns, int(parity.end[step - 1])
    left_out = [segment for segment in timeline.segments if segment.kind in NOT_TIMED]
    starts, ends = (np.array([getattr(each, name) for each in left_out], np.int64) for name in ("start", "end"))
    held = measure(union(starts, ends), np.array([start]), np.array([end]))
    return float(end - start - int(held[0])) / 1e9


# -- whether the time means anything ----------------------------------------------------------------------------------


def numbers_until(target: LossTarget, variant: Variant, own: Sequence[Run], plain: Sequence[Run]) -> NumbersCheck:
    """Check of a candidate that is judged by the time to a loss."""
    found = replaced_functions(own, plain)
    found = found or _starts_ahead(target, own, plain)
    for check in (_without_forward, _few_batches, _shorter_passes, _smaller_evaluations):
        found = found or check(own, plain)
    if found:
        return NumbersCheck(Agreement.LESS_WORK, found)
    found, unknown = _same_loss(own, plain, precision_of(variant), low=variant.low_precision)
    found = found or _smaller_dataset(own, plain)
    if found:
        return NumbersCheck(Agreement.OTHER_WORK, found)
    timed = ([run for run in runs if run.metric is not None] for runs in (own, plain))
    mine, theirs = ([target.step(run.losses, run.backwards) or 0 for run in runs] for runs in timed)
    if not mine or not theirs:
        return NumbersCheck(Agreement.NOT_JUDGED, "No run reached the loss so far")
    after = f"It reaches the loss after {median(mine):,.0f} steps, the unchanged job after {median(theirs):,.0f}"
    return NumbersCheck(Agreement.NOT_JUDGED, f"{after}. {unknown}" if unknown else after)


def _starts_ahead(target: LossTarget, own: Sequence[Run], plain: Sequence[Run]) -> str:
    """Sentence if a candidate starts more than half of the way to the loss (trained weights, or a scaled loss), else
    "". The spread of the unchanged job's first losses does not count as a head start."""
    mine, theirs = ([run.losses[0] for run in runs if run.losses] for runs in (own, plain))
    ahead, usual = ([loss for loss in losses if loss is not None] for losses in (mine, theirs))
    if not ahead or not usual:
        return ""
    noise = max(usual) - min(usual)
    if min(ahead) >= min((median(usual) + target.loss) / 2, min(usual) - noise):
        return ""
    return (
        f"Its first loss is {min(ahead):.4g}; the unchanged job starts at {median(usual):.4g}, and the target "
        f"is {target.loss:g}. It starts from trained weights, or computes another loss"
    )


def _without_forward(own: Sequence[Run], plain: Sequence[Run]) -> str:
    companions = [run for run in plain if run.work]
    return next(filter(None, (no_forward(run, companions) for run in own if run.work and companions)), "")


def _few_batches(own: Sequence[Run], plain: Sequence[Run]) -> str:
    """Sentence if batches repeat more often and there are far fewer distinct samples, else "". Larger batches that are
    the whole dataset may repeat."""
    for run in own:
        companions = [each for each in plain if each.rehearsal == run.rehearsal and each.work]
        if not run.work or not companions:
            continue
        (often, samples), (usually, usual) = _batches(run), max(map(_batches, companions))
        usual = min(usual, max(each.samples for each in companions) or usual)
        if often > usually and samples < FEW * usual:
            return (
                f"It repeats a batch {often} times: the checked batches have {samples:,} distinct samples, "
                f"those of the unchanged job {usual:,}"
            )
    return ""


def _batches(run: Run) -> tuple[int, int]:
    """(occurrences of the most frequent recorded batch, number of distinct samples)."""
    seen: dict[tuple[tuple[float, ...], ...], tuple[int, int]] = {}
    for step in run.work:
        for shapes, batch in zip(step.inputs, step.batches, strict=False):
            seen[batch] = seen.get(batch, (0, 0))[0] + 1, _first_dimension(shapes)
    return max((count for count, _ in seen.values()), default=0), sum(samples for _, samples in seen.values())


def _first_dimension(shapes: str) -> int:
    first = shapes.split()[0].partition("x")[0] if shapes else ""
    return int(first) if first.isdigit() else 1


def _shorter_passes(own: Sequence[Run], plain: Sequence[Run]) -> str:
    return next(filter(None, (shorter_pass(run, plain, FEWER) for run in own)), "")


def _smaller_evaluations(own: Sequence[Run], plain: Sequence[Run]) -> str:
    """Sentence on a smaller evaluation than the job's, "" for none. Fewer evaluations are fine, because they are not
    timed."""
    mine, theirs = (_largest_evaluations(runs) for runs in (own, plain))
    for shape, samples in mine.items():
        if samples < SLACK * theirs.get(shape, 0):
            return f"It evaluates {samples:,} samples ({shape}) at a time, the unchanged job {theirs[shape]:,}"
    return ""


def _largest_evaluations(runs: Sequence[Run]) -> dict[str, int]:
    largest: dict[str, int] = {}
    for shape, samples in (each for run in runs for step in run.work for each in step.evaluated):
        largest[shape] = max(largest.get(shape, 0), samples)
    return largest


def _smaller_dataset(own: Sequence[Run], plain: Sequence[Run]) -> str:
    mine, theirs = ({run.samples for run in runs if run.samples} for runs in (own, plain))
    if not mine or not theirs or min(mine) >= FEWER * min(theirs):
        return ""
    return f"It trains on a dataset of {min(mine):,} samples, the unchanged job on {min(theirs):,}"


def _same_loss(own: Sequence[Run], plain: Sequence[Run], precision: Precision, *, low: bool) -> tuple[str, str]:
    """("", "") if a rehearsal's first loss equals the job's from the same weights and batch. Else (sentence that it is
    another loss, "") or ("", reason why that is unknown)."""
    mine, theirs = ([run for run in runs if run.rehearsal and run.work and run.losses] for runs in (own, plain))
    if not mine or not theirs:
        return "", "Not checked: whether it computes the job's loss"
    run, before = mine[-1], theirs[0]
    if not repeats(theirs, precision):
        return "", "Its loss could not be compared: the job does not reproduce its own losses"
    other = other_weights(run, before, precision)
    if other:
        return "", f"Its loss could not be compared: it starts from other weights ({other})"
    if not same_batch(run.work[0], before.work[0], precision):
        return "", "Its loss could not be compared: its first batch differs"
    first, usual = run.losses[0], before.losses[0]
    if first is None or usual is None:
        return "", "Not checked: whether it computes the job's loss"
    if abs(first - usual) <= LOSSES_DIFFER[low] * max(abs(first), abs(usual)):
        return "", ""
    return (
        f"On the first batch its loss is {first:.4g}, and the job's {usual:.4g} with the same weights: it "
        "computes another loss, so the times to reach it cannot be compared"
    ), ""
