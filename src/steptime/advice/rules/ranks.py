"""ST8xx: communication between the ranks of a job."""

from __future__ import annotations

import re

from steptime.advice.evidence import CollectiveUse, RankUse, Signal
from steptime.advice.models import late_name, late_of, late_reason, uneven
from steptime.advice.rule import Finding, rule
from steptime.advice.savings import capped, modelled, named, ratio, scaled, total
from steptime.advice.signals import Signals
from steptime.analysis.stragglers.comparison import LateRank
from steptime.quantities import Estimate, SourceLine, format_bytes, format_duration, format_share, format_source


@rule("ST805", "exposed-communication", needs={Signal.STEP, Signal.CATEGORIES}, uses={Signal.COLLECTIVES, Signal.RANKS})
def exposed_communication(signals: Signals) -> Finding | None:
    """Collectives run while nothing hides them

    What it means
        The ranks exchange gradients, weights or activations, and no computation runs meanwhile. A collective also waits
        inside its kernel for the rank that arrives last, so this is the network's time and the others' lateness
        together; traces of all ranks tell them apart (ST806).

    How we know
        On a device the kernels of the collectives are in the trace, and exposed is the time in which nothing but
        communication ran; on a CPU it is the time that the training thread was blocked in a collective.

    What helps
        Exchange less often (no_sync() under gradient accumulation) or less (bfloat16 gradients through a
        communication hook, sharding that fits the network); begin earlier (smaller first buckets, static_graph=True);
        a larger batch per rank, which computes longer for the same exchange.

    When to ignore it
        When the ranks share one machine for a test that will run elsewhere.
    """
    category = named(signals.categories, "communication")
    if category is None:
        return None
    top = max(signals.collectives, key=_exposed, default=None)
    most = f", most in {top.name}" if top is not None else ""
    share = format_share(ratio(category.duration.value, signals.step.duration.value))
    summary = (
        f"Communication that nothing hides takes {format_duration(category.duration.value)} a step ({share}){most}"
    )
    evidence = tuple(map(_told, sorted(signals.collectives, key=_exposed, reverse=True)[:3]))
    return exposed_communication.finding(
        summary,
        _advice_exposed_communication(signals),
        category.recoverable,
        category="communication",
        evidence=evidence,
    )


def _exposed(use: CollectiveUse) -> float:
    return use.exposed.value


def _told(use: CollectiveUse) -> str:
    size = f", {format_bytes(use.bytes)}" if use.bytes else ""
    return (
        f"{use.name}: {use.calls:.4g} a step{size}, {format_duration(use.duration.value)}, of it "
        f"{format_duration(use.exposed.value)} exposed"
    )


def _advice_exposed_communication(signals: Signals) -> str:
    if signals.has(Signal.RANKS):
        return "Exchange less often (no_sync while accumulating), or overlap it with backward (buckets)."
    return "Diagnose the traces of all ranks together, to tell a slow network from a late rank."


MORE_WORK = 1.1
"""Times the computing of the others on average: a tenth more is beyond what equal devices differ by."""
SURE_LATE_RANK = 0.5
"""Of the waiting: other ranks may be the next late ones when this one is in time."""


@rule(
    "ST806",
    "late-rank",
    needs={Signal.STEP, Signal.RANKS},
    uses={Signal.LATENESS},
    instead_of=("exposed-communication",),
)
def late_rank(signals: Signals) -> Finding | None:
    """One rank arrives last and all others wait for it

    What it means
        Collectives end together. Ranks that are there first wait inside the collective's kernel, which looks like
        slow communication; the rank that waits least is the one that is late. Where all ranks of one host are late
        together, it is the node.

    How we know
        The collectives are matched across all ranks, one by one within each process group. In each collective a rank
        waits as much longer as it lasts there than on the last rank to come; clocks of different hosts need not agree
        for that. A rank that came last because it had waited elsewhere itself is not counted: the one that it waited
        for is. The excess is the late rank's account beyond the median of the others'. The gain is a replay of
        the job from its collectives, with the late rank's own times at the median of the others'.

    What helps
        What helps the late rank alone: the line that is named, its input, its share of the work (uneven batches, an
        embedding table), its own host or device (thermal limits, another job).

    When to ignore it
        When the work is uneven by design (pipeline stages) and balanced elsewhere.
    """
    if signals.has(Signal.LATENESS):
        return _known(signals, signals.lateness)
    late = late_of(signals.ranks)
    if late is None:
        return None
    others = [rank for rank in signals.ranks if rank.rank != late.rank]
    waiting = sum(rank.waiting for rank in others) / len(others)
    share = format_share(ratio(waiting, sum(rank.step for rank in others) / len(others)))
    summary = (
        f"The other ranks wait {format_duration(waiting)} a step ({share}) in collectives, {format_share(late.last)} "
        f"of it for rank {late.rank}"
    )
    saving = modelled(waiting, SURE_LATE_RANK * waiting, max(rank.waiting for rank in others), signals.step.steady)
    return late_rank.finding(summary, _advice_late_rank(signals, late), saving, evidence=_rows(signals))


