"""Scores of answers against what the owners of a report found. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.clinic.score import Count
from benchmarks.reports.answered import FIRST, Answered, Told
from benchmarks.reports.truth import Truth, has_all

ALARM = 0.02
"""Fraction of the twin's step from which on a finding about it counts as said."""


@dataclass(frozen=True)
class Score:
    """place: of the first finding with the right cause, from 0; -1 without. line: the finding that counts (the right
    one, else the first) stands at a right line. advice: the right finding's advice removes the cost, by its words.
    claimed: the share of the step that it says can be saved. false: codes of findings about the twin that are
    plainly false."""

    place: int
    line: bool
    advice: bool
    claimed: float
    false: tuple[str, ...]


def score(truth: Truth, job: Answered, twin: Answered | None) -> Score:
    """The score of one case."""
    told = job.findings[:FIRST]
    place = next((number for number, each in enumerate(told) if has_all(each.text, truth.words)), -1)
    counted = told[max(place, 0)] if told else None
    return Score(
        place=place,
        line=counted is not None and counted.line in truth.lines,
        advice=place >= 0 and counted is not None and has_all(counted.advice, truth.advice),
        claimed=counted.share if counted is not None and place >= 0 else 0.0,
        false=tuple(each.code for each in (twin.findings if twin else ()) if _is_false(truth, each)),
    )


def _is_false(truth: Truth, told: Told) -> bool:
    """Whether a finding about the twin names the cause that is not there, at its old place or by words that were said
    to be false."""
    if any(has_all(told.text, ((each,),)) for each in truth.false):
        return True
    return told.share >= ALARM and told.source in truth.culprits and has_all(told.text, truth.words)


def counts(scores: Sequence[tuple[Truth, Score]]) -> dict[str, Count]:
    """What the table ends with."""
    every = len(scores)
    return {
        "cause, first finding": Count(sum(each.place == 0 for _, each in scores), every),
        "cause, first three": Count(sum(each.place >= 0 for _, each in scores), every),
        "line": Count(sum(each.line for _, each in scores), every),
        "advice removes the cost": Count(sum(each.advice for _, each in scores), every),
        "twins with false words": Count(sum(bool(each.false) for _, each in scores), every),
    }


__all__ = ["ALARM", "Score", "counts", "score"]
