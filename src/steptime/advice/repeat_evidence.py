"""Lines that compute again what they have computed before, as rules see them."""

from __future__ import annotations

from collections.abc import Iterable

from steptime.advice.run_uses import CategoryUse, RepeatUse
from steptime.advice.savings import modelled
from steptime.recording.recording import Process, RepeatedLine

NEARLY_ALL = 0.9
"""Of the time of a line: a line below it that takes so much is what computes."""
OFF = 0.3
"""Of a time that was taken in a few traced steps."""


def repeat_uses(process: Process, phases: tuple[CategoryUse, ...], usual: float) -> tuple[RepeatUse, ...]:
    """The longest first; of lines that call each other the innermost that takes nearly all. None takes longer than its
    phase of a steady step, or such a step, `usual` ns."""
    facts = process.repeats
    if facts is None or facts.steps < 2:
        return ()
    whole = {phase.name: phase.duration.value for phase in phases}
    return tuple(
        RepeatUse(
            source=line.site,
            duration=modelled(
                amount := min(whole.get(line.part, usual), line.duration), (1 - OFF) * amount, (1 + OFF) * amount
            ),
            evaluations=line.evaluations,
            again=line.again,
            results=line.results,
            steps=facts.steps,
            part=line.part,
            outer=line.outer,
        )
        for line in _apart(facts.lines)
    )


def _apart(lines: Iterable[RepeatedLine]) -> list[RepeatedLine]:
    """One line of each group of lines that call each other."""
    left = sorted(lines, key=lambda line: -line.duration)
    found = []
    while left:
        group = [line for line in left if _is_below(line, left[0], left)]
        computing = [line for line in group if line.duration >= NEARLY_ALL * group[0].duration]
        found.append(max(computing, key=lambda line: line.depth))
        left = [line for line in left if line not in group and not _is_below(left[0], line, left)]
    return found


def _is_below(line: RepeatedLine, top: RepeatedLine, lines: list[RepeatedLine]) -> bool:
    """Whether a line is the top one, or in a function that it calls, directly or by way of other lines."""
    at: RepeatedLine | None = line
    for _ in range(len(lines)):
        if at is None or at is top:
            break
        at = next((each for each in lines if at is not None and each.site == at.outer), None)
    return at is top
