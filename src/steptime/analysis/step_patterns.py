"""Patterns that no mean of the steps shows: a level that changes once and stays, and steps that are slow every k-th
time."""

from __future__ import annotations

from dataclasses import dataclass
from math import erfc, exp, sqrt

import numpy as np

from steptime.analysis.timeline import Phase, Steps
from steptime.arrays import Bool, Float64, Int64
from steptime.quantities import TO_DEVIATION, SourceLine

LEAST_STEPS = 30
"""Fewest steady steps in which a pattern is looked for."""
LEAST_LEVEL = 8
"""Fewest steps on either side of a change."""
BY_CHANCE = 0.001
"""Probability above which a change may be chance."""
LEAST_CHANGE, APART = 0.15, 0.8
"""LEAST_CHANGE: fraction of the earlier step by which a step must change. APART: fraction of all (earlier, later) pairs
of steps whose later step must be longer, however widely one side scatters."""
AT_ONCE = 0.5
"""Fraction of a change that must be between the steps just before and just after it; otherwise it is a drift."""
MOSTLY = 0.6
"""Fraction of the step's growth that one phase must have. If all phases grow, the machine is slower and not the job."""


PARTS = 5
"""Parts of the run: gradual growth goes from each part to the next."""
LEAST_GROWTH = 0.3
"""Least gradual growth, as a fraction of the first part's step: a machine that warms up slows down by less."""
BACK = 0.05
"""Fraction of the whole growth by which a part may be below the part before it."""
UNHIDDEN = 0.5
"""Fraction of the growth of the phase, as a ratio: what the other phases grew by at most. A machine that becomes slower
slows all of them."""
NEARLY_ALONE, DOUBLED = 0.1, 2.0
"""Fraction of the step: where the other phases take less, what they grew by is chance. The phase itself must be so many
times as long then."""
FEWEST_GROWING = 15
"""Steps that show a phase that grows by half, step by step, three in each part."""
MUCH = 1.5
"""Times the step before, for one that grows."""


@dataclass(frozen=True, slots=True)
class LastingChange:
    """A change of the steps' time for good. step: first step of the new level, from 1, among `steps` steps; epoch: its
    epoch, None if no loader shows it. before, now: median step before and after, ns; phase: phase that grew, by
    `growth` ns. share: fraction of the growth that the mean step contains. line: line that takes more time than before,
    by line_growth ns. gradual: True if each step grew a little, by `by_step` ns; then before and now are the first and
    the last fifth of the run. carried: variable that carries the graph of each step into the next, at the
    line; "" if none was found. longer: container that grew by `entries` per step, filled at the line `filled`: the one
    that the line names or, without a line, the fastest growing one."""

    step: int
    steps: int
    epoch: int | None
    phase: str
    before: float
    now: float
    growth: float
    share: float
    line: SourceLine | None = None
    line_growth: float = 0.0
    gradual: bool = False
    by_step: float = 0.0
    carried: str = ""
    longer: str = ""
    entries: float = 0.0
    filled: SourceLine | None = None

    @property
    def grows_much(self) -> bool:
        """True if steps grow by half or more, so that nothing else that is reported of a step matters as much."""
        return self.now >= MUCH * self.before


def find_change(steps: Steps) -> LastingChange | None:
    """Largest lasting growth of one phase, sudden or gradual, whichever describes the steps better; None if there is
    neither."""
    steady = np.flatnonzero(steps.steady)
    sudden, gradual = (
        max(filter(None, (look(steps, steady, phase) for phase in Phase)), key=lambda each: each.growth, default=None)
        if len(steady) >= least
        else None
        for look, least in ((_of_phase, LEAST_STEPS), (_bit_by_bit, FEWEST_GROWING))
    )
    if sudden is None or gradual is None:
        return sudden or gradual
    values = steps.phases[steady, Phase[gradual.phase.upper()]].astype(np.float64)
    return gradual if _drifts(values, int(np.searchsorted(steady, sudden.step - 1))) else sudden


def _drifts(values: Float64, at: int) -> bool:
    """True if a straight line is nearer to the values than one level before `at` and another one after it."""
    number = np.arange(len(values))
    line = np.polyval(np.polyfit(number, values, 1), number)
    levels = np.where(number < at, np.median(values[:at]), np.median(values[at:]))
    return float(np.abs(values - line).sum()) < float(np.abs(values - levels).sum())


