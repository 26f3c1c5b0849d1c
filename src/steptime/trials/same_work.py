"""Check that a candidate's steps do the work of the job's: the same batches, equal updates of every parameter, the same
evaluation, all of the steps, and unmodified clocks.

Pure functions on runs. Rehearsals, with dropout off, show whether the training is the same: gradients of the first
steps are equal except for rounding. Work that is left out later shows in the timed runs, compared with runs of the
unchanged job from the same seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod
from statistics import fmean

import numpy as np

from steptime.arrays import Float64
from steptime.quantities import format_duration
from steptime.recording.parity import StepWork
from steptime.trials.exact import (
    NEGLIGIBLE,
    carried_less,
    exactness,
    kept_samples,
    left_out,
    length,
    other_buffers,
    other_modes,
    other_options,
    other_parameters,
    unclipped,
)
from steptime.trials.trial import Agreement, NumbersCheck, Run, Variant

Sketches = Mapping[str, Sequence[float]]

ATTAINABLE = 0.9
"""Fraction of the roofline time that a step may take: the largest rate is a measurement, and FLOP counts come from a
model."""
SLACK = 0.99
"""Fraction of the job's evaluated samples, or of its dropout, below which a candidate has less."""
CLOCK_SLACK = 0.03
"""Fraction by which a process's clock may be faster or slower than the system's: the least gain; measured: 1 % at most
for honest processes on an overloaded machine."""

