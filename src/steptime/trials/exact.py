"""Comparison of a candidate's rehearsal in float64 with the job's own: final parameters, and the state that the job
carries from step to step.

Measured on three jobs that learn, as a fraction of the distance that the parameters moved. 13 honest changes
(vectorised losses, fused attention, foreach averages, pads left out …) differ by 0 to 7e-14 in float64, and by 3.6e-5
at most in float32 (on another job, 3.3e-4). A missing term of the loss differs by 8e-4, other betas by 1.5e-2, no
weight decay by 4e-2. Half of a model in bfloat16 differs by 2.8e-3 in float32, and not at all in float64."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import isfinite, prod

import numpy as np

from steptime.arrays import Float64
from steptime.recording.parity import StepWork
from steptime.trials.trial import BASELINE, Run, Variant

FLOAT64 = "torch.float64"
EXACT = 1e-6
"""Largest distance in float64 that counts as the same training, as a fraction of the way. Data that one of the two
rounds to float32, which is no change to a job in float32, came to 1.8e-8; the smallest real difference measured was
8e-4."""
EXACT_EACH = 1e-5
"""Bound EXACT for a single parameter, whose way may be short."""
SINGLE = 1e-3
"""Bound EXACT in float32. Fused attention differed by 3.3e-4, half of a model in bfloat16 by 2.8e-3."""
LOW = 2e-2
"""Bound EXACT in float32 for a job that computes in a 16-bit dtype itself. Under bfloat16, fused attention differed by
2.6e-3, merged micro-batches by 1.7e-3."""
OTHER_DRAWS = 10 * SINGLE
"""Distance in float64 that, without one in float32, shows other random numbers and not another training: float64 draws
them by function and shape."""
ROUNDED = 1e-13
"""Rounding error of a way, as a fraction of the weights' length."""
NEGLIGIBLE = 1e-5
"""Gradient length, as a fraction of the whole gradient's, below which it is rounding, though Adam makes full steps of
it."""
CARRIED = 0.2
"""Fraction of the trained numbers: carried state of that size which a candidate no longer updates is an average of the
weights."""
ALIKE = {True: 1e-6, False: 1e-3}
"""Relative distance up to which two carried tensors are the same, by whether they are in float64."""
CLIPPED = 0.95
"""Fraction of its norm that is left of a clipped gradient, at most."""
NEAR_BUFFERS = 0.1
"""Relative distance of buffers in float32 from which on they are others: statistics that are not updated for six steps
are half as long, and those of equal parameters within SINGLE differ by a percent."""
RESTING = 1e-3
"""Length of a buffer, as a fraction of the longest one's, below which its values are compared with this: the mean of
what is zero in exact arithmetic is rounding."""
FEW_REPEATS, MANY_REPEATS, LEAST_REPEATS = 0.01, 0.05, 8
"""Bounds on repeated samples, as fractions of all (the last: a count): few for a job that makes them afresh, many for a
candidate that keeps them."""
Way = Mapping[str, tuple[float, Float64]]


@dataclass(frozen=True, slots=True)
class Exactness:
    """Result of rehearsals in float64. distance: difference of the parameters after `steps` steps, as a fraction of the
    way that they moved. worst: (parameter that differs most relative to its own way, that distance). repeats: True if
    two runs of the job agree with each other; None if it was run once."""

    distance: float
    steps: int
    worst: tuple[str, float]
    repeats: bool | None

    @property
    def same(self) -> bool:
        return self.distance <= EXACT and self.worst[1] <= EXACT_EACH

    @property
    def sentence(self) -> str:
        """Sentence on this result, for a verdict that the training is the same."""
        within = f" within {self.distance:.0e} of their way" if self.distance > ROUNDED else ""
        return f"Parameters are equal{within} after {self.steps} steps in float64"


def exactness(own: Sequence[Run], plain: Sequence[Run]) -> Exactness | None:
    """Compares a candidate with the job; None if one of them has no complete rehearsal in float64, or if their
    parameters differ in name."""
    mine, theirs = ([run for run in runs if in_float64(run)] for runs in (own, plain))
    theirs = [run for run in theirs if run.variant == BASELINE]
    if not mine or not theirs:
        return None
    found = min((each for run in theirs if (each := apart(mine[-1], run))), key=lambda each: each[0], default=None)
    pairs = [apart(*pair) for pair in combinations(theirs, 2)]
    repeats = all(pair is not None and pair[0] <= EXACT and pair[1][1] <= EXACT_EACH for pair in pairs)
    return Exactness(found[0], len(mine[-1].work), found[1], repeats if pairs else None) if found else None


