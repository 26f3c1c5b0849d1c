"""Rounds of Python: loops, and functions that are called again and again, which take most of the time of some paths."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from steptime.advice.evidence import PathUse
from steptime.advice.line_ways import body_of
from steptime.advice.savings import largest, ratio, summed
from steptime.quantities import SourceLine

MANY_ROUNDS, LONGEST_ROUND = 1000.0, 20_000.0
"""Rounds per step from which on a loop goes through single values, and ns of a round up to which it does: a few small
operators, or functions of numpy on arrays, take as much."""
AT_ONCE = (
    "vectorize it: compute all rounds at once, on whole arrays (numpy, torch); what is the same for a sample in every "
    "epoch, compute once before training and keep."
)
ONCE = (
    "take what is the same each time once, before the loop or in __init__, and compute the rest on whole arrays "
    "(numpy, torch)."
)
THOUSANDS = ((1e6, "millions"), (1e5, "hundreds of thousands"), (1e4, "tens of thousands"), (0.0, "thousands"))
WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Rounds:
    """Lines of one function that run many times in a step. source: the line that takes the most time, callees included.
    spent: ns per step in all these lines; count: number of rounds per step. loops: True if one of the lines is a loop;
    False if the function is called this often."""

    source: SourceLine
    spent: float
    count: float
    loops: bool

    @property
    def each(self) -> float:
        """Time of one round, ns."""
        return ratio(self.spent, self.count)

    @property
    def words(self) -> str:
        """Text on the number of rounds: "a Python loop runs tens of thousands of rounds per step". In a long call only
        the first lines are timed and counted, with a tracer that slows them: 20,000 rounds that took no time were
        estimated as 11,000 and as 90,000."""
        thousands = next(words for least, words in THOUSANDS if self.count >= least)
        if self.loops:
            return f"a Python loop runs {thousands} of rounds per step"
        return f"{self.source.function.rpartition('.')[2]} runs {thousands} of times per step"

    @property
    def better(self) -> str:
        return AT_ONCE if self.loops else ONCE


def rounds_in(paths: Iterable[PathUse], least: float = MANY_ROUNDS) -> Rounds | None:
    """Lines that run many times per step and take most of these paths' time; None if there are none, or if each of
    their rounds takes long. least: least number of rounds per step."""
    paths = [path for path in paths if path.lines]
    hits = summed((path.lines[0].place, path.ran) for path in paths)
    functions: dict[tuple[str, str], set[tuple[str, int]]] = defaultdict(set)
    for path in paths:
        functions[body_of(path.lines[0])].add(path.lines[0].place)
    found = []
    for places in functions.values():
        often = {place for place in places if hits[place] >= least}
        rounds = _of_function(paths, often, max((hits[place] for place in often), default=0.0))
        found += [rounds] if rounds is not None and rounds.each <= LONGEST_ROUND else []
    return max(found, key=lambda each: each.spent, default=None)


def _of_function(paths: list[PathUse], often: set[tuple[str, int]], count: float) -> Rounds | None:
    inside = [([line for line in path.lines if line.place in often], path.duration) for path in paths]
    source, _ = largest(summed((lines[0], duration) for lines, duration in inside if lines))
    spent = sum(duration for lines, duration in inside if lines)
    loops = any(_loops(line.text) for lines, _ in inside for line in lines)
    return Rounds(source, spent, count, loops) if source is not None else None


def _loops(text: str) -> bool:
    """True for a line with a loop or a comprehension."""
    words = WORD.findall(text)
    return words[:1] == ["while"] or ("for" in words and "in" in words[words.index("for") :])