OTHER_SAMPLES = "trains on other samples than the unchanged job: --any-training judges the speed alone"


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Tolerance for tensors. cosines: (least, median) cosine; lengths: (largest, median) relative difference in
    length."""

    cosines: tuple[float, float]
    lengths: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Precision:
    """Differences between tensors that rounding explains. gradients, updates: tolerances; rounded: relative distance of
    two sketches of the same tensor."""

    gradients: Tolerance
    updates: Tolerance
    rounded: float


FULL_PRECISION = Precision(Tolerance((0.99, 0.999), (0.05, 0.05)), Tolerance((0.5, 0.99), (0.5, 0.05)), 1e-4)
"""Precision for float32 arithmetic. Measured for harmless changes: cosines of gradients above 0.9999; for a batch that
differs in a quarter of its samples, 0.5 to 0.97. Adam makes full steps even of gradients that are mere rounding (the
bias of a key in an attention), so single updates may differ."""
LOW_PRECISION = Precision(Tolerance((0.8, 0.98), (0.5, 0.1)), Tolerance((-1.0, 0.9), (1.0, 0.2)), 2e-2)
"""Precision for matmuls in 16 bits."""


def precision_of(variant: Variant) -> Precision:
    return LOW_PRECISION if variant.low_precision else FULL_PRECISION


def suspicion(own: Sequence[Run], plain: Sequence[Run]) -> NumbersCheck | None:
    """Signs of cheating that no merely faster change shows (less work under the same name, other clocks, an early end);
    None if there are none."""
    replaced = replaced_functions(own, plain)
    if replaced or (replaced := other_clock(own)):
        return _suspicious(replaced)
    for run in own:
        references = _alongside(run, plain)
        for check in LESS:
            sentence = check(run, references) if references else ""
            if sentence:
                return _suspicious(sentence)
    return None


def replaced_functions(own: Sequence[Run], plain: Sequence[Run]) -> str:
    """Sentence on clocks and torch functions that the candidate replaces, "" for none."""
    usual = {name for run in plain for name in run.replaced}
    replaced = sorted({name for run in own for name in run.replaced} - usual)
    return f"It replaces {_several(replaced)}, which a candidate must not change" if replaced else ""


def other_clock(own: Sequence[Run]) -> str:
    """Sentence on a clock that runs at another rate than the system's in the candidate's processes, "" for none."""
    rates = [run.clock for run in own if run.clock is not None and abs(run.clock - 1) > CLOCK_SLACK]
    if not rates:
        return ""
    return f"Its clock counts {rates[-1]:.2f} s in each second of the system's: its times are not what they seem"


def beyond_roofline(own: Sequence[Run], plain: Sequence[Run], least_ns: float) -> NumbersCheck | None:
    """Result if steps are shorter than the machine can do the job's arithmetic, else None. least_ns: time of a step's
    matmuls at the machine's largest rate, 0 if unknown. If the job itself is faster, least_ns is wrong, and
    nothing is reported."""
    mine, theirs = ([fmean(run.step_ns) for run in runs if run.step_ns and not run.rehearsal] for runs in (own, plain))
    if not mine or not theirs or min(mine) >= ATTAINABLE * least_ns or min(theirs) < least_ns:
        return None
    return _suspicious(
        f"Its step takes {format_duration(min(mine))}, but the job's matmuls alone need "
        f"{format_duration(least_ns)}/step at this machine's peak: it computes less, or its steps are not timed"
    )


def other_training(variant: Variant, own: Sequence[Run], plain: Sequence[Run]) -> NumbersCheck | None:
    """Signs of a different training in the runs themselves, before any loss is compared; None if there are none."""
    precision = precision_of(variant)
    rehearsed = [run for run in own if run.rehearsal and run.work and not run.exact]
    before = [run for run in plain if run.rehearsal and run.work and not run.exact]
    exact = exactness(own, plain)
    proved = exact is not None and exact.same
    otherwise = False  # trained on other shapes, and the same for all that
    if rehearsed and before:
        run, steady = rehearsed[-1], repeats(before, precision)
        shapes = _shapes(run, before)
        otherwise = proved and bool(shapes)
        for sentence in (
            _in_any_format(run, before),
            "" if proved else shapes,
            *(_values(run, before[0], precision) if steady and not proved and not variant.other_data else ()),
            other_parameters(variant, own, plain),
        ):
            if sentence:
                return _different(sentence)
    for run in own:
        references = _alongside(run, plain)
        sentence = (other_options(run, references) or other_modes(run, references)) if references else ""
        if not sentence and not run.rehearsal and references:
            sentence = unclipped(run, references)
        if not sentence and run.rehearsal and references:
            sentence = other_buffers(variant, run, references)
        if not sentence and not run.rehearsal and references and not otherwise:
            sentence = _shapes(run, references)
        if not sentence and not run.rehearsal and references and not variant.other_data and rehearsed and before:
            sentence = _later_batches(run, references[0], precision, (rehearsed[-1], before[0]))
        if sentence:
            return _different(sentence)
    return None


def _in_any_format(run: Run, before: Sequence[Run]) -> str:
    """Sentence on a difference in a rehearsal that decides whatever a rehearsal in float64 shows, "" for none."""
    found = _parameters(run, before[0]), other_options(run, before), _dropout(run, before[0]), other_modes(run, before)
    return next(filter(None, found), "")


def is_refused(variant: Variant, runs: Sequence[Run], plain: Sequence[Run]) -> bool:
    """True if a rehearsal shows less work or a different training that no rehearsal in float64 could excuse. runs: runs
    of any variants."""
    own = [run for run in runs if run.variant == variant.name and not run.failure]
    rehearsed, before = ([run for run in each if run.rehearsal and run.work and not run.exact] for each in (own, plain))
    return bool(rehearsed and before and (suspicion(own, plain) or _in_any_format(rehearsed[-1], before)))


def repeats(rehearsals: Sequence[Run], precision: Precision) -> bool:
    """True if the unchanged job repeats itself from the same seed, within rounding."""
    return not any(any(_values(one, other, precision)) for one, other in combinations(rehearsals, 2))


def _alongside(run: Run, plain: Sequence[Run]) -> list[Run]:
    """Runs of the unchanged job to compare with: of the same kind, and from the same seed if there is one."""
    alike = [each for each in plain if (each.rehearsal, each.exact) == (run.rehearsal, run.exact) and each.work]
    return ([each for each in alike if each.seed == run.seed] or alike) if run.work else []


def _suspicious(sentence: str) -> NumbersCheck:
    return NumbersCheck(Agreement.LESS_WORK, sentence)


def _different(sentence: str) -> NumbersCheck:
    return NumbersCheck(Agreement.OTHER_WORK, sentence)


def _several(names: Sequence[str]) -> str:
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")


# -- less work --------------------------------------------------------------------------------------------------------


def _early_end(run: Run, references: Sequence[Run]) -> str:
    least = min(len(each.work) for each in references)
    if not run.ended_early or len(run.work) >= least:
        return ""
    return f"It ends after {len(run.work)} steps; the unchanged job runs for at least {least}"


def _no_backward(run: Run, references: Sequence[Run]) -> str:
    return _missing(run, references, lambda each: each.backwards, "no backward: it reuses earlier gradients")


def no_forward(run: Run, references: Sequence[Run]) -> str:
    """Sentence on steps without a forward of the model, "" for none."""
    return _missing(run, references, lambda each: [len(step.inputs) for step in each.work], "no forward of the model")


def _missing(run: Run, references: Sequence[Run], count: Callable[[Run], Sequence[int]], what: str) -> str:
    """Sentence on steps without something that the unchanged job has in every step, "" for none."""
    if not count(run) or any(not all(count(each)) for each in references):
        return ""
    without = [step for step, number in enumerate(count(run), 1) if not number]
    if not without:
        return ""
    return f"Step {without[0]}{f' and {len(without) - 1} more' if len(without) > 1 else ''} of {len(run.work)}: {what}"


def _still(run: Run, references: Sequence[Run]) -> str:
    usual = {name for each in references for step in each.work for name in step.still}
    still = sorted({name for step in run.work for name in step.still} - usual)
    return f"Not updated, unlike in the unchanged job: {_several(still)}" if still else ""


def _without(run: Run, references: Sequence[Run]) -> str:
    """Sentence on parameters without a gradient in timed runs, "" for none; in rehearsals the gradient norms show
    them."""
    usual = {name for each in references for step in each.work for name in step.without}
    for number, step in enumerate(run.work, 1):
        gone = sorted(set(step.without) - usual)
        if gone and not run.rehearsal:
            return f"Without a gradient in step {number}, unlike in the unchanged job: {_several(gone)}"
    return ""


def shorter_pass(run: Run, references: Sequence[Run], least: float = 1.0) -> str:
    """Sentence on a pass over a dataset that takes less than `least` times the job's samples; "" if none does."""
    usual = {(name, size): samples for each in references for name, size, samples in each.passes}
    for name, size, samples in run.passes:
        known = usual.get((name, size), 0)
        if samples < least * known:
            return f"An epoch of {name} has {samples:,} samples, in the unchanged job {known:,}"
    return ""


