"""A gate: bounds on how much a quantity may grow, and what a comparison says about them.

A bound is breached if the whole interval is beyond it, held if the whole interval is within it, and undecided
otherwise. One noisy run never fails a build, and never proves that nothing happened.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from xml.etree import ElementTree

from steptime.analysis.categories import Category
from steptime.analysis.timeline import Phase
from steptime.answer.printable import one_line
from steptime.compare.cause import relative
from steptime.compare.comparison import Check, Comparison, Difference, Ruling
from steptime.compare.tables import signed
from steptime.errors import UsageError
from steptime.quantities import Estimate

BOUND = re.compile(r"\s*([a-z-]+)\s*>\s*(\d+(?:\.\d+)?)\s*(%|[a-zµ]+)\s*", re.IGNORECASE)
DURATIONS = {"ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}
SIZES = {"b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30}
QUANTITIES = ("step", "memory", *(category.name.lower() for category in Category),
              *(phase.name.lower() for phase in Phase if phase is not Phase.INPUT))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Bound:
    """Limit on the growth of one quantity. text: the bound as given. name: name of the quantity. limit: largest growth
    allowed, in `unit`: "1" (relative), "ns" or "bytes"."""

    text: str
    name: str
    limit: float
    unit: str


def bounds_of(text: str) -> tuple[Bound, ...]:
    """Bounds in a text such as "step>5%, memory>10%". Raises UsageError."""
    return tuple(_bound(part) for part in text.split(","))


def _bound(text: str) -> Bound:
    found = BOUND.fullmatch(text)
    if found is None:
        raise _refused(text, "expected a quantity, > and a limit with a unit, such as step>5% or step>2ms")
    name, unit = found[1].lower(), found[3].lower()
    if name not in QUANTITIES:
        raise _refused(text, f"unknown quantity {found[1]}; known: {', '.join(QUANTITIES)}")
    if unit == "%":
        return Bound(text.strip(), name, float(found[2]) / 100, "1")
    scales, kind = (SIZES, "bytes") if name == "memory" else (DURATIONS, "ns")
    if unit not in scales:
        raise _refused(text, f"{name} has no unit {found[3]}; known: %, {', '.join(scales)}")
    return Bound(text.strip(), name, float(found[2]) * scales[unit], kind)


def _refused(text: str, why: str) -> UsageError:
    return UsageError("gate-bound", f"--fail-on cannot use {text.strip()!r}: {why}.")


def judged(comparison: Comparison, bounds: Sequence[Bound]) -> Comparison:
    return replace(comparison, checks=tuple(_check(comparison, bound) for bound in bounds))


def fails(comparison: Comparison, *, strict: bool) -> bool:
    """True if a comparison must fail the build. strict: True if an undecided bound fails too."""
    fatal = {Ruling.BREACHED, Ruling.UNDECIDED} if strict else {Ruling.BREACHED}
    return any(check.ruling in fatal for check in comparison.checks)


def _check(comparison: Comparison, bound: Bound) -> Check:
    difference = _quantity(comparison, bound.name)
    if difference is None or difference.change is None:
        return Check(bound.text, Ruling.UNDECIDED, f"{bound.name} was not measured on both sides")
    change = difference.change
    if bound.unit == "1":
        ratio = relative(difference)
        if ratio is None:
            if change.low > 0:
                return Check(
                    bound.text, Ruling.BREACHED, f"{bound.name} was not there before: {_words(change)}", change
                )
            return Check(bound.text, Ruling.PASSED, f"{bound.name} is on neither side, beyond noise", change)
        change = ratio
    if difference.reason:
        return Check(bound.text, Ruling.UNDECIDED, difference.reason, change)
    ruling = Ruling.UNDECIDED
    if change.low > bound.limit:
        ruling = Ruling.BREACHED
    elif change.high <= bound.limit:
        ruling = Ruling.PASSED
    return Check(bound.text, ruling, f"{bound.name} changed by {_words(change)}", change)


def _quantity(comparison: Comparison, name: str) -> Difference | None:
    """Quantity by name, None if unknown. A category that neither side has is unchanged."""
    if name == "step":
        return comparison.step
    if name == "memory":
        return comparison.memory
    found = next((part for part in comparison.parts if part.name == name), None)
    compared = {each.name.lower() for each in (Category if comparison.by == "categories" else Phase)}
    if found is None and comparison.parts and name in compared:
        nothing = Estimate(0.0, 0.0, 0.0, 0)
        return Difference(comparison.by[:-1], name, nothing, nothing, nothing, comparison.step.outcome)
    return found


def _words(change: Estimate) -> str:
    """Text such as "+7.1 % (+4.2 % to +9.9 %)"."""
    value, low, high = (signed(each, change.unit) for each in (change.value, change.low, change.high))
    return f"{value} ({low} to {high})"


_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that no XML 1.0 document can contain, even escaped."""


def render_junit(comparison: Comparison) -> str:
    """JUnit document of a comparison's checks. An undecided bound is a skipped test. Without bounds there is one test:
    that the runs can be compared."""
    rulings = [check.ruling for check in comparison.checks]
    name = f"steptime compare {comparison.runs[0].label} {comparison.runs[-1].label}"
    suite = ElementTree.Element(
        "testsuite",
        name=_text(name),
        tests=str(max(1, len(rulings))),
        failures=str(rulings.count(Ruling.BREACHED)),
        errors="0",
        skipped=str(rulings.count(Ruling.UNDECIDED)),
    )
    for check in comparison.checks:
        _case(suite, check)
    if not comparison.checks:
        ElementTree.SubElement(suite, "testcase", classname="steptime", name="compare")
    output = ElementTree.SubElement(suite, "system-out")
    output.text = _text(comparison.sentence)
    suites = ElementTree.Element("testsuites")
    suites.append(suite)
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=False).join(
        ('<?xml version="1.0" encoding="UTF-8"?>\n', "\n")
    )


def _case(suite: ElementTree.Element, check: Check) -> None:
    case = ElementTree.SubElement(suite, "testcase", classname="steptime", name=_text(check.bound))
    if check.ruling is Ruling.BREACHED:
        ElementTree.SubElement(case, "failure", message=_text(check.sentence), type="breached")
    elif check.ruling is Ruling.UNDECIDED:
        ElementTree.SubElement(case, "skipped", message=_text(f"undecided: {check.sentence}"))


def _text(text: str) -> str:
    return _NOT_IN_XML.sub("?", one_line(text))


def check_line(check: Check) -> str:
    """Line of text on one checked bound."""
    return f"{check.ruling.value.upper()}  {one_line(check.bound)}: {one_line(check.sentence)}"


def labels_of(paths: Sequence[str]) -> tuple[str, ...]:
    """Short and unique label for each path: the fewest last parts that distinguish it, else path and number."""
    parts = [Path(path).parts[::-1] or (path,) for path in paths]
    for count in range(1, max(map(len, parts)) + 1):
        names = ["/".join(each[:count][::-1]) for each in parts]
        if len(set(names)) == len(names):
            return tuple(names)
    return tuple(f"{path} ({number})" for number, path in enumerate(paths, 1))
