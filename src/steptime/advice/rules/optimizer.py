"""ST5xx: the optimizer and the gradients."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from steptime.advice.device_uses import MachineUse
from steptime.advice.evidence import Case, LineUse, OptimizerUse, PathUse, TopModuleUse
from steptime.advice.kernels import elements, plain_name
from steptime.advice.line_evidence import calls_function, own_times
from steptime.advice.line_ways import last_name, parsed
from steptime.advice.models import (
    AT_ONCE,
    BYTES_PER_ELEMENT,
    FOREACH,
    FUSABLE,
    UNBOUNDED,
    dense_gradients,
    hand_made_update,
    lower_bound,
    zeroing,
)
from steptime.advice.rule import LONGEST_SUMMARY, Finding, Part, Weight, rule
from steptime.advice.run_uses import CategoryUse, PassUse, ShapedUse, StepSummary
from steptime.advice.savings import in_step, largest, modelled, named, partly, ratio, scaled, share_of_step, total
from steptime.analysis.modules import ModuleUse
from steptime.analysis.operators import OperatorUse
from steptime.analysis.roofline import KernelUse
from steptime.analysis.unused import UnusedPass
from steptime.quantities import Estimate, SourceLine, format_count, format_duration, format_share, format_source
from steptime.recording.recording import PassFacts

LEAST_SHARE = 0.15
"""Fraction of the step: an update reads and writes every parameter; up to here that is usual for small batches."""
LEAST_SHARE_OF_FUSED = 0.3
"""Fraction of the step, where nothing faster is left to switch on: then less of it is the model's price."""
WHOLE_PASS = 0.95
"""Fraction of a pass's nodes: where so many are for nothing, the pass is."""
LEAST_EMBEDDINGS = 0.3
"""Fraction of an optimizer's elements: below this the rest of the model is what it updates."""
FEWEST_ELEMENTS = 250_000
"""Elements of embeddings, a megabyte: an update passes over fewer in microseconds, and batches look up most rows of
them."""
FEWEST_TENSORS = 20
"""With fewer parameters there is little to batch."""
LEAST_SHARE_OF_SINGLE_TENSORS = 0.05
"""Fraction of the step: below this the optimizer is not what to look at."""
LEAST_SAVINGS = 0.03
"""Fraction of the step: a trial takes no smaller gain. Many small tensors cost Python as much in one pass."""
LEAST_OWN = 0.3
"""Fraction of the optimizer's time, in one line of the user's."""
LEAST_UNUSED = 0.05
"""Fraction of the step, in backward."""
ALL_BUT = 0.95
"""Fraction of a module's numbers, without an update, for its backward to be for nothing: a few may get no gradient at
all."""
OF_WEIGHTS, OF_WEIGHTS_AT_LEAST = 0.5, 0.25
"""Fraction of a module's backward, for its own parameters: a product has one for them and one of that size for its
input."""
SURELY_UNUSED = 0.8
"""Fraction of a module's backward, where nothing that is trained comes before it: profiled, short operators take
longer."""
NORM_OF_ONE = frozenset({"linalg_vector_norm", "norm"})
"""Operators that take the norm of one tensor."""
FEWEST_MADE = 8
"""Optimizers that one line has made: some jobs have several."""
FEWEST_GROUPS, FOLD = 8, 2
"""Groups of parameters, and groups for each set of options, from which on they are worth merging."""
LIKELY_MERGED = 0.8
"""Fraction of what is above the least time of an update and goes with the groups."""
SCALED_IN_PLACE = "aten::mul_"
LEAST_SHARE_OF_ZEROS = 0.03
"""Fraction of the step: below it the difference is not noticed."""


