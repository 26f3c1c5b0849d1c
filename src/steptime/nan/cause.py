"""Likely cause of a non-finite value, from the operator that made it and its input values.

Each kind of cause is one function. The first that recognizes its case answers; otherwise operator and inputs are named.
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

FIRST_STEPS = 3
"""Steps in which nothing has been learnt yet."""
LARGE_OUTPUT = 1e3
"""Root mean square of an output: initialisations keep it near one (He et al., Delving Deep into Rectifiers, 2015)."""
LARGE_UPDATE = 0.3
"""Size of an update over that of its weight. A thousandth is usual (Karpathy's rule of thumb); Adam's first steps move
small weights by a tenth."""
LARGE_AT_FIRST = 0.1
"""The same of the first update that was looked at."""
STEPS = 8
"""Number of gradient norms that are shown."""
FEWEST = 9
"""Fewest steps for a comparison of the first third with the last."""
GREAT_GROWTH = 100.0
"""Growth of the gradient norm, relative to a few steps before, that counts as exploding: in training that goes well,
norms vary by a factor of a few from batch to batch."""
LARGEST = {"float16": 65504.0, "bfloat16": 3.3895e38, "float32": 3.4028e38, "float64": 1.7977e308}
"""Largest finite number of a dtype (IEEE 754; bfloat16: 2**127 * (2 - 2**-7))."""
LEAST = {"float16": "6e-8", "bfloat16": "9e-41"}
"""Smallest positive number of a dtype; of others 1e-45."""
LOGARITHMS = {"log", "log2", "log10", "log1p", "xlogy", "logit", "log_normal"}
DIVISIONS = {"div", "divide", "true_divide", "reciprocal", "rsqrt", "addcdiv", "floor_divide", "remainder", "fmod"}
POWERS = {"pow", "square"}
EXPONENTIALS = POWERS | {"exp", "exp2", "expm1", "sinh", "cosh", "logsumexp", "softplus"}
SOFTMAXES = ("softmax", "scaled_dot_product", "logsumexp")
CASTS = {"to_copy", "copy", "to"}
NORMS = {"norm", "linalg_vector_norm", "std", "var", "cdist", "dist"}
ROOTS = NORMS | {"sqrt", "rsqrt", "pow", "log", "div", "reciprocal"}
"""Operators whose derivative is infinite, or 0/0, at a point where they are finite themselves."""
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
    """Last steps of a history as (step, gradient norm)."""
    return tuple((step, norm) for step, _, norm in history if norm is not None)[-STEPS:]


def growth_factor(growth: Growth) -> float:
    """Ratio of the last finite norm to the smallest one; 1 without finite norms."""
    norms = [value_of(norm) for _, norm in growth]
    finite = [norm for norm in norms if math.isfinite(norm) and norm > 0]
    return finite[-1] / min(finite) if finite else 1.0


def over_the_run(spread: History) -> Growth:
    """Gradient norms of a few steps of the whole run, including the first and the last, as (step, norm)."""
    if len(spread) <= STEPS:
        return growth_of(spread)
    return growth_of([spread[round(place * (len(spread) - 1) / (STEPS - 1))] for place in range(STEPS)])


def divergence(spread: History) -> float:
    """Ratio of the run's last third to its first in median gradient norm; 1 if usual, or for too few steps."""
    norms = [value_of(norm) for _, _, norm in spread]
    third = len(norms) // 3
    if len(norms) < FEWEST:
        return 1.0
    before, after = statistics.median(norms[:third]), statistics.median(norms[-third:])
    return after / before if 0 < before * GREAT_GROWTH <= after else 1.0


def cause_of(
    origin: NonFiniteOrigin,
    growth: Growth = (),
    batch: BatchFacts | None = None,
    monitored: ProcessNumerics | None = None,
) -> Cause:
    """Likely cause of a value that is not finite. growth: gradient norms before it, as (step, norm). batch: the batch
    of that step. monitored: facts of the process from its monitored run."""
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
        or _initialisation(origin, monitored)
        or _learning_rate(origin, monitored)
        or _exploding(origin, growth)
        or _overflow(origin, name)
        or _unrecognised(origin)
    )