def _bit_by_bit(steps: Steps, steady: Int64, phase: Phase) -> LastingChange | None:
    """Growth of a phase from each fifth of the run to the next, None if it does not grow steadily. Steps of the first
    fifth count even if the probe slowed them: that can only hide growth."""
    usual_steps, others = steady, (steps.duration - steps.phases[:, phase])[steady].astype(np.float64)
    mean = float(steps.phases[steady, phase].mean())
    early = np.flatnonzero(steps.timed & ~steps.warm_up)
    steady = np.union1d(usual_steps, early[early < len(steps.start) // PARTS])
    values, whole = steps.phases[steady, phase].astype(np.float64), steps.duration[steady].astype(np.float64)
    levels, companions = _levels(values), _levels(others)
    usual, *_, now = _levels(whole)
    growth = levels[-1] - levels[0]
    if growth < max(LEAST_GROWTH * usual, MOSTLY * (now - usual)) or np.diff(levels).min() < -BACK * growth:
        return None
    doubled = levels[-1] >= DOUBLED * levels[0]
    if len(steady) < LEAST_STEPS and not (doubled or (levels[-1] >= MUCH * levels[0] and _chance(values) <= BY_CHANCE)):
        return None
    alone = doubled and companions[0] < NEARLY_ALONE * usual
    if not alone and (companions[-1] - companions[0]) * levels[0] > UNHIDDEN * growth * companions[0]:
        return None
    first, *_, last = np.array_split(values, PARTS)
    longer = len(last) - np.searchsorted(np.sort(last), first, side="right")  # a long run's pairs would not fit memory
    if longer.mean() < APART * len(last):
        return None
    share = min(1.0, max(0.0, (mean - levels[0]) / growth))
    at, name = int(steady[len(first)]) + 1, phase.name.lower()
    by_step = growth / float(np.median(steady[-len(last) :]) - np.median(steady[: len(first)]))
    return LastingChange(at, len(steps.start), None, name, usual, now, growth, share, gradual=True, by_step=by_step)


def _chance(values: Float64) -> float:
    """Probability that values without a trend rise or fall as steadily (Mann, Econometrica 13, 1945)."""
    count = len(values)
    score = float(np.sign(np.subtract.outer(values, values))[np.tril_indices(count, -1)].sum())
    return erfc(abs(score) / sqrt(count * (count - 1) * (2 * count + 5) / 9))


def _levels(values: Float64) -> list[float]:
    return [float(np.median(part)) for part in np.array_split(values, PARTS)]


def _of_phase(steps: Steps, steady: Int64, phase: Phase) -> LastingChange | None:
    """Sudden change of a phase, by Pettitt's test on ranks (Applied Statistics 28, 1979); None for none."""
    values = steps.phases[steady, phase].astype(np.float64)
    count = len(values)
    ranks = np.argsort(np.argsort(values, kind="stable"), kind="stable") + 1.0
    until = np.arange(1, count + 1)
    statistic = until * (count + 1) - 2 * np.cumsum(ranks)  # positive where what comes later is larger
    at = int(np.argmax(statistic)) + 1
    if min(at, count - at) < LEAST_LEVEL:
        return None
    if 2 * exp(-6 * float(statistic[at - 1]) ** 2 / (count**3 + count**2)) > BY_CHANCE:
        return None
    middle = (float(np.median(values[:at])) + float(np.median(values[at:]))) / 2
    at = int(np.cumsum(np.where(values < middle, 1, -1)).argmax()) + 1  # ranks alone lean towards the half of the run
    if min(at, count - at) < LEAST_LEVEL:
        return None
    before, after = values[:at], values[at:]
    growth = float(np.median(after) - np.median(before))
    whole = steps.duration[steady]
    usual, now = float(np.median(whole[:at])), float(np.median(whole[at:]))
    apart = (float(ranks[at:].sum()) - (count - at) * (count - at + 1) / 2) / (at * (count - at))
    if growth < max(LEAST_CHANGE * usual, MOSTLY * (now - usual)) or apart < APART or not _stays(before, after):
        return None
    first, share = int(steady[at]) + 1, (count - at) / count
    return LastingChange(first, len(steps.start), None, phase.name.lower(), usual, now, growth, share)


def _stays(before: Float64, after: Float64) -> bool:
    """True if each third of either side stays on its side of the middle, and the change is sudden."""
    low, high = float(np.median(before)), float(np.median(after))
    middle = (low + high) / 2
    thirds = [float(np.median(part)) for side in (before, after) for part in np.array_split(side, 3)]
    apart = max(thirds[:3]) < middle < min(thirds[3:])
    jump = float(np.median(after[:LEAST_LEVEL]) - np.median(before[-LEAST_LEVEL:]))
    return apart and jump >= AT_ONCE * (high - low)


LEAST_SLOW = 4
"""Fewest slow steps that show a period."""
SLOWER, SLOW_SPREADS = 0.25, 6.0
"""Excess of a slow step's phase: at least this fraction of a usual step, and this many standard deviations."""
IN_TIME = 0.75
"""Fraction of the slow steps that must be on the period, and of the steps on the period that must be slow."""
TRIED = 5
"""Candidate periods that are tried, the most frequent distances first: other load makes slow steps too."""


@dataclass(frozen=True, slots=True)
class Period:
    """Slow steps at a fixed distance. every: number of steps from one slow step to the next. slow: indices of the slow
    steps. extra: time that a slow step's phase takes above the usual, ns; growth: this time for the first and for the
    last of them, as from `rising`."""

    every: int
    slow: Int64
    extra: float
    phase: Phase
    growth: tuple[float, float] | None = None

    @property
    def cost(self) -> float:
        """Cost of the slow steps averaged over all steps, ns per step."""
        return self.extra / self.every


def find_period(steps: Steps) -> Period | None:
    """Costliest period at which one phase is slow; None if there is none."""
    steady = np.flatnonzero(steps.steady)
    if len(steady) < LEAST_STEPS:
        return None
    usual = float(np.median(steps.duration[steady]))
    found = [
        period
        for phase in Phase
        if (period := _period_of(steady, steps.phases[steady, phase], phase, usual)) is not None
    ]
    return max(found, key=lambda period: period.cost, default=None)


def _period_of(steady: Int64, values: Int64, phase: Phase, step: float) -> Period | None:
    quick = values[values <= np.median(values)]
    usual = float(np.median(quick))
    noise = TO_DEVIATION * float(np.median(np.abs(quick - usual)))
    slow = steady[values > usual + max(SLOWER * step, SLOW_SPREADS * noise)]
    if len(slow) < LEAST_SLOW:
        return None
    for every in _distances(slow):
        turn = int(np.bincount(slow % every).argmax())
        in_turn = steady % every == turn
        extra = float(np.median(values[in_turn])) - usual
        held = values > usual + np.maximum(max(SLOWER * step, SLOW_SPREADS * noise), _then(values, in_turn, usual) / 2)
        both = int((held & in_turn).sum())
        if both >= max(LEAST_SLOW, IN_TIME * held.sum(), IN_TIME * in_turn.sum()):
            slow = held & in_turn
            return Period(every, steady[slow], extra, phase, rising(values[slow] - usual))
    return None


def _then(values: Int64, in_turn: Bool, usual: float) -> Float64:
    """Extra time of slow steps around each step, ns: slow steps may become slower all the time."""
    places = np.flatnonzero(in_turn)
    parts = np.array_split(places, PARTS if len(places) >= 2 * PARTS else 1)
    extras = [float(np.median(values[part])) - usual for part in parts]
    around: Float64 = np.interp(np.arange(len(values)), [float(part.mean()) for part in parts], extras)
    return around


MOST_PAIRED = 500
"""Values of which each is compared with each other."""


def rising(values: Int64 | Float64) -> tuple[float, float] | None:
    """(median of the first third, median of the last third) of values that rise steadily, by half or more; else
    None."""
    some = values[:: 1 + len(values) // MOST_PAIRED].astype(np.float64)
    if len(values) < LEAST_LEVEL or _chance(some) > BY_CHANCE:
        return None
    first, middle, last = (float(np.median(part)) for part in np.array_split(values, 3))
    return (first, last) if first <= middle <= last and last >= MUCH * first else None


def _distances(slow: Int64) -> list[int]:
    """Most frequent distances between pairs of these indices, from 2 on, the most frequent first."""
    marks = np.zeros(int(slow[-1] - slow[0]) + 1)
    marks[slow - slow[0]] = 1.0
    spectrum = np.fft.rfft(marks, 2 * len(marks))
    pairs = np.rint(np.fft.irfft(spectrum * spectrum.conj(), 2 * len(marks))[: len(marks)])
    pairs[:2] = 0
    return [int(each) for each in np.argsort(-pairs, kind="stable")[:TRIED] if pairs[each] >= LEAST_SLOW - 1]