@rule("ST501", "optimizer-share", at_setting=True)
def optimizer_share(step: StepSummary, optimizers: tuple[OptimizerUse, ...], case: Case) -> Finding | None:
    """The optimizer takes a large part of the step

    What it means: Updating the parameters takes long compared with forward and backward: the batch is small for the
    number of parameters, or the update is done tensor by tensor.

    How we know: The optimizer's step() is timed in every step. On a device that decides how long the step is, the
    optimizer's kernels are timed instead, because the CPU only launches them or waits in step(). The lower bound of
    an update is one pass over parameters, gradients and state at the measured bandwidth; on a CPU, Python's time for
    each tensor is added. The savings are the time above that lower bound.

    What helps: fused=True (one pass over memory), foreach=True (fewer dispatches); stepping less often by accumulating
    gradients; a larger batch; freezing what does not train; an optimizer with less state.

    When to ignore it: When the batch size is fixed by the method and the optimizer is already fused. LBFGS, which
    iterates over its history, and SparseAdam, whose time depends on the lookups (see ST511), are excluded: no lower
    bound of them is known.
    """
    duration = total(use.duration for use in optimizers)
    least = LEAST_SHARE_OF_FUSED if all(use.fused for use in optimizers) else LEAST_SHARE
    if ratio(duration.value, step.duration.value) < least:
        return None
    if not all(use.elements and use.type not in UNBOUNDED for use in optimizers):
        return None
    top = max(optimizers, key=lambda use: use.duration.value)
    tensors = sum(use.parameters for use in optimizers)
    kinds = sorted({use.type for use in optimizers})
    take = f"{' and '.join(kinds)} take{'s' if len(kinds) == 1 else ''}"
    summary = f"{take} {in_step(duration.value, step)} for {tensors} tensors"
    rarely = "step less often (accumulate gradients), enlarge the batch, or train fewer parameters"
    fusable = any(use.type in FUSABLE and not use.fused for use in optimizers)
    advice = f"Use fused=True, or {rarely}." if fusable else f"No faster implementation is left to switch on: {rarely}."
    own = _own_line(optimizers, case.paths)
    if own is not None:
        advice = "Make this line cheaper, or do it every n-th step."
    saving = _above_lower_bound(duration, optimizers, case.machine)
    return optimizer_share.finding(summary, advice, saving, category=_category(top), source=own or top.site)


def _category(use: OptimizerUse) -> Part:
    """Kernels' time is the device's computing; the CPU's is of no category alone."""
    return "compute" if use.kernels else ""


def _own_line(optimizers: tuple[OptimizerUse, ...], paths: tuple[PathUse, ...]) -> SourceLine | None:
    """The line of the user's own optimizer that takes longest; None where it is torch's."""
    spent = own_times(path for path in paths if path.part == "optimizer")
    top, most = largest({line: own for line, own in spent.items() if line.function.rpartition(".")[2] != "<module>"})
    return top if most >= LEAST_OWN * total(use.duration for use in optimizers).value else None


def _above_lower_bound(duration: Estimate, optimizers: Iterable[OptimizerUse], machine: MachineUse | None) -> Estimate:
    """Time of their updates beyond the least that they need."""
    best = sum(lower_bound(use, machine) for use in optimizers)
    return scaled(duration, 1 - min(1.0, ratio(best, duration.value)))


@rule("ST502", "dense-embedding-gradient", supersedes=("optimizer-share", "single-tensor-optimizer"), at_setting=True)
def dense_embedding_gradient(step: StepSummary, optimizers: tuple[OptimizerUse, ...], case: Case) -> Finding | None:
    """The gradient of a large embedding is dense, and almost all of it is zero

    What it means: Each batch looks up only a few rows of the table, but the gradient has the size of the whole
    table: backward fills it with zeros, and the optimizer updates every row in every step.

    How we know: The savings are the optimizer's time, times the fraction of its elements that belong to such
    embeddings, and what backward takes to fill their gradients with zeros and to add the rows that were looked up.

    What helps: Embedding(..., sparse=True) with SparseAdam, SGD or Adagrad for that table, without weight decay: they
    refuse it for sparse gradients. The moments of other rows then stay as they are, which changes Adam's curve
    slightly. Or give the table its own optimizer, which steps less often.

    When to ignore it: When each batch looks up most rows (a small vocabulary), or when the output layer shares the
    table: then the gradient really is dense.
    """

    def spent(use: OptimizerUse) -> float:
        return use.duration.value * ratio(use.dense_embedding_elements, max(use.elements, 1))

    use = max(optimizers, key=spent)
    part = ratio(use.dense_embedding_elements, max(use.elements, use.dense_embedding_elements))
    if part < LEAST_EMBEDDINGS or use.dense_embedding_elements < FEWEST_ELEMENTS:
        return None
    updating, making = scaled(use.duration, part), dense_gradients(case, use.dense_embedding_elements)
    saving = total((updating, modelled(making, SURELY_MADE * making, making, updating.samples)))
    elements = f"dense gradients of {use.dense_embedding_elements / 1e6:.1f} M elements of embeddings"
    summary = f"{use.type} spends {in_step(saving.value, step)} on {elements}"
    if making >= SMALL_PART * saving.value:
        summary = f"Backward and {use.type} spend {in_step(saving.value, step)} on {elements}"
    advice = "Make the embedding sparse (sparse=True) with SparseAdam or SGD for it."
    return dense_embedding_gradient.finding(summary, advice, saving, source=use.site)


