"""Small models and readings that several rules share: threads, optimizers, gradients, staging copies, stragglers."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from steptime.advice.device_uses import CopyUse, GradientUse, MachineUse
from steptime.advice.evidence import Case, OptimizerUse, SiteUse
from steptime.advice.kernels import plain_name
from steptime.advice.line_evidence import UPDATED, LineTime, function_of, line_times, profile_scale, steady_time
from steptime.advice.memory_evidence import memory_rate
from steptime.advice.run_uses import Contention, LoaderUse, NormUse, SettingsUse, StepSummary
from steptime.advice.savings import ratio
from steptime.analysis.operators import operator_events
from steptime.analysis.stragglers.comparison import Straggler
from steptime.analysis.stragglers.summary import gradients_of
from steptime.analysis.timeline import Steps
from steptime.arrays import Float64, Int64
from steptime.intervals import Intervals, contains
from steptime.journal import Kind
from steptime.quantities import format_duration, format_share, format_source, mean_of_series
from steptime.recording.recording import IntervalTable
from steptime.trace.table import Trace

REFUSED = "torch.compile refuses gradients of gradients"
"""Why it is not advised where a job takes them."""


def or_compile(second_order: bool | None, what: str) -> str:
    """Text that ends a sentence of advice: ", or compile the function"; for gradients of gradients, why not."""
    return f"; {REFUSED}" if second_order else f", or compile {what}"


OPERATORS_OF_A_CHECK = 20
"""Small operators that take as long as one check of a distribution's arguments."""
USUAL_DISPATCH = 1_000.0
"""ns of a small operator where the machine was not measured."""


def checks(sites: Iterable[SiteUse]) -> list[SiteUse]:
    """Lines at which torch.distributions checks its arguments and waits for the outcome, the most frequent first."""
    found = (
        each for each in sites
        if each.name == "__bool__" and any(name.startswith("torch.distributions.") for name in each.functions)
    )  # fmt: skip
    return sorted(found, key=lambda each: -each.seen)


def check_time(machine: MachineUse | None) -> float:
    """Time of one such check of a distribution's arguments, ns."""
    return OPERATORS_OF_A_CHECK * ((machine.dispatch if machine is not None else None) or USUAL_DISPATCH)


def fitting_threads(settings: SettingsUse, loader: LoaderUse | None) -> int:
    """Number of threads for a training process: its share of the CPUs, less one for loader workers if there are any."""
    share = settings.usable_cpus // max(1, settings.trainers_on_host)
    return max(1, share - (1 if loader is not None and loader.workers else 0))


def idle_cpus(contention: Contention) -> float:
    """CPUs that neither the job nor other processes used."""
    return max(0.0, contention.usable_cpus - contention.other_cpu - contention.job_cpu)


def at_once(busy: float, contention: Contention) -> float:
    """Work that `busy` CPUs do at once, in units of one CPU that runs alone; without a measurement, their number. All
    usable CPUs together do the measured work. Cores have at most two hyperthreads (Intel, AMD), and a scheduler fills
    cores first: half of the CPUs work as if alone, if all together do at least that much."""
    usable, together = contention.usable_cpus, contention.together
    if together is None or together <= 0 or usable < 1:
        return busy
    half = usable / 2
    if together <= half or usable == 1:
        return busy * together / usable
    return busy if busy <= half else half + (min(busy, usable) - half) * (together - half) / (usable - half)


