"""Ways to free memory: reduction of a steady step's peak, cost, and how it was estimated.

Each fix is a curve of the bytes that it frees at each instant: if another instant becomes the highest, the peak falls
by less. The error printed with a prediction is the error of its kind in jobs where the change was really made. `python
-m benchmarks.memory_predictions` measures it in pairs of runs of the same job.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from steptime.analysis.memory_samples import CPU_PLACE
from steptime.arrays import Bool, Int64
from steptime.memory.breakdown import MemoryBreakdown
from steptime.memory.leaks import Leak
from steptime.memory.lives import AllocationHistory, alive_at, allocated, summed
from steptime.memory.owners import Codes, Owner, lasting_gradients, parameter_sizes
from steptime.memory.signs import Policy, Signs, operator_name, policies_of
from steptime.memory.steps import Steady
from steptime.quantities import SourceLine, format_bytes, format_share, format_source

LEAST = 0.001
"""Smallest error that is shown, as a fraction of a peak."""


CHECKED = {
    "autocast": (0.23, 13),
    "checkpointing": (0.281, 8),
    "batch": (0.0, 16),
    "8-bit": (0.12, 8),
    "in-place": (0.0, 8),
    "gradients": (0.006, 8),
    "steady": (0.15, 16),
}
"""(largest error as a fraction of the measured peak with the change, number of pairs) of each kind of prediction, on
the CPU's allocator. Five of the autocast pairs are public ones of CUDA's, with 6.3 % at most."""


def checked(kind: str) -> str:
    """Measured error of a kind of prediction, as text."""
    worst, pairs = CHECKED.get(kind, (0.0, 0))
    return f"±{format_share(max(LEAST, worst))}, {pairs} pairs" if pairs else "unchecked"


LEAST_SCALING = 0.05
"""Fraction of the largest scaling memory below which an instant is ignored: a few bytes of a loss in the optimizer's
step say nothing about a larger batch."""
HEADROOM = 0.9
"""Fraction of the device for the largest batch: cuBLAS, NCCL and the context are outside of the allocator."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Batch size that fits, as a factor on the present one: with it, HEADROOM of the device is full. Below 1 the batch
    must shrink; 0 means that even the constant part does not fit. least, most: range of the factor; they differ if
    something is unknown, which `note` explains. kind: kind of prediction whose measured error applies."""

    least: float
    most: float
    note: str = ""
    kind: str = "batch"


def scales_with_batch(history: AllocationHistory, signs: Signs, owners: Codes) -> Bool:
    """Mask of the lives that scale with the batch: activations, inputs and temporaries of forward and backward.
    Temporaries of the size of a parameter or its 16-bit copy do not: they are gradients in transit."""
    lives = history.lives
    sizes = [each for size in parameter_sizes(history, signs, owners) for each in (size, size // 2)]
    temporary = owners == Owner.TEMPORARIES
    of_weights = temporary & ~signs.at(signs.module, lives.stack) & np.isin(lives.size, np.array(sizes, np.int64))
    of_batch = np.isin(owners, (Owner.ACTIVATIONS, Owner.INPUTS)) | temporary
    scales: Bool = of_batch & ~of_weights & ~signs.at(signs.optimizer, lives.stack)
    return scales


def largest_batch(history: AllocationHistory, signs: Signs, owners: Codes, capacity: int, steady: Steady) -> Fit | None:
    """Largest batch with which memory fits at every instant of a steady step, ignoring the allocator's rounding and
    free memory. None if no memory scales with the batch."""
    scaling = allocated(history, scales_with_batch(history, signs, owners))
    largest = int(scaling.max())
    if not largest:
        return None
    counted = scaling >= LEAST_SCALING * largest
    fixed = allocated(history) - scaling

    def factor(missing: Int64) -> float:
        return max(0.0, float(((HEADROOM * capacity - fixed - missing)[counted] / scaling[counted]).min()))

    return Fit(factor(steady.most), factor(steady.least), steady.note, steady.kind)


SHARES = {Policy.HALVED: 0.5, Policy.KEPT: 0.0, Policy.UNKNOWN: 0.36}
"""Fraction of an activation's bytes that autocast saves. For unknown operators: what the activations of whole models
lost in the public pairs (0.34 to 0.37 of 5 to 27 GiB), whose operators are known."""


@dataclass(frozen=True, slots=True, eq=False)
class Autocasting:
    """Effect of autocast on the memory of a job without it: some results half as large, and copies of weights.
    Parameters, gradients, optimizer state, exponentials, normalisations, losses and the residual stream stay in
    float32.

    change: bytes that autocast would add at each instant (negative where it frees memory), (events + 1,). copies: total
    bytes of the weights' copies. halved, kept: bytes of activations, at their peak, whose operators autocast runs in 16
    bits and in 32 bits; unknown: bytes of activations whose operator is unknown."""

    change: Int64
    copies: int
    halved: int
    kept: int
    unknown: int


def autocast_on(history: AllocationHistory, signs: Signs, owners: Codes) -> bool:
    """True if the history shows that autocast is on."""
    return bool((owners == Owner.COPIES).any() or signs.at(signs.cast, history.lives.stack).any())


def autocasting(history: AllocationHistory, signs: Signs, owners: Codes) -> Autocasting | None:
    """Effect that autocast would have on the memory; None if the history has no activations."""
    lives = history.lives
    activations = owners == Owner.ACTIVATIONS
    made = activations | (owners == Owner.TEMPORARIES) & signs.at(signs.module, lives.stack)
    policy = np.append(policies_of(history.stacks, history.device == CPU_PLACE), np.int8(Policy.UNKNOWN))[lives.stack]
    held = allocated(history, activations)
    most = int(held.max())
    if not most:
        return None
    copies = sum(size * count for size, count in parameter_sizes(history, signs, owners).items()) // 2
    share = np.array([SHARES[each] for each in Policy])[policy] * made
    lost = summed(history, (lives.size * share).astype(np.int64))
    there = activations & alive_at(history, int(np.argmax(held)) - 1)
    sums = [int(lives.size[there & (policy == each)].sum()) for each in (Policy.HALVED, Policy.KEPT, Policy.UNKNOWN)]
    # A weight is cast when the forward reaches it, and its copy goes when backward has passed: as activations do.
    return Autocasting((copies * (held / most)).astype(np.int64) - lost, copies, *sums)


RANKS = 8
"""Ranks of the example of sharding: one host's devices."""
DISTRIBUTED = re.compile(r"(^|/)torch/(nn/parallel/distributed|distributed/.*)\.py$")
"""Files of torch's whose frames are in the stacks of a job of several ranks."""
ATTENTION = re.compile(r"att(ention|n)", re.IGNORECASE)
"""In the name of a function, a file or a module that computes attention."""
FUSED = re.compile(r"scaled_dot_product_(flash|efficient|cudnn|fused)|_flash_attention|_efficient_attention")
"""Operators that never write the weights of attention."""
SOFTMAX = re.compile(r"(^|_)softmax$")
OF_WEIGHTS = (4, 2, 1)
"""Sizes of what goes with the weights of attention, in halves of theirs: the same in float32 next to 16 bits, in one
dtype, and in 16 bits next to float32, or a mask next to 16 bits."""
LEAST_WEIGHTS = 1 << 16
"""Bytes: a softmax over a few classes is no attention."""
STATE_OF_8_BITS = 0.25
"""Size relative to float32: a byte and the block's scale (Dettmers et al., 8-bit Optimizers via Block-wise
Quantization, 2022)."""
LEAST_SHARE = 0.01
"""Fraction of the reserved memory: a smaller saving is not listed."""