SURELY_MADE, SMALL_PART = 0.5, 0.1
"""Fraction of the making that a sparse gradient surely saves (it still sorts and adds the rows), and fraction of the
savings from which on it is named."""


@rule("ST503", "single-tensor-optimizer", supersedes=("optimizer-share", "overhead-bound"), at_setting=True)
def single_tensor_optimizer(step: StepSummary, optimizers: tuple[OptimizerUse, ...], case: Case) -> Finding | None:
    """The optimizer updates its parameters one tensor at a time

    What it means: Each parameter tensor is updated by a dozen small operators of its own. With hundreds of tensors that
    is thousands of dispatches per step, and several passes over memory where one would do.

    How we know: The rule looks at two kinds of optimizers: those made with foreach=False, and, on a CPU, those made
    without fused, because torch does not choose foreach there by itself. step() is timed. The lower bound is one pass
    over parameters, gradients and state at the machine's bandwidth; on a CPU, Python's time for each tensor is added.
    The savings are the time above that. In a bare trace, the operators inside the optimizer's annotation show its
    kind: none is of foreach, none is fused. There the optimizer's time is the device's, from the first kernel of the
    update to the end of the last.

    What helps: fused=True where the optimizer has it (Adam, AdamW, SGD, Adagrad), else foreach=True on CUDA. The
    numbers change in the last bits.

    When to ignore it: When memory is short on CUDA: foreach needs a temporary copy of the gradients' size.
    """
    slow = [use for use in optimizers if _single_tensor(use, step.device)]
    if not slow:
        return None
    use, duration = max(slow, key=lambda use: use.duration.value), total(use.duration for use in slow)
    saving = _above_lower_bound(duration, slow, case.machine)
    if (
        ratio(duration.value, step.duration.value) < LEAST_SHARE_OF_SINGLE_TENSORS
        or ratio(saving.value, step.duration.value) < LEAST_SAVINGS
    ):
        return None
    kernels, operators = sum(each.kernels or 0 for each in slow), sum(each.operators or 0 for each in slow)
    launched = f" with {kernels:.0f} kernels" if kernels else f" with {operators:.0f} operators" if operators else ""
    who = f"{use.type} updates" if len(slow) == 1 else f"{len(slow)} optimizers ({use.type}, …) update"
    tensors = format_count(sum(each.parameters for each in slow), "tensor")
    summary = f"{who} {tensors} one by one{launched}: {in_step(duration.value, step)}"
    how = "fused=True" if use.type in FUSABLE else "foreach=True"
    advice = f"Make {'it' if len(slow) == 1 else 'each of them'} with {how}."
    return single_tensor_optimizer.finding(summary, advice, saving, category=_category(use), source=use.site)


def _single_tensor(use: OptimizerUse, device: str) -> bool:
    """True if the optimizer works tensor by tensor though torch offers something better for this device."""
    if use.fused or use.foreach:
        return False
    if use.kernels is not None and use.foreach is None:
        return False  # a trace that does not show how it works
    if device == "cpu":
        return use.type in FUSABLE
    return use.foreach is False and use.type in FUSABLE | FOREACH


@rule("ST504", "zeroed-gradients")
def zeroed_gradients(
    operators: tuple[OperatorUse, ...], optimizers: tuple[OptimizerUse, ...], case: Case
) -> Finding | None:
    """Gradients are filled with zeros and then added to

    What it means: zero_grad(set_to_none=False) writes zeros into every gradient, and backward then reads them, adds its
    result and writes the sum. Dropped gradients (the default since torch 2.0) are simply put in place.

    How we know: Outside of forward and backward, operators fill as many bytes with zeros as the gradients have.
    Fills outside of the optimizer's own code must also match the number of gradients, and at most twice their bytes,
    because a loss may set sums of its own to zero. The fills are timed in the profiled steps, and as many additions
    in backward (not if an update has several backwards, which must add). If the lines that call zero_grad take far
    less time than the fills, something else fills with zeros, and nothing is reported.

    What helps: optimizer.zero_grad() without set_to_none=False; model.zero_grad() likewise.

    When to ignore it: When the loop reads gradients of parameters that the loss does not reach, or relies on momentum
    and weight decay moving parameters without a gradient.
    """
    if case.settings is not None and case.settings.deterministic:
        return None  # it fills new memory, too
    elements = sum(use.elements for use in optimizers)
    filling, adding = zeroing(case)
    both = filling + adding
    zeroing_lines = [use for use in case.lines if calls_function(use.calls, "zero_grad")]
    dropped = zeroing_lines and 2 * sum(use.duration.value for use in zeroing_lines) < filling
    if dropped or ratio(both, case.step.duration.value) < LEAST_SHARE_OF_ZEROS:
        return None
    summary = (
        f"Filling {elements:,} gradients with zeros takes {format_duration(filling)} per step, adding to them "
        f"{format_duration(adding)} ({share_of_step(both, case.step)} together)"
    )
    saving = modelled(both, filling, both, case.step.steady)
    advice = "Call zero_grad() without set_to_none=False: gradients are then dropped."
    source = next((use.source for use in zeroing_lines), None)
    return zeroed_gradients.finding(summary, advice, saving, category="compute", source=source)


