"""Runs the variants of a trial in turns with baselines, within a budget, and saves every result at once.

Two laws. Each finished run (a process, or a round whose processes take turns) is on disk before the next starts, so
that an interrupted trial can continue from there. An executor decides where and when something runs, never its
meaning."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, inf
from statistics import fmean

from steptime.advice.fix import Goal, Promise
from steptime.changes import Change, VariantOptions
from steptime.errors import NothingMeasuredError
from steptime.launcher.outcome import Progress
from steptime.quantities import format_count, format_duration
from steptime.recording.inventory import VARIANTS
from steptime.trials.containment import Workspace, ground_of, named
from steptime.trials.execute import FEWEST_STEPS, ScheduledRun
from steptime.trials.executor import Block, Executor, LocalExecutor
from steptime.trials.judge import (
    LEAST_ROUNDS,
    asks_for_rehearsal,
    cannot_win,
    is_proved,
    judge,
    next_in_float64,
    overtaken,
    side_by_side,
)
from steptime.trials.parity import LEAST_PAIRS
from steptime.trials.results import Plan, append_result
from steptime.trials.trial import (
    AS_IT_IS,
    BASELINE,
    CONTROL,
    MAX_ROUNDS,
    MIN_ROUNDS,
    Agreement,
    Budget,
    BudgetExhausted,
    Judgement,
    Run,
    TrialVerdict,
    Variant,
    arrange,
    at_once,
    in_turns,
    processes_of,
)
from steptime.trials.until_loss import going_on, longest


def combine(runner: TrialRunner, judgements: Sequence[Judgement]) -> Variant | None:
    """Combination of adopted variants that pays; None if none was adopted. Each further variant is tried on top of
    those already taken; the last stage compares all of them with the unchanged job."""
    gains = [(each.gain(runner.plan.goal), each.variant) for each in judgements if each.verdict is TrialVerdict.ADOPT]
    ordered = sorted(((gain.value, variant) for gain, variant in gains if gain is not None), key=lambda pair: -pair[0])
    if not ordered:
        return None
    best, *others = (variant for _, variant in ordered)
    taken, stage = best, 1
    for other in others:
        if taken.rivals(other):
            continue
        if runner.budget.left() <= 0:
            break
        both = together(taken, other)
        before = replace(AS_IT_IS, changes=taken.changes, sources=taken.sources)
        (proved,) = runner.conduct(stage, (both,), baseline=before, later=PROOF)
        stage += 1
        if proved.verdict is TrialVerdict.ADOPT:
            taken = both
    if taken is not best and runner.budget.left() > 0:
        runner.conduct(stage, (taken,), later=PROOF)
    return taken


def together(one: Variant, other: Variant) -> Variant:
    """Variant with the changes of both, and the weaker of their promises."""
    order = (Promise.SAME_BITS, Promise.SAME_CURVE, Promise.NEW_TRAINING)
    return Variant(
        name=f"{one.name}+{other.name}",
        changes=(*one.changes, *other.changes),
        proposal=f"{one.proposal} {other.proposal}",
        label=f"{one.label}; {other.label}",
        promise=max(one.promise, other.promise, key=order.index),
        streams=", ".join(filter(None, (one.streams, other.streams))),
        other_data=one.other_data or other.other_data,
        low_precision=one.low_precision or other.low_precision,
        sources=(*one.sources, *other.sources),
    )


SEEDS = tuple(range(13))
"""Seeds of the rounds, in order: each variant is compared with baselines and a control of its own seed. The last seed
is that of the very first baseline, which adds one more run to the band of losses."""
REHEARSED_STEPS = 5
FINGERPRINTS = 2
"""Steps of a rehearsal (REHEARSED_STEPS), and the steps of it whose gradients are written (FINGERPRINTS)."""
SECONDS, SECONDS_IN_TURNS = 5.0, 2.0
"""Seconds of steady steps in a timed process; in one that takes turns, whose pairs of turns meet the same machine: then
processes differ more than their steps do, and two more of them tell more than longer ones."""
FEWEST, MOST = 24, 120
"""Bounds on a timed process's steady steps: enough for a loss curve, and no more than a curve needs."""
MOST_SLICED = 600
"""Upper bound on steady steps of a process that takes turns or starts slowly: they average out the machine's
changes."""
START_SHARE = 0.5
"""Steady time of a process as a fraction of its start-up time, so that a slow start is worth it. On a virtual machine
with an H200, processes that started for 9 s were timed for 0.6 s, in which the CPU alone made them differ by 6 %."""
ELSEWHERE = 2.0
"""Ratio of rehearsed to recorded step time that shows another machine: on the same machine, five steps differ by
less."""
LIMIT = 60.0
"""Seconds after which a process ends with the steps that it has, if these are at least FEWEST_STEPS."""
DEADLINE = 300.0
"""Seconds, or DEADLINE_FACTOR times a baseline's duration, after which a process is killed: compilers take minutes."""
DEADLINE_FACTOR = 10.0
DECIDED = frozenset(
    {
        TrialVerdict.ADOPT,
        TrialVerdict.NO_EFFECT,
        TrialVerdict.STEP_ONLY,
        TrialVerdict.SLOWER,
        TrialVerdict.MORE_MEMORY,
    }
)
LEAST = {Goal.SPEED: (LEAST_ROUNDS, 1), Goal.MEMORY: (1,)}
"""Least number of rounds with an estimate, and of those that are run where nothing is timed yet."""
AFTER = {Goal.SPEED: LEAST_ROUNDS, Goal.MEMORY: 0}
"""Rounds that must be paid for where a further variant is rehearsed: a rehearsal has peaks, and no speed."""
SHARE = 1 / 3
"""Upper bound on the fraction of the budget that single fixes leave to their combination and to the patch."""
PROOF, PROOF_REHEARSALS = 9, 2
"""Least number of processes that prove the patch, in two rounds, and how many of them are rehearsals."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Progress notice about a run: `done` of `steps` steps are over. eta: expected seconds until every variant has been
    through the rounds that can decide it, afterwards until this round ends; None if unknown. starts: True if the run
    has just started."""

    scheduled: ScheduledRun
    steps: int
    done: int
    eta: float | None
    starts: bool


