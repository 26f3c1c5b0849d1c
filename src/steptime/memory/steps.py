"""Boundaries of steps in a history, from the optimizer's steps or else from repeated requests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steptime.arrays import Bool, Int64, unique
from steptime.memory.lives import BEFORE, AllocationHistory, allocated
from steptime.memory.owners import Codes, Owner, parameter_sizes
from steptime.memory.signs import Signs
from steptime.quantities import format_bytes

LEAST_PERIOD, MOST_EVENTS = 8, 1 << 20
REPEATS = 0.98
"""Fraction of the requests that must be equal one period later for the history to repeat."""


def boundaries_of(history: AllocationHistory, signs: Signs) -> tuple[tuple[int, ...], str]:
    """(index of the event at which each step ends, how the steps were found, in words)."""
    if history.boundaries:
        return history.boundaries, history.boundary_source
    inside = signs.at(signs.optimizer, history.stack)
    if inside.any():
        working = signs.at(signs.module | signs.backward, history.stack)
        return _ends_of_bursts(inside, working & ~inside), "the optimizer's steps"
    period = [] if signs.python.any() else _period(history)  # layers repeat, too: only where nothing better is known
    return tuple(period), "requests that repeat" if period else ""


def _ends_of_bursts(inside: Bool, working: Bool) -> tuple[int, ...]:
    """Last events of the optimizer before a forward or a backward: bursts without such work between them are one
    step."""
    marks = np.flatnonzero(inside | working)
    following = np.append(inside[marks][1:], False)
    return tuple(marks[inside[marks] & ~following].tolist())


def _period(history: AllocationHistory) -> list[int]:
    """Events at which the sequence of requested sizes starts again; empty if it never does.

    The period is from the second half, since the first steps request more (optimizer state), and is then followed back.
    """
    lives = history.lives
    asked = np.flatnonzero(lives.born > BEFORE)
    asked = asked[np.argsort(lives.born[asked], kind="stable")][-MOST_EVENTS:]
    sizes = lives.size[asked]
    period = _repeat(sizes[len(sizes) // 2 :]) if len(sizes) >= 4 * LEAST_PERIOD else 0
    if not period:
        return []
    starts = [len(sizes) - period]
    while starts[-1] >= period and _agreement(sizes[starts[-1] - period : starts[-1] + period], period) >= REPEATS:
        starts.append(starts[-1] - period)
    return [int(lives.born[asked[index]]) - 1 for index in reversed(starts) if lives.born[asked[index]] > 0]


def _repeat(sizes: Int64) -> int:
    """Shortest period of a sequence, 0 for none. Candidates are the distances between equal rare values."""
    values, counts = np.unique(sizes, return_counts=True)
    rare = values[(counts >= 2)][np.argsort(counts[counts >= 2], kind="stable")][:8]
    candidates: set[int] = set()
    for value in rare:
        places = np.flatnonzero(sizes == value)
        candidates.update(unique(np.diff(places))[:8].tolist())
        candidates.update((places[len(places) // 2 :][:4] - places[0]).tolist())
    for period in sorted(each for each in candidates if LEAST_PERIOD <= each <= len(sizes) // 2):
        if _agreement(sizes, period) >= REPEATS:
            return period
    return 0


def _agreement(sizes: Int64, period: int) -> float:
    same: Bool = sizes[period:] == sizes[:-period]
    return float(same.mean())


SLOTS = 2
"""Tensors of a parameter's size that Adam keeps for it. Plain SGD keeps none, and hardly any optimizer keeps more."""
SEEN = 0.9
"""Fraction of the peak of activations that, reached again after the first optimizer step, shows that a whole step was
seen."""
UNSEEN = "unseen"
"""No pair was run of what is predicted without a step of the optimizer."""
FORWARD = "forward only: gradients and optimizer state come on top"


@dataclass(frozen=True, slots=True, eq=False)
class Steady:
    """Bytes that a steady step holds beyond those in the history, at each instant, (events + 1,): a likely, a least and
    a largest amount, which differ if the history is ambiguous. note: text on what was included or is unknown, "" for
    nothing. kind: kind of prediction whose measured error applies (`savings.CHECKED`)."""

    likely: Int64
    least: Int64
    most: Int64
    note: str = ""
    kind: str = "batch"


def steady_of(history: AllocationHistory, signs: Signs, owners: Codes) -> Steady:
    """Memory that a steady step holds beyond the history's: the optimizer state, as large as after the first update; if
    no update was seen, estimated from the parameters' size."""
    state = allocated(history, owners == Owner.OPTIMIZER_STATE)
    none = np.zeros(len(state), np.int64)
    steps = np.flatnonzero(signs.at(signs.optimizer, history.stack))
    if not len(steps):
        return Steady(none, none, none) if state.any() else _unseen(history, signs, owners, none)
    last = int(steps[-1]) + 1
    missing = np.maximum(0, state[last] - state)
    missing[last:] = 0
    if history.failures and history.failures[-1].event >= last - 1:
        return _unseen(history, signs, owners, missing)  # memory ran out in it: its state is not whole
    activations = allocated(history, owners == Owner.ACTIVATIONS)
    if not missing.any() or activations[last:].max() >= SEEN * activations.max() or _again(activations, missing):
        return Steady(none, none, none)
    gradients = _kept_through_forward(history, owners, last)
    note = f"with the optimizer's {format_bytes(int(missing.max()))}, which the first step allocates last"
    if gradients.any():
        note += f", and {format_bytes(int(gradients.max()))} of gradients at most, which zero_grad may free earlier"
    return Steady(missing + gradients, missing, missing + gradients, note, "steady")


def _again(activations: Int64, missing: Int64) -> bool:
    """True if a whole step was seen with the optimizer state in place."""
    resident = missing < max(1, int(missing.max()) // 2)
    return bool(resident.any()) and int(activations[resident].max()) >= SEEN * int(activations.max())


def _kept_through_forward(history: AllocationHistory, owners: Codes, last: int) -> Int64:
    """Gradients that are alive at the first forward of a steady step, bytes at each instant. What exists after the
    optimizer's step stays until zero_grad, which is usually called before backward, and so after the next forward."""
    lives = history.lives
    mine = owners == Owner.GRADIENTS
    held = np.zeros(history.events + 1, np.int64)
    born = lives.born[mine]
    if len(born):
        held[: int(born.min()) + 1] = int(lives.size[mine & (lives.born < last) & (lives.died >= last)].sum())
    return held


def _unseen(history: AllocationHistory, signs: Signs, owners: Codes, missing: Int64) -> Steady:
    """Additional memory if no whole optimizer step was seen: its state is between nothing and twice the parameters."""
    weights = sum(size * count for size, count in parameter_sizes(history, signs, owners).items())
    if not (owners == Owner.GRADIENTS).any():
        return Steady(missing, missing, missing, FORWARD, UNSEEN)
    if not weights:
        return Steady(missing, missing, missing, "no optimizer step was recorded; its state comes on top", UNSEEN)
    note = f"no optimizer step was recorded: its state is 0 with plain SGD, {format_bytes(SLOTS * weights)} with Adam"
    return Steady(missing, missing, np.maximum(missing, SLOTS * weights), note, UNSEEN)
