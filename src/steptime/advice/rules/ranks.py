"""ST8xx: communication between the ranks of a job."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from steptime.advice.device_uses import CollectiveUse, GradientUse, RankUse
from steptime.advice.evidence import Case, LineUse
from steptime.advice.line_evidence import LineTime, calls_function, line_times
from steptime.advice.models import straggler_reason, straggler_text, uneven
from steptime.advice.rule import LONGEST_SUMMARY, Finding, rule
from steptime.advice.rules.machine import PRESSURE_BY_THREADS, TOLERATED
from steptime.advice.run_uses import CategoryUse, Contention, SettingsUse, StepSummary
from steptime.advice.savings import capped, in_step, less, modelled, named, ratio, scaled, share_of_step, total
from steptime.analysis.stragglers.comparison import Straggler
from steptime.quantities import (
    Estimate,
    SourceLine,
    format_bytes,
    format_count,
    format_duration,
    format_rate,
    format_share,
    format_source,
    format_times,
)

SURE_WAITING = 0.5
"""Fraction of the waiting: other ranks may be the next late ones when this one is in time."""
ACCUMULATES = 1.5
"""Forwards per step from which on a step has micro-batches, and exchanges from which on there is more than one."""
MOST_EXCHANGE = 0.5
"""Fraction of the micro-batches must exchange: a few more than one may be of another model."""
BUCKET_BYTES = 25 << 20
"""DistributedDataParallel's default bucket_cap_mb; its first bucket is 1 MiB."""
SMALL_BYTES, MANY_BUCKETS = 4 << 20, 8
"""On average: below this the fixed cost of a collective is most of it on usual networks."""
SURE_FEWER_BUCKETS = 0.3
"""Fraction of the modelled gain: how much of a collective is fixed cost, only the network knows."""
LEAST_SHARE_IN_TURNS = 0.15
"""Fraction of the step: equal ranks wait some percent for one another, as the last of many is a little late."""
MOST_OF_ONE = 0.75
"""Fraction of the waiting: behind more of it is one rank, whose delay did not last beyond the profiled steps if it is
no straggler."""
BETWEEN_STAGES = re.compile(r"^(i?send|i?recv|coalesced)( |$)", re.IGNORECASE)
"""Collectives between two stages of a pipeline. A kernel named SendRecv says less: NCCL's all-to-all is one, too."""
SEVERAL = 2
LEAST_SHARE_OF_BUBBLE = 0.05
"""Fraction of the step."""


OWN_EXCHANGE = re.compile(
    r"torch\.distributed\.(?:\w+\.)*(?:all_reduce\w*|reduce\w*|all_gather\w*|gather\w*|broadcast\w*|scatter\w*|"
    r"all_to_all\w*|barrier|monitored_barrier|send|recv)"
)
"""Functions by which a line of the user's exchanges itself, as a step was seen to call them."""
LEAST_EXCHANGE = 0.05
"""Fraction of the step, for such a line."""