@dataclass(frozen=True, slots=True)
class Saving:
    """A way to free memory. frees: bytes by which the peak falls; after a failed request, bytes freed at that moment.
    cost: price in time or in what is trained, as text. how: basis of the estimate, as text. error: measured error of
    such predictions, as text."""

    name: str
    frees: int
    cost: str
    how: str
    source: SourceLine | None = None
    error: str = "unchecked"


class Peak:
    """Peak of memory in a steady step, from which the effect of a change is computed. event: index of a failed request
    whose moment replaces the peak; None to use the peak."""

    def __init__(
        self, history: AllocationHistory, signs: Signs, owners: Codes, steady: Steady, event: int | None
    ) -> None:
        self.history, self.signs, self.owners = history, signs, owners
        self.missing = steady.likely
        self.live: Int64 = allocated(history) + self.missing
        self.moment = event if event is not None else int(np.argmax(self.live)) - 1
        """Event that the breakdown is of."""
        self._failed = event is not None

    def falls(self, freed: Int64) -> int:
        """Bytes by which the peak falls if `freed` bytes are gone at each instant (negative: added)."""
        if self._failed:
            return max(0, int(freed[self.moment + 1]))
        return max(0, int(self.live.max()) - int((self.live - freed).max()))

    def of(self, *owners: Owner) -> Int64:
        """Bytes that some owners hold at each instant."""
        return allocated(self.history, np.isin(self.owners, owners))


