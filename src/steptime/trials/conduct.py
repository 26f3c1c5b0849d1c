"""Runs the arms of a trial in turns with baselines, within a budget, and keeps every result at once.

One law: what has been run is on disk before the next process starts; a trial that is interrupted goes on from there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from steptime.changes import ArmOptions
from steptime.errors import NothingMeasuredError
from steptime.remedies.remedy import Promise
from steptime.trials.execute import Stand, Turn, execute
from steptime.trials.judge import cannot_win, judge
from steptime.trials.results import Plan, ResultsFile
from steptime.trials.speed import LEAST_ROUNDS
from steptime.trials.trial import BASELINE, CONTROL, Arm, Judgement, Run, Verdict

MIN_ROUNDS, MAX_ROUNDS = 3, 6
"""Rounds before an arm can be decided, and at most: more would not make a machine quieter."""
TOGETHER = 3
"""Arms between two baselines: the further apart these are, the more a drift between them is a guess."""
SEEDS = tuple(range(8))
"""Of the baselines in order, which so span the band of losses; the arms and the control have the first of these."""
REHEARSED_STEPS = 5
FINGERPRINTS = 2
"""Steps of a rehearsal, and those of them whose gradients are written."""
SECONDS = 5.0
"""Of steady steps in a timed process."""
FEWEST, MOST = 24, 120
"""Steady steps of a timed process: enough for a loss curve, and no more than a curve needs."""
WARM_UP = 5
LIMIT = 60.0
"""Seconds after which a process ends with the steps that it has."""
DEADLINE = 300.0
"""Seconds, or DEADLINE_FACTOR times what a baseline takes, after which a process is ended: compilers take minutes."""
DEADLINE_FACTOR = 10.0
DECIDED = frozenset({Verdict.ADOPT, Verdict.NO_EFFECT, Verdict.SLOWER})
PROBE = Arm(BASELINE)

Patches = Mapping[str, Sequence[tuple[Path, str]]]
NOTHING: Patches = {}


@dataclass(frozen=True, slots=True)
class Notice:
    """What is about to run. eta: seconds until the end of the stage, as far as is known."""

    arm: Arm
    rehearsal: bool
    round: int
    steps: int
    eta: float | None


class Bench:
    """A trial while it runs. runs: all that is known, those of an earlier attempt among them."""

    def __init__(
        self,
        stand: Stand,
        plan: Plan,
        runs: Sequence[Run] = (),
        *,
        budget: float = float("inf"),
        tell: Callable[[Notice], None] = lambda _: None,
    ) -> None:
        self.stand, self.plan = stand, plan
        self.runs = list(runs)
        self.began_epoch_ns = time.time_ns()
        self._file = ResultsFile(stand.folder)
        self._end = time.monotonic() + budget
        self._tell = tell

    def left(self) -> float:
        """Seconds of the budget that are left."""
        return self._end - time.monotonic()

    def of(self, stage: int) -> tuple[Run, ...]:
        """The runs of a stage, in order."""
        return tuple(run for run in self.runs if run.stage == stage)

    # -- one process -----------------------------------------------------------------------------------------------

    def _run(self, turn: Turn, eta: float | None, patches: Patches) -> Run:
        self._tell(Notice(turn.arm, turn.rehearsal, turn.round, turn.options.steps, eta))
        run = execute(self.stand, turn, patches.get(turn.arm.name, ()))
        self.runs.append(run)
        self._file.run(run)
        return run

    def rehearse(self, stage: int, arm: Arm, patches: Patches = NOTHING) -> Run:
        """A short process with dropout off, whose gradients are written; one that was done already is not repeated."""
        done = next((run for run in self.of(stage) if run.arm == arm.name and run.rehearsal), None)
        if done is not None:
            return done
        options = ArmOptions(
            steps=REHEARSED_STEPS,
            warm_up=FINGERPRINTS,
            limit_seconds=LIMIT,
            dropout=False,
            fingerprint_steps=FINGERPRINTS,
        )
        turn = Turn(arm, stage, 0, len(self.of(stage)), options, rehearsal=True, deadline=self._deadline())
        return self._run(turn, None, patches)

    def time(self, stage: int, arm: Arm, round_: int, eta: float | None, patches: Patches = NOTHING) -> Run:
        """A timed process."""
        seed = SEEDS[0]
        if arm.name == BASELINE:
            earlier = sum(run.arm == BASELINE and not run.rehearsal for run in self.of(stage))
            seed = SEEDS[earlier] if earlier < len(SEEDS) else SEEDS[0]
        options = ArmOptions(
            steps=self._steps(), warm_up=WARM_UP, limit_seconds=LIMIT, seed=seed,
            seed_offset=seed,
        )  # fmt: skip
        turn = Turn(arm, stage, round_, len(self.of(stage)), options, deadline=self._deadline())
        return self._run(turn, eta, patches)

    def _steps(self) -> int:
        """Enough for SECONDS of training, by the rehearsal of the baseline."""
        rehearsed = [run for run in self.runs if run.arm == BASELINE and run.rehearsal and run.step_ns]
        if not rehearsed:
            return FEWEST
        return max(FEWEST, min(MOST, round(SECONDS * 1e9 / fmean(rehearsed[0].step_ns))))

    def _deadline(self) -> float:
        took = max((run.seconds for run in self.runs if run.arm == BASELINE), default=0.0)
        return max(DEADLINE, DEADLINE_FACTOR * took)

    # -- a stage ---------------------------------------------------------------------------------------------------

    def conduct(
        self, stage: int, arms: Sequence[Arm], baseline: Arm = PROBE, patches: Patches = NOTHING
    ) -> tuple[Judgement, ...]:
        """Tries arms against a baseline, and judges them.

        Arms that broke, changed nothing or cannot win drop out; the others are run in turns until they are decided, or
        the budget or MAX_ROUNDS is spent. Raises NothingMeasuredError where the baseline itself cannot be run.
        """
        self._check(self.rehearse(stage, baseline))
        tried: list[Arm] = []
        for arm in arms:
            if self.left() < self._cost(stage) * (1 + MIN_ROUNDS) and tried:
                break
            self.rehearse(stage, arm, patches)
            tried.append(arm)
        for round_ in range(self._rounds_done(stage), MAX_ROUNDS):
            going = [arm for arm in tried if not self._settled(stage, arm)]
            going = going[: self._affordable(stage, round_, len(going))]
            if not going:
                break
            self._round(stage, round_, going, baseline, patches)
        return self.settle(stage, arms)

    def settle(self, stage: int, arms: Sequence[Arm]) -> tuple[Judgement, ...]:
        """Judges what has been run of a stage, and keeps that."""
        judgements = tuple(self._judge(stage, arm) for arm in arms)
        self._file.judgements(stage, judgements)
        return judgements

    def _round(self, stage: int, round_: int, going: Sequence[Arm], baseline: Arm, patches: Patches) -> None:
        last = next((run for run in reversed(self.of(stage)) if not run.rehearsal), None)
        if last is None or last.arm != BASELINE or last.failure:
            self._check(self.time(stage, baseline, round_, self._eta(stage, round_, len(going)), patches))
        control = replace(baseline, name=CONTROL)
        order = [*going[: len(going) // 2], control, *going[len(going) // 2 :]]
        for group in _groups(order[::-1] if round_ % 2 else order):
            for arm in group:
                self.time(stage, arm, round_, self._eta(stage, round_, len(going)), patches)
            self._check(self.time(stage, baseline, round_, self._eta(stage, round_, len(going)), patches))

    def _settled(self, stage: int, arm: Arm) -> bool:
        runs = self.of(stage)
        if cannot_win(arm, runs, min_gain=self.plan.min_gain):
            return True
        judgement = judge(arm, runs, min_gain=self.plan.min_gain)
        return judgement.rounds >= MIN_ROUNDS and judgement.verdict in DECIDED

    def _judge(self, stage: int, arm: Arm) -> Judgement:
        runs = self.of(stage)
        judgement = judge(arm, runs, min_gain=self.plan.min_gain)
        if any(run.arm == arm.name for run in runs):
            return judgement
        return replace(judgement, verdict=Verdict.UNDECIDED, sentence="The budget was spent before it was tried")

    def _rounds_done(self, stage: int) -> int:
        return sum(run.arm == CONTROL and not run.rehearsal for run in self.of(stage))

    def _cost(self, stage: int) -> float:
        """Seconds of a timed process, by those of the stage that were run, else by what is known besides."""
        for runs in (self.of(stage), self.runs):
            timed = [run.seconds for run in runs if not run.rehearsal]
            if timed:
                return fmean(timed)
        return fmean(run.seconds for run in self.runs) + SECONDS if self.runs else 0.0

    def _processes(self, arms: int) -> int:
        """Of a round: the arms, the control, and a baseline behind each group."""
        return arms + 1 + -(-(arms + 1) // TOGETHER)

    def _affordable(self, stage: int, round_: int, arms: int) -> int:
        """How many of the arms, the first ones, the budget pays for. One round alone says nothing: arms are begun only
        where a second one can follow, and the first arm is then taken through both."""
        rounds = max(1, LEAST_ROUNDS - round_)
        for count in range(arms, 0, -1):
            if self.left() >= self._cost(stage) * self._processes(count) * rounds:
                return count
        return 1 if round_ < LEAST_ROUNDS and (round_ or self.left() > 0) else 0

    def _eta(self, stage: int, round_: int, arms: int) -> float:
        rounds = max(1, MIN_ROUNDS - round_)
        return min(max(0.0, self.left()), self._cost(stage) * self._processes(arms) * rounds)

    def _check(self, run: Run) -> None:
        if run.failure:
            raise NothingMeasuredError(
                "trial-baseline-failed",
                f"The job as it is could not be run for a trial: {run.failure}. Its output is in "
                f"{self.stand.folder / 'arms' / run.folder}; results so far are kept in {self.stand.folder}.",
            )


def _groups(order: Sequence[Arm]) -> Iterator[Sequence[Arm]]:
    for begin in range(0, len(order), TOGETHER):
        yield order[begin : begin + TOGETHER]


def combine(bench: Bench, judgements: Sequence[Judgement], first_stage: int = 1) -> tuple[Arm | None, Judgement | None]:
    """The adopted arms together, the best first, leaving out what adds nothing: (the arm, what it proved).

    Each further one is tried on top of those already taken; the last stage is all of them against the job as it is.
    """
    adopted = [each for each in judgements if each.verdict is Verdict.ADOPT and each.speed is not None]
    adopted.sort(key=lambda each: -(each.speed.value if each.speed is not None else 0.0))
    if not adopted:
        return None, None
    taken, stage = adopted[0].arm, first_stage
    for other in adopted[1:]:
        if {change.kind for change in other.arm.changes} & {change.kind for change in taken.changes}:
            continue  # another setting of the same thing
        if bench.left() <= 0:
            break
        both = together(taken, other.arm)
        (proved,) = bench.conduct(stage, (both,), baseline=replace(PROBE, changes=taken.changes))
        stage += 1
        if proved.verdict is Verdict.ADOPT:
            taken = both
    if taken is adopted[0].arm or bench.left() <= 0:
        return taken, adopted[0] if taken is adopted[0].arm else None
    (proved,) = bench.conduct(stage, (taken,))
    return taken, proved


def together(one: Arm, other: Arm) -> Arm:
    """Both arms' changes at once, promising what the weaker one does."""
    order = (Promise.SAME_BITS, Promise.SAME_CURVE, Promise.NEW_TRAINING)
    return Arm(
        name=f"{one.name}+{other.name}",
        changes=(*one.changes, *other.changes),
        proposal=f"{one.proposal} {other.proposal}",
        label=f"{one.label}; {other.label}",
        promise=max(one.promise, other.promise, key=order.index),
        streams=", ".join(filter(None, (one.streams, other.streams))),
        other_data=one.other_data or other.other_data,
        low_precision=one.low_precision or other.low_precision,
    )
