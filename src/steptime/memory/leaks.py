"""Leaks: lines that leave memory allocated in every step, from the allocator's history."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steptime.memory.lives import BEFORE, AllocationHistory
from steptime.memory.owners import Codes, Owner
from steptime.memory.signs import Signs
from steptime.quantities import Estimate, SourceLine, median_of

LEAST_STEPS = 2
"""Fewest steps that a whole step follows, so that what they left is no longer used by the step that made it."""
MOST_LEAKS = 10


@dataclass(frozen=True, slots=True)
class Leak:
    """Memory that one line leaks. per_step: bytes that each step leaves allocated. held: leaked bytes at the end of the
    history. blocks: number of leaked allocations per step. steps: number of steps in which the leak was observed."""

    source: SourceLine | None
    per_step: Estimate
    held: int
    blocks: float
    steps: int


def leaks_of(history: AllocationHistory, signs: Signs, owners: Codes, boundaries: tuple[int, ...]) -> tuple[Leak, ...]:
    """Lines that leave memory allocated in every step, the largest leak first; empty if fewer than LEAST_STEPS whole
    steps are followed by another whole step.

    Memory counts as left if it was allocated in a step and is still alive at the end of the history, at least a whole
    step later. Parameters and optimizer state are excluded; a cache that is emptied now and then leaves nothing in some
    steps and is no leak."""
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