def _repeated(run: Run, references: Sequence[Run]) -> str:
    own, usual = (_most_often(each) for each in (run, max(references, key=_most_often)))
    often = "once" if usual == 1 else f"{usual} times at most"
    return f"It repeats the same batch {own} times; the unchanged job {often}" if own > usual else ""


def _most_often(run: Run) -> int:
    """Number of occurrences of the most frequent batch."""
    return max(Counter(batch for step in run.work for batch in step.batches).values(), default=0)


def _less_evaluated(run: Run, references: Sequence[Run]) -> str:
    count = min(len(each.work) for each in (run, *references))
    own, usual = (_evaluated(each, count) for each in (run, references[0]))
    if run.ended_early or references[0].ended_early:
        return ""
    for shape, number in usual.items():
        if own.get(shape, 0) < SLACK * number:
            left = f"{own[shape]:,}" if own.get(shape) else "none"
            return (
                f"It evaluates {left} of the {number:,} samples ({shape}) that the unchanged job evaluates in "
                f"{count} steps"
            )
    return ""


def _evaluated(run: Run, count: int) -> Counter[str]:
    found: Counter[str] = Counter()
    for step in run.work[:count]:
        for shape, number in step.evaluated:
            found[shape] += number
    return found


# -- another training -------------------------------------------------------------------------------------------------


def _parameters(run: Run, before: Run) -> str:
    own, usual = ({name: size for step in each.work for name, size, _ in step.weights} for each in (run, before))
    if not own or not usual or sum(own.values()) == sum(usual.values()):
        return ""  # the same numbers under other names: fused, or wrapped
    gone, new = sorted(usual.keys() - own.keys()), sorted(own.keys() - usual.keys())
    other = sorted(name for name in own.keys() & usual.keys() if own[name] != usual[name])
    why = "; ".join(f"{_several(names)} {what}" for names, what in ((gone, "gone"), (new, "new"), (other, "")) if names)
    return f"It trains {sum(own.values()):,} numbers, not {sum(usual.values()):,}: {why.strip()}"


