"""Check that a variant trains as the baseline does, by its losses and the gradients of its first steps.

Pure functions on arrays. The tolerances were measured on twelve scripts (docs/statistics.md has the table)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import isfinite, log, sqrt

import numpy as np

from steptime.arrays import Float64
from steptime.quantities import student

Losses = Sequence[float | None]
Norms = Mapping[str, float | None]

LEAST_LOSSES = 8
"""Least number of steps with a loss for a curve to compare."""
TAIL = 0.25
"""Fraction of the steps, at the end, whose mean loss is compared."""
LEAST_SEEDS = 2
"""Least number of baselines with other seeds than the variant's for a band."""
LEAST_PAIRS = 3
"""Least number of seeds common to variant and baseline whose paired differences count."""
SLIGHT = 0.5
"""Difference that passes, in standard deviations of the seeds. Simulated (tests/trials/test_parity.py): with three
seeds a variant whose loss is five deviations off is detected in 91 of 100 trials, with four seeds in 99; one inside the
band is rejected in about one."""
FULL_PRECISION = (1e-2, 1e-3)
"""Tolerance (largest, median) for relative differences of gradient norms in float32 arithmetic. Measured: up to 3e-3
for channels_last and the compiler on networks with batch normalisation, 1e-6 elsewhere; 1.0 to 1.3 miscompiled."""
LOW_PRECISION = (0.3, 0.05)
"""Tolerance (largest, median) for matmuls in bfloat16 or float16. Measured: up to 0.15 on networks with batch
normalisation, 2e-2 elsewhere; another seed 0.2 to 0.64."""
REPEATS = 4
"""Most rehearsals of a job whose first gradients differ from run to run; their range is its own spread."""
MARGIN = 1.5
"""Factor on that spread (a logarithm). Simulated for 2 to 200 parameters that vary together or independently: another
run of the same job is outside in 23 of 100 cases with two rehearsals, 7 with three, 3 with four."""
JUDGEABLE = log(2)
"""Upper bound on the median tolerance, as the logarithm of a factor: a gradient twice as large everywhere (a sum in
place of a mean) must be detectable."""
NEGLIGIBLE = 1e-6
"""Fraction of the whole gradient's norm below which a parameter's gradient is mere rounding (a bias before a batch
normalisation has a gradient of exactly zero in exact arithmetic)."""
EIGHTY_PERCENT = 0.8416
"""Quantile of the normal distribution at 80 %, in standard deviations."""
ROUNDING = 1e-12
"""Fraction of a mean: rounding difference of sums of the same losses."""


@dataclass(frozen=True, slots=True)
class GradientParity:
    """Comparison of two sets of gradient norms. dead: parameters whose gradient has become zero, missing or not finite.
    largest, median: differences of the other parameters, relative or as logarithms of factors."""

    dead: tuple[str, ...]
    largest: float
    median: float

    def within(self, tolerance: tuple[float, float]) -> bool:
        """True if no difference exceeds `tolerance`, as (largest, median)."""
        return self.largest <= tolerance[0] and self.median <= tolerance[1]


def compare_gradients(baseline: Norms, variant: Norms, *, factors: bool = False) -> GradientParity:
    """Compares gradient norms of the parameters that both know: a wrapper renames some. factors: measure differences as
    logarithms of factors, in which a half counts as much as a double."""
    known = [value for value in baseline.values() if value is not None and isfinite(value)]
    least = NEGLIGIBLE * float(np.sqrt(np.sum(np.square(known))))
    dead, differences = [], []
    for name in baseline.keys() & variant.keys():
        before, after = baseline[name], variant[name]
        if before is None or not isfinite(before) or before <= least:
            continue
        if after is None or not isfinite(after) or after <= least * NEGLIGIBLE:
            dead.append(name)
        else:
            differences.append(abs(log(after / before)) if factors else abs(after - before) / before)
    largest = max(differences, default=0.0)
    median = float(np.median(differences)) if differences else 0.0
    return GradientParity(tuple(sorted(dead)), largest, median)


def own_tolerance(rehearsals: Sequence[Norms]) -> tuple[float, float] | None:
    """Spread of a job's gradients between its rehearsals, as (largest, median) logarithms of factors, times MARGIN;
    None if they agree within rounding, or there is only one."""
    pairs = [compare_gradients(*pair, factors=True) for pair in combinations(rehearsals, 2)]
    if all(pair.within(FULL_PRECISION) for pair in pairs):
        return None
    return MARGIN * max(pair.largest for pair in pairs), MARGIN * max(pair.median for pair in pairs)


def nearest(rehearsals: Sequence[Norms], variant: Norms, *, factors: bool = False) -> GradientParity:
    """Comparison of a variant's gradients with those of the most similar rehearsal."""
    compared = [compare_gradients(each, variant, factors=factors) for each in rehearsals]
    return min(compared, key=lambda each: (each.largest, each.median))


def dead_in_all(rehearsals: Sequence[Norms], variant: Norms) -> tuple[str, ...]:
    """Parameters that have lost their gradient compared with every rehearsal: another seed may leave one without."""
    lost = [set(compare_gradients(each, variant).dead) for each in rehearsals]
    return tuple(sorted(set.intersection(*lost)))