def plain_operator(operator: str) -> str:
    """Bare name of an operator: "div" for "aten::_foreach_div_"."""
    name = operator.rpartition("::")[2].removeprefix("_foreach").strip("_")
    return name.removesuffix("_backward")


def _foreign(origin: NonFiniteOrigin) -> Cause:
    """Likely cause of a value that no operator made."""
    if origin.kind == "batch":
        held = origin.outputs[0] if origin.outputs else ValueRange()
        what, elements = ("NaN", held.nan) if held.nan else ("infinities", held.infinite)
        who = _samples(origin.samples, origin.rows)
        return Cause(
            "bad-batch",
            f"The batch came with {what}: {who}, {format_count(elements, 'element')} of {held.elements}.",
            "Check these samples in the dataset: remove them there, or reject them when reading.",
        )
    if origin.kind == "parameter":
        return Cause(
            "bad-parameter",
            f"The parameter {origin.name or '(unnamed)'} was not finite before step {origin.step}: from a "
            "checkpoint, its initialisation, or an unchecked update.",
            "Check the checkpoint and the initialisation (torch.empty is uninitialised memory).",
        )
    return FOREIGN.get(origin.kind, UNSEEN)


FOREIGN = {
    "collective": Cause(
        "other-rank",
        "A collective brought it in: this rank's own values were finite, another rank's were not.",
        "Check the other ranks in the recording.",
    ),
    "constant": Cause(
        "constant",
        "The program itself wrote the infinities that lead here.",
        "Check the line: does it use a masked or filled value as data?",
    ),
}
UNSEEN = Cause(
    "unseen",
    "None of the checked operators produced it: it comes from outside PyTorch's operators, from another "
    "thread, or from uninitialised memory.",
    "Check tensors created with torch.empty, by NumPy, or by an extension.",
)


def _empty_mean(origin: NonFiniteOrigin, name: str) -> Cause | None:
    if any(each.elements == 0 for each in origin.inputs) and _made_nan(origin):
        return Cause(
            "empty-mean",
            f"{origin.operator} got an empty tensor: the mean of nothing is 0/0.",
            "Leave the loss out of a step that selects no element, or divide a sum by clamp(min=1).",
        )
    if origin.phase == "backward":
        return None
    if name.startswith(("nll_loss", "cross_entropy")):
        return Cause(
            "all-targets-ignored",
            "Every target of the batch is the ignored index (or has weight 0): the mean over no element is 0/0.",
            "Use reduction='sum' and divide by the number of targets, at least 1; or skip such a batch.",
        )
    if name in ("var", "std", "var_mean", "std_mean"):
        return Cause(
            "single-value-variance",
            "The variance of a single value, with Bessel's correction, is 0/0.",
            "Use correction=0 (unbiased=False), or skip groups of one.",
        )
    return None


def _masked_row(origin: NonFiniteOrigin, name: str) -> Cause | None:
    masked = any(each.negative_infinite for each in origin.inputs)
    if not (masked and _made_nan(origin) and any(part in name for part in SOFTMAXES)):
        return None
    return Cause(
        "masked-row",
        f"A softmax over a fully masked row (-inf) is 0/0: rows {listed(origin.rows)} of its input.",
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
            "Find out why it is negative; a clamp would only hide it.",
        )
    how_many = f"{format_count(values.zeros, 'element')} of {values.elements} of its input" if not edge else "its input"
    return Cause(
        "log-of-zero",
        f"{name} of {edge:g} is -inf: {how_many} {'are' if values.zeros > 1 and not edge else 'is'} {edge:g}.",
        "Use log_softmax or a …_with_logits loss where this is a probability, or clamp(min=1e-8) before the log.",
    )