def other_parameters(variant: Variant, own: Sequence[Run], plain: Sequence[Run]) -> str:
    """Sentence on a difference of the rehearsals' parameters that rounding does not explain, "" for none."""
    exact = exactness(own, plain)
    if exact is None or variant.low_precision or variant.other_data:
        return ""
    mine, theirs = ([run for run in runs if run.rehearsal and not run.exact and run.work] for runs in (own, plain))
    single = apart(mine[-1], theirs[0]) if mine and theirs else None
    if not exact.same:
        if not exact.repeats or (single is not None and single[0] <= SINGLE and exact.distance > OTHER_DRAWS):
            return ""
        name, by = exact.worst
        return (
            f"After {exact.steps} steps in float64, its parameters differ from the job's by "
            f"{exact.distance:.1e} of their total change ({name}: {by:.1e}); rounding explains {EXACT:.0e}"
        )
    low = any(step.low for run in theirs for step in run.work)
    bound = LOW if low else SINGLE
    if single is None or single[0] <= bound or (mine[-1].work[0].batches and not _same_batches(mine[-1], theirs[0])):
        return ""
    return (
        "In float64 it trains the same, but in float32 its parameters differ from the job's by "
        f"{single[0]:.1e} of their total change after {len(mine[-1].work)} steps; rounding explains "
        f"{bound:.0e}. It computes in a lower precision; --low-precision allows that"
    )


def _same_batches(run: Run, before: Run) -> bool:
    """True if the steps of two rehearsals got the same batches, as far as recorded. With random numbers drawn in
    another order they do not, and then their parameters differ by more than rounding."""
    for one, other in zip(run.work, before.work, strict=False):
        mine, theirs = (sorted(each for call in step.batches for each in call) for step in (one, other))
        if len(mine) == len(theirs) and not np.allclose(mine, theirs, rtol=ALIKE[False], atol=ALIKE[False]):
            return False
    return True


def apart(run: Run, before: Run) -> tuple[float, tuple[str, float]] | None:
    """Distance between the parameters of two rehearsals, as a fraction of the way that they moved, with the parameter
    that is furthest off relative to its own way. None if the parameters differ in name, or did not move."""
    mine, theirs = _ways(run), _ways(before)
    if not mine or mine.keys() != theirs.keys():
        return None
    known = [name for name in mine if name not in _negligible(before)]
    gaps = {name: max(0.0, length(mine[name][1] - theirs[name][1]) - ROUNDED * theirs[name][0]) for name in known}
    ways = {name: length(theirs[name][1]) for name in known}
    whole = float(np.hypot.reduce(list(ways.values()) or [0.0]))
    if not whole or not isfinite(whole):
        return None
    each = {name: gaps[name] / ways[name] if ways[name] else float(gaps[name] > 0) for name in known}
    worst = max(each, key=lambda name: each[name] if isfinite(each[name]) else np.inf)
    total = float(np.hypot.reduce(list(gaps.values()))) / whole
    return (total if isfinite(total) else np.inf), (worst, each[worst])


def in_float64(run: Run) -> bool:
    """True if a rehearsal computed in float64 to its end."""
    rows = run.work[-1].ways if run.exact and not run.failure and run.work else ()
    return bool(rows) and all(dtype == FLOAT64 for _, dtype, *_ in rows)


def _ways(run: Run) -> Way:
    return {name: (length, np.array(way, np.float64)) for name, _, length, way in run.work[-1].ways}


def _negligible(run: Run) -> set[str]:
    """Parameters whose first gradient is only rounding."""
    first: Iterable[tuple[str, tuple[float, ...]]] = next((s.directions for s in run.work if s.directions), ())
    lengths = {name: length(values) for name, values in first}
    least = NEGLIGIBLE * float(np.hypot.reduce(list(lengths.values()) or [0.0]))
    return {name for name, length in lengths.items() if length <= least}


def length(values: Sequence[float] | Float64) -> float:
    return float(np.linalg.norm(values))


# -- what is carried on ------------------------------------------------------------------------------------------------


