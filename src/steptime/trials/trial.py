"""Central types of a trial: variants, runs, judgements and the budget.

All are plain data that is written to the results file line by line and read back from there, except the budget."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import inf, isfinite

from steptime.advice.fix import Goal, Promise
from steptime.changes import Change
from steptime.quantities import Estimate
from steptime.recording.parity import StepWork
from steptime.trials.blocks import NO_BLOCKS, BlockRecord
from steptime.trials.names import check_name, check_source

BASELINE, CONTROL = "baseline", "control"
"""Names of the variants that change nothing. The control is a second baseline that shows the noise."""
MIN_ROUNDS, MAX_ROUNDS = 2, 12
"""Least number of rounds for a decision, and most rounds, budget permitting. If processes differ by 5 %, a speed-up of
1.14 is adopted in 98 of 100 trials, after six rounds on average, and one of 1.5 mostly after two; a variant without an
effect in less than one, for any noise (simulated: benchmarks/results/rounds.md)."""
PATCH = "patch"
"""Name of the variant that consists of the patch only."""
BATCH = "batch-"
"""Prefix of the names of variants that set a batch size, which follows it."""


class TrialVerdict(Enum):
    ADOPT = "adopt"
    """Better at the trial's goal beyond noise and the least gain, with its promise about the numbers kept."""
    NO_EFFECT = "no effect"
    STEP_ONLY = "gain of the step only"
    """Faster steps beyond noise and the least gain, of which the run gains less than that."""
    SLOWER = "slower"
    MORE_MEMORY = "more memory"
    """Larger peak memory, in a trial for memory."""
    SUSPICIOUS = "suspicious"
    """Less work than the job's, or interference with the measurement: the speed means nothing."""
    NOT_REACHED = "not reached"
    """Loss not reached in twice the baseline's time."""
    BROKE_PROMISE = "broke its promise"
    """Numbers other than the fix promises, whatever the speed."""
    NOT_EXERCISED = "not exercised"
    """Change without anything in the job to act on."""
    FAILED = "failed"
    UNDECIDED = "undecided"


class Agreement(Enum):
    """Agreement of a variant's numbers with the baseline's."""

    SAME_BITS = "equal losses"
    SAME_CURVE = "losses within the band of other seeds"
    OTHER_STREAM = "another random stream, losses within the band of other seeds"
    APART = "losses outside the band of other seeds"
    DEAD_GRADIENTS = "gradients that are zero or missing"
    WILD_GRADIENTS = "gradients beyond tolerance"
    OTHER_WORK = "other batches, parameters or updates"
    LESS_WORK = "less work"
    NOT_SEEN = "no losses recorded"
    NOT_JUDGED = "losses are not compared"


@dataclass(frozen=True, slots=True)
class NumbersCheck:
    """Result of checking a variant's training. sentence: the reason in words."""

    agreement: Agreement
    sentence: str


@dataclass(frozen=True, slots=True)
class Variant:
    """Variant of the job to try. proposal: code of the fix ("" for a baseline). streams: words for the random numbers
    that the change may draw in another order ("" for none); other_data: these also select the batches. low_precision:
    gradients may differ by a low-precision dtype's rounding. predicted: speed-up, unit "1". sources: (path relative to
    the job's folder, new text); command: its own command, empty for the job's. suspicion: sentence on signs of
    cheating, "" for none. speed_alone: its training is not judged, as the user asked."""

    name: str
    changes: tuple[Change, ...] = ()
    proposal: str = ""
    label: str = ""
    promise: Promise = Promise.SAME_BITS
    streams: str = ""
    other_data: bool = False
    low_precision: bool = False
    predicted: Estimate | None = None
    sources: tuple[tuple[str, str], ...] = ()
    command: tuple[str, ...] = ()
    suspicion: str = ""
    speed_alone: bool = False

    def __post_init__(self) -> None:
        check_name(self.name)
        for path, _ in self.sources:
            check_source(path)

    @property
    def foreign(self) -> bool:
        """True for a user's own change (of files, or another command) without changes of steptime's. Variants of a lab
        are not foreign."""
        return not (self.proposal or self.changes or self.name in (BASELINE, CONTROL))

    @property
    def as_it_is(self) -> bool:
        """True for the unchanged job."""
        return not (self.changes or self.sources or self.command)

    def rivals(self, other: Variant) -> bool:
        """True if both set the same thing or write the same file, so that they exclude each other. A user's own changes
        are judged individually and have no rivals."""
        if self.foreign or other.foreign:
            return False
        mine, theirs = (
            {each.kind for each in variant.changes} | {path for path, _ in variant.sources} for variant in (self, other)
        )
        return bool(mine & theirs)