def _known(signals: Signals, late: LateRank) -> Finding:
    step = (
        signals.step.duration
    )  # of all steps; where the profiled ones were slower, no more than a step is to be saved
    share = format_share(min(1.0, ratio(late.waiting, step.value)))
    wait = f"The others wait {format_duration(late.waiting)} a step ({share}) for {late_name(late)}"
    reason = late_reason(late).partition(", at ")[0]
    summary = f"{wait}: {reason}" if reason and len(f"{wait}: {reason}") <= 110 else wait
    gain = capped(late.gain, step)
    return late_rank.finding(
        summary, _fix(late, gain), gain, source=late.source, evidence=(*_evidence(late), *_rows(signals))
    )


def _fix(late: LateRank, gained: Estimate) -> str:
    gain = f"then the job's step is {format_duration(gained.value)} shorter"
    if uneven(late):
        return (
            f"It does {late.arithmetic:.2g} times the others' arithmetic: give all ranks batches of one size; {gain}."
        )
    if late.source is not None:
        return f"Make {format_source(late.source)} as fast there as on the other ranks; {gain}."
    if late.node:
        return f"Look at that node (its load, its clocks, its storage), or leave it out; {gain}."
    if late.category:
        return f"Look at its {late.category} first, and at its host; {gain}."
    return f"No account of it exceeds the others': look at its host and its link; {gain}."


def _evidence(late: LateRank) -> tuple[str, ...]:
    found = []
    if late.excesses:
        parts = ", ".join(f"{name} {format_duration(excess)}" for name, excess in late.excesses[:4])
        found.append(f"beyond the median of the others: {parts}")
    if late.since is not None and late.steadiness is not None:
        begin = f"since step {late.since}" if late.since else "from the first measured step on"
        found.append(f"late {begin}, in {format_share(late.steadiness)} of the steps")
    return tuple(found)


def _rows(signals: Signals) -> tuple[str, ...]:
    return tuple(
        f"rank {rank.rank}: waits {format_duration(rank.waiting)}, computes {format_duration(rank.compute)}"
        for rank in sorted(signals.ranks, key=lambda rank: rank.waiting)[:4]
    )


def _advice_late_rank(signals: Signals, late: RankUse) -> str:
    """What most differs: more computing than the others' is more work, else its host is late."""
    others = [rank.compute for rank in signals.ranks if rank.rank != late.rank]
    if others and late.compute > MORE_WORK * sum(others) / len(others):
        return f"Rank {late.rank} computes longer than the others: balance the work, or look at its device."
    return f"Rank {late.rank} computes no longer than the others: look at its input and its host."


ACCUMULATES = 1.5
"""Forwards per step from which on a step has micro-batches, and exchanges from which on there is more than one."""
MOST = 0.5
"""Of the micro-batches must exchange: a few more than one may be of another model."""


