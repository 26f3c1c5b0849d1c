"""Ways to free memory: by how much the peak of a steady step would fall, at what cost, and how that was estimated.

Each fix is a curve, the bytes that it frees at each instant: where another instant becomes the highest, the peak falls
by less than what was freed. The error that is printed with a prediction is how far its kind was off where the change
was really made, measured by `python -m benchmarks.memory_predictions` in pairs of runs of the same job.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from steptime.analysis.memory_samples import CPU_PLACE
from steptime.arrays import Bool, Int64
from steptime.memory.breakdown import MemoryBreakdown
from steptime.memory.leaks import Leak
from steptime.memory.lives import AllocationHistory, alive_at, allocated, summed
from steptime.memory.owners import Codes, Owner, lasting_gradients, parameter_sizes
from steptime.memory.signs import Policy, Signs, policies_of
from steptime.memory.steps import Steady
from steptime.quantities import SourceLine, format_bytes, format_share, format_source

LEAST = 0.001
"""Fraction of a peak: the smallest error that is shown."""


CHECKED = {
    "autocast": (0.23, 13),
    "checkpointing": (0.281, 8),
    "batch": (0.0, 16),
    "8-bit": (0.12, 8),
    "in-place": (0.0, 8),
    "gradients": (0.006, 8),
    "steady": (0.15, 16),
}
"""The largest error of each kind of prediction, as a share of the peak that was measured with the change, and of how
many pairs: on the CPU's allocator; of autocast five are public pairs of CUDA's, with 6.3 % at most."""


def checked(kind: str) -> str:
    """How far a kind of prediction was off."""
    worst, pairs = CHECKED.get(kind, (0.0, 0))
    return f"±{format_share(max(LEAST, worst))}, {pairs} pairs" if pairs else "unchecked"


LEAST_SCALING = 0.05
"""Fraction of the most at once: a few bytes of a loss in the optimizer's step say nothing of a larger batch."""
HEADROOM = 0.9
"""Fraction of the device, for the largest batch: cuBLAS, NCCL and the context live outside of the allocator."""


@dataclass(frozen=True, slots=True)
class Fit:
    """By how much the batch could grow (or, below 1, must shrink) to fill HEADROOM of the device; 0 where it does not
    hold even what no batch changes. least and most differ where something is not known, which note says.
    kind: whose measured error is its own."""

    least: float
    most: float
    note: str = ""
    kind: str = "batch"


