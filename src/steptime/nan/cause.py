"""The likely cause of something that is not finite, from the operator that made it and the values it was made of.

Each kind of cause is one function; the first that recognises its case answers, else operator and inputs are named.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from steptime.nan.nonfinite import (
    BatchFacts,
    Cause,
    NonFinite,
    NonFiniteOrigin,
    Number,
    ProcessNumerics,
    Trigger,
    ValueRange,
    listed,
    plain_number,
    value_of,
)
from steptime.quantities import format_count

STEPS = 8
"""Gradient norms that are shown."""
FEWEST = 9
"""Steps of which the first third is compared with the last."""
GREAT_GROWTH = 100.0
"""A gradient norm so many times that of a few steps before is exploding: norms of a training that goes well vary by a
factor of a few from batch to batch."""
LARGEST = {"float16": 65504.0, "bfloat16": 3.3895e38, "float32": 3.4028e38, "float64": 1.7977e308}
"""The largest finite number of a format (IEEE 754; bfloat16: 2**127 * (2 - 2**-7))."""
LEAST = {"float16": "6e-8", "bfloat16": "9e-41"}
"""The least positive number of a format; of others 1e-45."""
LOGARITHMS = {"log", "log2", "log10", "log1p", "xlogy", "logit", "log_normal"}
DIVISIONS = {"div", "divide", "true_divide", "reciprocal", "rsqrt", "addcdiv", "floor_divide", "remainder", "fmod"}
POWERS = {"pow", "square"}
EXPONENTIALS = POWERS | {"exp", "exp2", "expm1", "sinh", "cosh", "logsumexp", "softplus"}
SOFTMAXES = ("softmax", "scaled_dot_product", "logsumexp")
CASTS = {"to_copy", "copy", "to"}
NORMS = {"norm", "linalg_vector_norm", "std", "var", "cdist", "dist"}
ROOTS = NORMS | {"sqrt", "rsqrt", "pow", "log", "div", "reciprocal"}
"""Operators whose derivative is infinite, or 0/0, at a value at which they are finite themselves."""
BOUNDED = {"sqrt", "rsqrt", "pow", "acos", "asin", "atanh", "acosh"}
"""Operators that are not defined for every number."""
AGAINST_GROWTH = (
    "Clip the gradient (clip_grad_norm_), lower the learning rate or warm it up; check the sign of the loss."
)
Growth = tuple[tuple[int, Number], ...]
"""(step, gradient norm)."""
History = Sequence[tuple[int, Number, Number]]
"""(step, loss, gradient norm)."""


def growth_of(history: History) -> Growth:
    """The last steps that have a gradient norm."""
    return tuple((step, norm) for step, _, norm in history if norm is not None)[-STEPS:]


def growth_factor(growth: Growth) -> float:
    """The last norm over the least one; 1 where there are no two."""
    norms = [value_of(norm) for _, norm in growth]
    finite = [norm for norm in norms if math.isfinite(norm) and norm > 0]
    return finite[-1] / min(finite) if finite else 1.0


def over_the_run(spread: History) -> Growth:
    """A few steps of the whole run, the first and the last among them."""
    if len(spread) <= STEPS:
        return growth_of(spread)
    return growth_of([spread[round(place * (len(spread) - 1) / (STEPS - 1))] for place in range(STEPS)])


def divergence(spread: History) -> float:
    """How many times the norm has grown from the first third of the run to the last, in the median; 1 where that is
    nothing unusual, or where there are too few steps to tell."""
    norms = [value_of(norm) for _, _, norm in spread]
    third = len(norms) // 3
    if len(norms) < FEWEST:
        return 1.0
    before, after = statistics.median(norms[:third]), statistics.median(norms[-third:])
    return after / before if 0 < before * GREAT_GROWTH <= after else 1.0


def cause_of(origin: NonFiniteOrigin, growth: Growth = (), batch: BatchFacts | None = None) -> Cause:
    """Likely cause of a value that is not finite."""
    if origin.kind != "operator":
        return _foreign(origin)
    name = plain_operator(origin.operator)
    return (
        _empty_mean(origin, name)
        or _masked_row(origin, name)
        or _logarithm(origin, name)
        or _derivative(origin)
        or _outside_domain(origin, name)
        or _division(origin, name)
        or _outlying_sample(origin, batch)
        or _exploding(origin, growth)
        or _overflow(origin, name)
        or _unrecognised(origin)
    )


def plain_operator(operator: str) -> str:
    """ "aten::_foreach_div_" → "div"."""
    name = operator.rpartition("::")[2].removeprefix("_foreach").strip("_")
    return name.removesuffix("_backward")


def _foreign(origin: NonFiniteOrigin) -> Cause:
    """Cause of a value that no operator made."""
    if origin.kind == "batch":
        held = origin.outputs[0] if origin.outputs else ValueRange()
        what, elements = ("NaN", held.nan) if held.nan else ("infinities", held.infinite)
        who = _samples(origin.samples, origin.rows)
        return Cause(
            "bad-batch",
            f"The batch came with {what}: {who}, {format_count(elements, 'element')} of {held.elements}.",
            "Look at these samples in the data set; drop them there, or refuse them where they are read.",
        )
    if origin.kind == "parameter":
        return Cause(
            "bad-parameter",
            f"The parameter {origin.name or '(unnamed)'} was not finite before step {origin.step} began: it was loaded "
            "or initialised so, or an update that was not looked at made it so.",
            "Check the checkpoint and the initialisation (torch.empty holds whatever memory held).",
        )
    return FOREIGN.get(origin.kind, UNSEEN)


FOREIGN = {
    "collective": Cause(
        "other-rank",
        "It came in by a collective: this rank's own values were finite, another rank's were not.",
        "Look at the accounts of the other ranks in the recording.",
    ),
    "constant": Cause(
        "constant",
        "The only infinities that lead here were written by the program itself.",
        "Check the line: is a masked or a filled value used as if it were data?",
    ),
}
UNSEEN = Cause(
    "unseen",
    "No operator that was seen made it: it comes from outside of PyTorch's operators, from another thread, or from "
    "memory that was never written.",
    "Check tensors that are made with torch.empty, by NumPy, or by an extension.",
)


def _empty_mean(origin: NonFiniteOrigin, name: str) -> Cause | None:
    if any(each.elements == 0 for each in origin.inputs) and _made_nan(origin):
        return Cause(
            "empty-mean",
            f"{origin.operator} was given a tensor without elements: the mean of nothing is 0/0.",
            "Leave the loss out of a step that selects no element, or divide a sum by clamp(min=1).",
        )
    if origin.phase == "backward":
        return None
    if name.startswith(("nll_loss", "cross_entropy")):
        return Cause(
            "all-targets-ignored",
            "Every target of the batch is the ignored index (or has weight 0): the mean over no element is 0/0.",
            "Use reduction='sum' and divide by the number of targets, at least 1; or leave such a batch out.",
        )
    if name in ("var", "std", "var_mean", "std_mean"):
        return Cause(
            "single-value-variance",
            "The variance of a single value, with Bessel's correction, is 0/0.",
            "Use correction=0 (unbiased=False), or leave out groups of one.",
        )
    return None


def _masked_row(origin: NonFiniteOrigin, name: str) -> Cause | None:
    masked = any(each.negative_infinite for each in origin.inputs)
    if not (masked and _made_nan(origin) and any(part in name for part in SOFTMAXES)):
        return None
    return Cause(
        "masked-row",
        f"A softmax over a row in which everything is masked (-inf) is 0/0: rows {listed(origin.rows)} of its input.",
        "Leave one element of every row visible, or fill with a large negative number instead of -inf.",
    )


def _logarithm(origin: NonFiniteOrigin, name: str) -> Cause | None:
    values = _first(origin)
    if values.low is None or not (name in LOGARITHMS or name.startswith(("binary_cross_entropy", "poisson_nll"))):
        return None
    edge = -1 if name == "log1p" else 0
    if values.low < edge:
        return Cause(
            "log-of-negative",
            f"{name} of negative numbers is NaN: its input goes down to {plain_number(values.low)}.",
            "Find out why it is negative; a clamp would hide it.",
        )
    how_many = f"{format_count(values.zeros, 'element')} of {values.elements} of its input" if not edge else "its input"
    return Cause(
        "log-of-zero",
        f"{name} of {edge:g} is -inf: {how_many} {'are' if values.zeros > 1 and not edge else 'is'} {edge:g}.",
        "Use log_softmax or a …_with_logits loss where this is a probability, or clamp(min=1e-8) before the log.",
    )


def _derivative(origin: NonFiniteOrigin) -> Cause | None:
    """Finite forwards, not so backwards: sqrt at 0."""
    forward = plain_operator(origin.forward_operator)
    if origin.phase != "backward" or forward not in ROOTS or not any(each.zeros for each in origin.inputs):
        return None
    return Cause(
        "infinite-derivative",
        f"The derivative of {forward} is infinite at 0: its backward divides by 0, while the forward was finite.",
        "Add a small number inside (sqrt(x + 1e-8)), or keep zeros out of it before it is computed: torch.where behind "
        "it does not help.",
    )


def _outside_domain(origin: NonFiniteOrigin, name: str) -> Cause | None:
    values = _first(origin)
    if name not in BOUNDED or values.low is None or not _made_nan(origin):
        return None
    if values.low >= 0 and values.magnitude <= 1:
        return None
    return Cause(
        "outside-domain",
        f"{name} is not defined there: its input lies between {plain_number(values.low)} and "
        f"{plain_number(values.high or 0.0)}.",
        "Clamp to the domain what rounding has pushed out of it (x.clamp(min=0)), or find out why it lies outside.",
    )


def _division(origin: NonFiniteOrigin, name: str) -> Cause | None:
    below = origin.inputs[-1] if origin.inputs else ValueRange()
    if name not in DIVISIONS or not below.zeros:
        return None
    if origin.phase == "optimizer":
        return Cause(
            "update-divides-by-zero",
            f"The optimizer divides by 0: the denominator is 0 in {below.zeros} of {below.elements} elements of "
            f"{below.dtype}, in which squares below {LEAST.get(below.dtype, '1e-45')} and a small eps vanish.",
            "Keep the parameters that are updated in float32 (autocast instead of .half()), or raise eps.",
        )
    return Cause(
        "division-by-zero",
        f"{'0/0' if _made_nan(origin) else 'a division by 0'}: the divisor is 0 in {below.zeros} of {below.elements} "
        "elements.",
        "Add a small number to the divisor, or clamp it (clamp(min=1e-8)).",
    )


def _outlying_sample(origin: NonFiniteOrigin, batch: BatchFacts | None) -> Cause | None:
    """An overflow in just the rows that stand out in the batch."""
    if batch is None or not batch.rows_outlying or not _overflowed(origin):
        return None
    if not set(origin.rows) <= set(batch.rows_outlying):
        return None
    largest = max((each.magnitude for each in batch.tensors), default=0.0)
    who = _samples(batch.samples_outlying, batch.rows_outlying)
    return Cause(
        "outlying-sample",
        f"The batch holds values far beyond the others, up to {plain_number(largest)}: {who}.",
        "Look at these samples in the data set; clip or scale what is read.",
    )


def _exploding(origin: NonFiniteOrigin, growth: Growth) -> Cause | None:
    factor = growth_factor(growth)
    if factor < GREAT_GROWTH or not _overflowed(origin):
        return None
    return Cause(
        "exploding-gradient",
        f"The gradient norm has grown {plain_number(factor)} times over steps {growth[0][0]} to {growth[-1][0]}, and "
        f"{origin.operator} overflowed {origin.outputs[0].dtype} with inputs up to "
        f"{plain_number(_largest_input(origin))}.",
        AGAINST_GROWTH,
    )


def _overflow(origin: NonFiniteOrigin, name: str) -> Cause | None:
    if not _overflowed(origin):
        return None
    dtype, values = origin.outputs[0].dtype, _first(origin)
    most = plain_number(LARGEST.get(dtype, math.inf))
    if name in EXPONENTIALS and values.high is not None:
        limit = f", beyond {math.log(LARGEST[dtype]):.4g}" if name == "exp" and dtype in LARGEST else ""
        return Cause(
            "overflow" if name in POWERS else "overflow-of-exponential",
            f"{name} overflowed {dtype} (largest {most}): its input goes up to "
            f"{plain_number(values.magnitude if name in POWERS else values.high)}{limit}.",
            "Subtract the maximum first (softmax, logsumexp do), clamp the input, or compute it in a wider format.",
        )
    did = "a cast to" if name in CASTS else f"{origin.operator} in"
    return Cause(
        "overflow",
        f"{did} {dtype} overflowed: inputs go up to {plain_number(_largest_input(origin))}, the largest {dtype} is "
        f"{most}.",
        "Compute this line in float32 or bfloat16 (outside of autocast), or scale its inputs down."
        if dtype == "float16"
        else "Find out why the inputs are so large: learning rate, normalisation, or the data.",
    )


def _unrecognised(origin: NonFiniteOrigin) -> Cause:
    if any(each.infinite for each in origin.inputs) and _made_nan(origin):
        return Cause(
            "arithmetic-of-infinities",
            f"{origin.operator} made NaN of infinities that the program wrote (inf - inf, or 0 * inf).",
            "Use torch.where or masked_fill instead of adding or multiplying a mask of infinities.",
        )
    ranges = "; ".join(
        f"{each.name} {plain_number(each.low)} to {plain_number(each.high or 0.0)}"
        for each in origin.inputs
        if each.low is not None
    )
    return Cause(
        "operator",
        f"{origin.operator} made {'NaN' if _made_nan(origin) else 'an infinity'} of values that were finite: {ranges}.",
        "Look at the ranges of its inputs: which of them is not what the line expects?",
    )


def _made_nan(origin: NonFiniteOrigin) -> bool:
    return any(each.nan for each in origin.outputs)


def _overflowed(origin: NonFiniteOrigin) -> bool:
    """Infinities, or the NaN of infinities inside of the operator, of large inputs that were finite."""
    made, given = (any(each.infinite or each.nan for each in values) for values in (origin.outputs, origin.inputs))
    return made and not given


def _first(origin: NonFiniteOrigin) -> ValueRange:
    """The first input with finite elements."""
    return next((each for each in origin.inputs if each.low is not None), ValueRange())


def _largest_input(origin: NonFiniteOrigin) -> float:
    return max((each.magnitude for each in origin.inputs), default=0.0)


def _samples(samples: tuple[int | str, ...], rows: tuple[int, ...]) -> str:
    of_batch = f"{listed(rows, 'row')} of the batch"
    return f"{listed(samples, 'sample')} of the data set ({of_batch})" if samples else of_batch


WATCHED, RECEIVED = "watch", "collective"
SIGNS = ("loss", "read", "gradient", "skipped")
"""Kinds of signs as they come within a step: a loss is known before the gradients that other ranks share."""
PHASES = ("input", "forward", "backward", "optimizer")


def first_sign(processes: Sequence[ProcessNumerics]) -> Trigger | None:
    """The earliest of the triggers: by step, and by the order within the step."""
    triggers = [process.trigger for process in processes if process.trigger is not None]
    return min(triggers, key=_order, default=None)


def _order(trigger: Trigger) -> tuple[int, int]:
    return trigger.step, SIGNS.index(trigger.kind) if trigger.kind in SIGNS else len(SIGNS)


def _only_rank(trigger: Trigger | None, processes: Sequence[ProcessNumerics]) -> int | None:
    """Where a sign was seen first; None where several ranks saw it at once, as they share their gradients."""
    if trigger is None:
        return None
    ranks = {each.rank for each in processes if each.trigger is not None and _order(each.trigger) == _order(trigger)}
    return ranks.pop() if len(ranks) == 1 else None


def trace_back(
    command: Sequence[str], watched: Sequence[ProcessNumerics], instrumented: Sequence[ProcessNumerics] = ()
) -> NonFinite:
    """The result of a job that was watched, and of its instrumented run where there was one."""
    trigger = first_sign(watched)
    witness = next((each for each in watched if each.trigger is trigger and trigger is not None), None)
    last = witness.history if witness is not None else ()
    spread = watched[0].spread if watched and trigger is None else ()
    result = NonFinite(
        command=tuple(command),
        steps=max((process.steps for process in watched or instrumented), default=0),
        trigger=trigger,
        skipped_steps=max((process.skipped_steps for process in watched), default=0),
        rank=_only_rank(trigger, watched),
        ranks=max(len(watched), len(instrumented), 1),
        growth=growth_of(last) or over_the_run(spread),
        diverging=divergence(spread),
        notes=tuple(dict.fromkeys(note for process in (*watched, *instrumented) for note in process.notes)),
    )
    found = min((each for each in instrumented if each.trigger is not None), key=_origin_order, default=None)
    return result if found is None else _with_origin(result, found, (*watched, *instrumented))


def _origin_order(process: ProcessNumerics) -> tuple[bool, bool, int, int, int]:
    """Least on the rank that it was born on: that has it from no other, and earliest, by step and within the step."""
    origin = process.origin or NonFiniteOrigin()
    phase = PHASES.index(origin.phase) if origin.phase in PHASES else len(PHASES)
    return process.origin is None, origin.kind == RECEIVED, origin.step, phase, process.rank or 0


def _with_origin(result: NonFinite, found: ProcessNumerics, processes: Sequence[ProcessNumerics]) -> NonFinite:
    """The sign and the rank are those of the origin's rank; of one that died without a result, what any saw first."""
    origin = found.origin
    batch = found.batch or BatchFacts()
    growth = max(result.growth, growth_of(found.history), key=len)
    born_here = origin is None or origin.kind != RECEIVED
    own = first_sign([each for each in processes if each.mode == WATCHED and each.rank == found.rank])
    trigger = found.trigger if born_here else first_sign(processes)
    if born_here and own is not None and (trigger is None or own.step <= trigger.step):
        trigger = own  # else the watch, which looks at the gradients of some steps only, has seen it later
    return replace(
        result,
        trigger=trigger,
        reproduced=True,
        rank=found.rank if born_here else _only_rank(trigger, processes),
        origin=origin,
        cause=cause_of(origin, growth, batch) if origin is not None else None,
        growth=growth,
        batch=batch,
        bad_gradients=found.bad_gradients,
    )