@rule("ST805", "exposed-communication", supersedes=("outside-model", "python-time"), by_line=True)
def exposed_communication(
    step: StepSummary,
    categories: tuple[CategoryUse, ...],
    case: Case,
    settings: SettingsUse | None = None,
    contention: Contention | None = None,
) -> Iterator[Finding]:
    """Collectives run while nothing hides them

    What it means: The ranks exchange gradients, weights or activations while nothing is computed. A collective also
    waits inside its kernel for the last rank, so this time belongs to the network and to the straggler; traces of
    all ranks separate the two (ST806).

    How we know: On a device, the trace has the collectives' kernels; a kernel is exposed while nothing else runs. On
    a CPU, a collective is exposed while the training thread is blocked in it. The savings are the exposed time. Your
    own lines that call torch.distributed (a metric, a flag) are reported one by one, each with its part. If the trace
    has sizes and ranks, the evidence compares each kind's bus bandwidth (as NCCL-tests define it) with the
    datasheet's link between devices of one machine.

    What helps: Exchange less often (no_sync() under gradient accumulation) or less (bfloat16 gradients by a
    communication hook, sharding that fits the network). Start earlier (smaller first buckets, static_graph=True).
    Use a larger batch per rank: more computation for the same exchange.

    When to ignore it: When the ranks share one machine for a test and will run elsewhere. More training processes
    than CPUs wait for one another; then only ST801 is reported.
    """
    category = named(categories, "communication")
    if category is None or (step.device == "cpu" and _take_turns(settings, contention)):
        return
    left = category.recoverable
    for time in _own_exchanges(case):
        saving = capped(time.duration, left)
        if ratio(saving.value, step.duration.value) >= LEAST_EXCHANGE:
            left = less(left, saving.value)
            yield _own_exchange(step, time, saving)
    if left is not category.recoverable and ratio(left.value, step.duration.value) < LEAST_EXCHANGE:
        return
    longest = sorted(case.collectives, key=lambda use: use.exposed.value, reverse=True)
    most = f", most in {longest[0].name}" if longest else ""
    rest = "Further communication" if left is not category.recoverable else "Communication"
    spent = category.duration.value if left is category.recoverable else left.value
    summary = f"{rest} that nothing hides takes {in_step(spent, step)}{most}"
    advice = "Diagnose the traces of all ranks together, to tell a slow network from a straggler."
    if case.ranks:
        advice = "Compute more for each exchange (a larger batch, accumulation under no_sync), or exchange bfloat16."
    evidence = tuple(map(_collective, longest[:3]))
    if any(use.bus_bandwidth for use in longest[:3]):
        evidence += ("Bus bandwidths are those of this rank's kernels, with their waiting for other ranks.",)
    yield exposed_communication.finding(summary, advice, left, category="communication", evidence=evidence)


def _take_turns(settings: SettingsUse | None, contention: Contention | None) -> bool:
    """True where the training processes of this machine wait for a CPU: in a collective each waits for the turns of all
    others on it, and no smaller exchange shortens that."""
    if settings is None or contention is None or contention.pressure is None:
        return False
    return (
        settings.trainers_on_host > TOLERATED * max(1, settings.usable_cpus)
        and contention.pressure >= PRESSURE_BY_THREADS
    )


def _own_exchanges(case: Case) -> list[LineTime]:
    """Lines of the user's that call torch.distributed themselves, the longest first. On a device the host's lines say
    where it waits, not what takes long."""
    if case.step.device != "cpu" or not case.lines:
        return []
    times = line_times(case.lines, case.phases)
    own = (time for time in times if any(OWN_EXCHANGE.fullmatch(each) for each in time.line.calls))
    return sorted(own, key=lambda time: -time.duration.value)


def _own_exchange(step: StepSummary, time: LineTime, saving: Estimate) -> Finding:
    calls, place = time.line.hits, format_source(time.line.source)
    often = f" in {format_count(calls, 'call')}" if calls > 1 else ""
    summary = f"{place} exchanges{often}: {in_step(saving.value, step)}"
    advice = "Do it every n-th step, or keep it on each rank and exchange sums at the end."
    if calls > 1:
        advice = "Exchange one tensor instead of many, every n-th step."
    text = (time.line.source.text,)
    return exposed_communication.finding(
        summary, advice, saving, category="communication", source=time.line.source, evidence=text
    )


def _collective(use: CollectiveUse) -> str:
    """A collective, as evidence."""
    size = f", {format_bytes(use.bytes)}" if use.bytes else ""
    exposed = f"{format_duration(use.duration.value)}, of it {format_duration(use.exposed.value)} exposed"
    carried = f", {format_rate(use.bus_bandwidth)}B/s over the bus" if use.bus_bandwidth else ""
    share = f" ({format_share(use.link_share)} of {use.link})" if carried and use.link_share is not None else ""
    return f"{use.name}: {use.calls:.4g} per step{size}, {exposed}{carried}{share}"