def batch_of(variant: Variant) -> int | None:
    """Batch size that a variant sets, None for any other variant."""
    return int(variant.name.removeprefix(BATCH)) if variant.name.startswith(BATCH) else None


AS_IT_IS = Variant(BASELINE)


@dataclass(frozen=True, slots=True)
class AppliedChange:
    """Outcome of a change in a process. applied: True if it could be made; exercised: True if it acted on something;
    detail: both in words."""

    kind: str
    applied: bool
    exercised: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class MachineLoad:
    """Load of the machine during a run, means over the telemetry. other_cpu: other processes' work, in CPUs; pressure:
    percent of time in which a task waited for a CPU; steal: CPUs that the hypervisor took away."""

    other_cpu: float = 0.0
    pressure: float | None = None
    steal: float | None = None
    device_throttled: bool = False
    other_device_users: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """Process of a variant, with what it measured. stage: 0 for the variants one by one, then one for each combination
    and for the patch. position: its place in the order of the stage. rehearsal: True if it ran with dropout off and
    gradient norms written, untimed.

    step_ns: durations of the steady steps in order, with the starts of loader workers and without evaluations. losses:
    per step from the first one on, the sum of those that its backwards started on, None if no backward was seen. norms:
    gradient norm of each parameter, a tuple for each of the first steps. failure: reason in words, with the job's last
    lines, "" for success. place: device that it ran on, if a trial uses several ("" for this machine): only runs of one
    place are compared in speed. outside: paths that it changed outside of its workspace. backwards, work: of each step
    from the first one on. passes: (class of a dataset, its length, most samples that a pass over it took). replaced:
    clocks and torch functions that it replaced. ended_early: True if it ended by itself before its steps were taken.
    metric: number that is judged in place of step times: one that it printed, or the seconds to a loss. samples: size
    of the largest dataset that it trains on, 0 if unknown. alternated: True if it took turns with the other processes
    of its round; turns: number of steady steps in each turn, () if unknown. phases: ns of each `Phase` in the mean step
    of a CPU. switched: measurements of a process that runs several variants in blocks; switched_names: names of these
    variants. exact: True for a rehearsal in float64. peaks: peak memory of each process that trained, bytes; peak_bytes
    is the largest. graph_breaks: number of lines at which torch.compile ended a graph. growth: growth of its memory,
    bytes per step, 0 if none is certain, None for few steps. clock: seconds on its clock for each second of the
    system's, None if the run was too short. other_ns: (kind, ns) of each rollout, evaluation and checkpoint after the
    warm-up, between the same two steps."""

    variant: str
    stage: int
    round: int
    position: int
    seed: int
    rehearsal: bool
    failure: str
    seconds: float
    step_ns: tuple[int, ...] = ()
    losses: tuple[float | None, ...] = ()
    norms: tuple[tuple[tuple[str, float | None], ...], ...] = ()
    peak_bytes: int | None = None
    peaks: tuple[int, ...] = ()
    start_seconds: float = 0.0
    compile_seconds: float = 0.0
    changes: tuple[AppliedChange, ...] = ()
    load: MachineLoad = MachineLoad()
    folder: str = ""
    place: str = ""
    outside: tuple[str, ...] = ()
    backwards: tuple[int, ...] = ()
    work: tuple[StepWork, ...] = ()
    passes: tuple[tuple[str, int, int], ...] = ()
    replaced: tuple[str, ...] = ()
    ended_early: bool = False
    metric: float | None = None
    samples: int = 0
    alternated: bool = False
    turns: tuple[int, ...] = ()
    phases: tuple[float, ...] = ()
    switched: BlockRecord = NO_BLOCKS
    switched_names: tuple[str, ...] = ()
    exact: bool = False
    graph_breaks: int = 0
    growth: float | None = None
    clock: float | None = None
    other_ns: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        for name in filter(None, (self.variant, self.folder, *self.switched_names)):
            check_name(name)


