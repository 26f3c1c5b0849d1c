"""ST7xx: memory."""

from __future__ import annotations

from collections.abc import Sequence

from steptime.advice.evidence import LineUse, RecomputeUse
from steptime.advice.rule import Finding, Weight, rule
from steptime.advice.run_uses import HolderUse, MemoryUse, StepSummary, limit_of_cache
from steptime.advice.savings import share_of_step
from steptime.advice.verdict import SOON, time_until_full
from steptime.quantities import format_bytes, format_count, format_duration, format_share

SPARE_MEMORY = 0.7
"""Fraction of the device's memory at the peak: below it there is room to keep some of what is computed twice."""
CHECKPOINTING = "torch.utils.checkpoint.checkpoint"
"""Names of its functions start with it."""
LEAST_FRAGMENTED, LEAST_BYTES_FRAGMENTED = 0.3, 1 << 30
"""Fraction of the reserved memory at the peak: below it the cache of a healthy job moves about."""
NEAR = 0.92
"""Fraction of the capacity: libraries and fragmentation take a few percent more at times."""
LEAST_RETRIES = 0.01
"""A step: one in a hundred steps is no accident of the first ones."""
LEAST_OPTIMIZER, LEAST_BYTES_OPTIMIZER = 0.35, 256 << 20
"""Fraction of the peak: more than parameters and gradients together."""


@rule("ST701", "recompute")
def recomputation(
    step: StepSummary,
    recompute: RecomputeUse,
    lines: tuple[LineUse, ...] = (),
    second_order: bool | None = None,
) -> Finding | None:
    """Activation checkpointing computes the forward twice though memory is to spare

    What it means: torch.utils.checkpoint drops activations and computes them again in backward: less memory, about a
    third more time.

    How we know: Forward operators that run again inside backward are timed, on a CPU with the Python around them. The
    savings are the sum of these times. The rule is silent if the peak of memory is known and leaves less than 30 % of
    the device free. Gradients of gradients also run forward operators in backward. In such a job the rule fires only
    if a line was seen to call torch.utils.checkpoint.

    What helps: Checkpoint fewer blocks (every second one), or only what is cheap to compute again (selective
    checkpointing), until memory is used; or use the free memory for a larger batch.

    When to ignore it: When other runs of the same code need the memory (longer sequences, a larger batch).
    """
    calls = [line for line in lines if any(each.startswith(CHECKPOINTING) for each in line.calls)]
    needed = recompute.memory_share is not None and recompute.memory_share >= SPARE_MEMORY
    if needed or (second_order and not calls):
        return None
    spent, share = format_duration(recompute.duration.value), share_of_step(recompute.duration.value, step)
    spare = (
        ""
        if recompute.memory_share is None
        else f" while {format_share(1 - recompute.memory_share)} of the memory is free"
    )
    summary = f"Backward computes {spent} of forward again ({share}){spare}"
    advice = "Checkpoint fewer blocks, or none, as far as the memory allows."
    call = max(calls, key=lambda line: line.duration.value).source if calls else None
    return recomputation.finding(summary, advice, recompute.duration, category="compute", source=call)