def equal_bits(one: Losses, other: Losses) -> bool:
    """True if the common steps, at least LEAST_LOSSES, have exactly equal losses (a NaN equals a NaN)."""
    count = min(len(one), len(other))
    return count >= LEAST_LOSSES and first_difference(one, other) is None


def first_difference(one: Losses, other: Losses) -> int | None:
    """Index of the first step whose losses differ; None if all common steps are equal."""
    count = min(len(one), len(other))
    first, second = _array(one[:count]), _array(other[:count])
    apart = np.flatnonzero((first != second) & ~(np.isnan(first) & np.isnan(second)))
    return int(apart[0]) if len(apart) else None


def seen(losses: Losses) -> bool:
    """True if there are at least LEAST_LOSSES losses, whatever their values."""
    return sum(loss is not None for loss in losses) >= LEAST_LOSSES


def within_band(variant: Mapping[int, Losses], baselines: Mapping[int, Losses]) -> bool:
    """True if the variant's mean losses over the last quarter agree with the job's. Both arguments: losses by seed.

    With one seed, the loss must be in the 95 % prediction interval of the baselines'. With several seeds, the means
    must not differ beyond chance. Chance is estimated from the spread of seeds and, with at least LEAST_PAIRS common
    seeds, from the spread of the pairs' differences: two equal trainings from one seed differ little. The check repeats
    after each round, so the interval is that of `student(looks=True)`. Differences below SLIGHT deviations of the seeds
    pass, because rounding in a low-precision dtype shifts all losses a little. Equal baselines make a band of zero
    width. A non-finite loss is outside unless a baseline has one, too. Raises ValueError for fewer than LEAST_SEEDS
    baselines."""
    if len(baselines) < LEAST_SEEDS:
        raise ValueError(f"a band needs {LEAST_SEEDS} baselines, not {len(baselines)}")
    count = min(len(each) for each in (*variant.values(), *baselines.values()))
    own, usual = ({seed: tail(each, count) for seed, each in losses.items()} for losses in (variant, baselines))
    known = {seed: value for seed, value in usual.items() if isfinite(value)}
    if not all(map(isfinite, own.values())):
        return len(known) < len(usual)
    if len(known) < LEAST_SEEDS:
        return False
    mine, theirs = np.array(list(own.values())), np.array(list(known.values()))
    rounding = abs(float(theirs.mean())) * ROUNDING
    if abs(float(mine.mean() - theirs.mean())) > _reach(mine, theirs) + rounding:
        return False
    pairs = np.array([own[seed] - known[seed] for seed in own.keys() & known.keys()])
    if len(pairs) < LEAST_PAIRS:
        return True
    reach = student(len(pairs) - 1, looks=True) * float(np.std(pairs, ddof=1)) / sqrt(len(pairs))
    return abs(float(pairs.mean())) <= reach + SLIGHT * float(np.std(theirs, ddof=1)) + rounding


def _reach(mine: Float64, theirs: Float64) -> float:
    """Largest difference of mean losses that the choice of seeds explains."""
    if len(mine) == 1:
        return student(len(theirs) - 1) * float(np.std(theirs, ddof=1)) * sqrt(1 + 1 / len(theirs))
    freedom = len(mine) + len(theirs) - 2
    squares = ((len(each) - 1) * float(np.var(each, ddof=1)) for each in (mine, theirs))
    deviation = sqrt(sum(squares) / freedom)
    return deviation * (student(freedom, looks=True) * sqrt(1 / len(mine) + 1 / len(theirs)) + SLIGHT)


def visible_drift(variant: Mapping[int, Losses], baselines: Mapping[int, Losses]) -> float | None:
    """Smallest shift of the variant's mean loss over the last quarter, as a fraction of the baselines', that
    `within_band` would detect with a probability of 80 %. Both arguments: losses by seed. None for fewer than
    LEAST_SEEDS baselines with finite losses, or no finite loss of the variant."""
    count = min(map(len, (*variant.values(), *baselines.values())), default=0)
    own, usual = (
        {seed: value for seed, each in losses.items() if isfinite(value := tail(each, count))}
        for losses in (variant, baselines)
    )
    mine, theirs = np.array(list(own.values())), np.array(list(usual.values()))
    if not own or len(usual) < LEAST_SEEDS or not np.mean(theirs):
        return None
    deviation = float(np.std(theirs, ddof=1))
    drift = _reach(mine, theirs) + EIGHTY_PERCENT * deviation * sqrt(1 / len(mine) + 1 / len(theirs))
    pairs = [own[seed] - usual[seed] for seed in own.keys() & usual.keys()]
    if len(pairs) >= LEAST_PAIRS:
        error = float(np.std(pairs, ddof=1)) / sqrt(len(pairs))
        drift = min(drift, (student(len(pairs) - 1, looks=True) + EIGHTY_PERCENT) * error + SLIGHT * deviation)
    return drift / abs(float(np.mean(theirs)))


def tail(losses: Losses, count: int) -> float:
    """Mean loss of the last quarter of the first `count` steps; NaN if one of these losses is unknown."""
    values = _array(losses[:count])
    last = values[count - max(1, round(count * TAIL)) :]
    return float(np.mean(last)) if len(last) else float("nan")


def _array(losses: Losses) -> Float64:
    return np.array([float("nan") if loss is None else loss for loss in losses], np.float64)
