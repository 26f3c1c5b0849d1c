"""The page of a comparison in a real Chromium: no error, no request, its numbers, and strangers' strings as text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from compare.comparisons import busy, hostile
from documents import html_of

from steptime.compare.answer import answer_of
from steptime.compare.comparison import Comparison
from steptime.quantities import format_duration


def test_the_numbers_on_the_screen_are_the_comparisons(open_text: Any) -> None:
    comparison = busy()
    sheet = open_text(html_of(comparison, answer_of))
    assert sheet.page.locator("h1").inner_text() == comparison.sentence
    before, after = comparison.step.before, comparison.step.after
    assert before is not None
    assert after is not None
    rows = sheet.page.locator("#changes .row")
    assert format_duration(before.value) in sheet.words(rows.first)
    assert format_duration(after.value) in sheet.words(sheet.page.locator("#changes .lower-bound"))
    assert sheet.page.locator("#differences tbody tr").count() == len(comparison.parts) + 2
    assert sheet.page.locator("#runs-table tbody tr").count() == len(comparison.runs)


def test_the_data_in_the_page_is_the_comparison(open_text: Any) -> None:
    comparison = busy()
    sheet = open_text(html_of(comparison, answer_of))
    with sheet.page.expect_download() as download:
        sheet.page.get_by_role("button", name="Save the data as JSON").click()
    assert msgspec.json.decode(Path(download.value.path()).read_bytes(), type=Comparison) == comparison


def test_a_column_is_sorted_by_a_click(open_text: Any) -> None:
    sheet = open_text(html_of(busy(), answer_of))
    sheet.page.locator("#pieces th button", has_text="change").click()
    values = [float(cell.get_attribute("data-v")) for cell in sheet.page.locator("#pieces tbody td:nth-child(6)").all()]
    assert values in (sorted(values), sorted(values, reverse=True))


@pytest.mark.parametrize("width", [400, 1280])
def test_strings_of_strangers_are_text_and_stay_within_the_page(open_text: Any, width: int) -> None:
    sheet = open_text(html_of(hostile(), answer_of), width)
    assert "onerror" in sheet.page.locator("h1").inner_text()
    assert "against" in sheet.page.title()
    assert sheet.page.evaluate("document.title") != "taken"
    assert sheet.page.evaluate("document.documentElement.scrollWidth") <= width
