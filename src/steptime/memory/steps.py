"""Where steps begin in a history: optimiser's steps, else what repeats."""

from __future__ import annotations

import numpy as np

from steptime.arrays import Bool, Int64
from steptime.memory.history import BEFORE, History
from steptime.memory.signs import Signs

LEAST_PERIOD, MOST_EVENTS = 8, 1 << 20
REPEATS = 0.98
"""Of the requests, as many must be the same a period later for the history to repeat."""


def borders_of(history: History, signs: Signs) -> tuple[tuple[int, ...], str]:
    """The events at which steps end, and what they were found from."""
    if history.borders:
        return history.borders, history.border_source
    inside = signs.at(signs.optimizer, history.stack)
    if inside.any():
        return _ends_of_bursts(inside, _working(history, signs)), "the optimiser's steps"
    period = [] if signs.python.any() else _period(history)  # layers repeat, too: only where nothing better is known
    return tuple(period), "requests that repeat" if period else ""


def _working(history: History, signs: Signs) -> Bool:
    """Events of a forward or a backward: they part one optimiser's step from the next."""
    working: Bool = signs.at(signs.module, history.stack) | signs.at(signs.backward, history.stack)
    return working & ~signs.at(signs.optimizer, history.stack)


def _ends_of_bursts(inside: Bool, working: Bool) -> tuple[int, ...]:
    """Last events of the optimiser before other work: an optimiser's bursts without work between them are one step."""
    marks = np.flatnonzero(inside | working)
    kind = inside[marks]
    last = marks[:-1][kind[:-1] & ~kind[1:]].tolist()
    if len(marks) and kind[-1]:
        last.append(int(marks[-1]))
    return tuple(last)


def _period(history: History) -> list[int]:
    """Events at which a sequence of requests begins again, by the sizes asked for; none where it never does.

    The second half says with which period: first steps ask for more (the optimiser's state). From there it is followed
    back to where it begins.
    """
    lives = history.lives
    asked = np.flatnonzero(lives.born > BEFORE)
    asked = asked[np.argsort(lives.born[asked], kind="stable")][-MOST_EVENTS:]
    sizes = lives.size[asked]
    period = _repeat(sizes[len(sizes) // 2 :]) if len(sizes) >= 4 * LEAST_PERIOD else 0
    if not period:
        return []
    begins = [len(sizes) - period]
    while begins[-1] >= period and _agreement(sizes[begins[-1] - period : begins[-1] + period], period) >= REPEATS:
        begins.append(begins[-1] - period)
    return [int(lives.born[asked[index]]) - 1 for index in reversed(begins) if lives.born[asked[index]] > 0]


def _repeat(sizes: Int64) -> int:
    """The shortest period of a sequence, 0 if it has none: candidates are the distances between equal rare values."""
    values, counts = np.unique(sizes, return_counts=True)
    rare = values[(counts >= 2)][np.argsort(counts[counts >= 2], kind="stable")][:8]
    candidates: set[int] = set()
    for value in rare:
        places = np.flatnonzero(sizes == value)
        candidates.update(np.unique(np.diff(places))[:8].tolist())
        candidates.update((places[len(places) // 2 :][:4] - places[0]).tolist())
    for period in sorted(each for each in candidates if LEAST_PERIOD <= each <= len(sizes) // 2):
        if _agreement(sizes, period) >= REPEATS:
            return period
    return 0


def _agreement(sizes: Int64, period: int) -> float:
    same: Bool = sizes[period:] == sizes[:-period]
    return float(same.mean())
