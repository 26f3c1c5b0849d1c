"""The gate as JUnit XML, which every CI system shows: one test for each bound.

Format: the JUnit XML schema of Jenkins' xunit plugin, as far as all readers agree on it (testsuite, testcase, failure,
skipped).
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

from steptime.comparison.comparison import Check, Comparison, Ruling
from steptime.report.printable import one_line

_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that no XML 1.0 document can hold, not even escaped."""


def render(comparison: Comparison) -> str:
    """The whole document. An undecided bound is a skipped test. Without bounds there is one test: that they could be
    compared."""
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
