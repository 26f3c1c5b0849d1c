"""Nothing that is known goes unsaid: a line of a tenth of the step has a finding, or a note of its own."""

from __future__ import annotations

import pytest
from advice.planted import PLANTED

from steptime.advice.engine import examine
from steptime.advice.evidence import Case
from steptime.advice.line_evidence import line_times
from steptime.advice.rule import Weight
from steptime.advice.rules import CATALOGUE
from steptime.advice.rules.run import LARGE, OUTSIDE_THE_MODEL
from steptime.quantities import format_source

CASES = [(rule, name) for rule, cases in PLANTED.items() for name in cases]


def unsaid(case: Case) -> list[str]:
    found = [each for each in examine(case, CATALOGUE).findings if each.weight is not Weight.CAVEAT]
    places = {(each.source.file, each.source.line) for each in found if each.source is not None}
    functions = {(each.source.file, each.source.function) for each in found if each.source and each.source.function}
    text = " ".join(" ".join((each.summary, *each.evidence)) for each in found)
    least = LARGE * case.step.duration.value
    return [
        format_source(each.line.source)
        for each in line_times(case.lines, case.phases)
        if each.line.role in OUTSIDE_THE_MODEL
        and each.duration.value >= least
        and (each.line.source.file, each.line.source.line) not in places
        and (each.line.source.file, each.line.source.function) not in functions
        and format_source(each.line.source) not in text
    ]


@pytest.mark.parametrize(("rule", "name"), CASES, ids=[f"{rule}/{name}" for rule, name in CASES])
def test_a_line_of_a_tenth_of_the_step_is_named(rule: str, name: str) -> None:
    assert unsaid(PLANTED[rule][name]) == []