@rule("ST806", "straggler", supersedes=("exposed-communication",))
def straggler_rank(step: StepSummary, ranks: tuple[RankUse, ...], straggler: Straggler | None = None) -> Finding | None:
    """One rank arrives last and all others wait for it

    What it means: Collectives end together. Ranks that arrive first wait inside the collective's kernel, which
    looks like slow communication; the rank that waits least is the straggler. If all ranks of one host are late
    together, the node is slow.

    How we know: The collectives are matched across all ranks, one by one within each process group. A rank's wait is
    the collective's duration on it, minus the duration on the last rank to arrive; so the clocks of different hosts
    need not agree. A rank may be last because it waited for another rank before: then the other one is the straggler.
    The straggler's excess is its own time beyond the median of the other ranks' times. For the savings, steptime
    replays the job's collectives with the straggler's own times at that median.

    What helps: Compare the straggler with the others: the line that is named, its input, its share of the work
    (uneven batches, an embedding table), its own host or device (thermal limits, another job).

    When to ignore it: When the work is uneven by design (pipeline stages) and balanced elsewhere.
    """
    evidence = tuple(
        f"rank {rank.rank}: waits {format_duration(rank.waiting)}, computes {format_duration(rank.compute)}"
        for rank in sorted(ranks, key=lambda rank: rank.waiting)[:4]
    )
    return _known(step, straggler, evidence) if straggler is not None else None


def _known(step: StepSummary, late: Straggler, ranks: tuple[str, ...]) -> Finding:
    """The finding where the reason is known. Where the profiled steps were slower than all steps, no more than a step
    can be saved."""
    summary = straggler_text(late, step)
    reason = straggler_reason(late).partition(", at ")[0]
    if reason and len(f"{summary}: {reason}") <= LONGEST_SUMMARY:
        summary = f"{summary}: {reason}"
    evidence: tuple[str, ...] = ()
    if late.excesses:
        parts = ", ".join(f"{name} {format_duration(excess)}" for name, excess in late.excesses[:4])
        evidence += (f"beyond the median of the others: {parts}",)
    if late.since is not None and late.steadiness is not None:
        start = f"since step {late.since + 1}" if late.since else "from the first measured step on"
        evidence += (f"late {start}, in {format_share(late.steadiness)} of the steps",)
    saving = capped(late.gain, step.duration)
    advice = f"{_what_to_do(late)}. Expected gain: {format_duration(saving.value)}/step."
    return straggler_rank.finding(summary, advice, saving, source=late.source, evidence=(*evidence, *ranks))


def _what_to_do(late: Straggler) -> str:
    if late.arithmetic is not None and uneven(late):
        return f"It does {format_times(late.arithmetic)} times the others' arithmetic: use batches of equal size"
    if late.source is not None:
        return f"Make {format_source(late.source)} as fast there as on the other ranks"
    if late.node:
        return "Look at that node (its load, its clocks, its storage), or leave it out"
    if late.category:
        return f"Look at its {late.category} first, and at its host"
    return "Nothing in its own code is slow: check its node and its network link"


@rule("ST811", "missing-no-sync", supersedes=("exposed-communication",))
def missing_no_sync(categories: tuple[CategoryUse, ...], gradients: GradientUse, case: Case) -> Finding | None:
    """Accumulation exchanges the gradients in every micro-batch

    What it means: The step adds up the gradients of several micro-batches, and only their sum is needed on the other
    ranks. But each backward exchanges them, so the same gradients travel once for each micro-batch.

    How we know: The trace marks each forward of the model in DistributedDataParallel. The rule fires if gradients are
    all-reduced after most of these forwards, before the next one. With no_sync(), only the last forward of a step
    would be followed by an exchange. The savings are the exposed communication of the other exchanges.

    What helps: Run all but the last micro-batch in model.no_sync() (Accelerate: accelerator.accumulate(model);
    Lightning: accumulate_grad_batches does it).

    When to ignore it: When memory is too short for unreduced gradients (sharded strategies reduce in every
    micro-batch by design).
    """
    use, category = gradients, named(categories, "communication")
    if category is None or min(use.micro_batches, use.synchronised) < ACCUMULATES:
        return None
    if use.synchronised < MOST_EXCHANGE * use.micro_batches:
        return None
    saving, spent = scaled(category.duration, 1 - 1 / use.synchronised), category.duration.value
    summary = (
        f"Gradients are exchanged {use.synchronised:.3g} times per step, for {use.micro_batches:.3g} micro-batches: "
        f"{format_duration(spent)} ({share_of_step(spent, case.step)})"
    )
    advice = "Run all micro-batches of a step but the last in model.no_sync()."
    source = _backward_line(case.lines)
    return missing_no_sync.finding(summary, advice, saving, category="communication", source=source)


