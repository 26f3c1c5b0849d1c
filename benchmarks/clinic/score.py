"""Scores: how often what was said is what was planted. Pure arithmetic over rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from benchmarks.clinic.cases import Case
from benchmarks.clinic.diagnosed import Reported
from benchmarks.clinic.truth import Dose
from steptime.quantities import BETWEEN_RUNS

SEVERE = 0.10
"""Share of a step from which on a fault must be found; below, silence is an answer as good."""
FIRST = 3
UNDECIDED = "undecided"


@dataclass(frozen=True)
class Row:
    """What a tool said of one case at one dose; `failed` says why nothing was. words: a rival's own words that mean the
    planted cause; steptime's are the rules of the case. harmless: a rival's words that are no complaint."""

    case: Case
    dose: Dose
    message: Reported | None
    failed: str = ""
    words: tuple[str, ...] | None = None
    harmless: tuple[str, ...] = ()

    @property
    def is_faulty(self) -> bool:
        """A fault that is large enough to be found was there."""
        return bool(self.case.cause) and self.dose.share >= SEVERE

    @property
    def is_healthy(self) -> bool:
        """Nothing in the step is to be blamed."""
        return self.dose.amount == 0 or not self.case.cause

    @property
    def place(self) -> int:
        """Of the right cause among the findings, from 0; -1 where it is not named. What is no complaint does not count,
        unless it is right."""
        causes = self.message.causes if self.message is not None else ()
        right = self.case.rules if self.words is None else self.words
        counted = (cause for cause in causes if cause in right or cause not in self.harmless)
        return next((place for place, cause in enumerate(counted) if cause in right), -1)

    @property
    def is_abstention(self) -> bool:
        """The tool said that it cannot tell."""
        return self.message is not None and self.message.bottleneck == UNDECIDED


@dataclass(frozen=True)
class Count:
    """Successes among trials."""

    good: int
    all: int

    @property
    def share(self) -> float:
        """NaN where there was no trial."""
        return self.good / self.all if self.all else math.nan

    def interval(self, z: float = 1.96) -> tuple[float, float]:
        """Wilson's 95 % interval of the share (Wilson 1927, J. Am. Stat. Assoc. 22, 209)."""
        if not self.all:
            return math.nan, math.nan
        centre = (self.share + z * z / (2 * self.all)) / (1 + z * z / self.all)
        spread = (
            z * math.sqrt(self.share * (1 - self.share) / self.all + z * z / (4 * self.all**2)) / (1 + z * z / self.all)
        )
        return max(0.0, centre - spread), min(1.0, centre + spread)


@dataclass(frozen=True)
class Scores:
    """first, among_three: the right cause was. line: on the right line, where it was first and has one. false_alarms:
    something was charged to a healthy step. covered: the interval of the right finding met the planted share, which
    has its own. covered_by_another_run: the same, with what two runs of one job differ by. abstained: the verdict was
    withheld, of all faulty rows. found_first, found_among_three: the right cause was, abstentions among them. errors:
    share said minus share planted, where the right cause was first."""

    first: Count
    among_three: Count
    line: Count
    false_alarms: Count
    covered: Count
    covered_by_another_run: Count
    abstained: Count
    found_first: Count
    found_among_three: Count
    errors: tuple[float, ...]


def score(rows: Sequence[Row]) -> Scores:
    """Over all rows in which the job ran."""
    heard = [row for row in rows if row.message is not None]
    faulty = [row for row in heard if row.is_faulty]
    decided = [row for row in faulty if not row.is_abstention]
    first = [row for row in decided if row.place == 0]
    named = [row for row in decided if row.place >= 0]
    return Scores(
        first=count(decided, lambda row: row.place == 0),
        among_three=count(decided, lambda row: 0 <= row.place < FIRST),
        line=count([row for row in first if row.case.line], _line_is_right),
        false_alarms=count([row for row in heard if row.is_healthy], _is_false_alarm),
        covered=count(named, _is_covered),
        covered_by_another_run=count(named, lambda row: _is_covered(row, BETWEEN_RUNS)),
        abstained=count(faulty, lambda row: row.is_abstention),
        found_first=count(faulty, lambda row: row.place == 0),
        found_among_three=count(faulty, lambda row: 0 <= row.place < FIRST),
        errors=tuple(_share_reported(row)[0] - row.dose.share for row in first),
    )


def count(rows: Iterable[Row], test: Callable[[Row], bool]) -> Count:
    """How many of the rows pass."""
    passed = [test(row) for row in rows]
    return Count(sum(passed), len(passed))


def precision_and_recall(rows: Sequence[Row]) -> dict[str, tuple[Count, Count]]:
    """By cause: of the times that it was named first, how often it was right; of the times that it was there, how
    often it was named first."""
    causes = sorted({row.case.cause for row in rows if row.case.cause})
    heard = [row for row in rows if row.message is not None and (row.is_faulty or row.is_healthy)]
    found: dict[str, tuple[Count, Count]] = {}
    for cause in causes:
        names = {rule for row in heard if row.case.cause == cause for rule in row.case.rules}
        naming = [row for row in heard if row.message and row.message.causes and row.message.causes[0] in names]
        right = count(naming, lambda row, names=names: row.is_faulty and bool(names & set(row.case.rules)))  # type: ignore[misc]
        found[cause] = (
            right,
            count([row for row in heard if row.is_faulty and row.case.cause == cause], lambda row: row.place == 0),
        )
    return found


def bottlenecks(rows: Sequence[Row]) -> Counter[tuple[str, str]]:
    """(planted cause, "healthy" for none; bottleneck that was said), counted."""
    heard = [row for row in rows if row.message is not None and (row.is_faulty or row.is_healthy)]
    return Counter(
        (row.case.cause if row.is_faulty else "healthy", row.message.bottleneck if row.message else "") for row in heard
    )


def _line_is_right(row: Row) -> bool:
    line = row.message.lines[row.place] if row.message is not None else None
    return line is not None and line[0] == row.case.script.name and line[1] in row.case.marked


def _is_false_alarm(row: Row) -> bool:
    """A finding that is charged to the step of a job that has nothing to be blamed for; of a twin, any at all. A tool
    whose first word is no complaint has not complained."""
    causes = row.message.causes if row.message is not None else ()
    return bool(causes) and causes[0] not in row.harmless and not row.is_abstention


def _share_reported(row: Row) -> tuple[float, float, float]:
    return row.message.shares[row.place] if row.message is not None else (0.0, 0.0, 0.0)


def _is_covered(row: Row, slack: float = 0.0) -> bool:
    _, low, high = _share_reported(row)
    return low - slack <= row.dose.high and high + slack >= row.dose.low


__all__ = ["FIRST", "SEVERE", "Count", "Row", "Scores", "bottlenecks", "count", "precision_and_recall", "score"]
