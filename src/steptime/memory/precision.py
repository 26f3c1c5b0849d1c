"""What autocast would do to the memory of a job that is without it: some results half as large, and copies of weights.

Parameters, gradients and the optimiser's state stay in float32; so do exponentials, normalisations, losses and the
residual stream, and each weight that a product reads gets a copy of half its size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steptime.arrays import Int64
from steptime.memory.history import CPU_PLACE, History, summed
from steptime.memory.operators import Policies, Policy, policies_of
from steptime.memory.owners import Codes, Owner, parameter_sizes
from steptime.memory.signs import Signs

HALF = 0.5
UNKNOWN_SHARE = 0.36
"""Of an activation whose operator is not known: what whole models' activations lost in the public pairs (0.34 to 0.37
of 5 to 27 GiB), whose operators are known."""


@dataclass(frozen=True, slots=True, eq=False)
class Autocasting:
    """change: (events + 1,) bytes that autocast would add (or take off, below 0) at each instant. copies: bytes of the
    weights' copies, altogether. halved, kept: bytes at the instant of most activations whose operator autocast runs in
    16 bits, and in 32; unknown: those without an operator."""

    change: Int64
    copies: int
    halved: int
    kept: int
    unknown: int


def autocast_on(history: History, signs: Signs, owners: Codes) -> bool:
    """Whether the history shows that autocast is on."""
    return bool((owners == Owner.COPIES).any() or signs.at(signs.cast, history.lives.stack).any())


def autocasting(history: History, signs: Signs, owners: Codes) -> Autocasting | None:
    """None without activations."""
    lives = history.lives
    activations = owners == Owner.ACTIVATIONS
    made = activations | (owners == Owner.TEMPORARIES) & signs.at(signs.module, lives.stack)
    policy = np.append(policies_of(history.stacks, history.device == CPU_PLACE), np.int8(Policy.UNKNOWN))[lives.stack]
    share = _lost(policy) * made
    held = summed(history, np.where(activations, lives.size, 0))
    most = int(held.max())
    if not most:
        return None
    copies = sum(size * count for size, count in parameter_sizes(history, signs, owners).items()) // 2
    lost = summed(history, (lives.size * share).astype(np.int64))
    alive = int(np.argmax(held)) - 1
    there = activations & (lives.born <= alive) & (lives.died > alive)
    sums = [int(lives.size[there & (policy == each)].sum()) for each in (Policy.HALVED, Policy.KEPT, Policy.UNKNOWN)]
    # A weight is cast when the forward reaches it, and its copy goes when backward has passed: as activations do.
    return Autocasting((copies * (held / most)).astype(np.int64) - lost, copies, *sums)


def _lost(policy: Policies) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    share = np.zeros(len(policy))
    share[policy == Policy.HALVED] = HALF
    share[policy == Policy.UNKNOWN] = UNKNOWN_SHARE
    return share