@rule("ST702", "memory-leak", weight=Weight.NOTE)
def memory_leak(memory: MemoryUse, step: StepSummary) -> Finding | None:
    """Memory grows with every step

    What it means: Each step leaves something behind: a list of outputs or losses, a running sum that drags its graph
    along, a hook or a closure that keeps activations. The job ends when memory does.

    How we know: Memory is sampled about twice a second. Its slope over the steps is the median of the slopes between
    all pairs of samples (Theil and Sen); the interval comes from a bootstrap of blocks. The first quarter of the run
    and the windows of steptime's own profiler are excluded. The rule fires if the interval is above zero, memory has
    grown by a megabyte, and the series keeps rising (a sawtooth or a cache that fills up does not). In a run that is
    too short for a slope, it fires if an object holds more autograd graphs at each look. steptime asks Python's garbage
    collector at three step boundaries, a few steps apart, what holds the new objects. If nothing was found although
    memory grows, steptime asks once more, for objects that only some steps leave behind, such as the outputs of an
    evaluation. Graphs that nothing else holds come from
    backward(create_graph=True): the gradient and its graph hold each other, and the rule names the line of that call.
    The time until memory is full is the free memory divided by the growth.

    What helps: Keep numbers, not tensors: `total += loss.detach()`, or `losses.append(loss.item())` every n-th
    step. Remove hooks after use; clear lists that collect outputs. Use functools.lru_cache(maxsize=…) for a cache of
    results, and a generator in place of itertools.cycle, which keeps all items of its first pass.

    When to ignore it: When something is meant to grow: a replay buffer that is filling up, a cache with a limit.
    """
    holder = memory.holders[0] if memory.holders else None
    if not memory.grows or memory.growth is None:
        return _found_keeping(holder, memory.holders) if holder is not None and _is_kept_by_steps(holder) else None
    growth = memory.growth
    left = time_until_full(memory, step)
    limited = holder is not None and holder.most is not None
    reach = f"full in {format_duration(left)}" if left is not None and left <= SOON and not limited else ""
    grown = reach or f"{format_bytes(memory.grown)} so far"
    summary = f"Memory grows by {format_bytes(growth.value)} per step, {grown}"
    if holder is not None and holder.name:
        summary += f": {holder.kind} {holder.name}"
    interval = f"The growth is between {format_bytes(growth.low)} and {format_bytes(growth.high)} per step."
    source = holder.source if holder is not None else None
    return memory_leak.finding(
        summary, _advice(holder), source=source, evidence=(interval, *map(_kept, memory.holders))
    )


def _is_kept_by_steps(holder: HolderUse) -> bool:
    """True for graphs that every step leaves behind, as tensors or in a sum: without a slope, what is left behind now
    and then may be bounded."""
    return holder.graph and holder.name != "" and (holder.tensors >= 1 or holder.bytes < 1)


def _found_keeping(holder: HolderUse, holders: Sequence[HolderUse]) -> Finding:
    """For a run that was too short to see memory grow."""
    summary = f"{holder.kind} {holder.name} kept {format_bytes(holder.bytes)} more with each step, and its graph"
    if holder.bytes < 1:  # a sum: its graph alone grows
        summary = f"{holder.kind} {holder.name} keeps the graph of every step"
    return memory_leak.finding(summary, _advice(holder), source=holder.source, evidence=tuple(map(_kept, holders)))


def _kept(holder: HolderUse) -> str:
    """Objects that one holder holds on to, as evidence."""
    named = f"The {holder.kind} {holder.name}" if holder.kind else "An unknown object"
    if holder.entries and not holder.tensors:
        most = f", up to its limit of {holder.most:,}" if holder.most is not None else ""
        return f"{named} grows by {format_count(max(1, round(holder.entries)), 'entry')} with every step{most}."
    kept = f"keeps {holder.tensors:.3g} tensors more with every step" if holder.tensors >= 1 else "is a sum that grows"
    if 0 < holder.tensors < 1 <= holder.bytes:
        kept = f"keeps a tensor more every {1 / holder.tensors:,.0f} steps"
    return f"{named} {kept}{', with their graphs of autograd' if holder.graph else ''}."


def _advice(holder: HolderUse | None) -> str:
    if holder is None:
        return "No Python object was seen to grow: look for buffers of extensions, loaders and loggers."
    name = holder.name or "it"
    if holder.kind == "gradient of":
        return (
            "Use torch.autograd.grad(…, create_graph=True): a gradient in .grad keeps its graph. Or set .grad = None."
        )
    if holder.kind == "cycle":
        return (
            "itertools.cycle keeps every item of its first pass to repeat it: write a generator that restarts the "
            "loader (while True: yield from loader)."
        )
    if holder.kind == "cache" and holder.most is None:
        return limit_of_cache(name)
    if holder.kind == "hook":
        return f"The hook stores its arguments in {name}: store less, or remove it with handle.remove()."
    if holder.graph:
        return f"Keep what {name} needs without its graph: .detach(), or .item() once in a while."
    if holder.most is not None:
        return f"{name} has a limit: check that it fits into memory when full."
    return f"Empty {name}, or keep less in it."