def left_out(run: Run, references: Sequence[Run]) -> str:
    """Sentence on tensors, shaped like the parameters, that the job updates in each step of its rehearsal and the
    candidate does not; "" if there are none."""
    if not run.rehearsal or not run.work or not references[0].work:
        return ""
    if _trained(run) != _trained(references[0]) or other_options(run, references):
        return ""  # other checks report that
    mine, theirs = run.work[-1].carried, references[0].work[-1].carried
    lost, more = _unmatched(theirs, mine, ALIKE[run.exact]), _unmatched(mine, theirs, ALIKE[run.exact])
    trained = _trained(run)
    numbers = sum(_size(shape) for shape, _ in lost)
    others = Counter(shape for shape, _ in lost) & Counter(shape for shape, _ in more)
    gap = apart(run, references[0]) if run.exact else None
    same = gap is not None and gap[0] <= EXACT  # else they differ as the parameters do
    if same and sum(_size(shape) * count for shape, count in others.items()) >= CARRIED * trained:
        return (
            f"{others.total()} tensors shaped like parameters, which the job updates in each step, have other "
            "values here: an average of the weights?"
        )
    if not trained or numbers - sum(_size(shape) for shape, _ in more) < CARRIED * trained:
        return ""  # as much of it is there in another form
    return (
        f"{len(lost)} tensors shaped like parameters ({numbers:,} numbers), which the job updates in each "
        "step, are missing or not updated here: an average of the weights?"
    )


def carried_less(run: Run, references: Sequence[Run]) -> str:
    """Sentence on a step of the timed runs that updates less carried state than others, unlike in the job; "" if there
    is none."""
    works = run.work, references[0].work
    own, usual = ({n: each.moving for n, each in enumerate(work, 1) if each.moving is not None} for work in works)
    slack, whole = CARRIED * _trained(run), max(usual.values(), default=0)
    known = {n: count for n, count in own.items() if n in usual and usual[n] >= whole - slack / 4}
    number = min(known, key=known.__getitem__, default=0)
    if not slack or not known or (missing := max(known.values()) - known[number]) < slack:
        return ""
    return (
        f"In step {number}, it does not update {missing:,} numbers in tensors shaped like parameters, and "
        "the job does: an average of the weights?"
    )


Carried = Sequence[tuple[str, tuple[float, ...]]]


def other_buffers(variant: Variant, run: Run, references: Sequence[Run]) -> str:
    """Sentence on buffers of modules (running statistics, averages) that the job updates and that have other values in
    the candidate's rehearsal, though its parameters are the same; "" for none."""
    if not run.work or variant.low_precision or variant.other_data:
        return ""
    within = ALIKE[True] if run.exact else NEAR_BUFFERS
    gap = apart(run, references[0])
    if gap is None or gap[0] > (EXACT if run.exact else SINGLE):
        return ""  # they follow the parameters
    mine, (theirs, *again) = run.work[-1].buffers, [each.work[-1].buffers for each in references if each.work]
    least = RESTING * max((length(values) for _, values in theirs), default=0.0)
    known = [each for each in theirs if all(each not in _unmatched(theirs, other, within, least) for other in again)]
    lost = _unmatched(known, mine, within, least)
    if not lost:
        return ""
    return (
        f"After {len(run.work)} steps, {len(lost)} of {len(theirs)} buffers that the job updates (of {lost[0][0]} "
        "numbers …) are not updated here, or have other values: statistics of what is evaluated?"
    )


def _unmatched(wanted: Carried, among: Carried, within: float, least: float = 0.0) -> Carried:
    """Tensors of `wanted` without a counterpart in `among` that has the same shape and close values. least: length
    below which values count as this long."""
    known: dict[str, list[tuple[float, ...]]] = {}
    for shape, values in among:
        known.setdefault(shape, []).append(values)
    columns = {shape: np.array(values, np.float64) for shape, values in known.items()}
    values_of = {each: np.array(each[1], np.float64) for each in wanted}
    return [each for each in wanted if not _is_among(values_of[each], columns.get(each[0]), within, least)]


def _is_among(values: Float64, others: Float64 | None, within: float, least: float) -> bool:
    if others is None:
        return False
    longest = np.maximum(max(least, length(values)), np.linalg.norm(others, axis=1))
    return bool((np.linalg.norm(others - values, axis=1) <= within * longest).any())


def _trained(run: Run) -> int:
    """Number of elements of all parameters of a run."""
    return sum(size for step in run.work for _, size, _ in step.weights)


def _size(shape: str) -> int:
    return prod(map(int, shape.split("x")))