def _derivative(origin: NonFiniteOrigin) -> Cause | None:
    """Infinite derivative: the forward is finite and the backward is not, as for sqrt at 0."""
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
        f"{name} is undefined there: its input is between {plain_number(values.low)} and "
        f"{plain_number(values.high or 0.0)}.",
        "Clamp to the domain what rounding has pushed out of it (x.clamp(min=0)), or find out why it is outside.",
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
    """Overflow only in rows that differ in the batch."""
    if batch is None or not batch.rows_outlying or not _overflowed(origin):
        return None
    if not set(origin.rows) <= set(batch.rows_outlying):
        return None
    largest = max((each.magnitude for each in batch.tensors), default=0.0)
    who = _samples(batch.samples_outlying, batch.rows_outlying)
    return Cause(
        "outlying-sample",
        f"The batch has outliers of up to {plain_number(largest)}: {who}.",
        "Check these samples in the dataset; clip or scale them when reading.",
    )


def _initialisation(origin: NonFiniteOrigin, monitored: ProcessNumerics | None) -> Cause | None:
    """Outputs that are huge before anything was learnt, and overflow in the first steps."""
    sizes = [(name, value_of(size)) for name, size in (monitored.sizes if monitored is not None else ())]
    known = [(name, size) for name, size in sizes if 0 < size < math.inf]
    if not known or origin.step > FIRST_STEPS or not _overflowed(origin):
        return None
    name, most = max(known, key=lambda each: each[1])
    least = min(known, key=lambda each: each[1])
    if most < LARGE_OUTPUT or most < LARGE_OUTPUT * min(least[1], 1.0):
        return None
    return Cause(
        "initialisation",
        f"In the first step, before anything was learnt, the outputs of {name} are {plain_number(most)} in size (root "
        f"mean square), those of {least[0]} {plain_number(least[1])}: the initialisation lets them grow.",
        "Scale weights by their inputs (torch.nn.init.kaiming_normal_, xavier_uniform_), or normalise between layers.",
    )


def _learning_rate(origin: NonFiniteOrigin, monitored: ProcessNumerics | None) -> Cause | None:
    """Updates that change weights by a large part of their size before the event."""
    updates = [
        (step, name, value_of(size)) for step, name, size in (monitored.updates if monitored is not None else ())
    ]
    before = [each for each in updates if each[0] <= origin.step and math.isfinite(each[2])]
    if not before or origin.phase == "optimizer" or not _overflowed(origin):
        return None
    first, (step, name, most) = before[0], max(before, key=lambda each: each[2])
    if most < LARGE_UPDATE or first[2] < LARGE_AT_FIRST:  # else the gradients have grown
        return None
    since = f", after {plain_number(first[2])} in step {first[0]}" if first[0] < step and first[2] < most else ""
    return Cause(
        "learning-rate",
        f"The update of step {step} was {plain_number(most)} times as large as the weight {name}{since}: a thousandth "
        "is usual.",
        "Lower the learning rate or warm it up; clip the gradient (clip_grad_norm_).",
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
            f"{origin.operator} turned infinities that the program wrote into NaN (inf - inf, or 0 * inf).",
            "Use torch.where or masked_fill instead of adding or multiplying a mask of infinities.",
        )
    ranges = "; ".join(
        f"{each.name} {plain_number(each.low)} to {plain_number(each.high or 0.0)}"
        for each in origin.inputs
        if each.low is not None
    )
    return Cause(
        "operator",
        f"{origin.operator} turned finite values into {'NaN' if _made_nan(origin) else 'an infinity'}: {ranges}.",
        "Check the ranges of its inputs: which of them does the line not expect?",
    )


def _made_nan(origin: NonFiniteOrigin) -> bool:
    return any(each.nan for each in origin.outputs)


def _overflowed(origin: NonFiniteOrigin) -> bool:
    """True if finite inputs became infinite, or NaN by infinities inside the operator."""
    made, given = (any(each.infinite or each.nan for each in values) for values in (origin.outputs, origin.inputs))
    return made and not given


def _first(origin: NonFiniteOrigin) -> ValueRange:
    """First input with finite elements."""
    return next((each for each in origin.inputs if each.low is not None), ValueRange())


def _largest_input(origin: NonFiniteOrigin) -> float:
    return max((each.magnitude for each in origin.inputs), default=0.0)