def savings_of(
    peak: Peak,
    breakdown: MemoryBreakdown,
    leaks: tuple[Leak, ...],
    boundaries: tuple[int, ...],
    *,
    ranks: int,
    samples: int | None,
) -> tuple[Saving, ...]:
    """Ways to free memory that save at least 1 % of the reserved bytes, the largest first. Their savings do not add up,
    since several free the same bytes. ranks: number of ranks that train together. samples: number of samples in a
    micro-batch, None if unknown; a batch of one sample is not halved."""
    found = [
        *_of_leaks(leaks),
        *_of_checkpointing(peak),
        *_of_attention(peak),
        *_of_the_optimizer(peak),
        *_of_gradients(peak, boundaries),
        *_of_precision(peak),
        *_of_sharding(peak, ranks),
        *_of_fragments(peak.history, breakdown),
        *(_of_batches(peak) if samples != 1 else ()),
    ]
    least = LEAST_SHARE * breakdown.reserved
    return tuple(sorted((each for each in found if each.frees >= least), key=lambda each: -each.frees))


def _of_leaks(leaks: tuple[Leak, ...]) -> Iterator[Saving]:
    for leak in leaks[:3]:
        where = format_source(leak.source) if leak.source is not None and leak.source.file else "an unknown line"
        yield Saving(
            f"release what {where} holds",
            leak.held,
            "none",
            f"leaked in {leak.steps} steps; {format_bytes(leak.per_step.value)} more with each",
            leak.source,
        )


def _of_checkpointing(peak: Peak) -> Iterator[Saving]:
    """Saving by checkpointing the group of blocks that frees most. Groups: modules of one class in one module, if they
    are named; else the calls of one line that calls a module again and again."""
    history, signs = peak.history, peak.signs
    alive = alive_at(history, peak.moment)
    chosen = np.flatnonzero(alive & (peak.owners == Owner.ACTIVATIONS) & (history.lives.stack >= 0))
    groups = list(_by_module(history, signs, chosen)) or list(_by_caller(history, signs, chosen))
    found = [_checkpointed(peak, *group) for group in groups if group[1] >= 2]
    if found:
        yield max(found, key=lambda saving: saving.frees)


Group = tuple[str, int, Int64, SourceLine | None]
"""Name of a group, number of its blocks, lives made in them, and line of their calls."""


def _by_module(history: AllocationHistory, signs: Signs, rows: Int64) -> Iterator[Group]:
    """Groups by the path of a module and the class of its children."""
    calls: dict[tuple[str, str], set[str]] = {}
    members: dict[tuple[str, str], list[int]] = {}
    for row in rows.tolist():
        path = signs.module_path[int(history.lives.stack[row])].split("/")
        for depth, name in enumerate(path):
            kind, _, number = name.rpartition("_")
            if number.isdigit():
                key = "/".join(path[:depth]), kind
                calls.setdefault(key, set()).add(name)
                members.setdefault(key, []).append(row)
    for (parent, kind), names in calls.items():
        made = np.array(members[parent, kind], np.int64)
        yield f"{len(names)} {kind} modules{f' in {parent}' if parent else ''}", len(names), made, None