@dataclass(frozen=True, slots=True)
class Judgement:
    """Verdict on a variant. speed: baseline's time over the variant's, with a 95 % interval; memory: the same ratio of
    peaks, None if unknown. noise: factor, at least 1, by which the control may seem better or worse at the trial's
    goal. sentence: the reason, for a person. step_ns: mean step time, ns. training: sentence on the variant's training,
    "" if `sentence` has it. of_run: speed-up of the whole run, None if steps are nearly all of it or something else is
    compared. other: speed-up of the work between the steps, None unless it is beyond noise."""

    variant: Variant
    verdict: TrialVerdict
    agreement: Agreement
    sentence: str
    speed: Estimate | None = None
    noise: float | None = None
    step_ns: float | None = None
    rounds: int = 0
    peak_bytes: int | None = None
    memory: Estimate | None = None
    training: str = ""
    of_run: Estimate | None = None
    other: Estimate | None = None

    def gain(self, goal: Goal) -> Estimate | None:
        """Gain of the run at the goal, above 1 if the variant is better than the baseline; None if unknown."""
        return self.memory if goal is Goal.MEMORY else self.of_run or self.speed


TOGETHER = 3
"""Most variants between two baselines: the further apart these are, the less certain is the drift between them."""


def arrange(
    going: Sequence[Variant], baseline: Variant, control: Variant, *, reverse: bool, leads: bool, apart: bool = False
) -> list[list[Variant]]:
    """Blocks of one round; the variants of a block run one after the other on one device.

    leads: the block starts with a baseline (else the last run was one). apart: every block may run on another device,
    and so has baselines and a control of its own; else one block shares them, with the control in its middle."""
    middle = len(going) // 2
    order = [*going[:middle], control, *going[middle:]]
    if apart:
        blocks = [going[start : start + TOGETHER - 1] for start in range(0, len(going), TOGETHER - 1)]
        return [block for part in blocks for block in arrange(part, baseline, control, reverse=reverse, leads=True)]
    block = [baseline] if leads else []
    order = order[::-1] if reverse else order
    for start in range(0, len(order), TOGETHER):
        block += [*order[start : start + TOGETHER], baseline]
    return [block]


def in_turns(going: Sequence[Variant], baseline: Variant, control: Variant, *, reverse: bool) -> list[Variant]:
    """Order in which processes that take turns start; one baseline serves all of them."""
    order = [baseline, *going, control]
    return order[::-1] if reverse else order


def at_once(width: int, variants: int, needed: int) -> int:
    """Number of rounds to run at the same time with room for `width` blocks, at most the `needed` ones that every
    variant must have."""
    blocks = -(-variants // (TOGETHER - 1)) or 1
    return max(1, min(width // blocks, needed))


def processes_of(variants: int, *, alternating: bool = False) -> int:
    """Number of processes in a round: the variants, the control, and a baseline after each group; one baseline if they
    take turns."""
    return variants + 1 + (1 if alternating else -(-(variants + 1) // TOGETHER))


class BudgetExhausted(Exception):
    """Raised when a process was killed because the budget was spent: its run does not count, and no other starts."""


class Budget:
    """Time budget in seconds, which starts with its construction."""

    def __init__(self, seconds: float = inf) -> None:
        self.seconds = seconds
        self._end = self.now() + seconds

    def now(self) -> float:
        """Seconds of a monotonic clock."""
        return time.monotonic()

    def left(self) -> float:
        """Remaining seconds; negative once it is overrun."""
        return self._end - self.now()

    def until(self) -> float | None:
        """End of the budget in seconds since the epoch; None for an unlimited one."""
        left = self.left()
        return time.time() + left if isfinite(left) else None
