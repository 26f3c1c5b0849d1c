"""Variants that one process switches between: their choice, the run of that process, and the verdicts from it.

That process decides on speed, not on training: its set of winners is confirmed in processes of its own, like any
variant. A change that cannot be switched, or that fails in the process, is tried in separate processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from time import monotonic

from steptime.advice.fix import Goal
from steptime.advice.whole_run import NO_OTHER_WORK, UNCHANGED, OtherWork
from steptime.changes import VariantOptions, is_switchable
from steptime.launcher.outcome import Progress
from steptime.quantities import Estimate, format_duration
from steptime.recording.inventory import BLOCKS, GOING, VARIANTS
from steptime.trials import blocks
from steptime.trials.blocks import BlockRecord, FirstSteps, Settled
from steptime.trials.conduct import TrialRunner, together
from steptime.trials.execute import ScheduledRun, execute, folder_of
from steptime.trials.judge import BROKEN, KEPT, ONLY_STEP
from steptime.trials.results import append_result
from steptime.trials.trial import Agreement, BudgetExhausted, Judgement, Run, TrialVerdict, Variant

ONE_PROCESS = "one-process"
"""Name of the process that switches."""
FOR_EVER = 10**9
"""Step limit of the process: its blocks decide when it ends."""
SHARE = 0.45
"""Upper bound on the fraction of the remaining budget; the rest pays for confirming processes."""
STARTS, GRACE = 2.0, 15.0
"""Time beyond its limit after which the process is killed, as a multiple of the job's start-up time, plus seconds: a
compiler may block it."""
ATTEMPTS = 3
"""Most processes of that kind: each leaves out the variant at which the last one failed."""
UNCONFIRMED = "Faster, and not adopted: no time was left to compare its training"


@dataclass(frozen=True, slots=True)
class Switched:
    """Result of one process that switched between variants. variants: those that it ran, in the order of their bits;
    record: its blocks; taken: mask of the variants that pay together. other: work between the steps."""

    variants: tuple[Variant, ...]
    record: BlockRecord
    taken: int
    min_gain: float
    other: OtherWork = NO_OTHER_WORK

    def found(self, variant: Variant) -> Settled:
        """Speed decision on a variant from its blocks."""
        return self.found_of(1 << self.variants.index(variant))

    def found_of(self, mask: int) -> Settled:
        """Speed decision on a mask from its blocks."""
        control = blocks.ratios(self.record.blocks, 0, control=True)
        return blocks.settled(blocks.ratios(self.record.blocks, mask), control, 1 + self.min_gain)

    def proved(self, variant: Variant) -> bool:
        """True if a variant needs no further process: it had no effect, or it has a speed and did not outrun its
        loader, or another setting of the same thing is adopted and no time was left to compile this one."""
        if variant not in self.variants:  # it cannot be switched, or failed in an earlier process
            return False
        mask = 1 << self.variants.index(variant)
        if mask not in self.record.begun:
            return any(each.rivals(variant) for each in self.members())
        first = self.record.first_of(mask)
        drained = blocks.outruns_loader(self.record.blocks, mask)
        return (
            first is not None and not drained and (not blocks.exercised(first) or self.found(variant).speed is not None)
        )

    def members(self) -> tuple[Variant, ...]:
        """Variants that are taken."""
        return tuple(each for number, each in enumerate(self.variants) if self.taken >> number & 1)

    @property
    def preparing_ns(self) -> int:
        """Longest extra time of the first steps of a taken variant or set, ns."""
        found = (each for each in self.record.first if each.first and not each.first & ~self.taken)
        return max((each.preparing_ns for each in found), default=0)

    def together(self) -> Judgement | None:
        """Judgement of the taken set as one variant, to be confirmed; None if nothing is taken."""
        members = self.members()
        if not members:
            return None
        return self._judged(reduce(together, members), self.taken, TrialVerdict.ADOPT, "")

    def judgements(self, confirmed: Judgement | None) -> tuple[Judgement, ...]:
        """Judgements of the variants that need no further process. confirmed: the judgement of the set by processes of
        its own, None if these were not run."""
        return tuple(self._judgement(each, confirmed) for each in self.variants if self.proved(each))

    def _judgement(self, variant: Variant, confirmed: Judgement | None) -> Judgement:
        mask = 1 << self.variants.index(variant)
        if mask not in self.record.begun:
            why = "Another setting of it was chosen, and no time was left to compile this one"
            return Judgement(variant, TrialVerdict.UNDECIDED, Agreement.NOT_SEEN, why)
        first, found = self.record.first_of(mask), self.found(variant)
        if first is not None and not blocks.exercised(first):
            idle = next(each.detail for each in first.changes if not (each.applied and each.exercised))
            return Judgement(variant, TrialVerdict.NOT_EXERCISED, Agreement.NOT_SEEN, idle or "nothing to act on")
        verdict, sentence, agreement = *self._verdict(mask, found, confirmed), Agreement.NOT_JUDGED
        if found.speed is not None:
            whole = bool(self.other.share) and blocks.mixed(self.record.blocks, mask)
            held = f", {self.other.name} included" if whole else ""
            pairs = f"{found.speed.samples} pairs of blocks in one process{held}"
            sentence = f"{pairs}: {sentence[0].lower()}{sentence[1:]}"
        sentence = "; ".join(filter(None, (sentence, preparing(first))))
        if mask & self.taken and confirmed is not None:
            agreement = confirmed.agreement
        return replace(self._judged(variant, mask, verdict, sentence, confirmed), agreement=agreement)

    def _verdict(self, mask: int, found: Settled, confirmed: Judgement | None) -> tuple[TrialVerdict, str]:
        if found.won and not mask & self.taken:
            best = ", ".join(each.label or each.name for each in self.members())
            return (
                TrialVerdict.UNDECIDED,
                f"Faster by itself, but adds nothing measurable to {best}" if best else UNCONFIRMED,
            )
        if found.won:
            verdict, sentence = _confirmed(confirmed)
            worth, needed = self._of_run(self.taken, confirmed), 1 + self.min_gain
            if verdict is TrialVerdict.ADOPT and confirmed is not None:
                only = confirmed.verdict is TrialVerdict.STEP_ONLY if worth is None else worth.high < needed
                if only:
                    return TrialVerdict.STEP_ONLY, ONLY_STEP
                if worth is not None and worth.low <= needed:
                    return TrialVerdict.UNDECIDED, "Faster, but not adopted: whether the run gains enough is unclear"
            return verdict, sentence
        if found.won is None or found.speed is None:
            return TrialVerdict.UNDECIDED, "Unclear: more blocks should decide it"
        if found.speed.high < 1 / (1 + self.min_gain):
            return TrialVerdict.SLOWER, "Not faster, so its training was not compared"
        return TrialVerdict.NO_EFFECT, "Any gain is below --min-gain"

    def _judged(
        self, variant: Variant, mask: int, verdict: TrialVerdict, sentence: str, confirmed: Judgement | None = None
    ) -> Judgement:
        found, control = self.found_of(mask), blocks.ratios(self.record.blocks, 0, control=True)
        own = [each.step_ns for each in self.record.blocks if each.block == mask and not each.control]
        return Judgement(
            variant,
            verdict,
            Agreement.NOT_JUDGED,
            sentence,
            speed=found.speed,
            noise=blocks.noise_between(control) if len(control) else None,
            step_ns=sum(own) / len(own) if own else None,
            of_run=self._of_run(mask, confirmed if mask == self.taken else None),
        )

    def _of_run(self, mask: int, confirmed: Judgement | None) -> Estimate | None:
        """Speed-up of the run by a mask; None if steps are nearly all of it, or the blocks hold the rest, too.
        confirmed: as of `judgements`."""
        speed, between = self.found_of(mask).speed, confirmed.other if confirmed is not None else None
        if speed is None or not self.other.share or blocks.mixed(self.record.blocks, mask):
            return None
        return self.other.of_run(speed, between or UNCHANGED)


def _confirmed(confirmed: Judgement | None) -> tuple[TrialVerdict, str]:
    """Verdict on a variant that is faster in one process, from the confirming processes of its set."""
    if confirmed is None or confirmed.verdict in (TrialVerdict.FAILED, TrialVerdict.NOT_EXERCISED):
        why = f": {confirmed.sentence}" if confirmed is not None else ""
        return TrialVerdict.UNDECIDED, UNCONFIRMED + why
    if confirmed.agreement in BROKEN:
        return TrialVerdict.BROKE_PROMISE, confirmed.sentence
    if confirmed.agreement not in KEPT and not confirmed.variant.speed_alone:
        return TrialVerdict.UNDECIDED, f"Faster, but not adopted: {confirmed.sentence}"
    if confirmed.speed is not None and confirmed.speed.high < 1:
        return TrialVerdict.UNDECIDED, "Faster within one process, but measurably slower in its own processes"
    return TrialVerdict.ADOPT, f"{confirmed.training or confirmed.sentence} (processes of what was taken)"


def in_one_process(runner: TrialRunner) -> Switched | None:
    """Runs all switchable variants in one process, until they are decided or a share of the budget is spent; None if
    there are none, or the process is not possible. Raises what `execute` raises, except BudgetExhausted."""
    chosen = [each for each in runner.plan.variants if _switchable(each)]
    if not runner.switching or runner.plan.goal is not Goal.SPEED or runner.plan.compared is not None:
        return None
    if not runner.plan.step_seconds or not chosen:
        return None
    for _ in range(ATTEMPTS):
        run = _known(runner, chosen) or _run(runner, chosen)
        if run is None or run.switched.refused:
            return None
        record = run.switched
        if not run.failure:
            return _displayed(runner, chosen, record)
        failed = record.begun[-1] if record.begun else 0
        if not failed or failed.bit_count() > 1 or record.first_of(failed) is not None:
            return _displayed(runner, chosen, record) if record.blocks else None
        chosen = [each for number, each in enumerate(chosen) if number != failed.bit_length() - 1]
        if not chosen:
            return None
    return None


def _switchable(variant: Variant) -> bool:
    own = variant.changes and not (variant.sources or variant.command or variant.suspicion)
    return bool(own) and all(map(is_switchable, variant.changes))


def _displayed(runner: TrialRunner, chosen: Sequence[Variant], record: BlockRecord) -> Switched:
    """Result of a record. If time was up before the sets were decided, the best known one is taken."""
    where = course(record, chosen, runner.plan.min_gain)
    switched = Switched(tuple(chosen), record, where.taken, runner.plan.min_gain, runner.plan.other)
    if not where.going:
        return switched
    masks = [where.taken, *(1 << number for number in range(len(chosen)))]
    found = {mask: switched.found_of(mask) for mask in masks if mask}
    won = {mask: each.speed.value for mask, each in found.items() if each.won and each.speed is not None}
    return replace(switched, taken=max(won, key=lambda mask: won[mask], default=0))


def course(record: BlockRecord, chosen: Sequence[Variant], min_gain: float, left_ns: float = 0.0) -> blocks.Course:
    """Next variants of a process that switches between `chosen` ones. left_ns: its remaining time, ns."""
    rivals = [sum(1 << number for number, other in enumerate(chosen) if other.rivals(each)) for each in chosen]
    late = sum(1 << number for number, each in enumerate(chosen) if any(c.kind == "compile" for c in each.changes))
    return blocks.course(record, rivals, late, min_gain, left_ns)


def _known(runner: TrialRunner, chosen: Sequence[Variant]) -> Run | None:
    """Finished process of an earlier attempt at this trial, None without one. One that was cut short counts only if it
    failed."""
    names, gain = tuple(each.name for each in chosen), runner.plan.min_gain
    found = [each for each in runner.runs if each.switched_names == names]
    return next((each for each in found if each.failure or not course(each.switched, chosen, gain).going), None)


def _run(runner: TrialRunner, chosen: Sequence[Variant]) -> Run | None:
    """Runs the process; None if the budget ended it."""
    limit = SHARE * min(runner.budget.left(), 3600.0)
    switched = tuple(each.changes for each in chosen)
    options = VariantOptions(FOR_EVER, runner.plan.warm_up, limit, switched=switched)
    position = runner.next_position(0)
    label = ", ".join(each.label or each.name for each in chosen)
    ends = limit + STARTS * runner.plan.start_seconds + GRACE, runner.budget.until()
    scheduled = ScheduledRun(Variant(ONE_PROCESS, label=label), 0, 0, position, options, False, *ends)
    folder = runner.workspace.folder / VARIANTS / folder_of(scheduled)

    since = 0.0

    def follow(progress: Progress) -> None:
        nonlocal since
        runner.reported(scheduled, progress)
        record = blocks.read_blocks(folder / BLOCKS)
        since = since or (monotonic() if record.begun else 0.0)  # the probe counts from its warm-up on
        if record.blocks:
            left = limit - (monotonic() - since)
            steer(folder, course(record, chosen, runner.plan.min_gain, left * 1e9).going)

    runner.reported(scheduled, None)
    try:
        run = execute(runner.workspace, scheduled, follow)
    except BudgetExhausted:
        return None
    finally:
        runner.reported(None, None)
    run = replace(run, switched_names=tuple(each.name for each in chosen))
    runner.runs.append(run)
    append_result(runner.workspace.folder, run=run)
    return run


def steer(folder: Path, going: Sequence[int]) -> None:
    """Writes the masks of the variants that go on to a file that the process reads."""
    partial = folder / f"{GOING}.partial"
    partial.write_text("".join(f"{mask}\n" for mask in going), encoding="ascii")
    partial.replace(folder / GOING)


def preparing(first: FirstSteps | None) -> str:
    """Text on the extra time of a variant's first steps; "" for less than a second."""
    taken = first.preparing_ns if first is not None else 0
    return f"its first steps take {format_duration(taken)} longer" if taken >= 1_000_000_000 else ""
