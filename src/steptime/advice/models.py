"""Small models and readings that several rules share: threads, optimizers, gradients, staging copies, stragglers."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable

import numpy as np

from steptime.advice.device_uses import CopyUse, GradientUse, MachineUse
from steptime.advice.evidence import Case, OptimizerUse
from steptime.advice.kernels import plain_name
from steptime.advice.line_evidence import UPDATED, LineTime, function_of, line_times, profile_scale
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


def fitting_threads(settings: SettingsUse, loader: LoaderUse | None) -> int:
    """Each training process gets its share of the CPUs, and leaves one to the loader's workers where it has some."""
    share = settings.usable_cpus // max(1, settings.trainers_on_host)
    return max(1, share - (1 if loader is not None and loader.workers else 0))


def idle_cpus(contention: Contention) -> float:
    """CPUs that neither the job nor others used."""
    return max(0.0, contention.usable_cpus - contention.other_cpu - contention.job_cpu)


def at_once(busy: float, contention: Contention) -> float:
    """Work that so many busy CPUs do, in CPUs of which one works alone: as many where it was not measured.

    The usable ones together do what was measured. Cores have two hyperthreads at most (Intel, AMD), and a scheduler
    fills cores first: half of the CPUs work as if alone where all together do no less than that.
    """
    usable, together = contention.usable_cpus, contention.together
    if together is None or together <= 0 or usable < 1:
        return busy
    half = usable / 2
    if together <= half or usable == 1:
        return busy * together / usable
    return busy if busy <= half else half + (min(busy, usable) - half) * (together - half) / (usable - half)