def _by_caller(history: AllocationHistory, signs: Signs, rows: Int64) -> Iterator[Group]:
    """Groups by each user line that was calling when the lives were made, except the innermost."""
    groups: dict[SourceLine, list[Int64]] = {}
    made_by = history.lives.stack[rows]
    for stack in dict.fromkeys(made_by.tolist()):
        inner = signs.line[stack]
        place = (inner.file, inner.line) if inner is not None else None
        frames = {frame for frame in history.stacks.of(stack) if frame.function == "forward" and frame.line}
        for frame in frames:
            if (frame.file, frame.line) != place and "/torch/nn/modules/" not in frame.file:
                groups.setdefault(frame, []).append(rows[made_by == stack])
    for frame, members in groups.items():
        blocks = int(np.median([len(each) for each in members]))
        yield f"{blocks} blocks called at {format_source(frame)}", blocks, np.concatenate(members), frame


def _checkpointed(peak: Peak, name: str, blocks: int, rows: Int64, frame: SourceLine | None) -> Saving:
    size = peak.history.lives.size[rows]
    total, kept = int(size.sum()), blocks * int(np.median(size))
    frees = int(total * (1 - 1 / blocks)) - kept
    # Of the activations the same share goes at every instant of every step.
    activations = peak.of(Owner.ACTIVATIONS)
    freed = (activations * (max(0, frees) / max(1, int(activations[peak.moment + 1])))).astype(np.int64)
    return Saving(
        f"activation checkpointing of the {name}",
        peak.falls(freed),
        "their forward runs twice: about a third of their share of the step",
        f"{format_bytes(total)} are made in {blocks} calls; one call's stay while it is computed again, and an input "
        f"of each ({format_bytes(kept)} by the median size)",
        frame,
        checked("checkpointing"),
    )


