"""What would free memory: how much of the account's moment, at what cost, and how that was estimated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from steptime.memory.account import Account
from steptime.memory.history import History, Int64, alive_at, allocated
from steptime.memory.leaks import Leak
from steptime.memory.owners import Codes, Owner
from steptime.memory.signs import Signs
from steptime.quantities import SourceLine, format_bytes, format_source

RANKS = 8
"""Of the example of sharding: one host's devices."""
STATE_OF_8_BITS = 0.25
"""Of float32: a byte and the block's scale (Dettmers et al., 8-bit Optimizers via Block-wise Quantization, 2022)."""
LEAST_SHARE = 0.01
"""Of what is reserved: less is not worth a line."""
LEAST_SCALING = 0.05
"""Of the most at once: a few bytes of a loss in the optimiser's step say nothing of a larger batch."""
HEADROOM = 0.9
"""Of the device, for the largest batch: cuBLAS, NCCL and the context live outside of the allocator."""


@dataclass(frozen=True, slots=True)
class Saving:
    """frees: bytes at the moment of the account. cost: in time or in what is trained, in words. how: the estimate."""

    name: str
    frees: int
    cost: str
    how: str
    source: SourceLine | None = None


def savings_of(
    history: History, signs: Signs, owners: Codes, account: Account, leaks: tuple[Leak, ...]
) -> tuple[Saving, ...]:
    """What would free at least 1 % of what is reserved, most first. They do not add: several free the same bytes."""
    found = [
        *_of_leaks(leaks),
        *_of_checkpointing(history, signs, owners, account.event),
        *_of_the_optimizer(history, signs, owners, account),
        *_of_precision(account),
        *_of_sharding(account),
        *_of_fragments(history, account),
        *_of_batches(account),
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


def _of_checkpointing(history: History, signs: Signs, owners: Codes, event: int) -> Iterator[Saving]:
    """Activations of modules of one class in one module, where they are named; else those below one line that calls a
    module again and again: each call is a block. The choice that frees most."""
    chosen = np.flatnonzero(alive_at(history, event) & (owners == Owner.ACTIVATIONS) & (history.lives.stack >= 0))
    found = [
        _checkpointed(history, rows, len(calls), f"{len(calls)} {kind} modules{f' in {parent}' if parent else ''}")
        for (parent, kind), (calls, rows) in _by_module(history, signs, chosen).items()
    ]
    if not found:
        for frame, rows in _by_caller(history, signs, chosen).items():
            _, counts = np.unique(history.lives.stack[rows], return_counts=True)
            blocks = int(np.median(counts))
            found.append(
                _checkpointed(history, rows, blocks, f"{blocks} blocks called at {format_source(frame)}", frame)
            )
    possible = [saving for saving in found if saving is not None]
    if possible:
        yield max(possible, key=lambda saving: saving.frees)


def _by_module(history: History, signs: Signs, rows: Int64) -> dict[tuple[str, str], tuple[set[str], Int64]]:
    """By the path of a module and the class of some in it: those that were called, and the lives made in them."""
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
    return {key: (names, np.array(members[key], np.int64)) for key, names in calls.items()}


def _by_caller(history: History, signs: Signs, rows: Int64) -> dict[SourceLine, Int64]:
    """The lives by each line of the user's that was calling when they were made, the innermost left out."""
    stacks = history.stacks
    groups: dict[SourceLine, list[int]] = {}
    by_stack: dict[int, list[int]] = {}
    for row in rows.tolist():
        by_stack.setdefault(int(history.lives.stack[row]), []).append(row)
    for stack, members in by_stack.items():
        inner = signs.line[stack]
        frames = {frame for frame in stacks.of(stack) if frame.function == "forward" and frame.line and frame != inner}
        for frame in frames:
            if "/torch/nn/modules/" not in frame.file:
                groups.setdefault(frame, []).extend(members)
    return {frame: np.array(members, np.int64) for frame, members in groups.items()}


def _checkpointed(
    history: History, rows: Int64, blocks: int, name: str, frame: SourceLine | None = None
) -> Saving | None:
    lives = history.lives
    if blocks < 2:
        return None
    total = int(lives.size[rows].sum())
    kept = blocks * int(np.median(lives.size[rows]))
    frees = int(total * (1 - 1 / blocks)) - kept
    how = (
        f"{format_bytes(total)} are made in {blocks} calls; one call's stay while it is computed again, and an input "
        f"of each ({format_bytes(kept)} by the median size)"
    )
    return Saving(
        f"activation checkpointing of the {name}",
        frees,
        "their forward runs twice: about a third of their share of the step",
        how,
        frame,
    )


def _of_the_optimizer(history: History, signs: Signs, owners: Codes, account: Account) -> Iterator[Saving]:
    state = account.of(Owner.OPTIMIZER_STATE)
    yield Saving(
        "an 8-bit optimiser",
        int(state * (1 - STATE_OF_8_BITS)),
        "about none; the numbers change",
        f"three quarters of the optimiser's {format_bytes(state)}, if they are float32",
    )
    alive = alive_at(history, account.event) & (owners == Owner.TEMPORARIES)
    scratch = int(history.lives.size[alive & signs.at(signs.optimizer, history.lives.stack)].sum())
    yield Saving(
        "an optimiser that works in place (fused=True)",
        scratch,
        "none: as a rule it is faster",
        "the temporaries of its step that were alive at the moment",
    )


def _of_precision(account: Account) -> Iterator[Saving]:
    activations = account.of(Owner.ACTIVATIONS)
    yield Saving(
        "bfloat16 autocast",
        activations // 2,
        "as a rule it is faster; the numbers change",
        f"half of the {format_bytes(activations)} of activations, if they are float32 now",
    )


def _of_sharding(account: Account) -> Iterator[Saving]:
    states = (Owner.PARAMETERS, Owner.GRADIENTS, Owner.OPTIMIZER_STATE)
    held = sum(account.of(owner) for owner in states)
    yield Saving(
        f"sharding parameters, gradients and optimiser over {RANKS} ranks (FSDP)",
        held * (RANKS - 1) // RANKS,
        "communication of the parameters twice a step",
        f"{RANKS - 1} of {RANKS} parts of {format_bytes(held)}; N ranks free (N - 1)/N",
    )


def _of_fragments(history: History, account: Account) -> Iterator[Saving]:
    if dict(history.settings).get("expandable_segments") == "True":
        return
    yield Saving(
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        account.of(Owner.FRAGMENTS),
        "about none",
        "what was free in segments that something alive held",
    )


def _of_batches(account: Account) -> Iterator[Saving]:
    scaling = sum(account.of(owner) for owner in (Owner.ACTIVATIONS, Owner.INPUTS))
    yield Saving(
        "half the micro-batch, twice the accumulation",
        scaling // 2,
        "as much arithmetic in twice as many launches",
        f"half of the activations and inputs ({format_bytes(scaling)}), which grow with the batch",
    )


def largest_batch(history: History, signs: Signs, owners: Codes, capacity: int) -> float | None:
    """By how much the batch could grow (or, below 1, must shrink) to fill HEADROOM of the device at every instant.

    Activations, inputs and the temporaries of forward and backward grow with it, the rest does not; what the allocator
    rounds and has to keep free is not counted. None where nothing grows.
    """
    of_optimizer = signs.at(signs.optimizer, history.lives.stack)
    scales = np.isin(owners, (Owner.ACTIVATIONS, Owner.INPUTS, Owner.TEMPORARIES)) & ~of_optimizer
    scaling = allocated(history, scales)
    fixed = allocated(history) - scaling
    largest = int(scaling.max())
    if not largest:
        return None
    counted = scaling >= LEAST_SCALING * largest
    return max(0.0, float(((HEADROOM * capacity - fixed[counted]) / scaling[counted]).min()))