@rule("ST703", "memory-fragmentation", weight=Weight.NOTE)
def memory_fragmentation(memory: MemoryUse) -> Finding | None:
    """The device's allocator holds much more than tensors ever needed

    What it means: Freed memory lies in pieces that are too small for new requests, so the allocator reserves more.
    The job can run out of memory although much of it is free.

    How we know: Two peaks are compared: of the memory that the allocator reserved, and of the memory that tensors
    used. The rule fires if at least 30 % of the reserved memory, and at least a gigabyte, was never used. A CPU has
    no such allocator.

    What helps: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; a few shapes instead of many (padding, bucketing).

    When to ignore it: When memory is plentiful: a cache costs nothing.
    """
    peak, needed = memory.peak, memory.allocated_peak
    if needed is None or not peak or peak - needed < max(LEAST_BYTES_FRAGMENTED, LEAST_FRAGMENTED * peak):
        return None
    summary = (
        f"{format_bytes(peak)} are reserved, and tensors never held more than {format_bytes(needed)}: "
        f"{format_share((peak - needed) / peak)} is in pieces"
    )
    return memory_fragmentation.finding(summary, "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.")


@rule("ST704", "memory-near-capacity", weight=Weight.NOTE)
def memory_near_capacity(memory: MemoryUse) -> Finding | None:
    """The peak of memory is close to the limit

    What it means: A longer sequence, a larger batch or a little fragmentation ends the job with "out of memory".

    How we know: The peak is the most memory that the process held: reserved on a device, resident on a CPU. It is
    compared with the process's limit: the device's memory, the container's limit, or the machine's memory. The rule
    fires from 92 % on.

    What helps: Activation checkpointing, bfloat16, a smaller micro-batch with accumulation, an optimizer with less
    state. `steptime memory` says how much each would free.

    When to ignore it: When all steps are of one size and the job has run for hours: then it fits.
    """
    peak, capacity = memory.peak, memory.capacity
    if not capacity or peak < NEAR * capacity:
        return None
    share = f"{format_share(peak / capacity)} of the {format_bytes(capacity)} available"
    summary = f"The peak of {format_bytes(peak)} is {share}"
    return memory_near_capacity.finding(summary, "steptime memory shows what frees how much.")


@rule("ST705", "allocator-retries", weight=Weight.NOTE)
def allocator_retries(memory: MemoryUse) -> Finding | None:
    """The device's allocator frees its cache to serve requests

    What it means: A request did not fit: the allocator waited for the device, returned all cached memory to the
    driver, and asked again. Each retry takes milliseconds, and the next failure ends the job.

    How we know: The allocator counts its retries (num_alloc_retries). The retries after the warm-up are divided by
    the number of steps; the rule fires from one in a hundred steps on.

    What helps: Less memory at the peak, or PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.

    When to ignore it: When they come from the evaluation or a checkpoint between the steps.
    """
    retries = memory.retries
    if retries is None or retries < LEAST_RETRIES:
        return None
    summary = f"The allocator emptied its cache {format_count(retries, 'time')} per step to serve a request"
    return allocator_retries.finding(summary, "Use less memory at the peak, or set expandable_segments:True.")


@rule("ST706", "optimizer-memory", weight=Weight.NOTE)
def optimizer_memory(memory: MemoryUse) -> Finding | None:
    """The optimizer's state is a large part of the memory

    What it means: Adam keeps two numbers for each parameter. With small activations they are most of the memory,
    and a smaller batch saves little.

    How we know: The state's size is computed: elements of the optimizers' parameters, times the state tensors that
    the optimizer's type has for each, in float32. The rule fires if the state is at least 35 % of the peak of memory,
    and a quarter of a gigabyte.

    What helps: An 8-bit optimizer, one without second moments per parameter (Adafactor, Lion, SGD), or sharding over
    ranks (ZeroRedundancyOptimizer, FSDP).

    When to ignore it: When memory is plentiful.
    """
    state, peak = memory.optimizer_state, memory.peak
    if state < max(LEAST_BYTES_OPTIMIZER, LEAST_OPTIMIZER * peak):
        return None
    share = format_share(min(1.0, state / peak))
    summary = f"The optimizer's state takes {format_bytes(state)}, {share} of the memory at the peak"
    return optimizer_memory.finding(summary, "Try an 8-bit optimizer, or shard its state over the ranks.")
