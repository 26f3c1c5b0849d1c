"""Who owned each allocation: from its call stack, and from when it was born and freed."""

from __future__ import annotations

from collections import Counter
from enum import IntEnum

import numpy as np

from steptime.arrays import Bool, Int8, Int64, unique
from steptime.memory.lives import BEFORE, AllocationHistory
from steptime.memory.signs import Signs

Codes = Int8


class Owner(IntEnum):
    """Purpose of some bytes of memory. The last four members are no tensors."""

    PARAMETERS = 0
    """Weights and buffers of modules."""
    GRADIENTS = 1
    OPTIMIZER_STATE = 2
    ACTIVATIONS = 3
    """Blocks made in forward that backward needs."""
    COPIES = 4
    """Autocast's 16-bit copies of weights, whose size does not depend on the batch."""
    INPUTS = 5
    """Batches, made or moved outside of the model."""
    TEMPORARIES = 6
    """Blocks freed in the part of the step that made them."""
    KEPT = 7
    """Blocks from one step that are alive a whole step later, and neither parameters nor optimizer state."""
    EARLIER = 8
    """Blocks from before the recording with an unknown owner."""
    AWAITING = 9
    """Freed blocks that another stream may still use."""
    ROUNDING = 10
    """Rounding of sizes by the allocator, and remainders too small to split off."""
    FRAGMENTS = 11
    """Free memory in segments that are partly in use."""
    CACHED = 12
    """Free memory in segments that could be returned to the driver."""


MOST_SLOTS = 3
"""Most tensors of a parameter's size that an optimizer keeps for it: Adam two, with amsgrad three."""
LABELS = {
    Owner.PARAMETERS: "parameters",
    Owner.GRADIENTS: "gradients",
    Owner.OPTIMIZER_STATE: "optimizer state",
    Owner.ACTIVATIONS: "activations",
    Owner.COPIES: "autocast copies",
    Owner.INPUTS: "inputs",
    Owner.TEMPORARIES: "temporaries",
    Owner.KEPT: "kept across steps",
    Owner.EARLIER: "from before the recording",
    Owner.AWAITING: "awaiting other streams",
    Owner.ROUNDING: "rounding",
    Owner.FRAGMENTS: "free, in used segments",
    Owner.CACHED: "free, in whole segments",
}
LEAST_MATCHED = 0.5
"""Fraction of the parameters' bytes that must have a copy of half the size for autocast to be inferred from sizes
alone. Biases, norms and embeddings have none."""
SMALLEST = 4096
"""Least size of a parameter whose copy is looked for, bytes: many things have a few hundred bytes."""


