"""RM7xx: fixes of jobs of several ranks."""

from __future__ import annotations

from collections.abc import Iterator

from steptime.advice.device_uses import CopyUse, GapUse
from steptime.advice.evidence import Case, LineUse
from steptime.advice.fix import CallEdit, Option, Promise, Snippet, fix, training_lines
from steptime.advice.run_uses import StepSummary
from steptime.advice.savings import modelled, named, scaled, total
from steptime.changes import Change, Scalar
from steptime.quantities import Estimate
from steptime.trace.vendors import BUCKET_TO_GRADIENT

WRAPPER = "DistributedDataParallel"
FIRST_MEGABYTES, LAST_MEGABYTES = 100, 5
"""Buckets larger than torch's 25 MB: fewer collectives, for a network with a high latency; and smaller ones, which
start earlier in the backward."""
SHARDED_WRAPPER, SHARDED = "FullyShardedDataParallel", "FSDP"
"""The class of a sharded model, and what fully_shard puts before the name of the model's own class."""
GATHERED_TWICE = 0.5
"""Fraction of the gathering of parameters: once for the forward, and once more for the backward."""
EXAMPLE_KEPT = """fully_shard(block, reshard_after_forward=False)
# with the wrapper: FullyShardedDataParallel(model, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)"""
EXAMPLE_PREFETCHED = """for block, following in zip(blocks[:-1], blocks[1:]):
    block.set_modules_to_forward_prefetch([following])
# with the wrapper: FullyShardedDataParallel(model, forward_prefetch=True)"""
SHARDED_WAYS = (
    ("shard-optimizer", "optimizer state over the ranks",
     "optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=…)"),
    ("shard-model", "fully_shard in place of DistributedDataParallel",
     "for block in model.blocks:\n    fully_shard(block)\nfully_shard(model)   # then make the optimizer"),
)  # fmt: skip
MANY = 4.0
"""Collectives a step, from which on there is something to put together."""
LIKELY = 0.25
"""Fraction of what perfect overlap would save."""
ONCE = 1.5
"""Exchanges a step, or times the model's size in bytes that is exchanged: below it, that is done once already."""
EXAMPLE_FEWER_EXCHANGES = """last = (micro_batch + 1) % accumulation == 0
with contextlib.nullcontext() if last else model.no_sync():
    loss = criterion(model(batch), target)
    loss.backward()"""
EXAMPLE_FEWER_UPDATES = """for number, (batch, target) in enumerate(loader, 1):
    last = number % accumulation == 0
    with contextlib.nullcontext() if last else model.no_sync():   # no_sync: DistributedDataParallel only
        (criterion(model(batch), target) / accumulation).backward()
    if last:
        optimizer.step()
        optimizer.zero_grad()"""


@fix(
    "RM701",
    "data-parallel-settings",
    addresses={"ST406", "ST805", "ST812", "ST813"},
    promise=Promise.SAME_CURVE,
    risk=2,
)
def data_parallel_settings(step: StepSummary, case: Case) -> Iterator[Option]:
    """DistributedDataParallel set up for what the model is

    What it changes: Three settings, each tried by itself. With static_graph=True and gradient_as_bucket_view=True,
    the order of gradients is learned once, and gradients are not copied into the buckets. With another bucket_cap_mb,
    buckets are larger if there are many collectives, and smaller if there are few, because few large buckets start
    late. With find_unused_parameters=False, steps no longer search the graph; this is tried only if each step
    searches.

    What it promises: A loss curve like that of another seed: gradients are summed in other groups.

    What it should gain: For the first two settings, a quarter of what hiding all communication would save is likely.
    The view also saves the copies out of the buckets: their exposed time, and the device's idle time for their
    launches. Without the search, its measured time is saved.

    When to leave it: static_graph, and no search: when parameters are unused in some steps (torch raises an error
    then, and the trial says so). The bucket view: when your code replaces gradients instead of writing into them.
    """
    used = case.gradients
    if used is None and not any(model.type == WRAPPER for model in case.top_modules):
        return
    predictions = case.replay.predictions if case.replay is not None else ()
    hidden = next((each.saved for each in predictions if each.change == "communication overlapped"), None)
    category = named(case.categories, "communication")
    most = hidden or (category.recoverable if category is not None else None)
    saving = modelled(LIKELY * most.value, 0.0, most.high, step.steady) if most is not None else None
    if used is not None and used.search.value > 0:
        yield _option((("find_unused_parameters", False),), used.search)
    parts = [each for each in (saving, _copied(case.gaps, case.copies)) if each is not None]
    yield _option((("static_graph", True), ("gradient_as_bucket_view", True)), total(parts) if parts else None)
    calls = used.buckets if used is not None else sum(use.calls for use in case.collectives)
    yield _option((("bucket_cap_mb", FIRST_MEGABYTES if calls >= MANY else LAST_MEGABYTES),), saving)


def _copied(gaps: tuple[GapUse, ...], copies: tuple[CopyUse, ...]) -> Estimate | None:
    """Cost of copies out of the buckets; None where the trace shows none."""
    alone = [use.exposed for use in copies if use.operator == BUCKET_TO_GRADIENT]
    idle = [gap.duration for gap in gaps if gap.cause == BUCKET_TO_GRADIENT]
    return total(alone + idle) if alone else None


def _option(arguments: tuple[tuple[str, Scalar], ...], saving: Estimate | None) -> Option:
    edit = CallEdit(WRAPPER, tuple((name, str(value)) for name, value in arguments))
    label = ", ".join(f"{name}={value}" for name, value in arguments)
    return Option(label, (Change("ddp", arguments=arguments),), saving, edit)


