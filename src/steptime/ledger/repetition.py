"""Steps by repetition: the same things done again, at the same pace, where nothing marks them.

Conservative: at least three repetitions, of nearly the same length, that fill most of the trace. A wrong step is worse
than none, because everything else is told per step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steptime.arrays import Int64

LEAST = 3
"""Repetitions."""
EVEN = 0.25
"""How far a repetition may be from the median length. Real steps of one job stay within it but for the first and what
lies between two epochs; without a mark that much looseness would find steps in anything."""
FILLED = 0.5
"""Of the trace's time, so that a loop inside one part of a step is not taken for the steps."""
ALIKE = 0.9
"""Of the names in a repetition that must be those of the one before."""
LONGEST = 200_000
"""Events that are compared; a period shows in fewer."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """places: positions of the events that the repetitions and what follows the last one begin with. period: events in
    each."""

    places: Int64
    period: int


def marks(name: Int64, begin: Int64, span: int) -> Repeated | None:
    """Ranges of one name that begin at an even pace and fill the trace; of several such names the rarest, of those the
    one that begins first. name, begin: of the outermost ranges, in order of time. span: ns of the whole trace."""
    numbers, first, counts = np.unique(name, return_index=True, return_counts=True)
    enough = np.flatnonzero(counts > LEAST)
    for at in enough[np.lexsort((first[enough], counts[enough]))].tolist():
        places = np.flatnonzero(name == numbers[at])
        if _even(begin[places], span):
            return Repeated(places, len(name) // len(places))
    return None


def repeated(name: Int64, begin: Int64, span: int) -> Repeated | None:
    """The shortest run of events that comes again and again. name, begin: in order of time.

    Tried with each name as the first of the run, the rarest first: what happens once in a step is the best mark of it.
    """
    name, begin = name[:LONGEST], begin[:LONGEST]
    numbers, counts = np.unique(name, return_counts=True)
    enough = np.flatnonzero(counts > LEAST)
    for at in enough[np.argsort(counts[enough], kind="stable")].tolist():
        places = np.flatnonzero(name == numbers[at])
        if _even(begin[places], span) and _same(name, places) and _nothing_else(name, places):
            return Repeated(places, int(np.median(np.diff(places))))
    return None


def _even(begins: Int64, span: int) -> bool:
    periods = np.diff(begins)
    if len(periods) < LEAST:
        return False
    usual = float(np.median(periods))
    even = np.abs(periods - usual) <= EVEN * usual
    return bool(even.all()) and int(periods.sum()) >= FILLED * span


def _same(name: Int64, places: Int64) -> bool:
    """Whether the runs between the places hold the same names in the same order, but for a few."""
    lengths = np.diff(places)
    period = int(lengths.min())
    if period < 2 or lengths.max() > period / ALIKE:
        return False
    runs = name[places[:-1, None] + np.arange(period)]
    return bool(((runs[1:] == runs[:-1]).mean(axis=1) >= ALIKE).all()) and len(np.unique(runs[0])) > 1


def _nothing_else(name: Int64, places: Int64) -> bool:
    """Whether before and after the repetitions there is only what they are made of. The layers of one forward pass
    repeat, too, but an embedding comes before them and a head behind."""
    outside = np.concatenate((name[: places[0]], name[places[-1] :]))
    return bool(np.isin(outside, name[places[0] : places[-1]]).all())