@rule(
    "ST811",
    "missing-no-sync",
    needs={Signal.STEP, Signal.CATEGORIES, Signal.GRADIENTS},
    uses={Signal.LINES},
    instead_of=("exposed-communication",),
)
def missing_no_sync(signals: Signals) -> Finding | None:
    """Accumulation exchanges the gradients in every micro-batch

    What it means
        The step adds up the gradients of several micro-batches, and only their sum is needed on the other ranks. But
        each backward exchanges them, so the same gradients travel once for each micro-batch.

    How we know
        The trace marks each forward of the model in DistributedDataParallel, and behind most of them gradients are
        all-reduced before the next one. With no_sync() only the last of a step would be.

    What helps
        Run all but the last micro-batch in model.no_sync() (Accelerate: accelerator.accumulate(model); Lightning:
        accumulate_grad_batches does it).

    When to ignore it
        When memory forbids to keep unreduced gradients (sharded strategies reduce in every micro-batch by design).
    """
    use, category = signals.gradients, named(signals.categories, "communication")
    if category is None or min(use.micro_batches, use.synchronised) < ACCUMULATES:
        return None
    if use.synchronised < MOST * use.micro_batches:
        return None
    saved = scaled(category.duration, 1 - 1 / use.synchronised)
    share = format_share(ratio(category.duration.value, signals.step.duration.value))
    summary = (
        f"Gradients are exchanged {use.synchronised:.3g} times a step, for {use.micro_batches:.3g} micro-batches: "
        f"{format_duration(category.duration.value)} ({share})"
    )
    advice = "Run all micro-batches of a step but the last in model.no_sync()."
    return missing_no_sync.finding(summary, advice, saved, category="communication", source=_backward_line(signals))


def _backward_line(signals: Signals) -> SourceLine | None:
    """The only line of the training loop that calls backward: what no_sync() has to surround."""
    lines = signals.lines if signals.has(Signal.LINES) else ()
    backwards = [use.source for use in lines if use.role == "backward" or "backward(" in use.source.text]
    return backwards[0] if len(backwards) == 1 else None


BUCKET_BYTES = 25 << 20
"""DistributedDataParallel's default bucket_cap_mb; its first bucket is 1 MiB."""
SMALL_BYTES = 4 << 20
"""On average: below this the fixed cost of a collective is most of it on usual networks."""
MANY = 8
SURE_SMALL_BUCKETS = 0.3
"""Of the modelled gain: how much of a collective is fixed cost, only the network knows."""