def _backward_line(lines: tuple[LineUse, ...]) -> SourceLine | None:
    """The only line of the training loop that calls backward: what no_sync() has to surround."""
    backwards = [use.source for use in lines if use.role == "backward" or calls_function(use.calls, "backward")]
    return backwards[0] if len(backwards) == 1 else None


@rule("ST812", "small-buckets", supersedes=("exposed-communication",))
def small_buckets(step: StepSummary, categories: tuple[CategoryUse, ...], gradients: GradientUse) -> Finding | None:
    """Gradients are exchanged in many small buckets

    What it means: Each bucket of gradients is a collective of its own. Each collective has a cost that does not
    depend on its size: a launch, and a round trip between the ranks. Many small ones pay it many times.

    How we know: The all-reduces after each backward are counted, and the gradients' size is known. The rule fires
    from eight buckets of less than 4 MiB on average on. The savings are modelled: the exposed communication times the
    share of collectives that buckets of 25 MiB would avoid. The interval starts at 30 % of that, because the fixed
    cost of a collective depends on the network.

    What helps: Leave bucket_cap_mb at its default of 25 or raise it. Too large buckets start late, so try some
    sizes.

    When to ignore it: When communication hides behind backward anyway.
    """
    use, category = gradients, named(categories, "communication")
    size = 4 * use.elements  # gradients are float32 unless the whole model is in half precision
    if category is None or use.buckets < MANY_BUCKETS or not 0 < size < use.buckets * SMALL_BYTES:
        return None
    needed, spent = 1 + -(-size // BUCKET_BYTES), category.duration.value
    gain = spent * (1 - min(needed, use.buckets) / use.buckets)
    summary = (
        f"Gradients of {format_bytes(size)} travel in {use.buckets:.3g} buckets of {format_bytes(size / use.buckets)}; "
        f"communication takes {format_duration(spent)}"
    )
    advice = f"Raise bucket_cap_mb of DistributedDataParallel: {needed:.0f} buckets would do."
    saving = modelled(gain, SURE_FEWER_BUCKETS * gain, spent, step.steady)
    return small_buckets.finding(summary, advice, saving, category="communication")


@rule("ST813", "unused-parameter-search")
def unused_parameter_search(step: StepSummary, gradients: GradientUse) -> Finding | None:
    """Every step searches the graph for unused parameters

    What it means: find_unused_parameters=True makes DistributedDataParallel walk the whole autograd graph on the
    CPU before each backward, and exchange which parameters were used.

    How we know: In the trace, the search is an operator of its own (search_unused_parameters). The savings are its
    time.

    What helps: Leave find_unused_parameters out if all parameters get gradients (torch warns if it was not needed).
    If always the same ones get none, use static_graph=True.

    When to ignore it: When branches of the model really change from step to step.
    """
    search = gradients.search
    if search.value <= 0:
        return None
    summary = f"Looking for unused parameters takes {in_step(search.value, step)}"
    advice = "Leave find_unused_parameters=True out, or use static_graph=True if the unused ones never change."
    return unused_parameter_search.finding(summary, advice, search)


@rule("ST814", "rank-imbalance", supersedes=("exposed-communication",))
def rank_imbalance(step: StepSummary, ranks: tuple[RankUse, ...], straggler: Straggler | None = None) -> Finding | None:
    """The ranks wait for one another in turns

    What it means: All ranks wait much in collectives, and each of them is sometimes the last: their shares of the
    work differ from step to step. Causes are batches of texts or images of different sizes, and work that depends
    on the data.

    How we know: The traces of all ranks show how long each rank waits in each collective. The rule fires if the ranks
    wait for 15 % of the step or more, and no single rank or node causes most of it. The savings are the mean wait of
    the ranks; the interval starts at half of it.

    What helps: Make batches cost the same on all ranks: sort by length and deal out, fill batches by tokens instead
    of samples, pad to few sizes. Exchange less often, so that differences even out: accumulate over several
    micro-batches.

    When to ignore it: When other jobs on the same machines make the ranks uneven.
    """
    if straggler is not None:
        return None
    waiting = sum(rank.waiting for rank in ranks) / len(ranks)
    share = ratio(waiting, sum(rank.step for rank in ranks) / len(ranks))
    if share < LEAST_SHARE_IN_TURNS or max(rank.last for rank in ranks) > MOST_OF_ONE:
        return None
    waits = f"{format_duration(waiting)} per step ({format_share(share)})"
    summary = f"The ranks wait {waits} for one another, and the late one changes"
    advice = "Give all ranks batches of equal cost: sort by length, or fill them by tokens."
    saving = modelled(waiting, SURE_WAITING * waiting, max(rank.waiting for rank in ranks), step.steady)
    return rank_imbalance.finding(summary, advice, saving)


@rule("ST815", "pipeline-bubble", supersedes=("exposed-communication",))
def pipeline_bubble(step: StepSummary, collectives: tuple[CollectiveUse, ...]) -> Finding | None:
    """A pipeline stage waits for the activations of another

    What it means: The model's layers are on several ranks, and this one waits in a receive without anything to
    compute. It waits at the start and the end of each step (the bubble), or for a slower stage.

    How we know: The trace has sends and receives between two ranks. The savings are their exposed time, in which
    nothing else ran on the device.

    What helps: More micro-batches per step: with p equal stages and m micro-batches the bubble is (p - 1) / (m + p
    - 1) of the step. Interleaved with v chunks per stage it is (p - 1) / (v m + p - 1). Zero-bubble schedules.
    Stages of equal time, if one waits longer than the bubble.

    When to ignore it: When memory allows no more micro-batches.
    """
    between = [use for use in collectives if BETWEEN_STAGES.match(use.name)]
    exposed = total(use.exposed for use in between)
    if not between or ratio(exposed.value, step.duration.value) < LEAST_SHARE_OF_BUBBLE:
        return None
    calls = f"{sum(use.calls for use in between):.4g} sends and receives"
    summary = f"This stage waits {in_step(exposed.value, step)} in {calls}"
    advice = "Raise the number of micro-batches, or balance the stages: diagnosed together, they show which is slow."
    return pipeline_bubble.finding(
        summary, advice, exposed, category="communication", evidence=tuple(_schedules(between))
    )


def _schedules(between: Sequence[CollectiveUse]) -> Iterator[str]:
    """Bubble of equal stages by schedule (Narayanan et al. 2021, section 2.2). A stage receives each micro-batch's
    activations, its gradients, or both, from as many stages as are named."""
    received = [use for use in between if "recv" in use.name.lower()]
    stages = max((use.size for use in between), default=0)
    micro_batches = round(sum(use.calls for use in received) / max(1, len({use.name for use in received})))
    if min(stages, micro_batches) < SEVERAL:
        return
    shares = [
        f"{format_share((stages - 1) / (chunks * micro_batches + stages - 1))} {words}"
        for chunks, words in (
            (1, f"in 1F1B with {micro_batches} micro-batches"),
            (2, "with twice as many, or interleaved with two chunks per stage"),
        )
    ]
    yield f"The group's {stages} ranks, as equal stages, idle {', '.join(shares)}."