def _shapes(run: Run, references: Sequence[Run]) -> str:
    """Sentence on a step that trains on inputs of another size, "" for none. Where random numbers vary the lengths,
    they may come in another order, so that only the mean counts."""
    for each in references:
        steps = list(zip(run.work, each.work, strict=False))
        backwards = [one == other for one, other in zip(run.backwards, each.backwards, strict=False)]
        alike = [_as_much(*pair, same) for pair, same in zip(steps, backwards, strict=True)]
        if all(alike):
            return ""
        apart = 1 + alike.index(False)
        sizes = np.array([[_size(step) for step in pair] for pair in steps], np.float64)
        varied = len(set(sizes[:, 1])) > 1 and not run.rehearsal
        if varied and sizes[:, 0].mean() >= 0.95 * sizes[:, 1].mean():
            return ""
    one, other = (_words(work[apart - 1].inputs) for work in (run.work, each.work))
    return f"Step {apart} trains on {one}, not on {other}"


def _as_much(one: StepWork, other: StepWork, backwards: bool) -> bool:
    """True if two steps train on equally much: the same tensors, maybe in other micro-batches; or the same calls, some
    without a backward; or some of the tensors, including the largest. backwards: True if both have as many
    backwards."""
    mine, theirs = set(one.inputs), set(other.inputs)
    if _rows(one) == _rows(other) or not mine or not theirs or (mine == theirs and backwards):
        return True
    tensors = [{tensor for call in calls for tensor in call.split()} for calls in (mine, theirs)]
    largest = max(set.union(*tensors), key=_numbers, default="")
    nested = tensors[0] <= tensors[1] or tensors[1] <= tensors[0]
    return nested and largest in set.intersection(*tensors) and len(one.inputs) == len(other.inputs)


def _rows(step: StepWork) -> Counter[str]:
    """Sums of first dimensions over all calls, by the other dimensions of the tensor."""
    found: Counter[str] = Counter()
    for call in step.inputs:
        for tensor in call.split():
            first, _, rest = tensor.partition("x")
            found[rest] += int(first) if first.isdigit() else 0
    return found


def _size(step: StepWork) -> int:
    return sum(_numbers(tensor) for call in step.inputs for tensor in call.split())


def _numbers(tensor: str) -> int:
    return prod(int(each) for each in tensor.split("x") if each.isdigit())


def _words(inputs: Sequence[str]) -> str:
    counts = Counter(inputs)
    return ", ".join(f"{count} times {call}" if count > 1 else call for call, count in counts.items()) or "nothing"


def _dropout(run: Run, before: Run) -> str:
    """Sentence on weaker dropout, "" for none. Compiled regions are not counted."""
    own, usual = (
        sum(step.dropped for step in each.work) / max(1, sum(len(step.inputs) for step in each.work))
        for each in (run, before)
    )
    if run.compile_seconds or own >= SLACK * usual:
        return ""
    return f"Its dropout is weaker: probabilities sum to {own:.3g} per forward, not {usual:.3g}"


def _values(run: Run, before: Run, precision: Precision) -> Iterable[str]:
    """Yields differences of two rehearsals: initial weights, gradients of the first step, their update, and the batches
    of all steps."""
    other = other_weights(run, before, precision)
    yield f"It starts from other weights: {other}" if other else ""
    alike = not other
    for which, what, tolerance in (
        ("directions", "The gradient of", precision.gradients),
        ("updates", "The first update of", precision.updates),
    ):
        sentence = _ways(_first(run, which), _first(before, which), what, tolerance, before)
        alike = alike and not sentence
        if which == "directions" and sentence:
            yield _other_batch(run, before, precision)
        yield sentence
    if not alike:
        return
    first, *later = _same_batches(run, before, precision)
    if first and not all(later):
        yield f"Step {2 + later.index(False)} {OTHER_SAMPLES}"


