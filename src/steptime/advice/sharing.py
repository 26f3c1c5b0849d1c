"""Findings that claim the same time share it, so that together they promise no more than there is.

The largest comes first. What a later one claims of the same category, of the same line or of the step is left of it;
where next to nothing is left, it stays, as its line and its advice are its own, without a saving: it is a part of the
earlier one's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from steptime.advice.evidence import Case
from steptime.advice.rule import Finding, Weight
from steptime.advice.savings import named
from steptime.quantities import Estimate, SourceLine, format_duration

Place = tuple[str, int]


def shared(findings: Sequence[Finding], case: Case, least: float) -> tuple[Finding, ...]:
    """The findings with what is left for each, in their order. findings: the largest first. least: ns, less is not
    worth a finding of its own."""
    kept: list[Finding] = []
    for finding in findings:
        saving = finding.savings
        if finding.weight is not Weight.FINDING or saving is None:
            kept.append(finding)
            continue
        earlier = [each for each in kept if each.weight is Weight.FINDING and each.savings is not None]
        left = _left(finding, earlier, case)
        if left >= saving.value:
            kept.append(finding)
        elif left >= least:
            kept.append(replace(finding, savings=_reduced(saving, left)))
        else:
            holder = next((each for each in earlier if _overlap(finding, each)), earlier[0])
            part = f"{finding.summary}: up to {format_duration(saving.value)}, a part of what {holder.code} could save"
            kept.append(replace(finding, savings=None, summary=part))
    return tuple(kept)


def _left(finding: Finding, earlier: Iterable[Finding], case: Case) -> float:
    """ns that earlier findings leave of the step, of the finding's category and of its line."""
    bounds = [case.step.duration.value - _sum(earlier)]
    category = named(case.categories, finding.category)
    if category is not None:
        bounds.append(category.duration.value - _sum(each for each in earlier if each.category == finding.category))
    here = [each for each in earlier if _same_line(finding, each) and _overlap(finding, each)]
    if here:
        taken = _sum(here)
        bounds.append(max(taken, _time_of(finding.source, case)) - taken)
    near = [each for each in earlier if _same_function(finding, each) and _overlap(finding, each)]
    if near and (whole := _time_of_function(finding.source, case)):
        bounds.append(whole - _sum(near))
    return max(0.0, min(bounds))


def _overlap(finding: Finding, other: Finding) -> bool:
    """Whether both may be about the same time: what categories keep apart is not."""
    return not finding.category or not other.category or finding.category == other.category


def _same_line(finding: Finding, other: Finding) -> bool:
    return finding.source is not None and other.source is not None and _place(finding.source) == _place(other.source)


def _same_function(finding: Finding, other: Finding) -> bool:
    if finding.source is None or other.source is None or not finding.source.function:
        return False
    return (finding.source.file, finding.source.function) == (other.source.file, other.source.function)


def _time_of_function(source: SourceLine | None, case: Case) -> float:
    """ns per step of the lines of a function, what they call included where that was timed; 0 where they were not."""
    inside = [line for line in case.lines if source is not None and line.source.function == source.function]
    spent = sum(line.duration.value for line in inside if source is not None and line.source.file == source.file)
    below = sum(
        path.duration
        for path in case.paths
        if source is not None and any((e.file, e.function) == (source.file, source.function) for e in path.lines)
    )
    return max(spent, below)


def _place(source: SourceLine) -> Place:
    return source.file, source.line


def _time_of(source: SourceLine | None, case: Case) -> float:
    """ns per step of a line, with what it calls; 0 where it was not timed."""
    if source is None:
        return 0.0
    spent: defaultdict[Place, float] = defaultdict(float)
    for line in case.lines:
        spent[_place(line.source)] += line.duration.value
    below = sum(path.duration for path in case.paths if any(_place(each) == _place(source) for each in path.lines))
    return max(spent[_place(source)], below)


def _sum(findings: Iterable[Finding]) -> float:
    return sum(each.savings.value for each in findings if each.savings is not None)


def _reduced(saving: Estimate, left: float) -> Estimate:
    """What is left, which by itself may still be all."""
    return replace(saving, value=left, low=min(saving.low, left))
