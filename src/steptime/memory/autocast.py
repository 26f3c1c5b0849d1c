"""Autocast in a history: whether it is on, and which blocks are its copies of weights in 16 bits.

Autocast casts a weight where a product first needs it, and keeps the copy until its context ends; backward keeps it
longer. The copies are as large as half of the parameters, whatever the batch.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from steptime.arrays import Bool, Int64
from steptime.memory.history import BEFORE, History
from steptime.memory.signs import Signs

LEAST_MATCHED = 0.5
"""Of the parameters' bytes: as much must have a copy of half its size for the sizes alone to tell of autocast. Biases,
norms and embeddings have none."""
SMALLEST = 4096
"""Bytes of a parameter whose copy is looked for: a few hundred bytes are the size of many things."""


@dataclass(frozen=True, slots=True, eq=False)
class Autocast:
    """on: whether the history shows it. copies: the lives that are its copies of weights."""

    on: bool
    copies: Bool


def autocast_of(history: History, signs: Signs, parameters: dict[int, int], candidates: Bool) -> Autocast:
    """parameters: how many there are of each size in bytes, as far as that is known. candidates: lives that may be
    copies: made in the forward."""
    casts = signs.at(signs.cast, history.lives.stack)
    if casts.any():
        return Autocast(True, _copies(history, parameters, candidates & casts))
    known = bool(signs.operators.any())
    copies = np.zeros(len(casts), np.bool_) if known else _copies(history, parameters, candidates & _followed(history))
    copied = set(np.unique(history.lives.size[copies]).tolist())
    matched = sum(size * count for size, count in parameters.items() if size // 2 in copied and size >= SMALLEST)
    whole = sum(size * count for size, count in parameters.items())
    if not whole or matched < LEAST_MATCHED * whole:
        return Autocast(False, np.zeros(len(casts), np.bool_))
    return Autocast(True, copies)


def _copies(history: History, parameters: dict[int, int], candidates: Bool) -> Bool:
    """Of the candidates those of half a parameter's size. Of a size at most as many live at once as there are
    parameters: what is beyond was made of something else, and of those the ones that live longest count."""
    lives = history.lives
    copies = np.zeros(len(lives), np.bool_)
    halves: Counter[int] = Counter()
    for size, count in parameters.items():
        halves[size // 2] += count
    rows = np.flatnonzero(candidates & np.isin(lives.size, np.array(list(halves), np.int64)))
    for size in np.unique(lives.size[rows]).tolist():
        mine = rows[lives.size[rows] == size]
        longest = mine[np.argsort(lives.born[mine] - lives.died[mine], kind="stable")]
        copies[_at_most(longest, lives.born, lives.died, halves[size])] = True
    return copies


def _at_most(rows: Int64, born: Int64, died: Int64, most: int) -> Int64:
    """Rows in their order, without those that would be more than `most` at once."""
    if len(rows) <= most:
        return rows
    taken: list[int] = []
    for row in rows.tolist():
        together = sum(1 for other in taken if born[other] < died[row] and born[row] < died[other])
        if together < most:
            taken.append(row)
    return np.array(taken, np.int64)


def _followed(history: History) -> Bool:
    """Lives behind which the same call asked again at once: a copy comes before the product that it is for. Without
    frames of C++ this, and its size, is all that tells a copy from an activation."""
    lives = history.lives
    rows = np.flatnonzero((lives.born > BEFORE) & (lives.stack >= 0))
    rows = rows[np.argsort(lives.born[rows], kind="stable")]
    again = np.zeros(len(lives), np.bool_)
    stack, size = lives.stack[rows], lives.size[rows]
    again[rows[:-1]] = (stack[1:] == stack[:-1]) & (size[1:] != size[:-1])
    return again