@rule("ST505", "update-by-hand")
def update_by_hand(
    phases: tuple[CategoryUse, ...],
    lines: tuple[LineUse, ...],
    operators: tuple[OperatorUse, ...],
    top_modules: tuple[TopModuleUse, ...],
    case: Case,
) -> Finding | None:
    """The loop updates the parameters itself, one tensor at a time

    What it means: No optimizer of torch steps: a loop over the parameters, or a class of the job's own, applies the
    gradients. Each tensor needs several small operators, and an expression such as lr * grad allocates a temporary of
    the tensor's size.

    How we know: No optimizer's step() was seen, so steps end with backward. Two facts show an update by hand.
    Operators outside of forward and backward change as many bytes in place as the model's parameters have. And the
    loop has lines that run at least once for each parameter; these lines are timed. The lower bound is one pass over
    the parameters, their gradients and one optimizer state per parameter at the machine's bandwidth. The savings are
    the time of the lines less this bound.

    What helps: The optimizer of torch.optim that does the same, with fused=True where it exists. For an update of
    your own, torch._foreach_add_ and the like on the lists of parameters and gradients, under torch.no_grad().

    When to ignore it: When the update is the subject of the work, and each tensor needs a different one.
    """
    own = hand_made_update(case)
    if not own:
        return None
    model = max(top_modules, key=lambda top_module: top_module.parameter_bytes)
    spent = total(time.duration for time in own)
    if ratio(spent.value, case.step.duration.value) < LEAST_SHARE_OF_SINGLE_TENSORS:
        return None
    use = OptimizerUse("", spent, model.parameters, model.parameter_bytes // BYTES_PER_ELEMENT)
    summary = f"The loop updates {model.parameters} parameters itself, one by one: {in_step(spent.value, case.step)}"
    advice = "Use the optimizer of torch.optim with fused=True, or torch._foreach_add_ on lists of tensors."
    source = max(own, key=lambda time: time.duration.value).line.source
    return update_by_hand.finding(summary, advice, _above_lower_bound(spent, [use], case.machine), source=source)


@rule("ST506", "gradients-for-nothing", supersedes=("dominant-operator", "compute-share", "backward-again"))
def gradients_for_nothing(
    phases: tuple[CategoryUse, ...],
    case: Case,
    modules: tuple[ModuleUse, ...] = (),
    dropped: tuple[UnusedPass, ...] = (),
) -> Iterator[Finding]:
    """Gradients are computed that no optimizer uses

    What it means: Backward computes gradients of everything that leads to the loss. The discriminator's loss
    reaches the generator if its images are not detached, and the next zero_grad() drops these gradients. A backbone
    that is not in the optimizer, or a teacher without torch.no_grad(), accumulates gradients.

    How we know: In a few steps, steptime walks the graph of each backward to the parameters. It follows each
    parameter's gradient until an optimizer steps with it (used), or until it is set to None or zeros (dropped). A
    gradient also counts as used if an object holds it, or if an operator takes tensors of its shape between pass and
    update. For torch.autograd.grad, the caller's code shows which gradients it reads, if it only unpacks the tuple or
    indexes it by constants. The nodes' times come from the profiled pass with the same graph. A node that
    leads only to dropped gradients counts in full, one that also leads to used gradients counts half. Without such a
    walk, the rule takes the parameters that have a gradient and are in no optimizer, and the timed backward of their
    modules. The rule is silent if the update mostly changes tensors other than the modules' own (copies, flat shards).

    What helps: Call detach() on what one part returns before the other's loss uses it, or compute it under
    torch.no_grad(), which keeps no activations either. Set requires_grad_(False) on parameters that are not
    trained, or not by this loss. Ask torch.autograd.grad only for the gradients that you read.

    When to ignore it: When the gradients themselves are wanted (saliency), or the loop updates these parameters itself.
    """
    phase = named(phases, "backward")
    if phase is None:
        return
    for use in sorted(dropped, key=lambda use: -use.nothing - OF_WEIGHTS * use.partly):
        if (found := _of_dropped(use, phase, case)) is not None:
            yield found
    if not dropped and modules and (found := _of_modules(phase, modules, case)) is not None:
        yield found


SURE_AT_ONCE, LIKELY_AT_ONCE = 0.2, 0.5
"""Fraction of the time of many passes that doing it at once surely and likely saves. Measured: 0.42 to 0.77 for
Jacobians of 32 rows by is_grads_batched, 0.24 by samples alone and 0.48 by vmap for gradients of 64 samples (networks
of three layers, one thread, torch 2.13)."""


@rule(
    "ST510",
    "passes-through-one-graph",
    supersedes=("dominant-operator", "dispatch-loop", "outside-model"),
    by_line=True,
)
def passes_through_one_graph(step: StepSummary, passes: PassUse) -> Finding | None:
    """Many backward passes go through the same graph

    What it means: A loop asks for the gradient of one sample, or of one output, after the other, with
    retain_graph=True. Each pass runs backward through the whole batch, with zeros for all but one row.

    How we know: The backward passes of a step are counted. If there are sixteen, the sixteenth and the three after it
    are examined. The rule fires if one line starts all four, and their graphs end in the same node, but start from
    different results. The graphs of micro-batches have no node in common. Passes of products with a vector, and
    passes through gradients, do not count, because the next one may depend on the last. The savings are half of the
    passes' time; the interval starts at a fifth.

    What helps: All gradients at once: torch.autograd.grad(…, is_grads_batched=True), or torch.func.vmap of
    torch.func.grad (or jacrev). If only the sum of the gradients is needed, one backward of the sum. For single
    samples, forward and backward of that sample alone compute one row instead of all.

    When to ignore it: When the gradients of all samples together do not fit into memory; then compute them in
    parts.
    """
    spent = passes.duration.value
    if not passes.shared:
        return None
    summary = f"{passes.count:.0f} backward passes per step go through the same graph: {in_step(spent, step)}"
    saving = partly(spent, LIKELY_AT_ONCE, SURE_AT_ONCE, step)
    return passes_through_one_graph.finding(summary, AT_ONCE, saving, source=passes.source)


LIKELY_DENSE, SURE_DENSE, MOST_DENSE = 0.35, 0.05, 0.65
"""Fractions of lookups (forward and backward) and update that a dense gradient saves, where the lookups of a step are
as many as the rows. Measured: 4 to 67 %, 40 % in the middle (42 sizes: 100 to 50,000 rows of 16 to 128 numbers, up to
50 times as many lookups; in one of them more time; Adam without fused, torch 2.13, one thread)."""


@rule(
    "ST511",
    "sparse-gradient-of-all-rows",
    supersedes=("optimizer-share", "dominant-operator", "memory-bound-pointwise", "overhead-bound"),
    at_setting=True,
)
def sparse_gradient_of_all_rows(
    step: StepSummary, shaped: tuple[ShapedUse, ...], optimizers: tuple[OptimizerUse, ...]
) -> Finding | None:
    """The gradient of an embedding is sparse, and a step looks up as many rows as the table has

    What it means: A sparse gradient has a row for each lookup, and many are for the same row of the table.
    SparseAdam sorts and sums them in each step, then gathers and scatters its moments. A dense gradient is as large
    as the table, and rows are added in place. That is less work once a step looks up as many rows as there are.

    How we know: The profile has each lookup, with the shapes of table and index, and whether the gradient is sparse.
    The optimizer is timed. The rule fires if a step looks up at least as many rows as the tables have. The savings
    are a fraction of the time of lookups and update, as measured in 42 sizes (torch 2.13, one thread): 35 % is
    likely, 5 to 65 % is the interval.

    What helps: sparse=False, and Adam with fused=True for the table.

    When to ignore it: When memory is short, or each step looks up the same few rows: Adam also moves rows that a step
    leaves out, by their momentum.
    """
    own = [use for use in optimizers if use.type == "SparseAdam"]
    lookups = [use for use in shaped if use.name == "embedding" and len(use.shapes) > 1 and len(use.shapes[0]) == 2]
    tables, parameters = {use.shapes[0] for use in lookups}, sum(use.parameters for use in own)
    if (
        not tables or not own or len(tables) not in (1, parameters)
    ):  # of several tables of one size, which is looked up how often?
        return None
    rows = sum(table[0] for table in tables) * (parameters if len(tables) == 1 else 1)
    looked_up = sum(use.calls * elements(use.shapes[1]) for use in lookups)
    spent = sum(use.duration.value for use in own) + sum(use.duration for use in lookups)
    if looked_up < rows or ratio(LIKELY_DENSE * spent, step.duration.value) < LEAST_SAVINGS:
        return None
    return sparse_gradient_of_all_rows.finding(
        f"SparseAdam sorts and sums the gradient of {looked_up:,.0f} lookups in {rows:,} rows: {in_step(spent, step)}",
        "Make the embedding with sparse=False, and use Adam with fused=True for it.",
        modelled(LIKELY_DENSE * spent, SURE_DENSE * spent, MOST_DENSE * spent, step.steady),
        source=max(own, key=lambda use: use.duration.value).site,
    )


def _of_dropped(use: UnusedPass, phase: CategoryUse, case: Case) -> Finding | None:
    """Passes whose gradients were followed."""
    facts, whole = use.facts, phase.duration.value
    spent = (use.nothing + OF_WEIGHTS * use.partly) * whole
    if ratio(spent, case.step.duration.value) < LEAST_UNUSED:
        return None
    least = (SURELY_UNUSED * use.nothing + OF_WEIGHTS_AT_LEAST * use.partly) * whole
    saving = modelled(spent, least, min(1.0, use.nothing + use.partly) * whole, case.step.steady)
    if facts.read:
        return _of_asked(facts, spent, saving, case)
    fate = "no optimizer has" if facts.unowned else "are zeroed unused"
    where = f" ({Path(facts.made.file).name}:{facts.made.line})" if facts.made is not None else ""
    what = f"{facts.path or 'parameters'}{where}"
    summary = f"Backward computes gradients of {what} that {fate}: {in_step(spent, case.step)}"
    if len(summary) > LONGEST_SUMMARY:
        summary = summary.replace(what, "parameters")
    through = use.nothing >= use.partly
    source = (facts.passed if through else None) or (facts.made if facts.unowned else None) or facts.site or facts.made
    return gradients_for_nothing.finding(
        summary, _what_helps(facts, through), saving, category="compute", source=source, evidence=tuple(_seen(facts))
    )


def _of_asked(facts: PassFacts, spent: float, saving: Estimate, case: Case) -> Finding:
    """Gradients that torch.autograd.grad gives and its caller does not read."""
    left = facts.asked - len(facts.read)
    ends = {
        tuple(range(len(facts.read))): f"[:{len(facts.read)}]",
        tuple(range(left, facts.asked)): f"[-{facts.asked - left}:]",
    }
    places, given = ends.get(facts.read, ""), _given(facts.site)
    wanted = f"{given}{places}" if places and given else f"the {len(facts.read)} that the caller reads"
    summary = f"Nobody reads {left} of the {facts.asked} gradients that torch.autograd.grad takes"
    advice = f"Ask for the gradients of {wanted} only: backward then skips the others."
    evidence = (f"The unread gradients have {facts.elements:,} numbers.",)
    return gradients_for_nothing.finding(
        f"{summary}: {in_step(spent, case.step)}",
        advice,
        saving,
        category="compute",
        source=facts.site,
        evidence=evidence,
    )


def _given(site: SourceLine | None) -> str:
    """The name of what a call of torch.autograd.grad is given to take gradients of; "" where its text shows none."""
    tree = parsed(site.text) if site is not None else None
    for call in ast.walk(tree) if tree is not None else ():
        if isinstance(call, ast.Call) and last_name(call.func) == "grad":
            inputs = [*call.args[1:2], *(each.value for each in call.keywords if each.arg == "inputs")]
            return next((ast.unparse(each) for each in inputs if isinstance(each, ast.Name | ast.Attribute)), "")
    return ""


def _what_helps(facts: PassFacts, through: bool) -> str:
    if _length(facts.nothing) >= WHOLE_PASS * _length(facts.visited) and not facts.unowned:
        return "Leave this pass out: all of its gradients are dropped before an optimizer steps with them."
    if not through:
        what = facts.path or "these parameters"
        return f"Set requires_grad_(False) on {what} for this pass; gradients still flow through."
    if facts.unowned:
        return "Set requires_grad_(False) on them, or call it under torch.no_grad()."
    given = f"what {facts.path} gives" if facts.path else "what they make"
    return f"detach() {given} before this loss uses it, or make it under torch.no_grad()."


def _length(runs: Iterable[tuple[int, int]]) -> int:
    """Number of nodes in runs of them."""
    return sum(last - first + 1 for first, last in runs)


def _seen(facts: PassFacts) -> Iterator[str]:
    what = (
        "are of parameters that no optimizer has"
        if facts.unowned
        else "were zeroed before an optimizer stepped with them"
    )
    yield f"Gradients of {facts.elements:,} numbers {what}."
    if facts.site is not None:
        yield f"Backward: {format_source(facts.site)} {facts.site.text}"
    if facts.made is not None:
        yield f"Made by: {format_source(facts.made)} {facts.made.text}"


def _of_modules(phase: CategoryUse, modules: tuple[ModuleUse, ...], case: Case) -> Finding | None:
    """Parameters in no optimizer, of which only the modules are known."""
    unused = _without_update(modules)
    profiled = sum(use.backward for use in modules if use.depth == 0)
    if not unused:
        return None
    scale = min(1.0, ratio(phase.duration.value, profiled))
    first, numbers = max(unused, key=lambda use: use.backward), sum(use.without_update for use in unused)
    trained_before = any(_is_trained_before(use, modules) for use in unused)
    spent = scale * sum(use.backward for use in unused)
    share, least = (OF_WEIGHTS, OF_WEIGHTS_AT_LEAST) if trained_before else (1.0, SURELY_UNUSED)
    if ratio(share * spent, case.step.duration.value) < LEAST_UNUSED:
        return None
    where = first.path + (f" and {format_count(len(unused) - 1, 'other module')}" if len(unused) > 1 else "")
    summary = f"Backward computes gradients of {where}, which no optimizer has: {in_step(share * spent, case.step)}"
    advice = "Set requires_grad_(False) on them"
    advice += "; gradients still flow through." if trained_before else ", or call it under torch.no_grad()."
    saving = modelled(share * spent, least * spent, spent, case.step.steady)
    evidence = (f"{numbers:,} numbers have a gradient and are in no optimizer.",)
    source = _called_at(first, case)
    return gradients_for_nothing.finding(summary, advice, saving, category="compute", source=source, evidence=evidence)


def _called_at(module: ModuleUse, case: Case) -> SourceLine | None:
    """The line of forward that calls the module by its name; else where the optimizer is made, without it."""
    call = re.compile(rf"\b{re.escape(module.path.rpartition('.')[2])}\(")
    calling = [line for line in case.lines if line.role == "forward" and call.search(line.source.text)]
    if calling:
        return max(calling, key=lambda line: line.duration.value).source
    return max(case.optimizers, key=lambda use: use.duration.value).site if case.optimizers else None


def _without_update(modules: Sequence[ModuleUse]) -> list[ModuleUse]:
    """The outermost modules of which all parts get gradients that nobody uses."""
    found: list[ModuleUse] = []
    for use in modules:
        inside = any(use.path.startswith(f"{outer.path}.") for outer in found)
        parts = [each for each in modules if each.parameters and f"{each.path}.".startswith(f"{use.path}.")]
        if not inside and parts and all(each.without_update >= ALL_BUT * each.parameters for each in parts):
            found.append(use)
    return found


def _is_trained_before(module: ModuleUse, modules: Sequence[ModuleUse]) -> bool:
    """True if a module with parameters of another kind is called before this one, which may be what its input comes
    from. Those around it are no such."""
    before = modules[: modules.index(module)]
    return any(use.parameters > use.without_update and not module.path.startswith(f"{use.path}.") for use in before)


@rule("ST507", "single-tensor-clipping")
def single_tensor_clipping(step: StepSummary, kernels: tuple[KernelUse, ...], case: Case) -> Finding | None:
    """Gradients are clipped tensor by tensor

    What it means: Each gradient has kernels of its own for its norm and its scaling: two launches per parameter, of
    a few microseconds of work. clip_grad_norm_ does so with foreach=False, or if gradients are of several types;
    loops over model.parameters() always do.

    How we know: The trace has as many kernels of a norm as there are parameters, and as many in-place products after
    them. torch's batched form has only a handful (_foreach_norm, _foreach_mul_). The savings are the device's idle
    time for these launches, plus the kernels' time beyond what their bytes need. The interval starts at the idle time
    alone.

    What helps: torch.nn.utils.clip_grad_norm_(model.parameters(), limit, foreach=True), which is the default on CUDA;
    in a loop of your own torch._foreach_norm and torch._foreach_mul_. A fused optimizer can take the scale itself.

    When to ignore it: When every gradient must be clipped by its own norm.
    """
    norms = [use for use in kernels if plain_name(use.operator) in NORM_OF_ONE]
    tensors = sum(use.calls for use in norms)
    if tensors < FEWEST_TENSORS:
        return None
    products = [use for use in kernels if use.operator == SCALED_IN_PLACE]
    both = [*norms, *(products if sum(use.calls for use in products) >= ALL_BUT * tensors else [])]
    names = {use.operator for use in both}
    idle = total(gap.duration for gap in case.gaps if gap.category == "overhead" and gap.cause in names)
    beyond = sum(max(0.0, use.duration - (use.at_roofline or 0.0)) for use in both)
    one = ratio(1.0, tensors)  # a batched norm has launches, too
    saving = scaled(idle, 1 - one)
    saving = modelled(saving.value + beyond * (1 - one), saving.low, saving.high + beyond, step.steady)
    summary = f"{tensors:.0f} gradients are clipped one by one: {in_step(saving.value, step)}"
    advice = "Call clip_grad_norm_ with foreach=True; in a loop of your own use torch._foreach_norm and _foreach_mul_."
    clipping = [line.source for line in case.lines if calls_function(line.calls, "clip_grad_norm_")]
    source = clipping[0] if len(clipping) == 1 else None
    category: Part = "overhead" if idle.value > beyond else "compute"
    return single_tensor_clipping.finding(summary, advice, saving, category=category, source=source)


@rule("ST508", "many-groups", supersedes=("optimizer-share", "single-tensor-optimizer"), at_setting=True)
def many_groups(
    step: StepSummary, optimizers: tuple[OptimizerUse, ...], machine: MachineUse | None = None
) -> Finding | None:
    """The optimizer updates many groups of parameters one after the other

    What it means: The optimizer has a parameter group for nearly every tensor, though many of these groups have the
    same learning rate, weight decay and other options. It updates group by group, so a fused or foreach
    implementation gets one tensor at a time.

    How we know: The optimizer's groups are counted, and so are the different sets of options among them. step() is
    timed; its lower bound is what the memory's bandwidth requires. The time above the lower bound is divided equally
    among the groups. The savings are the parts of the groups that repeat another's options; four fifths of them are
    likely.

    What helps: Collect the parameters by their options (a dictionary from (lr, weight_decay) to a list of
    parameters), and make one group of each list.

    When to ignore it: When a schedule later sets different options for these groups.
    """
    many = [use for use in optimizers if use.groups >= max(FEWEST_GROUPS, FOLD * use.distinct_groups)]
    if not many:
        return None
    use = max(many, key=lambda each: each.duration.value)
    part = 1 - ratio(use.distinct_groups, use.groups)
    amount = part * max(0.0, use.duration.value - lower_bound(use, machine))
    options = "with the same options" if use.distinct_groups == 1 else f"{use.distinct_groups} with different options"
    return many_groups.finding(
        f"{use.type} updates {use.groups} groups of parameters, {options}: {in_step(use.duration.value, step)}",
        f"Make one group of all parameters with the same options: {use.distinct_groups} in place of {use.groups}.",
        modelled(LIKELY_MERGED * amount, 0.5 * LIKELY_MERGED * amount, amount, use.duration.samples),
        source=use.site,
        evidence=(f"{format_share(part)} of the groups repeat the options of another.",),
    )


@rule(
    "ST509",
    "optimizer-in-step",
    supersedes=("optimizer-share", "outside-model", "python-time", "dispatch-loop"),
    at_setting=True,
)
def optimizer_in_step(
    step: StepSummary, optimizers: tuple[OptimizerUse, ...], lines: tuple[LineUse, ...] = ()
) -> Finding | None:
    """A new optimizer is made in every step

    What it means: The line that makes the optimizer runs in the loop. Each new one starts without momentum and
    averages, so Adam and SGD with momentum train as if each step were the first. Making it also takes time.

    How we know: An optimizer counts as new if it takes a step and the previous one from the same line is gone.
    steptime records the count at the 1st, 2nd, 4th, … new one. The rule fires if the last recorded count is at least
    eight, and at least a quarter of the number of steps. The savings are the time of the line in the loop, if it was
    timed; otherwise this is a note.

    What helps: Make it once, before the loop, and change options in its param_groups.

    When to ignore it: When each step trains another model, as in the inner loop of meta-learning.
    """
    use = max(optimizers, key=lambda each: each.made)
    site = use.site
    if site is None or use.made < max(FEWEST_MADE, step.total / 4):
        return None
    spent = [line.duration for line in lines if line.source.place == site.place]
    takes = f": {in_step(total(spent).value, step)}" if spent else ""
    return optimizer_in_step.finding(
        f"A new {use.type} in each step, without the state of the last{takes}",
        "Make it once, before the loop.",
        total(spent) if spent else None,
        source=site,
        weight=None if spent else Weight.NOTE,
    )