def other_options(run: Run, references: Sequence[Run]) -> str:
    """Sentence if an optimizer has other options in any recorded step, else ""."""
    for number, (one, other) in enumerate(zip(run.work, references[0].work, strict=False), 1):
        mine, theirs = _options(one), _options(other)
        if not mine or not theirs:
            continue
        known = set.intersection(*({name for name, _ in group} for group in (*mine, *theirs)))
        if _only(mine, known) != _only(theirs, known):
            return f"In step {number} its optimizer has {_differing(mine, theirs, known)}"
    return ""


Group = tuple[tuple[str, str], ...]


def _options(step: StepWork) -> Counter[Group]:
    found: Counter[Group] = Counter()
    for text, count in step.options:
        try:
            parsed = json.loads(text)
        except (ValueError, RecursionError):
            return Counter()
        if isinstance(parsed, dict):
            found[tuple((name, json.dumps(value)) for name, value in parsed.items())] += count
    return found


def _only(groups: Counter[Group], names: set[str]) -> Counter[Group]:
    found: Counter[Group] = Counter()
    for group, count in groups.items():
        found[tuple(each for each in group if each[0] in names)] += count
    return found


def _differing(mine: Counter[Group], theirs: Counter[Group], known: set[str]) -> str:
    """First option that differs, in words."""
    for name in sorted(known):
        own, usual = ({dict(group)[name] for group in groups} for groups in (mine, theirs))
        if own != usual:
            return f"{name} {', '.join(sorted(own))} in place of {', '.join(sorted(usual))}"
    return "its options for other parameters"


def unclipped(run: Run, references: Sequence[Run]) -> str:
    """Sentence on a step whose gradients reach the optimizer unclipped, unlike the job's; "" if there is none."""
    for number, (one, other) in enumerate(zip(run.work, references[0].work, strict=False), 1):
        if len(one.updated) != 2 or len(other.updated) != 2:
            continue
        (before, own), (whole, clipped) = one.updated, other.updated
        if clipped < CLIPPED * whole and own >= CLIPPED * before and own * CLIPPED > clipped:
            return (
                f"In step {number}, gradients of norm {own:.3g} come to the optimizer unclipped; the unchanged job "
                f"clips {whole:.3g} to {clipped:.3g}"
            )
    return ""


def other_modes(run: Run, references: Sequence[Run]) -> str:
    """Sentence if modules leave their training mode, dropouts get weaker, or forwards stop drawing random numbers; else
    ""."""
    pairs = [(number, *pair) for number, pair in enumerate(zip(run.work, references[0].work, strict=False), 1)]
    looked = [(number, one, other) for number, one, other in pairs if None not in (one.training, other.training)]
    if not looked:
        return ""
    strongest = max(one.dropout or 0.0 for _, one, _ in looked)
    usual = max(other.dropout or 0.0 for _, _, other in looked)
    steady = all((other.dropout or 0.0) >= usual for _, _, other in looked)
    constant = len({other.training for _, _, other in looked}) == 1
    for number, one, other in looked:
        # Next to modules that stay in evaluation mode, a candidate with fewer modules has another share of them.
        usual_share = 1.0 if other.training == 1 else (looked[0][1].training or 0.0) if constant else 0.0
        if (one.training or 0.0) < usual_share - 1e-3:
            own = 100 * (one.training or 0.0)
            return f"In step {number}, {own:.0f} % of its modules are in training mode, not {100 * usual_share:.0f} %"
        if steady and usual and (one.dropout or 0.0) < 0.99 * strongest:
            return f"From step {number} on its dropout is weaker than before"
        if one.drew is False and other.drew and not run.compile_seconds and not run.rehearsal:
            return f"The forward of step {number} draws no random numbers; in the unchanged job it does"
    return ""


def kept_samples(run: Run, references: Sequence[Run]) -> str:
    """Sentence if a candidate repeats samples that the job makes afresh, else ""."""
    if run.rehearsal:
        return ""
    again, seen = _repeated(run)
    usual = max(repeated / max(1, count) for repeated, count in map(_repeated, references))
    if usual > FEW_REPEATS or again < max(LEAST_REPEATS, MANY_REPEATS * seen):
        return ""
    return f"{again} of the {seen} checked samples repeat; the unchanged job makes them again"


def _repeated(run: Run) -> tuple[int, int]:
    counts = Counter(value for step in run.work for value in step.samples)
    return sum(count - 1 for count in counts.values()), counts.total()
