"""Memory as a page: its figures are the report's, and strangers' names stay text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from documents import html_of
from report.report_variants import HOSTILE

from steptime.answer.output import RENDERERS, rendered
from steptime.memory.answer import answer_of
from steptime.memory.breakdown import Line
from steptime.memory.owners import LABELS, Owner
from steptime.memory.report import MemoryReport, triage_path
from steptime.quantities import SourceLine, format_bytes


@pytest.fixture(scope="module")
def snapshot(shared_data: Path) -> MemoryReport:
    return triage_path(shared_data / "snapshots" / "medium_512_inference_memory_snapshot.pickle")


def test_owners_are_on_the_page_with_their_bytes(snapshot: MemoryReport, open_text: Any) -> None:
    sheet = open_text(html_of(snapshot, answer_of))
    rows = sheet.page.locator("#owners-0 tbody tr")
    entries = snapshot.devices[0].breakdown.entries
    assert rows.count() == len(entries)
    reported = sheet.all_words(rows)
    for owner, size in entries:
        assert any(LABELS[owner] in row and format_bytes(size) in row for row in reported)
    assert sheet.page.locator("#memory polygon").count() > 1
    assert sheet.page.locator("#memory .peak-line").count() == 1


def test_strangers_lines_stay_text(snapshot: MemoryReport, open_text: Any) -> None:
    found = snapshot.devices[0]
    lines = tuple(Line(Owner.ACTIVATIONS, SourceLine(text, 1, text, text), 10, 1) for text in HOSTILE)
    hostile = replace(found, device=HOSTILE[0], breakdown=replace(found.breakdown, lines=lines))
    sheet = open_text(html_of(replace(snapshot, source=HOSTILE[0], devices=(hostile,), problems=HOSTILE), answer_of))
    assert sheet.page.locator("img").count() == 0
    assert sheet.page.locator("script").count() == 2
    assert HOSTILE[0] in str(sheet.page.locator(".bottleneck").text_content())
    assert not sheet.page.title().startswith("taken")


def test_every_format_of_a_memory_report_has_its_renderer(snapshot: MemoryReport) -> None:
    for extension in RENDERERS:
        assert rendered(answer_of(snapshot), extension)