def other_weights(run: Run, before: Run, precision: Precision) -> str:
    """Names of weights that differ at the start of a rehearsal, "" for none."""
    mine, theirs = _weights(run), _weights(before)
    known = sorted(mine.keys() & theirs.keys())
    other = [name for name in known if _distance(_array(mine[name]), _array(theirs[name])) > precision.rounded]
    return _several(other) if other else ""


def _weights(run: Run) -> Sketches:
    return {name: values for step in run.work for name, _, values in step.weights}


def _same_batches(run: Run, before: Run, precision: Precision) -> list[bool]:
    return [same_batch(one, other, precision) for one, other in zip(run.work, before.work, strict=False)]


def _first(run: Run, which: str) -> Sketches:
    """First non-empty sketches of a kind. The update of the first step is recorded only when the second starts."""
    return dict(next((found for step in run.work if (found := getattr(step, which))), ()))


def _other_batch(run: Run, before: Run, precision: Precision) -> str:
    same = same_batch(run.work[0], before.work[0], precision)
    return "" if same else f"Step 1 {OTHER_SAMPLES}"


def same_batch(one: StepWork, other: StepWork, precision: Precision) -> bool:
    """True if two steps got the same batches, as far as both were recorded."""
    mine, theirs = ([_array(each) for call in step.batches for each in call] for step in (one, other))
    if not mine or not theirs:
        return True
    fewer, more = sorted((mine, theirs), key=len)
    return all(any(_distance(each, that) <= precision.rounded for that in more) for each in fewer)


def _later_batches(run: Run, references: Run, precision: Precision, rehearsed: tuple[Run, Run]) -> str:
    """Sentence if the first pass over the data has other batches than the job's, else "". Later passes may have another
    order: a loader with persistent workers draws fewer random numbers."""
    if not all(_same_batches(*rehearsed, precision)):
        return ""  # what the model gets was prepared in another way: gradients have shown that it is the same
    for number, (one, other) in enumerate(zip(run.work, references.work, strict=False), 1):
        if one.iterators != run.work[0].iterators or other.iterators != references.work[0].iterators:
            return ""
        if not same_batch(one, other, precision):
            return f"Step {number} {OTHER_SAMPLES}"
    return ""


LESS = (
    _early_end,
    _no_backward,
    no_forward,
    _still,
    _without,
    _repeated,
    shorter_pass,
    _less_evaluated,
    left_out,
    carried_less,
    kept_samples,
)
"""Checks for less work under the same name."""


def _ways(own: Sketches, usual: Sketches, what: str, tolerance: Tolerance, before: Run) -> str:
    """Sentence if tensors differ in direction or length, else ""; those whose gradient is rounding are left out."""
    gradients = {name: length(values) for name, values in _first(before, "directions").items()}
    least = NEGLIGIBLE * float(np.hypot.reduce(list(gradients.values()) or [0.0]))
    known = [name for name in own if name in usual and gradients.get(name, 0.0) > least and length(usual[name]) > 0]
    if not known:
        return ""
    cosines = {name: _cosine(_array(own[name]), _array(usual[name])) for name in known}
    middle, name = float(np.median(list(cosines.values()))), min(known, key=cosines.__getitem__)
    if cosines[name] < tolerance.cosines[0] or middle < tolerance.cosines[1]:
        return f"{what} {name} points in another direction (cosine {cosines[name]:.2g}; median of all {middle:.2g})"
    factors = {name: np.log(max(length(own[name]), 1e-300) / length(usual[name])) for name in known}
    middle, name = float(np.median(list(factors.values()))), max(known, key=lambda each: abs(factors[each]))
    if abs(factors[name]) > np.log1p(tolerance.lengths[0]) or abs(middle) > np.log1p(tolerance.lengths[1]):
        return f"{what} {name} is {np.exp(factors[name]):.3g} times as large (median of all {np.exp(middle):.3g})"
    return ""


def _array(values: Sequence[float]) -> Float64:
    return np.array(values, np.float64)


def _distance(one: Float64, other: Float64) -> float:
    scale = max(float(np.linalg.norm(one)), float(np.linalg.norm(other)))
    return float(np.linalg.norm(one - other)) / scale if scale else 0.0


def _cosine(one: Float64, other: Float64) -> float:
    scale = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(one @ other) / scale if scale else 0.0
