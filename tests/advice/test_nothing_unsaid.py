"""Nothing that is known goes unsaid: a line of a tenth of the step has a finding, or a note of its own."""

from __future__ import annotations

from collections import defaultdict

from advice.every_case import check_all, examined

from steptime.advice.evidence import Case
from steptime.advice.line_evidence import line_times
from steptime.advice.rule import Weight
from steptime.advice.rules.run import OUTSIDE_THE_MODEL
from steptime.advice.unclaimed import LARGE
from steptime.advice.verdict import LARGE_PART
from steptime.quantities import format_source


def unsaid(rule: str, name: str, case: Case) -> list[str]:
    found = [each for each in examined(rule, name).findings if each.weight is not Weight.CAVEAT]
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
        and not (each.line.role == "optimizer" and any(use.type in text for use in case.optimizers))
    ]


def test_a_line_of_a_tenth_of_the_step_is_named() -> None:
    def law(rule: str, name: str, case: Case) -> None:
        assert unsaid(rule, name, case) == []

    check_all(law)


def in_no_finding(rule: str, name: str, case: Case) -> float:
    """ns per step that could be saved by category, beyond what findings claim and what notes tell."""
    found = examined(rule, name).findings
    claimed, names = defaultdict[str, float](float), {use.name for use in case.categories}
    for each in found:
        if each.weight is Weight.FINDING and each.savings is not None:
            claimed[each.category if each.category in names else ""] += each.savings.value
    noted = {each.category for each in found if each.weight is Weight.NOTE and each.category}
    left = [(use.recoverable.value - claimed[use.name]) for use in case.categories if use.name not in noted]
    small = LARGE * case.step.duration.value
    return sum(each for each in left if each >= small) - claimed[""]


def test_four_fifths_of_what_could_be_saved_are_claimed_or_noted() -> None:
    def law(rule: str, name: str, case: Case) -> None:
        whole = sum(use.recoverable.value for use in case.categories)
        step = case.step.duration.value
        assert in_no_finding(rule, name, case) <= 0.2 * min(whole, step) + LARGE * step

    check_all(law)


def test_the_rest_is_noted_with_its_place() -> None:
    (note,) = (each for each in examined("large-part", "fires-on-a-rest").findings if each.name == LARGE_PART)
    assert note.source is not None
    place = format_source(note.source)
    assert note.summary == f"Up to 3 ms per step (15 %) could be saved in your own Python; look first at {place}"