BYTES_PER_ELEMENT = 4
"""Bytes of an element of parameters, gradients and state in float32, the usual dtype; a lower precision would make the
lower bound smaller."""
STREAMS = {
    "SGD": 3,
    "Adam": 7,
    "AdamW": 7,
    "NAdam": 7,
    "RAdam": 7,
    "Adamax": 7,
    "RMSprop": 5,
    "Adagrad": 5,
    "Adadelta": 7,
}
"""Reads and writes of one element per update, by the update rules: SGD reads parameter and gradient and writes the
parameter; Adam does the same with two moments as well (4 reads, 3 writes)."""
USUAL_STREAMS = 5
"""Reads and writes per element of an optimizer that is not in STREAMS: one state besides parameter and gradient."""
BYTES_PER_SECOND = 5e9
"""Copy bandwidth of an unmeasured machine, B/s: a slow CPU's, so that the lower bound is high and the promise small."""
UNBOUNDED = frozenset({"LBFGS", "SparseAdam"})
"""Torch optimizers whose update is not one pass over memory: LBFGS passes twice over up to `history_size` pairs of
vectors in each of its iterations (Nocedal, Mathematics of Computation 35, 1980), and SparseAdam goes through what was
looked up, so there is no lower bound."""
HOST_CALLS = {"SGD": 2.0}
USUAL_HOST_CALLS = 4.0
"""CPU time per tensor, in tiny operators, in which Python collects it with its gradient and state, also for a fused
update. As measured (torch 2.13, where a tiny operator takes 0.9 µs), a fused step takes 0.7 µs per tensor with SGD and
2.9 with Adam and AdamW alone, 3.2 and 3.6 between two backwards. A device works meanwhile."""
FUSABLE = frozenset({"Adam", "AdamW", "SGD", "Adagrad"})
"""Torch optimizers with a fused implementation on CPU and CUDA (torch 2.4 to 2.13)."""
FOREACH = frozenset({"Adadelta", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop"})
"""Torch optimizers with a foreach implementation but no fused one."""


def lower_bound(use: OptimizerUse, machine: MachineUse | None) -> float:
    """Lower bound on the time of an optimizer's update, ns: one pass over parameters, gradients and state, at the
    measured rate of in-place updates of that size, else of a large copy. All but the gradient are read and written. On
    a CPU, the cost per tensor is added."""
    streams = STREAMS.get(use.type, USUAL_STREAMS)
    each = use.elements * BYTES_PER_ELEMENT
    copying = machine.copy_bytes if machine is not None and machine.copy_bytes else BYTES_PER_SECOND
    bandwidth = memory_rate(machine, each * (streams + 1) / 2) or copying
    return each * streams / bandwidth * 1e9 + _collecting(use, machine)


def _collecting(use: OptimizerUse, machine: MachineUse | None) -> float:
    """CPU time to collect all tensors, ns, if updates run on the CPU; 0 if that was not measured."""
    if machine is None or not machine.updates or not machine.dispatch:
        return 0.0
    return HOST_CALLS.get(use.type, USUAL_HOST_CALLS) * machine.dispatch * use.parameters


def dense_gradients(case: Case, elements: int) -> float:
    """Time per step in which backward makes dense gradients for this many elements of embeddings, ns: it adds the rows
    that were looked up, and fills at least as much with zeros. A larger fill counts in proportion to its bytes."""
    least = BYTES_PER_ELEMENT * elements
    made = [use for use in case.operators if LOOKED_UP in use.name]
    made += [
        replace(use, duration=use.duration * least / use.bytes)
        for use in case.operators
        if use.phase == "backward" and plain_name(use.name) in FILLING and use.bytes and use.bytes >= least
    ]
    return steady_time(made, case.operators, case.categories, case.machine)


LOOKED_UP = "embedding_dense_backward"


def hand_made_update(case: Case) -> list[LineTime]:
    """Lines of a function that updates parameters one by one from their gradients, if no torch optimizer does. Of the
    lines outside the model that run for each parameter, these take the most time."""
    updates = any(use.phase == "optimizer" for use in case.operators)
    if case.optimizers or not case.top_modules or not updates:
        return []
    often = max(1.0, UPDATED * max(model.parameters for model in case.top_modules))
    timed = line_times(case.lines, case.phases)
    times = [time for time in timed if time.line.role == "python" and time.line.hits >= often]
    function = max(times, key=lambda time: time.duration.value).line.source if times else None
    return [time for time in times if function is not None and function_of(time.line.source) == function_of(function)]


def norm_use(table: IntervalTable, steps: Steps) -> NormUse | None:
    """Summary of the sampled gradient norms; None without samples. Warm-up steps count, since a norm explodes early."""
    rows = np.flatnonzero(table.kind == int(Kind.GRADIENT_NORM))
    if not len(rows):
        return None
    number = np.searchsorted(steps.end, table.start[rows], side="right")
    with np.errstate(invalid="ignore"):  # a damaged file's bits may be those of a signalling NaN
        read = table.end[rows].astype("<i4").view("<f4").astype(np.float64)
    norm = np.where(read >= 0, read, np.inf)
    finite = norm[np.isfinite(norm)]
    lost = int(np.argmax(np.isfinite(norm)[::-1])) if len(finite) else len(norm)
    third = len(finite) // 3
    before, after = (_middle(finite[:third]), _middle(finite[len(finite) - third :])) if third else (0.0, 0.0)
    return NormUse(
        before=before,
        after=after,
        first=int(number[0]),
        last=int(number[-1]),
        samples=len(norm),
        lost=lost,
        lost_since=int(number[len(number) - lost]) if lost else None,
    )


def _middle(values: Float64) -> float:
    """Median, as one of the values: the mean of two may overflow."""
    return float(np.quantile(values, 0.5, method="lower"))


FILLING = frozenset({"fill", "zero", "_foreach_zero"})
"""Operators below zero_grad(set_to_none=False); zero_ of a tensor calls fill_."""
INSIDE = frozenset({"forward", "backward", "input"})
"""Phases whose zeros belong to the model, autograd or the batch."""
BYTES = 4.0
"""Bytes per element of a gradient. Those in half precision are not detected, which errs on the safe side."""
MOST_OF_THEM = 0.8
"""Least filled fraction of the parameters' bytes: optimizers and metrics fill little besides."""
MOST_TIMES = 2.0
"""Times as much that fills in the rest of the step may have."""


def zeroing(case: Case) -> tuple[float, float]:
    """(ns per step to fill gradients with zeros, ns per step to add to them in backward). (0, 0) if the operators
    outside of forward and backward fill fewer bytes than the gradients have. In the rest of the step a loss may fill,
    too (a sum does); there, fills are of gradients if their number and bytes fit. Over several backwards gradients are
    added anyway: then only the filling counts."""
    tensors = sum(use.parameters for use in case.optimizers)
    least = MOST_OF_THEM * BYTES * sum(use.elements for use in case.optimizers)
    filling = [
        use for use in case.operators
        if plain_name(use.name) in FILLING and use.phase not in INSIDE
        and (use.phase == "optimizer" or (use.calls >= tensors and (use.bytes or 0.0) <= MOST_TIMES * least))
    ]  # fmt: skip
    if not least or sum(use.bytes or 0.0 for use in filling) < least:
        return 0.0, 0.0
    scale = profile_scale(case.operators, case.categories)
    filled = sum(use.calls for use in filling)
    adding = [use for use in case.operators if plain_name(use.name) == "add" and use.phase == "backward"]
    added = sum(use.duration for use in adding) if case.step.micro_batches < 1.5 else 0.0
    share = min(1.0, filled / max(filled, sum(use.calls for use in adding)))
    return scale * sum(use.duration for use in filling), scale * added * share


OTHER = 0.1
"""Fraction of the operators of two steps without a match by name and shapes above which the steps differ. Equal steps
have none; a metric that is computed now and then is a few."""


def changing_work(trace: Trace, boundaries: Int64, forward: Intervals) -> bool | None:
    """True if most steps run other operators in their forward than the step before; None for fewer than two steps.
    boundaries: (n, 2) ns. forward: intervals of the model on the trace's clock."""
    events = trace.events
    chosen = operator_events(trace) & contains(forward, events.start)
    rows = [
        np.flatnonzero(chosen & (events.start >= start) & (events.start < end)) for start, end in boundaries.tolist()
    ]
    steps = [Counter(zip(events.name[each].tolist(), events.shapes[each].tolist(), strict=True)) for each in rows]
    differ = [_differ(*pair) for pair in itertools.pairwise(steps)]
    return 2 * sum(differ) > len(differ) if differ else None


def _differ(one: Counter[tuple[int, int]], other: Counter[tuple[int, int]]) -> bool:
    without = (one - other).total() + (other - one).total()
    return without > OTHER * (one.total() + other.total())


LEAST_BYTES = 65_536.0
"""Least bytes per step: the driver copies up to 64 KiB of pageable memory without waiting (CUDA's API synchronisation
behaviour); more is staged in pieces while the CPU waits."""


def staging_operators(copies: Iterable[CopyUse]) -> frozenset[str]:
    """Operators that copy a considerable amount of pageable memory to the device and nothing back: a CPU wait in such
    an operator is for staging. With copies in both directions, the reason for a wait is ambiguous."""
    copies = tuple(copies)
    back = {copy.operator for copy in copies if copy.kind == "DtoH"}
    sent = (copy for copy in copies if copy.kind == "HtoD" and copy.memory == "pageable" and copy.operator)
    return frozenset(copy.operator for copy in sent if copy.bytes >= LEAST_BYTES) - back


CATEGORIES = {
    "compute": "its computing takes",
    "copy": "its copies take",
    "unrecorded": "device work that the trace lacks takes",
    "input": "its input takes",
    "sync": "waiting for reads from its device takes",
    "compile": "its compiling takes",
    "overhead": "its operator overhead takes",
    "python": "its own Python takes",
    "unexplained": "unexplained time takes",
}
UNEVEN = 1.1
"""Least ratio of arithmetic to that of the other ranks: a tenth more is another batch, not another device."""


def how_to_record(step: StepSummary) -> str:
    """Advice on how to record again, for a trace without the device's work."""
    if step.steady > 1:
        return "Profile fewer steps at once, alone on the device, so that the tracer loses no event."
    return "Record several steps after a warm-up: torch.profiler.schedule(wait=1, warmup=1, active=3)."


def straggler_name(late: Straggler) -> str:
    """Name of a straggler: "rank 3", "rank 3 (node7)", "the 8 ranks of node7"."""
    if late.node:
        return f"the {len(late.ranks)} ranks of {late.host}" if late.host else f"ranks {late.ranks[0]} …"
    return f"rank {late.ranks[0]} ({late.host})" if late.host else f"rank {late.ranks[0]}"


def straggler_text(late: Straggler, step: StepSummary) -> str:
    """Sentence on the cost of a straggler, for the headline and its finding: "Rank 3 is the straggler: the others wait
    6.50 ms per step (12 %) for it"."""
    who, share = straggler_name(late), format_share(min(1.0, ratio(late.waiting, step.duration.value)))
    per = "of this step" if step.steady == 1 else "per step"
    waits = f"the others wait {format_duration(late.waiting)} {per} ({share}) for it"
    return f"{who[:1].upper()}{who[1:]} is the straggler: {waits}"


def straggler_reason(late: Straggler) -> str:
    """Text on what takes a straggler longer: "its input takes 21.0 ms longer, at train.py:43"; "" if nothing exceeds
    the others'."""
    if not late.category or late.excess <= 0:
        return ""
    longer = f"{CATEGORIES.get(late.category, f'{late.category} takes')} {format_duration(late.excess)} longer"
    return f"{longer}, at {format_source(late.source)}" if late.source is not None else longer


def uneven(late: Straggler) -> bool:
    """True if the straggler has more to compute than the other ranks."""
    return late.arithmetic is not None and late.arithmetic >= UNEVEN and late.category in ("compute", "overhead")


def gradient_use(trace: Trace, boundaries: Int64) -> GradientUse | None:
    """Gradient exchange of the steps; None if no DistributedDataParallel model ran in them. boundaries: (n, 2) ns, n at
    least 1."""
    found = gradients_of(trace, boundaries)
    if found is None:
        return None
    exchanges = max(1, int(found.synchronised.sum()))
    return GradientUse(
        micro_batches=float(found.forwards.mean()),
        synchronised=float(found.synchronised.mean()),
        buckets=float(found.buckets.sum()) / exchanges,
        elements=float(found.elements.sum()) / exchanges,
        search=mean_of_series(found.search),
    )


AT_ONCE = (
    "Take all gradients at once: is_grads_batched=True, or torch.func.vmap of torch.func.grad; where only their sum is "
    "needed, backward() of the sum. The gradient of one sample needs a forward and backward of that sample alone."
)
"""What helps where many backward passes go through one graph."""