def scales_with_batch(history: AllocationHistory, signs: Signs, owners: Codes) -> Bool:
    """Activations, inputs and the temporaries of forward and backward; of those not what is as large as a parameter, or
    as its copy in 16 bits: a gradient on its way."""
    lives = history.lives
    sizes = [each for size in parameter_sizes(history, signs, owners) for each in (size, size // 2)]
    temporary = owners == Owner.TEMPORARIES
    of_weights = temporary & ~signs.at(signs.module, lives.stack) & np.isin(lives.size, np.array(sizes, np.int64))
    of_batch = np.isin(owners, (Owner.ACTIVATIONS, Owner.INPUTS)) | temporary
    scales: Bool = of_batch & ~of_weights & ~signs.at(signs.optimizer, lives.stack)
    return scales


def largest_batch(history: AllocationHistory, signs: Signs, owners: Codes, capacity: int, steady: Steady) -> Fit | None:
    """At every instant of a steady step, without what the allocator rounds and keeps free. None where nothing grows."""
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
"""Bytes of an activation that autocast saves. Where its operator is not known: what whole models' activations lost in
the public pairs (0.34 to 0.37 of 5 to 27 GiB), whose operators are known."""


@dataclass(frozen=True, slots=True, eq=False)
class Autocasting:
    """Effect of autocast on the memory of a job that is without it: some results half as large, and copies of weights.
    Parameters, gradients and the optimizer's state stay in float32, and so do exponentials, normalisations, losses and
    the residual stream.

    change: (events + 1,) bytes that autocast would add (or take off, below 0) at each instant. copies: bytes of the
    weights' copies, altogether. halved, kept: bytes at the instant of most activations whose operator autocast runs in
    16 bits, and in 32; unknown: those without an operator."""

    change: Int64
    copies: int
    halved: int
    kept: int
    unknown: int


def autocast_on(history: AllocationHistory, signs: Signs, owners: Codes) -> bool:
    """True if the history shows that autocast is on."""
    return bool((owners == Owner.COPIES).any() or signs.at(signs.cast, history.lives.stack).any())


def autocasting(history: AllocationHistory, signs: Signs, owners: Codes) -> Autocasting | None:
    """None without activations."""
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
STATE_OF_8_BITS = 0.25
"""Fraction of float32: a byte and the block's scale (Dettmers et al., 8-bit Optimizers via Block-wise Quantization,
2022)."""
LEAST_SHARE = 0.01
"""Fraction of what is reserved: less is not worth a line."""


@dataclass(frozen=True, slots=True)
class Saving:
    """frees: bytes that the peak falls by; at a failed request, bytes at that moment. cost: in time or in what is
    trained, in words. how: the estimate. error: how far such predictions were off."""

    name: str
    frees: int
    cost: str
    how: str
    source: SourceLine | None = None
    error: str = "unchecked"


class Peak:
    """The highest instant of a steady step, and what it would be. event: of a failed request, whose moment counts and
    no other; None for the peak."""

    def __init__(
        self, history: AllocationHistory, signs: Signs, owners: Codes, steady: Steady, event: int | None
    ) -> None:
        self.history, self.signs, self.owners = history, signs, owners
        self.missing = steady.likely
        self.live: Int64 = allocated(history) + self.missing
        self.moment = event if event is not None else int(np.argmax(self.live)) - 1
        """The event that the account is of."""
        self._failed = event is not None

    def falls(self, freed: Int64) -> int:
        """By how many bytes, where `freed` are gone at each instant (below 0: where they are added)."""
        if self._failed:
            return max(0, int(freed[self.moment + 1]))
        return max(0, int(self.live.max()) - int((self.live - freed).max()))

    def of(self, *owners: Owner) -> Int64:
        """Bytes of owners at each instant."""
        return allocated(self.history, np.isin(self.owners, owners))


def savings_of(
    peak: Peak, account: MemoryBreakdown, leaks: tuple[Leak, ...], boundaries: tuple[int, ...]
) -> tuple[Saving, ...]:
    """Savings of at least 1 % of the reserved memory, the largest first. They do not add: several free the same
    bytes."""
    found = [
        *_of_leaks(leaks),
        *_of_checkpointing(peak),
        *_of_the_optimizer(peak),
        *_of_gradients(peak, boundaries),
        *_of_precision(peak),
        *_of_sharding(peak),
        *_of_fragments(peak.history, account),
        *_of_batches(peak),
    ]
    least = LEAST_SHARE * account.reserved
    return tuple(sorted((each for each in found if each.frees >= least), key=lambda each: -each.frees))


def _of_leaks(leaks: tuple[Leak, ...]) -> Iterator[Saving]:
    for leak in leaks[:3]:
        known = leak.source is not None and leak.source.file
        where = format_source(leak.source) if leak.source is not None and known else "a line that is not known"
        yield Saving(
            f"let go of what {where} keeps",
            leak.held,
            "none",
            f"what it has left behind in {leak.steps} steps; {format_bytes(leak.per_step.value)} more with each",
            leak.source,
        )


def _of_checkpointing(peak: Peak) -> Iterator[Saving]:
    """Activations of modules of one class in one module, where they are named; else those below one line that calls a
    module again and again: each call is a block. The choice that frees most."""
    history, signs = peak.history, peak.signs
    alive = alive_at(history, peak.moment)
    chosen = np.flatnonzero(alive & (peak.owners == Owner.ACTIVATIONS) & (history.lives.stack >= 0))
    groups = list(_by_module(history, signs, chosen)) or list(_by_caller(history, signs, chosen))
    found = [_checkpointed(peak, *group) for group in groups if group[1] >= 2]
    if found:
        yield max(found, key=lambda saving: saving.frees)


Group = tuple[str, int, Int64, SourceLine | None]
"""Its name, its number of blocks, the lives made in them, and the lines of their calls."""


def _by_module(history: AllocationHistory, signs: Signs, rows: Int64) -> Iterator[Group]:
    """By the path of a module and the class of some in it."""
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
    """By each line of the user's that was calling when the lives were made, the innermost left out."""
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
    """Nothing where autocast is on."""
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


def _of_sharding(peak: Peak) -> Iterator[Saving]:
    held = peak.of(Owner.PARAMETERS, Owner.GRADIENTS, Owner.OPTIMIZER_STATE) + peak.missing
    yield Saving(
        f"sharding parameters, gradients and optimizer over {RANKS} ranks (FSDP)",
        peak.falls(held * (RANKS - 1) // RANKS),
        "communication of the parameters twice per step",
        f"{RANKS - 1} of {RANKS} parts of {format_bytes(int(held[peak.moment + 1]))}; N ranks free (N - 1)/N",
    )


def _of_fragments(history: AllocationHistory, account: MemoryBreakdown) -> Iterator[Saving]:
    if dict(history.settings).get("expandable_segments") == "True":
        return
    yield Saving(
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        account.of(Owner.FRAGMENTS),
        "about none",
        "what was free in segments that something alive held",
    )


def _of_batches(peak: Peak) -> Iterator[Saving]:
    scaling = allocated(peak.history, scales_with_batch(peak.history, peak.signs, peak.owners))
    held = int(scaling[peak.moment + 1])
    yield Saving(
        "half the micro-batch, twice the accumulation",
        peak.falls(scaling // 2),
        "as much arithmetic in twice as many launches",
        f"half of what grows with the batch ({format_bytes(held)}: activations, inputs, temporaries of both)",
        error=checked("batch"),
    )