def _of_attention(peak: Peak) -> Iterator[Saving]:
    """Weights of written-out attention, which a fused kernel never writes: blocks as large as the result of a softmax,
    or as its mask or copy in another dtype, made in the same function."""
    history, lives = peak.history, peak.history.lives
    calls = [_attention(history.stacks.of(stack), path) for stack, path in enumerate(peak.signs.module_path)]
    rows = np.flatnonzero(np.isin(peak.owners, (Owner.ACTIVATIONS, Owner.TEMPORARIES)) & (lives.stack >= 0))
    made = [(row, call, int(lives.size[row])) for row in rows.tolist() if (call := calls[int(lives.stack[row])])]
    weights = {(line, size) for _, (line, softmax), size in made if softmax and size >= LEAST_WEIGHTS}
    sizes = {(line.function, size * halves // 2) for line, size in weights for halves in OF_WEIGHTS}
    chosen = np.zeros(len(lives), np.bool_)
    chosen[[row for row, (line, _), size in made if (line.function, size) in sizes]] = True
    if weights:
        yield Saving(
            "fused attention (torch's scaled_dot_product_attention)",
            peak.falls(allocated(history, chosen)),
            "none: as a rule it is faster; rounding differs",
            "what is as large as the attention weights, made in the function that takes their softmax",
            max(weights, key=lambda each: each[1])[0],
        )


def _attention(frames: tuple[SourceLine, ...], module: str) -> tuple[SourceLine, bool] | None:
    """(innermost line of a stack in the user's own code, whether a softmax is taken there), where that line computes
    attention by hand."""
    softmax = False
    for frame in frames:
        name = operator_name(frame) or frame.function
        if FUSED.search(name):
            return None
        if SOFTMAX.search(name):
            softmax = True
        elif frame.file.endswith(".py") and "/torch/" not in frame.file:
            named = f"{frame.function} {frame.file.rpartition('/')[2]} {module}"
            return (frame, softmax) if ATTENTION.search(named) else None
    return None


def _of_the_optimizer(peak: Peak) -> Iterator[Saving]:
    state = peak.of(Owner.OPTIMIZER_STATE) + peak.missing
    held = int(state[peak.moment + 1])
    yield Saving(
        "an 8-bit optimizer",
        peak.falls((state * (1 - STATE_OF_8_BITS)).astype(np.int64)),
        "about none; the numbers change",
        f"three quarters of the optimizer's {format_bytes(held)}, if they are float32",
        error=checked("8-bit"),
    )
    of_optimizer = peak.signs.at(peak.signs.optimizer, peak.history.lives.stack)
    yield Saving(
        "an optimizer that works in place (fused=True)",
        peak.falls(allocated(peak.history, of_optimizer & (peak.owners == Owner.TEMPORARIES))),
        "none: as a rule it is faster",
        "the temporaries of its step",
        error=checked("in-place"),
    )


def _of_gradients(peak: Peak, boundaries: tuple[int, ...]) -> Iterator[Saving]:
    lasting = allocated(peak.history, lasting_gradients(peak.history, peak.owners, boundaries))
    activations = peak.of(Owner.ACTIVATIONS)
    most = int(activations.max())
    if not most or not lasting.any():
        return
    # Given back before the forward, they come again while backward takes the activations away.
    yield Saving(
        "zero_grad(set_to_none=True) before the forward",
        peak.falls((lasting * (activations / most)).astype(np.int64)),
        "none",
        f"{format_bytes(int(lasting.max()))} of gradients stay through the next forward",
        error=checked("gradients"),
    )


def _of_precision(peak: Peak) -> Iterator[Saving]:
    """Saving by autocast; none if it is on."""
    if autocast_on(peak.history, peak.signs, peak.owners):
        return
    found = autocasting(peak.history, peak.signs, peak.owners)
    if found is None:
        return
    known = f"{format_bytes(found.halved)} of results in 16 bits, {format_bytes(found.kept)} stay in 32 bits"
    unknown = f", {format_bytes(found.unknown)} by the average of other models" if found.unknown else ""
    yield Saving(
        "bfloat16 autocast",
        peak.falls(-found.change),
        "as a rule it is faster; the numbers change",
        f"{known}{unknown}; {format_bytes(found.copies)} of weights' copies come on top, if the weights are float32",
        error=checked("autocast"),
    )


def _of_sharding(peak: Peak, ranks: int) -> Iterator[Saving]:
    """Yields the saving of sharding; none for a job that does not train on several devices, by the recording or by
    torch's frames."""
    several = ranks > 1 or any(DISTRIBUTED.search(frame.file) for frame in peak.history.stacks.frames)
    if not several or not (peak.owners == Owner.GRADIENTS).any():
        return
    held = peak.of(Owner.PARAMETERS, Owner.GRADIENTS, Owner.OPTIMIZER_STATE) + peak.missing
    yield Saving(
        f"sharding parameters, gradients and optimizer over {RANKS} ranks (FSDP)",
        peak.falls(held * (RANKS - 1) // RANKS),
        f"needs {RANKS} devices; communication of the parameters twice per step",
        f"{RANKS - 1} of {RANKS} parts of {format_bytes(int(held[peak.moment + 1]))}; N ranks free (N - 1)/N",
    )


def _of_fragments(history: AllocationHistory, breakdown: MemoryBreakdown) -> Iterator[Saving]:
    if dict(history.settings).get("expandable_segments") == "True":
        return
    yield Saving(
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        breakdown.of(Owner.FRAGMENTS),
        "about none",
        "what was free in segments that something alive held",
    )


def _of_batches(peak: Peak) -> Iterator[Saving]:
    scaling = allocated(peak.history, scales_with_batch(peak.history, peak.signs, peak.owners))
    held = int(scaling[peak.moment + 1])
    yield Saving(
        "half the micro-batch, twice the accumulation",
        peak.falls(scaling // 2),
        "needs a micro-batch of two samples or more; as much arithmetic in twice as many launches",
        f"half of what grows with the batch ({format_bytes(held)}: activations, inputs, temporaries of both)",
        error=checked("batch"),
    )