def _samples(samples: tuple[int | str, ...], rows: tuple[int, ...]) -> str:
    of_batch = f"{listed(rows, 'row')} of the batch"
    return f"{listed(samples, 'sample')} of the data set ({of_batch})" if samples else of_batch


MONITORED, RECEIVED = "watch", "collective"
SIGNS = ("loss", "read", "gradient", "skipped")
"""Kinds of signs in their order within a step: a loss is known before the gradients, which other ranks share."""
PHASES = ("input", "forward", "backward", "optimizer")


def first_sign(processes: Sequence[ProcessNumerics]) -> Trigger | None:
    """Earliest of the triggers, by step and by the order within the step."""
    triggers = [process.trigger for process in processes if process.trigger is not None]
    return min(triggers, key=_order, default=None)


def _order(trigger: Trigger) -> tuple[int, int]:
    return trigger.step, SIGNS.index(trigger.kind) if trigger.kind in SIGNS else len(SIGNS)


def _only_rank(trigger: Trigger | None, processes: Sequence[ProcessNumerics]) -> int | None:
    """Rank that saw the sign first; None if several saw it at once, since they share gradients."""
    if trigger is None:
        return None
    ranks = {each.rank for each in processes if each.trigger is not None and _order(each.trigger) == _order(trigger)}
    return ranks.pop() if len(ranks) == 1 else None


def trace_back(
    command: Sequence[str], monitored: Sequence[ProcessNumerics], instrumented: Sequence[ProcessNumerics] = ()
) -> NonFinite:
    """Conclusions on the non-finite values of a job. monitored: its processes in the monitored run; instrumented: its
    processes in the second, instrumented run, if there was one."""
    trigger = first_sign(monitored)
    witness = next((each for each in monitored if each.trigger is trigger and trigger is not None), None)
    last = witness.history if witness is not None else ()
    spread = monitored[0].spread if monitored and trigger is None else ()
    result = NonFinite(
        command=tuple(command),
        steps=max((process.steps for process in monitored or instrumented), default=0),
        trigger=trigger,
        skipped_steps=max((process.skipped_steps for process in monitored), default=0),
        rank=_only_rank(trigger, monitored),
        ranks=max(len(monitored), len(instrumented), 1),
        growth=growth_of(last) or over_the_run(spread),
        diverging=divergence(spread),
        notes=tuple(dict.fromkeys(note for process in (*monitored, *instrumented) for note in process.notes)),
    )
    found = min((each for each in instrumented if each.trigger is not None), key=_origin_order, default=None)
    return result if found is None else _with_origin(result, found, (*monitored, *instrumented))


def _origin_order(process: ProcessNumerics) -> tuple[bool, bool, int, int, int]:
    """Sort key, least for the rank of the origin: it received the value from no other rank and has it earliest."""
    origin = process.origin or NonFiniteOrigin()
    phase = PHASES.index(origin.phase) if origin.phase in PHASES else len(PHASES)
    return process.origin is None, origin.kind == RECEIVED, origin.step, phase, process.rank or 0


def _with_origin(result: NonFinite, found: ProcessNumerics, processes: Sequence[ProcessNumerics]) -> NonFinite:
    """Result with the origin. Sign and rank are of the origin's rank; if it died without a result, the first of any."""
    origin = found.origin
    batch = found.batch or BatchFacts()
    growth = max(result.growth, growth_of(found.history), key=len)
    born_here = origin is None or origin.kind != RECEIVED
    observed = [each for each in processes if each.mode == MONITORED and each.rank == found.rank]
    own, monitored = first_sign(observed), next(iter(observed), None)
    trigger = found.trigger if born_here else first_sign(processes)
    if born_here and own is not None and (trigger is None or own.step <= trigger.step):
        trigger = own  # else the monitor, which looks at the gradients of some steps only, has seen it later
    return replace(
        result,
        trigger=trigger,
        reproduced=True,
        rank=found.rank if born_here else _only_rank(trigger, processes),
        origin=origin,
        cause=cause_of(origin, growth, batch, monitored) if origin is not None else None,
        growth=growth,
        batch=batch,
        bad_gradients=found.bad_gradients,
    )
