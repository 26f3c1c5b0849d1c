"""How large a batch a device holds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steptime.arrays import Bool, Int64
from steptime.memory.history import History, allocated
from steptime.memory.owners import Codes, Owner, parameter_sizes
from steptime.memory.signs import Signs
from steptime.memory.steady import Steady

LEAST_SCALING = 0.05
"""Of the most at once: a few bytes of a loss in the optimiser's step say nothing of a larger batch."""
HEADROOM = 0.9
"""Of the device, for the largest batch: cuBLAS, NCCL and the context live outside of the allocator."""


@dataclass(frozen=True, slots=True)
class Fit:
    """By how much the batch could grow (or, below 1, must shrink) to fill HEADROOM of the device; 0 where it does not
    hold even what no batch changes. least and most differ where something is not known, which note says.
    kind: whose measured error is its own."""

    least: float
    most: float
    note: str = ""
    kind: str = "batch"


def scales_with_batch(history: History, signs: Signs, owners: Codes) -> Bool:
    """Activations, inputs and the temporaries of forward and backward; of those not what is as large as a parameter, or
    as its copy in 16 bits: a gradient on its way."""
    lives = history.lives
    sizes = [each for size in parameter_sizes(history, signs, owners) for each in (size, size // 2)]
    temporary = owners == Owner.TEMPORARIES
    of_weights = temporary & ~signs.at(signs.module, lives.stack) & np.isin(lives.size, np.array(sizes, np.int64))
    of_batch = np.isin(owners, (Owner.ACTIVATIONS, Owner.INPUTS)) | temporary
    scales: Bool = of_batch & ~of_weights & ~signs.at(signs.optimizer, lives.stack)
    return scales


def largest_batch(history: History, signs: Signs, owners: Codes, capacity: int, steady: Steady) -> Fit | None:
    """At every instant of a steady step; what the allocator rounds and has to keep free is not counted. None where
    nothing grows."""
    scaling = allocated(history, scales_with_batch(history, signs, owners))
    largest = int(scaling.max())
    if not largest:
        return None
    counted = scaling >= LEAST_SCALING * largest
    fixed = allocated(history) - scaling

    def factor(missing: Int64) -> float:
        return max(0.0, float(((HEADROOM * capacity - fixed - missing)[counted] / scaling[counted]).min()))

    return Fit(factor(steady.most), factor(steady.least), steady.note, steady.kind)