@fix("RM702", "fewer-exchanges", addresses={"ST805", "ST811"}, promise=Promise.SAME_CURVE, risk=2)
def fewer_exchanges(step: StepSummary, case: Case) -> Option | None:
    """Gradients exchanged once for each update

    What it changes: Gradients that are accumulated over several backwards under DistributedDataParallel are
    exchanged with the last one only (no_sync()). If an update comes earlier than usual, they are exchanged right
    before it, so that no rank updates with its own gradients alone.

    What it promises: A loss curve like that of another seed: the ranks' gradients are added in another order.

    What it should gain: The exposed communication of all backwards of a step except the last.

    When to leave it: When memory is short: between backwards, each rank keeps whole gradients. FSDP's no_sync keeps
    them whole, too.
    """
    backwards = round(case.gradients.micro_batches if case.gradients is not None else step.micro_batches)
    if backwards < 2 or not _each_time(case):
        return None
    category = named(case.categories, "communication")
    saving = scaled(category.recoverable, 1 - 1 / backwards) if category is not None else None
    _, backward = training_lines(case.lines)
    snippet = Snippet(EXAMPLE_FEWER_EXCHANGES, backward)
    return Option(f"no_sync() in {backwards - 1} of {backwards} backwards", (Change("no-sync"),), saving, snippet)


def _each_time(case: Case) -> bool:
    """True if gradients are exchanged behind nearly every backward: by the trace's marks, else by the bytes."""
    used = case.gradients
    if used is not None:
        return used.synchronised >= ONCE
    wrapped = [model for model in case.top_modules if model.type == WRAPPER]
    exchanged = [use.bytes for use in case.collectives if use.bytes is not None]
    once = sum(model.parameter_bytes for model in wrapped)
    return bool(wrapped) and not (exchanged and sum(exchanged) < ONCE * once)


@fix("RM703", "fewer-updates", addresses={"ST501", "ST805"}, promise=Promise.NEW_TRAINING, risk=5)
def fewer_updates(step: StepSummary, lines: tuple[LineUse, ...] = ()) -> Option | None:
    """Gradients accumulated over several batches

    What it changes: Nothing by itself: one update for several batches is a larger batch, which needs its own
    learning rate. The cost of each update (the optimizer, the exchange of gradients) is then paid less often.

    What it promises: Nothing: it is another training, for you to decide on.

    What it should gain: Over two batches, at most half of the optimizer's time and of the exposed communication.

    When to leave it: When the batch must not grow, or training suffers from it.
    """
    if step.micro_batches > 1.5:
        return None
    _, backward = training_lines(lines)
    snippet = Snippet(EXAMPLE_FEWER_UPDATES, backward)
    return Option("gradients of several batches", edit=snippet, advice="Update once for several batches.")


@fix("RM705", "sharded-replicas", addresses={"ST706"}, promise=Promise.SAME_CURVE, risk=3, frees=0.4)
def sharded_replicas(case: Case) -> Iterator[Option]:
    """Optimizer state, or the whole model, split over the ranks of DistributedDataParallel

    What it changes: Either the optimizer becomes ZeroRedundancyOptimizer around the job's own class: each rank keeps
    the state of its part of the parameters, updates them, and sends them to the others. Or the wrapper becomes
    fully_shard (FSDP2), per block of the model's lists: parameters, gradients and state are split, and a block's
    parameters are gathered for its forward and backward. steptime tries both, on as many ranks as the job has, at
    least two.

    What it promises: A loss curve like that of another seed: gradients are added in other groups.

    What it should gain: Memory of each rank: with two ranks, half of the optimizer's state, or half of parameters,
    gradients and state. The fix costs time, because parameters travel in each step. The trial measures both.

    When to leave it: When the model fits. fully_shard: when the optimizer is made before the wrapper (the trial
    says so), when code calls parts of the model directly, or when checkpoints expect whole tensors.
    """
    if not any(model.type == WRAPPER for model in case.top_modules):
        return
    for kind, label, example in SHARDED_WAYS:
        yield Option(label, (Change(kind),), None, Snippet(example))


@fix("RM704", "sharding-settings", addresses={"ST805"}, promise=Promise.SAME_BITS, risk=2)
def sharding_settings(step: StepSummary, case: Case) -> Iterator[Option]:
    """A sharded model whose parameters are gathered less often, or earlier

    What it changes: A model under fully_shard or FullyShardedDataParallel keeps a block's parameters whole from its
    forward to its backward (reshard_after_forward=False, SHARD_GRAD_OP). They are then gathered once per step
    instead of twice. Or the next block's parameters are requested before this block computes (forward prefetch).

    What it promises: Equal losses: the same numbers are sent and computed with.

    What it should gain: Kept parameters save half of the time in which the step waits for gathering. The prefetch
    helps if the CPU requests parameters late; nothing is predicted for it.

    When to leave it: When memory is short: all parameters that a rank gathers are in memory at once, as without
    sharding. Only gradients and the optimizer's state stay sharded.
    """
    if not any(model.type == SHARDED_WRAPPER or model.type.startswith(SHARDED) for model in case.top_modules):
        return
    gathered = sum(use.exposed.value for use in case.collectives if "gather" in use.name)
    saving = modelled(GATHERED_TWICE * gathered, 0.0, gathered, step.steady) if gathered else None
    kept, early = Change("sharding", arguments=(("keep", True),)), Change("sharding", arguments=(("prefetch", True),))
    yield Option("parameters kept from forward to backward", (kept,), saving, Snippet(EXAMPLE_KEPT))
    yield Option("parameters of the next block gathered early", (early,), None, Snippet(EXAMPLE_PREFETCHED))