@rule(
    "ST812",
    "small-buckets",
    needs={Signal.STEP, Signal.CATEGORIES, Signal.GRADIENTS},
    instead_of=("exposed-communication",),
)
def small_buckets(signals: Signals) -> Finding | None:
    """Gradients are exchanged in many small buckets

    What it means
        Each bucket of gradients is a collective of its own, and each collective has a cost that does not depend on its
        size: launching it, and a round trip between the ranks. Many small ones pay it many times.

    How we know
        The all-reduces behind each backward are counted, and their sizes are in the trace. The gain is modelled: the
        exposed communication times the share of collectives that buckets of 25 MiB would do without.

    What helps
        Leave bucket_cap_mb at its default of 25 or raise it; too large buckets begin late, so try some sizes.

    When to ignore it
        When communication hides behind backward anyway.
    """
    use, category = signals.gradients, named(signals.categories, "communication")
    size = 4 * use.elements  # gradients are float32 unless the whole model is in half precision
    if category is None or use.buckets < MANY or not 0 < size < use.buckets * SMALL_BYTES:
        return None
    needed = 1 + -(-size // BUCKET_BYTES)
    gain = category.duration.value * (1 - min(needed, use.buckets) / use.buckets)
    summary = (
        f"Gradients of {format_bytes(size)} travel in {use.buckets:.3g} buckets of {format_bytes(size / use.buckets)}; "
        f"communication takes {format_duration(category.duration.value)}"
    )
    advice = f"Raise bucket_cap_mb of DistributedDataParallel: {needed:.0f} buckets would do."
    saving = modelled(gain, SURE_SMALL_BUCKETS * gain, category.duration.value, signals.step.steady)
    return small_buckets.finding(summary, advice, saving, category="communication")


@rule("ST813", "unused-parameter-search", needs={Signal.STEP, Signal.GRADIENTS})
def unused_parameter_search(signals: Signals) -> Finding | None:
    """Every step searches the graph for unused parameters

    What it means
        find_unused_parameters=True makes DistributedDataParallel walk the whole autograd graph before each backward, on
        the host, and exchange which parameters were used.

    How we know
        The search is an operator of its own in the trace (search_unused_parameters); its time is what is to be saved.

    What helps
        Leave find_unused_parameters out where all parameters get gradients (torch warns where it was not needed), or
        use static_graph=True where it is always the same ones that do not.

    When to ignore it
        When branches of the model really change from step to step.
    """
    search = signals.gradients.search
    if search.value <= 0:
        return None
    share = format_share(ratio(search.value, signals.step.duration.value))
    summary = f"Looking for unused parameters takes {format_duration(search.value)} a step ({share})"
    advice = "Leave find_unused_parameters=True out, or use static_graph=True if the unused ones never change."
    return unused_parameter_search.finding(summary, advice, search)


LEAST_SHARE_RANK_IMBALANCE = 0.15
"""Of the step: equal ranks wait some percent for one another, as the last of many is a little late."""
SURE_RANK_IMBALANCE = 0.5


@rule(
    "ST814",
    "rank-imbalance",
    needs={Signal.STEP, Signal.RANKS},
    uses={Signal.LATENESS},
    instead_of=("exposed-communication",),
)
def rank_imbalance(signals: Signals) -> Finding | None:
    """The ranks wait for one another in turns

    What it means
        All ranks wait much in collectives, and each of them is now and then the last: their shares of the work differ
        from step to step. Batches of texts or images of different sizes do that, and so does work that depends on the
        data.

    How we know
        The waiting of each rank in each collective is known, and no single rank or node is behind most of it.

    What helps
        Batches of one cost on all ranks: sort by length and deal out, fill batches by tokens instead of samples, pad to
        few sizes. Let ranks differ less often: accumulate over several micro-batches.

    When to ignore it
        When other jobs on the same machines make the ranks uneven.
    """
    if signals.has(Signal.LATENESS) or late_of(signals.ranks) is not None:
        return None
    waiting = sum(rank.waiting for rank in signals.ranks) / len(signals.ranks)
    step = sum(rank.step for rank in signals.ranks) / len(signals.ranks)
    if ratio(waiting, step) < LEAST_SHARE_RANK_IMBALANCE:
        return None
    summary = f"The ranks wait {format_duration(waiting)} a step ({format_share(ratio(waiting, step))}) in turns"
    advice = "Give all ranks batches of one cost: sort by length, or fill them by tokens."
    saving = modelled(
        waiting, SURE_RANK_IMBALANCE * waiting, max(rank.waiting for rank in signals.ranks), signals.step.steady
    )
    return rank_imbalance.finding(summary, advice, saving)


BETWEEN_STAGES = re.compile(r"^(i?send|i?recv|coalesced|SendRecv)( |$)", re.IGNORECASE)
LEAST_SHARE_PIPELINE_BUBBLE = 0.05


@rule(
    "ST815",
    "pipeline-bubble",
    needs={Signal.STEP, Signal.COLLECTIVES},
    instead_of=("exposed-communication",),
)
def pipeline_bubble(signals: Signals) -> Finding | None:
    """A pipeline stage waits for the activations of another

    What it means
        The model's layers lie on several ranks, and this one waits in a receive while it has nothing to compute: at the
        begin and the end of each step (the bubble), or for a slower stage.

    How we know
        Sends and receives between two ranks are in the trace; exposed is the time in which nothing but them ran.

    What helps
        More micro-batches per step: with p equal stages and m micro-batches the bubble is (p - 1) / (m + p - 1) of the
        step. Interleaved or zero-bubble schedules; stages of equal time, where one waits longer than the bubble.

    When to ignore it
        When memory allows no more micro-batches.
    """
    between = [use for use in signals.collectives if BETWEEN_STAGES.match(use.name)]
    exposed = total(use.exposed for use in between)
    share = ratio(exposed.value, signals.step.duration.value)
    if not between or share < LEAST_SHARE_PIPELINE_BUBBLE:
        return None
    summary = (
        f"This stage waits {format_duration(exposed.value)} a step ({format_share(share)}) in "
        f"{sum(use.calls for use in between):.4g} sends and receives"
    )
    advice = "Raise the number of micro-batches, or balance the stages: diagnosed together, they show which is slow."
    return pipeline_bubble.finding(summary, advice, exposed, category="communication")
