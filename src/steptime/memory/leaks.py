"""Leaks: lines that leave memory behind in every step, by the allocator's history."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steptime.memory.lives import BEFORE, AllocationHistory
from steptime.memory.owners import Codes, Owner
from steptime.memory.signs import Signs
from steptime.quantities import Estimate, SourceLine, median_of

LEAST_STEPS = 2
"""Steps behind which a whole step follows: what they left is no longer in use by the step that made it."""
MOST_LEAKS = 10


@dataclass(frozen=True, slots=True)
class Leak:
    """per_step: bytes that each step leaves behind; held: bytes of it at the moment of the account (the end). blocks:
    allocations per step. steps: those that it was seen in."""

    source: SourceLine | None
    per_step: Estimate
    held: int
    blocks: float
    steps: int


def leaks_of(history: AllocationHistory, signs: Signs, owners: Codes, boundaries: tuple[int, ...]) -> tuple[Leak, ...]:
    """The lines that leave memory behind in every step, the largest first; none where fewer than LEAST_STEPS whole
    steps are followed by another whole one.

    A block that a step made and that is alive at the end, a whole step later, is left behind: parameters and the
    optimizer's state are excepted, and a cache that is emptied now and then has steps of which nothing is left."""
    lives = history.lives
    ends = np.array(boundaries, np.int64)
    eligible = len(ends) - 2 if len(ends) else 0  # the steps between the first boundary and the one before the last
    if eligible < LEAST_STEPS:
        return ()
    step = np.searchsorted(ends, lives.born) - 1
    left = (
        (lives.born > BEFORE)
        & (lives.died >= history.events)
        & (step >= 0)
        & (step < eligible)
        & ~np.isin(owners, (Owner.PARAMETERS, Owner.OPTIMIZER_STATE))
    )
    groups: dict[SourceLine | None, list[int]] = {}
    for row in np.flatnonzero(left).tolist():
        stack = int(lives.stack[row])
        groups.setdefault(signs.line[stack] if stack >= 0 else None, []).append(row)
    leaks = []
    for source, rows in groups.items():
        per_step = np.bincount(step[rows], lives.size[rows], eligible).astype(np.int64)
        if per_step.all():
            held = int(lives.size[rows].sum())
            leaks.append(Leak(source, median_of(per_step, "bytes"), held, len(rows) / eligible, eligible))
    return tuple(sorted(leaks, key=lambda leak: -leak.per_step.value)[:MOST_LEAKS])