BYTES_PER_ELEMENT = 4
"""Parameters, gradients and state in single precision, which is the rule; lower precision would make the floor
lower."""
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
"""Reads and writes of one number per element and update, by the update rules: SGD reads parameter and gradient and
writes the parameter; Adam does so with two moments as well (4 reads, 3 writes)."""
USUAL_STREAMS = 5
"""For an optimizer that is not in STREAMS: one state besides parameter and gradient."""
BYTES_PER_SECOND = 5e9
"""Copy bandwidth assumed where the machine was not measured: a slow CPU's, so that the floor is high and the promise
small."""
ITERATIVE = frozenset({"LBFGS"})
"""Optimizers of torch whose update is no pass over memory: LBFGS goes through up to `history_size` pairs of vectors
twice in each of its iterations (Nocedal, Mathematics of Computation 35, 1980), so nothing says how long that may take
at best."""
HOST_CALLS = {"SGD": 2.0}
USUAL_HOST_CALLS = 4.0
"""Tiny operators' worth of a CPU's time for each tensor, which Python collects with its gradient and state, also for a
fused update. By hand (torch 2.13, where a tiny operator takes 0.9 µs) a fused step takes 0.7 µs a tensor with SGD and
2.9 with Adam and AdamW where nothing else runs, 3.2 and 3.6 between two backwards. A device works meanwhile."""
FUSABLE = frozenset({"Adam", "AdamW", "SGD", "Adagrad"})
"""Optimizers of torch with a fused implementation on CPU and CUDA (torch 2.4 to 2.13)."""
FOREACH = frozenset({"Adadelta", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop"})
"""Optimizers of torch with a foreach implementation but no fused one."""


def floor(use: OptimizerUse, machine: MachineUse | None) -> float:
    """ns that a single pass over parameters, gradients and state takes: at the rate of updates in place of as many
    bytes where it was measured, else of a large copy. All but the gradient are read and written. On a CPU with what
    each tensor costs next to its memory."""
    streams = STREAMS.get(use.type, USUAL_STREAMS)
    each = use.elements * BYTES_PER_ELEMENT
    copying = machine.copy_bytes if machine is not None and machine.copy_bytes else BYTES_PER_SECOND
    bandwidth = memory_rate(machine, each * (streams + 1) / 2) or copying
    return each * streams / bandwidth * 1e9 + _collecting(use, machine)


def _collecting(use: OptimizerUse, machine: MachineUse | None) -> float:
    """ns of the host for all tensors, where the updates run on it; 0 where that was not measured."""
    if machine is None or not machine.updates or not machine.dispatch:
        return 0.0
    return HOST_CALLS.get(use.type, USUAL_HOST_CALLS) * machine.dispatch * use.parameters


def hand_made_update(case: Case) -> list[LineTime]:
    """The lines of a function that apply the gradients, one parameter after the other, where no optimizer of torch's
    does: of the lines outside of the model that run for each parameter, those with most time."""
    updates = any(use.phase == "optimizer" for use in case.operators)
    if case.optimizers or not case.top_modules or not updates:
        return []
    often = max(1.0, UPDATED * max(model.parameters for model in case.top_modules))
    timed = line_times(case.lines, case.phases)
    times = [time for time in timed if time.line.role == "python" and time.line.hits >= often]
    function = max(times, key=lambda time: time.duration.value).line.source if times else None
    return [time for time in times if function is not None and function_of(time.line.source) == function_of(function)]


def norm_use(table: IntervalTable, steps: Steps) -> NormUse | None:
    """None where nothing was sampled. Warm-up counts: what explodes, explodes early."""
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
    """One of the values, as the mean of two may be beyond what a float holds."""
    return float(np.quantile(values, 0.5, method="lower"))


FILLING = frozenset({"fill", "zero", "_foreach_zero"})
"""Operators below zero_grad(set_to_none=False); zero_ of a tensor calls fill_."""
INSIDE = frozenset({"forward", "backward", "input"})
"""Phases whose zeros are the model's, autograd's or the batch's own."""
BYTES = 4.0
"""Bytes of an element of a gradient: those in half precision are not found, which errs on the safe side."""
MOST_OF_THEM = 0.8
"""Fraction of the parameters' bytes must be filled: what an optimizer or a metric fills besides is small."""


def zeroing(case: Case, elements: int, micro_batches: float) -> tuple[float, float]:
    """(ns per step to fill gradients with zeros, ns per step to add to them in backward); (0, 0) where the operators
    outside of forward and backward do not fill as many bytes as the gradients of so many elements have.

    Over several backwards gradients are added anyway: then only the filling counts.
    """
    filling = [use for use in case.operators if plain_name(use.name) in FILLING and use.phase not in INSIDE]
    if not elements or sum(use.bytes or 0.0 for use in filling) < MOST_OF_THEM * BYTES * elements:
        return 0.0, 0.0
    scale = profile_scale(case.operators, case.categories)
    filled = sum(use.calls for use in filling)
    adding = [use for use in case.operators if plain_name(use.name) == "add" and use.phase == "backward"]
    added = sum(use.duration for use in adding) if micro_batches < 1.5 else 0.0
    share = min(1.0, filled / max(filled, sum(use.calls for use in adding)))
    return scale * sum(use.duration for use in filling), scale * added * share


OTHER = 0.1
"""Fraction of the operators of two steps: where more have no match, by name and shapes, the steps are taken for
different. Equal steps have none; a metric that is computed now and then is a few."""


def changing_work(trace: Trace, boundaries: Int64, forward: Intervals) -> bool | None:
    """True if most steps run other operators in their forward than the one before; None where there are fewer than two
    to compare. boundaries: (n, 2) ns. forward: when the model ran, on the trace's clock."""
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
"""A step: the driver takes up to 64 KiB of pageable memory along without waiting (CUDA's API synchronisation
behaviour); more is staged in pieces, and the host stands meanwhile."""


def staging_operators(copies: Iterable[CopyUse]) -> frozenset[str]:
    """Operators that copy a considerable amount of pageable memory to the device and nothing back: when the host waits
    in one, it is staging. Where an operator also copies from the device, nobody can tell which of the two it waits for.
    """
    copies = tuple(copies)
    back = {copy.operator for copy in copies if copy.kind == "DtoH"}
    sent = (copy for copy in copies if copy.kind == "HtoD" and copy.memory == "pageable" and copy.operator)
    return frozenset(copy.operator for copy in sent if copy.bytes >= LEAST_BYTES) - back


CATEGORIES = {
    "compute": "its computing takes",
    "copy": "its copies take",
    "unrecorded": "device work that the trace does not hold takes",
    "input": "its input takes",
    "sync": "waiting for its device to be read takes",
    "compile": "its compiling takes",
    "overhead": "its operator overhead takes",
    "python": "its own Python takes",
    "unexplained": "time that nothing explains takes",
}
UNEVEN = 1.1
"""Times the others' arithmetic: a tenth more is another batch, not another device."""


def how_to_record(step: StepSummary) -> str:
    """Advice where the trace does not hold what the device did."""
    if step.steady > 1:
        return "Profile fewer steps at once, alone on the device, so that the tracer loses no event."
    return "Record several steps behind a warm-up: torch.profiler.schedule(wait=1, warmup=1, active=3)."


def straggler_name(late: Straggler) -> str:
    """ "rank 3", "rank 3 (node7)", "the 8 ranks of node7"."""
    if late.node:
        return f"the {len(late.ranks)} ranks of {late.host}" if late.host else f"ranks {late.ranks[0]} …"
    return f"rank {late.ranks[0]} ({late.host})" if late.host else f"rank {late.ranks[0]}"


def straggler_text(late: Straggler, step: StepSummary) -> str:
    """Cost of a straggler, the same words in the headline and in its finding: "Rank 3 is the straggler: the others
    wait 6.50 ms per step (12 %) for it"."""
    who, share = straggler_name(late), format_share(min(1.0, ratio(late.waiting, step.duration.value)))
    per = "of this step" if step.steady == 1 else "per step"
    waits = f"the others wait {format_duration(late.waiting)} {per} ({share}) for it"
    return f"{who[:1].upper()}{who[1:]} is the straggler: {waits}"


def straggler_reason(late: Straggler) -> str:
    """Place of its excess: "its input takes 21.0 ms longer, at train.py:43"; "" where nothing exceeds the others'."""
    if not late.category or late.excess <= 0:
        return ""
    longer = f"{CATEGORIES.get(late.category, f'{late.category} takes')} {format_duration(late.excess)} longer"
    return f"{longer}, at {format_source(late.source)}" if late.source is not None else longer


def uneven(late: Straggler) -> bool:
    """True if it is late because it has more to compute."""
    return late.arithmetic is not None and late.arithmetic >= UNEVEN and late.category in ("compute", "overhead")


def gradient_use(trace: Trace, boundaries: Int64) -> GradientUse | None:
    """None where no DistributedDataParallel model ran in the steps. boundaries: (n, 2) ns, n at least 1."""
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