def autocast_copies(history: AllocationHistory, signs: Signs, parameters: dict[int, int], candidates: Bool) -> Bool:
    """Mask of the lives that are autocast's copies of weights.

    Autocast casts a weight when a matmul first needs it, and keeps the copy until its context ends; backward keeps it
    longer. The copies are half as large as the parameters, whatever the batch. parameters: number of parameters by size
    in bytes, as far as known. candidates: mask of the lives that may be copies, because forward made them."""
    casts = signs.at(signs.cast, history.lives.stack)
    if casts.any() or signs.operators.any():
        return _copies(history, parameters, candidates & casts)
    copies = _copies(history, parameters, candidates & _followed(history))
    copied = set(history.lives.size[copies].tolist())
    matched = sum(size * count for size, count in parameters.items() if size // 2 in copied and size >= SMALLEST)
    whole = sum(size * count for size, count in parameters.items())
    return copies & (matched >= LEAST_MATCHED * whole > 0)


def _copies(history: AllocationHistory, parameters: dict[int, int], candidates: Bool) -> Bool:
    """Candidates of half a parameter's size. At most as many of a size may live at once as there are parameters; the
    ones that live longest are preferred."""
    lives = history.lives
    copies = np.zeros(len(lives), np.bool_)
    halves: Counter[int] = Counter()
    for size, count in parameters.items():
        halves[size // 2] += count
    rows = np.flatnonzero(candidates & np.isin(lives.size, np.array(list(halves), np.int64)))
    for size in unique(lives.size[rows]).tolist():
        mine = rows[lives.size[rows] == size]
        longest = mine[np.argsort(lives.born[mine] - lives.died[mine], kind="stable")]
        copies[_at_most(longest, lives.born, lives.died, halves[size])] = True
    return copies


def _at_most(rows: Int64, born: Int64, died: Int64, most: int) -> Int64:
    """Rows in their order, without those that would exceed `most` at the same time."""
    if len(rows) <= most:
        return rows
    taken: list[int] = []
    for row in rows.tolist():
        together = sum(1 for other in taken if born[other] < died[row] and born[row] < died[other])
        if together < most:
            taken.append(row)
    return np.array(taken, np.int64)


def _followed(history: AllocationHistory) -> Bool:
    """Mask of the lives after which the same call allocates again at once: a copy precedes the matmul that it is for.
    Without C++ frames, only this and the size distinguish a copy from an activation."""
    lives = history.lives
    rows = np.flatnonzero((lives.born > BEFORE) & (lives.stack >= 0))
    rows = rows[np.argsort(lives.born[rows], kind="stable")]
    again = np.zeros(len(lives), np.bool_)
    stack, size = lives.stack[rows], lives.size[rows]
    again[rows[:-1]] = (stack[1:] == stack[:-1]) & (size[1:] != size[:-1])
    return again


def owners_of(history: AllocationHistory, signs: Signs, boundaries: tuple[int, ...]) -> Codes:
    lives = history.lives
    look = _Looks(history, signs, boundaries)
    owner = np.full(len(lives), Owner.TEMPORARIES, np.int8)
    outside = ~(look.module | look.optimizer | look.backward | look.build)
    in_forward = look.module | look.after_forward
    owner[in_forward & look.crosses_backward] = Owner.ACTIVATIONS
    owner[outside & ~look.after_forward & look.crosses_backward] = Owner.INPUTS
    owner[look.backward & look.meets_optimizer] = Owner.GRADIENTS
    owner[look.backward & look.module & ~look.meets_optimizer] = Owner.ACTIVATIONS  # computed again
    owner[look.optimizer] = Owner.TEMPORARIES
    owner[look.optimizer & look.outlives_step] = Owner.OPTIMIZER_STATE
    owner[look.build] = Owner.PARAMETERS
    gradients = _made_once(lives.size, look.born, look.backward & look.meets_optimizer & look.survives)
    owner[look.survives & ~look.build & ~look.optimizer & ~gradients] = Owner.KEPT
    earlier = (lives.born == BEFORE) & (lives.stack < 0)
    owner[earlier] = Owner.EARLIER
    owner[earlier & look.ended_in_backward] = Owner.ACTIVATIONS
    owner[earlier & look.ended_in_zero_grad] = Owner.GRADIENTS
    owner[earlier & look.ended_in_optimizer & ~look.ended_in_zero_grad] = Owner.OPTIMIZER_STATE
    _assign_earlier(history, owner)
    candidates = in_forward & (lives.born > BEFORE) & (owner != Owner.PARAMETERS)
    owner[autocast_copies(history, signs, parameter_sizes(history, signs, owner), candidates)] = Owner.COPIES
    return owner


def parameter_sizes(history: AllocationHistory, signs: Signs, owner: Codes) -> dict[int, int]:
    """Number of the parameters that matmuls use, by size in bytes. Source: gradients or optimizer state; without those,
    the tensors made while the model was built; without those, all tensors that existed at the start and stay."""
    lives = history.lives
    found = _unit(history, owner)
    for wanted in (Owner.PARAMETERS, Owner.EARLIER):
        if not found:
            found = Counter(lives.size[(owner == wanted) & (lives.died >= history.events)].tolist())
    looked_up = (owner == Owner.GRADIENTS) & signs.at(signs.gather, lives.stack)
    for size in unique(lives.size[looked_up]).tolist():
        if found.get(size):
            found[size] -= 1
    return {size: count for size, count in found.items() if count}


def lasting_gradients(history: AllocationHistory, owner: Codes, boundaries: tuple[int, ...]) -> Bool:
    """Mask of the gradients that stay allocated for a step after their own: zero_grad(set_to_none=False) keeps them."""
    born, died = _steps_of(history, boundaries)
    lasting: Bool = (owner == Owner.GRADIENTS) & _survives(history, born, died)
    return lasting


def _steps_of(history: AllocationHistory, boundaries: tuple[int, ...]) -> tuple[Int64, Int64]:
    """(step in which each life was born, step in which it ended)."""
    ends = np.array([*boundaries, history.events], np.int64)
    lives = history.lives
    return np.searchsorted(ends, np.maximum(lives.born, 0)), np.searchsorted(ends, lives.died)


def _survives(history: AllocationHistory, born: Int64, died: Int64) -> Bool:
    """Mask of the lives that last through a whole step after their own. born, died: steps."""
    found: Bool = (died > born + 1) & (history.lives.born > BEFORE)
    return found


def _made_once(size: Int64, born: Int64, chosen: Bool) -> Bool:
    """Mask of the chosen blocks whose size only one step makes: a size that every step makes and keeps is a leak."""
    steps = np.unique(np.stack((size[chosen], born[chosen]), axis=1), axis=0)
    sizes, counts = np.unique(steps[:, 0], return_counts=True)
    return chosen & np.isin(size, sizes[counts == 1])


class _Looks:
    """Properties of each life, as masks; born: the step in which it was made."""

    def __init__(self, history: AllocationHistory, signs: Signs, boundaries: tuple[int, ...]) -> None:
        lives, count, at = history.lives, history.events, signs.at
        self.optimizer = at(signs.optimizer, lives.stack)
        self.module = at(signs.module, lives.stack)
        calls = at(signs.module, history.stack)
        first_call = int(np.argmax(calls)) if len(calls) else 0
        made = at(signs.made, lives.stack) & (lives.born < first_call)  # a module of the user's own makes its weights
        self.build = (at(signs.build, lives.stack) | made) & ~self.module & ~self.optimizer
        # On a device, backward runs in a thread of autograd's own, which has no frames of Python.
        named = bool(signs.python.any())
        silent = (lives.born > BEFORE) & ~at(signs.python, lives.stack) & named
        self.backward = (at(signs.backward, lives.stack) | silent) & ~self.optimizer
        in_optimizer = at(signs.optimizer, history.stack)
        in_backward = (at(signs.backward, history.stack) | ~at(signs.python, history.stack) & named) & ~in_optimizer
        in_module = calls & ~in_backward
        if not in_module.any() and in_backward.any():  # no frames of Python: what is left is forward
            self.module = ~(self.optimizer | self.backward | self.build) & (lives.stack >= 0)
        self.crosses_backward = _between(in_backward, lives.born, lives.died)
        self.meets_optimizer = _between(in_optimizer, lives.born, lives.died)
        if not in_optimizer.any():
            self.meets_optimizer = self.backward & (lives.died >= count)
        if not in_backward.any():
            self.crosses_backward = self.module
        self.born, died = _steps_of(history, boundaries)
        self.outlives_step = died > self.born
        self.survives = _survives(history, self.born, died)
        starts = np.array([0, *(end + 1 for end in boundaries)], np.int64)
        outside = (lives.born > BEFORE) & ~self.module & ~self.optimizer & ~self.backward
        start = starts[np.minimum(self.born, len(boundaries))]
        self.after_forward = outside & _between(in_module, start - 1, lives.born)
        ended = lives.died < count
        self.ended_in_optimizer = at(signs.optimizer, lives.ended_by) & ended
        self.ended_in_zero_grad = at(signs.zero_grad, lives.ended_by) & ended
        self.ended_in_backward = ended & ~self.ended_in_optimizer  # nothing ends where there are no events
        self.ended_in_backward[ended] &= in_backward[lives.died[ended]]


def _between(marked: Bool, after: Int64, until: Int64) -> Bool:
    """True if a marked event is in (after, until], for each life."""
    total = np.concatenate(([0], np.cumsum(marked, dtype=np.int32)), dtype=np.int32)
    upper = np.minimum(until, len(marked) - 1) + 1
    found: Bool = total[np.maximum(upper, 0)] > total[np.minimum(after + 1, len(marked))]
    return found


def _assign_earlier(history: AllocationHistory, owner: Codes) -> None:
    """Assigns owners to blocks from before the recording, by size, in place. A model's parameters, its gradients and
    each slot of optimizer state are equally many blocks of the same sizes.

    The sizes of one such set are those of the gradients, else of a slot of the optimizer state. The first set is
    assigned to the parameters, the second to the gradients (if none were made), the others to the optimizer."""
    lives = history.lives
    unit = _unit(history, owner)
    ranks = [Owner.PARAMETERS]
    if Owner.GRADIENTS not in owner:
        ranks.append(Owner.GRADIENTS)
    if not (owner[lives.born > BEFORE] == Owner.OPTIMIZER_STATE).any():
        ranks += [Owner.OPTIMIZER_STATE] * MOST_SLOTS
    taken: Counter[int] = Counter()
    for row in np.flatnonzero((owner == Owner.EARLIER) & (lives.died >= history.events)).tolist():
        size = int(lives.size[row])
        rank = taken[size] // unit[size] if unit.get(size) else len(ranks)
        taken[size] += 1
        if rank < len(ranks):
            owner[row] = ranks[rank]


def _unit(history: AllocationHistory, owner: Codes) -> dict[int, int]:
    """Number of blocks by size in one set of the parameters' sizes; empty if unknown. One line of an optimizer may make
    all its slots; then the gradients, if seen, show how many blocks of a size are one slot."""
    state, gradients = (_set_of(history, owner, wanted) for wanted in (Owner.OPTIMIZER_STATE, Owner.GRADIENTS))
    if not state:
        return gradients
    return {size: min(count, gradients.get(size, count)) for size, count in state.items()}


def _set_of(history: AllocationHistory, owner: Codes, wanted: Owner) -> dict[int, int]:
    """Number of blocks by size of an owner that lived at once; for optimizer state, those made by one of its lines."""
    lives = history.lives
    rows = np.flatnonzero((owner == wanted) & (lives.born > BEFORE))
    if not len(rows):
        return {}
    chosen = rows[_together(lives.born[rows], lives.died[rows])]
    if wanted is Owner.OPTIMIZER_STATE:
        _, inverse = np.unique(lives.stack[chosen], return_inverse=True)
        chosen = chosen[inverse == int(np.argmax(np.bincount(inverse, lives.size[chosen])))]
    return Counter(lives.size[chosen].tolist())


def _together(born: Int64, died: Int64) -> Bool:
    """Mask of the lives at the instant with the most lives."""
    times = unique(born)
    alive = np.searchsorted(np.sort(born), times, side="right") - np.searchsorted(np.sort(died), times, side="right")
    instant = times[int(np.argmax(alive))]
    together: Bool = (born <= instant) & (died > instant)
    return together