def held_ahead(variant: Variant) -> int:
    """Number of batches that a variant's loader workers prefetch. Steps served from these do not show how fast the
    workers are, so they are warm-up."""

    def number(change: Change, name: str, otherwise: int) -> int:
        value = change.argument(name)
        return value if isinstance(value, int) else otherwise

    loaders = [change for change in variant.changes if change.kind == "loader"]
    return max((number(each, "num_workers", 0) * number(each, "prefetch_factor", 2) for each in loaders), default=0)


TOO_SHORT, BUDGET_EXHAUSTED = "The rest of the budget is too short for it", "The budget was spent before it was tried"
"""Reasons why a variant was not run at all."""


class TrialRunner:
    """Runner of a trial. runs: all known runs, earlier attempts included. notify: function that gets each notice, or
    None when nothing runs. switching: True if suitable variants are tried in one process (`switched`)."""

    def __init__(
        self,
        workspace: Workspace,
        plan: Plan,
        runs: Sequence[Run] = (),
        *,
        budget: Budget | None = None,
        executor: Executor | None = None,
        notify: Callable[[Notice | None], None] = lambda _: None,
    ) -> None:
        self.workspace, self.plan, self.runs = workspace, plan, list(runs)
        self._end, self._too_short = 0, 0.0  # position behind what is needed, or runs; seconds that were not left
        self.budget = budget or Budget()
        self._executor: Executor = executor or LocalExecutor()
        self._notify, self.switching = notify, False

    def of(self, stage: int) -> tuple[Run, ...]:
        """Runs of a stage, in order. The unchanged job's rehearsal counts in every stage without one of its own."""
        own = tuple(run for run in self.runs if run.stage == stage)
        if any(run.variant == BASELINE and run.rehearsal for run in own):
            return own
        return tuple(run for run in self.runs if (run.stage, run.variant, run.rehearsal) == (0, BASELINE, True)) + own

    def conduct(
        self,
        stage: int,
        variants: Sequence[Variant],
        baseline: Variant = AS_IT_IS,
        later: int = 0,
        *,
        anyway: bool = False,
    ) -> tuple[Judgement, ...]:
        """Tries variants against a baseline, and judges them.

        later: number of processes that the budget must still pay for afterwards, if a variant won here, or `anyway`.
        Variants that broke, changed nothing or cannot win drop out; the others run in turns until they are decided, or
        the budget or MAX_ROUNDS is spent. Raises NothingMeasuredError if the baseline itself cannot be run."""
        try:
            tried = self._rehearsed(stage, variants, baseline, later)
            self._rounds(stage, tried, baseline, (later, anyway))
        except BudgetExhausted:
            pass  # what was run until then is judged
        return self.settle(stage, variants)

    def settle(self, stage: int, variants: Sequence[Variant]) -> tuple[Judgement, ...]:
        """Judgements of the variants from the runs of a stage, which are also saved."""
        known, left = {run.variant for run in self.of(stage)}, self.budget.left()
        judged = [_ended(self._proved(stage, each), left, self._too_short, each.name in known) for each in variants]
        return keep(self, stage, side_by_side(judged, self.plan.goal))

    def _rehearsed(self, stage: int, variants: Sequence[Variant], baseline: Variant, later: int) -> tuple[Variant, ...]:
        """Rehearses variants as far as the budget pays for their rehearsal and rounds, and returns these. Where one
        process runs at a time they go one by one, because the first expensive one may be the last. A user's own changes
        are all rehearsed before any is timed, which rejects most of the wrong ones. A command without steps has no
        rehearsal."""
        if self.plan.metric is not None:
            return tuple(variants)
        first = not self._known(stage, BASELINE) or (
            not baseline.as_it_is and not any(run.stage == stage and run.rehearsal for run in self.runs)
        )
        at_once = self._executor.at_once
        handed = [each for each in variants if each.foreign or (first and at_once > 1 and each is variants[0])]
        self._rehearse(stage, [baseline] * first + [each for each in handed if not self._known(stage, each.name)])
        tried: list[Variant] = []
        for start in range(0, len(variants), width := max(self._executor.width, at_once)):
            several = variants[start : start + width]
            alive = [*(variant for variant in tried if not self._settled(stage, variant)), *several]
            needed = self._seconds(stage) + AFTER[self.plan.goal] * self._round_seconds(stage, alive)
            settled = all(self._known(stage, each.name) and self._settled(stage, each) for each in several)
            if not settled and self._left(stage, later if tried else 0) <= (needed if tried else 0.0):
                self._too_short = needed
                break
            self._rehearse(stage, [variant for variant in several if not self._known(stage, variant.name)])
            while self.plan.compared is None and (
                asked := next_in_float64(several, self.of(stage), baseline, at_once=at_once > 1)
            ):
                self._rehearse(stage, asked, exact=True)
            while asks_for_rehearsal(several, self.of(stage)):
                self._rehearse(stage, (baseline,))
            tried += several
        return tuple(tried)

    def _rehearse(self, stage: int, variants: Sequence[Variant], *, exact: bool = False) -> None:
        self._go([[self._rehearsal(stage, each, number, exact=exact)] for number, each in enumerate(variants)])

    def _rounds(self, stage: int, tried: Sequence[Variant], baseline: Variant, after: tuple[int, bool]) -> None:
        later, anyway = after
        while (round_ := _rounds_done(self.of(stage))) < MAX_ROUNDS:
            judged = [self._proved(stage, variant) for variant in tried]
            settled = [each for each in judged if self._settled(stage, each.variant)]
            open_ = [each for each in judged if not (each in settled or overtaken(each, settled, self.plan.goal))]
            going = [each.variant for each in sorted(open_, key=partial(_promise, self.plan.goal))]
            won = any(each.verdict is TrialVerdict.ADOPT for each in judged)
            paid = self._affordable(stage, round_, going, later if won or anyway or round_ < LEAST_ROUNDS else 0)
            self._too_short = self._round_seconds(stage, going[:1]) if going and not paid else 0.0
            if not paid:
                return
            self._round(stage, round_, paid, baseline)

    def _round(self, stage: int, round_: int, going: Sequence[Variant], baseline: Variant) -> None:
        """Runs one round, or as many at once as the executor has room for."""
        apart, alternating = self._executor.width > 1, self._alternating(len(going))
        control = replace(baseline, name=CONTROL)
        last = next((run for run in reversed(self.of(stage)) if not run.rehearsal), None)
        leads = apart or alternating or last is None or last.variant != BASELINE or bool(last.failure)
        rounds = range(round_, min(MAX_ROUNDS, round_ + at_once(self._executor.width, len(going), MIN_ROUNDS - round_)))
        blocks: list[list[ScheduledRun]] = []
        planned: list[ScheduledRun] = []
        for number in rounds:
            back = bool(number % 2)
            in_blocks = arrange(going, baseline, control, reverse=back, leads=leads, apart=apart)
            for block in [in_turns(going, baseline, control, reverse=back)] if alternating else in_blocks:
                first = len(planned)
                for variant in block:
                    planned.append(self._turn(stage, number, variant, planned, len(block) if alternating else 0))
                blocks.append(planned[first:])
        alone = leads and not apart and not alternating
        further = max(0, MIN_ROUNDS - rounds.stop) * (len(planned) // len(rounds) - alone)
        self._end = self.next_position(stage) + len(planned) + further
        self._go(blocks)

    def _go(self, blocks: Sequence[Block]) -> None:
        """Runs blocks, and saves each run. Raises BudgetExhausted; NothingMeasuredError if a baseline failed."""
        try:
            with closing(self._executor.run(self.workspace, blocks, self.reported)) as runs:
                for run in runs:
                    self.runs.append(run)
                    append_result(self.workspace.folder, run=run)
                    _checked(run, self.workspace, self.plan)
        finally:
            self.reported(None, None)

    def reported(self, scheduled: ScheduledRun | None, progress: Progress | None) -> None:
        """Forwards the start or the progress of a run to `notify`; None if nothing runs any more."""
        if scheduled is None:
            return self._notify(None)
        steps = scheduled.options.steps + scheduled.options.warm_up
        done = min(progress.steps, steps) if progress is not None else 0
        eta = None
        if not scheduled.rehearsal:
            expected = (self._end - scheduled.position) * self._seconds(scheduled.stage) / self._executor.width
            eta = min(max(0.0, self.budget.left()), expected)
        self._notify(Notice(scheduled, steps, done, eta, progress is None))

    def _alternating(self, variants: int) -> bool:
        """True if the processes of a round with this number of variants take turns."""
        if self.plan.compared is not None:
            return False
        peak = max((run.peak_bytes or 0 for run in self.runs), default=0)
        return self._executor.alternates(self.workspace, self._usual(), peak, processes_of(variants, alternating=True))

    def _turn(
        self, stage: int, round_: int, variant: Variant, planned: Sequence[ScheduledRun], among: int
    ) -> ScheduledRun:
        """Schedules a timed process. planned: earlier ones that have not run yet. among: number of processes that take
        turns, 0 for none."""
        earlier = [run.variant for run in self.of(stage) if not run.rehearsal] + [each.variant.name for each in planned]
        first = variant.name == BASELINE and BASELINE not in earlier
        seed = SEEDS[-1 if first else round_ % (len(SEEDS) - 1)]
        warm_up = self.plan.warm_up + held_ahead(variant)
        steps, limit = timed_steps(self._usual(), self.plan.start_seconds, among), self._limit() * max(1, among)
        options = VariantOptions(steps, warm_up, limit, seed=seed, seed_offset=seed, alternating=among > 0)
        options = going_on(options, self.plan.until_loss)
        position, ends = self.next_position(stage) + len(planned), (self.deadline(), self.budget.until())
        return ScheduledRun(variant, stage, round_, position, options, False, *ends, self.plan.metric, self._usual())

    def _rehearsal(self, stage: int, variant: Variant, ahead: int, *, exact: bool = False) -> ScheduledRun:
        """Schedules a rehearsal: a short process with dropout off, whose gradients are written."""
        steps, limit = FINGERPRINTS, self._limit()
        options = VariantOptions(REHEARSED_STEPS, steps, limit, dropout=False, fingerprint_steps=steps, exact=exact)
        ends = self.deadline(), self.budget.until()
        return ScheduledRun(variant, stage, 0, self.next_position(stage) + ahead, options, True, *ends)

    def _known(self, stage: int, variant: str) -> bool:
        """True if a variant's rehearsal is over. A failed baseline does not count: it may succeed the next time."""
        own = (run for run in self.of(stage) if run.variant == variant and run.rehearsal and not run.exact)
        return any(variant != BASELINE or not run.failure for run in own)

    def next_position(self, stage: int) -> int:
        """Position in the stage after all finished runs."""
        return 1 + max((run.position for run in self.of(stage)), default=-1)

    def _usual(self) -> float:
        return usual_seconds(self.plan.step_seconds, self.runs)

    def _limit(self) -> float:
        if self.plan.until_loss is not None:
            return longest(self.runs, self.budget.left() / (1 + LEAST_ROUNDS * processes_of(1)))
        return max(LIMIT, 2 * FEWEST_STEPS * self._usual())

    def deadline(self) -> float:
        """Seconds after which a process counts as hung."""
        return deadline_of(self.plan, self.runs) + self._limit()

    def _settled(self, stage: int, variant: Variant) -> bool:
        judgement = self._proved(stage, variant)
        if cannot_win(judgement, min_gain=self.plan.min_gain, goal=self.plan.goal):
            return True
        if variant.promise is Promise.NEW_TRAINING:  # an upper bound or a throughput, which no round makes a win
            return judgement.rounds >= LEAST_ROUNDS
        return judgement.verdict in DECIDED and judgement.rounds >= least_rounds(judgement, self.of(stage))

    def _proved(self, stage: int, variant: Variant) -> Judgement:
        plan, judged = self.plan, partial(judge, variant, self.of(stage), other=self.plan.other)
        return judged(min_gain=plan.min_gain, goal=plan.goal, metric=plan.compared, least_ns=plan.least_step_ns)

    def _seconds(self, stage: int, variant: str = BASELINE) -> float:
        """Expected seconds of a variant's timed process: as its last one, else extrapolated from its rehearsal, else as
        the unchanged job."""
        for runs in (self.of(stage), self.runs):
            own = [run for run in runs if run.variant == variant]
            timed = [run.seconds for run in own if not run.rehearsal]
            if timed:
                return timed[-1]  # what it compiles is in a cache by then
            if own:
                steps = timed_steps(self._usual(), self.plan.start_seconds, self._alternating(1))
                more = (steps - REHEARSED_STEPS + self.plan.warm_up - FINGERPRINTS) * self._usual()
                return min(run.seconds for run in own) + max(0.0, more)  # the first one may have compiled
        return self._seconds(stage) if variant != BASELINE else self.plan.start_seconds

    def _round_seconds(self, stage: int, variants: Sequence[Variant]) -> float:
        """Expected seconds of a round of these variants. Processes that take turns start some at a time, but step one
        by one."""
        alternating = self._alternating(len(variants))
        others = processes_of(len(variants), alternating=alternating) - len(variants)
        names = [*(variant.name for variant in variants), *[BASELINE] * others]
        steps = timed_steps(self._usual(), self.plan.start_seconds, self._alternating(1)) * self._usual()
        processes = [(self._seconds(stage, name), _stepping(self.of(stage), name, steps)) for name in names]
        return _overlapping(processes, self._executor.at_once if alternating else 1) / self._executor.width

    def _left(self, stage: int, later: int) -> float:
        return self.budget.left() - min(later * self._seconds(stage), SHARE * self.budget.seconds)

    def _affordable(self, stage: int, round_: int, going: Sequence[Variant], later: int) -> Sequence[Variant]:
        """First ones of these variants, as many as the budget pays for. A single round proves nothing about speed, so a
        variant starts only if a second round can follow. If nothing is timed yet, one round at least shows how long
        steps take. The first variant may use the reserve of later stages, and so may all while nothing was won."""
        timed = [run.variant for run in self.of(stage) if not run.rehearsal]
        for least, count in itertools.product(LEAST[self.plan.goal][: 1 if round_ else None], range(len(going), 0, -1)):
            left = self._left(stage, later if count > 1 or round_ >= LEAST_ROUNDS else 0)
            rounds = max(1, *(least - timed.count(variant.name) for variant in going[:count]))
            if left >= self._round_seconds(stage, going[:count]) * rounds:
                return going[:count]
        return ()


def _promise(goal: Goal, judgement: Judgement) -> float:
    """Sort key for a budget that does not pay for all: variants without a known gain first, then by falling gain."""
    gain = judgement.gain(goal)
    return -gain.value if gain is not None else -inf


def _ended(judgement: Judgement, left: float, needed: float, ran: bool) -> Judgement:
    """Judgement; if it is undecided, with the reason why nothing more was run. left, needed: seconds."""
    if not ran:
        reason = TOO_SHORT if left > 0 else BUDGET_EXHAUSTED
        return replace(judgement, verdict=TrialVerdict.UNDECIDED, sentence=reason)
    if judgement.verdict is not TrialVerdict.UNDECIDED or not needed or judgement.rounds >= MAX_ROUNDS:
        return judgement
    had, round_ = (format_duration(1e9 * max(0.0, seconds)) for seconds in (left, needed))
    rounds = format_count(max(1, LEAST_ROUNDS - judgement.rounds), "round")
    words = f"{judgement.sentence}; the {had} that were left are too short for {rounds} of {round_}"
    return replace(judgement, sentence=words)


def least_rounds(judgement: Judgement, runs: Sequence[Run]) -> int:
    """Number of rounds that decide a judgement. A gain whose losses are only similar to the job's needs enough pairs
    with the same seed to compare them."""
    exact = judgement.agreement is Agreement.SAME_BITS or is_proved(judgement.variant, runs)
    return MIN_ROUNDS if exact or judgement.verdict is not TrialVerdict.ADOPT else LEAST_PAIRS


def usual_seconds(recorded: float, runs: Sequence[Run]) -> float:
    """Seconds per step of the unchanged job, from its last timed process. Before one has run, the recording's value,
    which has many steps, or the rehearsal's shortest step if that is far longer, as on another machine. A shorter
    rehearsal says little, because a CPU runs ahead of a device."""
    plain = [run for run in runs if run.variant == BASELINE and not run.exact and run.step_ns]
    timed = [run for run in plain if not run.rehearsal]
    if timed:
        return fmean(timed[-1].step_ns) / 1e9
    here = min(plain[0].step_ns) / 1e9 if plain else recorded
    return here if here > ELSEWHERE * recorded else recorded


def deadline_of(plan: Plan, runs: Sequence[Run]) -> float:
    """Seconds, on top of its steps, after which a process counts as hung."""
    took = max((run.seconds for run in runs if run.variant == BASELINE), default=0.0)
    if plan.metric is not None and not took:
        return inf  # nobody knows how long it takes: the budget ends it
    return max(DEADLINE, DEADLINE_FACTOR * took, DEADLINE_FACTOR * plan.start_seconds)


def keep(runner: TrialRunner, stage: int, judgements: tuple[Judgement, ...]) -> tuple[Judgement, ...]:
    """Writes a stage's judgements to disk, and returns them once the workspaces of its processes have been removed."""
    ground_of(runner.workspace).janitor.await_cleared()
    for each in judgements:
        append_result(runner.workspace.folder, judgement=each, stage=stage)
    return judgements


def _rounds_done(runs: Sequence[Run]) -> int:
    return len({run.round for run in runs if run.variant == CONTROL and not run.rehearsal})


def _stepping(runs: Sequence[Run], variant: str, otherwise: float) -> float:
    """Seconds of the steady steps of a variant's last timed process; otherwise: of one that has not run."""
    timed = [run for run in runs if run.variant == variant and not run.rehearsal]
    return sum(timed[-1].step_ns) / 1e9 if timed else otherwise


def _overlapping(processes: Sequence[tuple[float, float]], at_once: int) -> float:
    """Seconds of processes of which `at_once` start at the same time, each by its (seconds, those of its steps)."""
    starting = fmean(max(0.0, whole - steps) for whole, steps in processes)
    return sum(whole for whole, _ in processes) - (len(processes) - ceil(len(processes) / at_once)) * starting


def timed_steps(usual: float, start: float, among: int = 0) -> int:
    """Number of steady steps of a timed process, enough for SECONDS (SECONDS_IN_TURNS) of training. usual: seconds per
    step, 0 if unknown; start: seconds to the first step; among: number of processes that take turns, 0 for none."""
    if not usual:
        return FEWEST
    worth = MOST_SLICED if among else max(MOST, round(START_SHARE * start / usual))
    return max(FEWEST, min(worth, MOST_SLICED, round((SECONDS_IN_TURNS if among else SECONDS) / usual)))


def seconds_for(plan: Plan, rehearsals: int, timed: int, rounds: int, *, forking: bool, at_once: int = 1) -> float:
    """Expected seconds of `rehearsals` rehearsals and, per round, `timed` timed processes, before any has run. forking:
    True if they are forks of a process that imports torch once per round. at_once: number that start together."""
    importing = plan.importing_seconds if forking else 0.0
    start = plan.start_seconds - importing
    steps = timed_steps(plan.step_seconds, start, among=forking) + plan.warm_up
    rehearsed = (REHEARSED_STEPS + FINGERPRINTS) * plan.step_seconds
    of_steps = rehearsals * rehearsed + timed * steps * plan.step_seconds
    return (rehearsals + timed) * start / at_once + of_steps + rounds * importing


def _checked(run: Run, workspace: Workspace, plan: Plan) -> None:
    """Raises NothingMeasuredError for a run that ends the trial: it wrote outside its workspace, or a baseline
    failed."""
    if run.outside and not workspace.uncontained:
        raise NothingMeasuredError(
            "not-contained",
            f"A trial process changed {named(run.outside)}, outside its workspace, so steptime stopped the "
            "trial. Check these files; --resume with --uncontained continues anyway.",
        )
    if run.variant == BASELINE and run.failure and not run.exact:
        raise NothingMeasuredError(
            "trial-baseline-failed",
            f"The unchanged job failed in the trial: {run.failure}. Its output is in "
            f"{workspace.folder / VARIANTS / run.folder}; results so far are in {workspace.folder}.",
        )
    if plan.until_loss is not None:
        plan.until_loss.check(run)
