"""The page in a real Chromium: no error, no request, the report's numbers, and everything within reach of the keys."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report.report_variants import HOSTILE, of_kernels, with_hostile_strings

from steptime.quantities import format_duration
from steptime.report.report import Report

WIDTHS = (400, 800, 1280)
MIDDLE = """element => {
  const box = element.getBoundingClientRect();
  return [box.x + box.width / 2, box.y + box.height / 2];
}"""


def test_the_numbers_on_the_screen_are_the_reports(report: Report, open_page: Any) -> None:
    sheet = open_page(report)
    case = report.processes[0].case
    assert sheet.words(sheet.page.locator("h1")) == report.processes[0].verdict.sentence
    for use in case.categories:
        row = sheet.page.locator("#waterfall .row", has=sheet.page.get_by_text(use.name, exact=True))
        assert format_duration(use.duration.value) in sheet.words(row)
    whole = sheet.page.locator("#waterfall .whole").first.bounding_box()["width"]
    wait = sheet.page.locator("#waterfall .tone-input.recoverable").bounding_box()["width"]
    assert wait / whole == pytest.approx(68.0 / 96.2, rel=0.01)
    assert sheet.page.locator("#series .step").count() == len(report.processes[0].step_ns)


def test_the_data_in_the_page_is_the_report(report: Report, open_page: Any) -> None:
    sheet = open_page(report)
    with sheet.page.expect_download() as download:
        sheet.page.get_by_role("button", name="Save the data as JSON").click()
    from steptime.report import json

    assert json.read(Path(download.value.path()).read_bytes(), "r.json") == report


def test_a_click_and_the_arrow_keys_tell_a_steps_figures(report: Report, open_page: Any) -> None:
    steps = tuple(90_000_000 + 1_000_000 * number for number in range(20))
    process = replace(report.processes[0], step_ns=steps, steady=(False, *[True] * 19))
    sheet = open_page(replace(report, processes=(process,)))
    sheet.page.locator("#series .step").nth(5).click()
    assert sheet.page.locator("#chosen").inner_text().startswith("Step 6: 95 ms, steady, longer than 4 of 19")
    sheet.page.keyboard.press("ArrowRight")
    assert sheet.page.locator("#chosen").inner_text().startswith("Step 7: 96 ms")
    sheet.page.keyboard.press("Home")
    assert sheet.page.locator("#chosen").inner_text().startswith("Step 1: 90 ms, warm-up")
    assert sheet.page.locator("#series").get_attribute("aria-valuenow") == "0"


def test_every_fold_is_within_reach_of_the_keys(report: Report, open_page: Any) -> None:
    sheet = open_page(report)
    folds = sheet.page.locator("details").count()
    opened = 0
    for _ in range(200):
        sheet.page.keyboard.press("Tab")
        if sheet.page.evaluate("document.activeElement === document.body"):
            break
        if sheet.page.evaluate("document.activeElement.localName === 'summary'"):
            sheet.page.keyboard.press("Enter")
            opened += 1
    assert opened == folds == sheet.page.locator("details[open]").count() > 0
    assert sheet.page.get_by_role("heading", name="What helps").first.is_visible()


def test_a_point_tells_its_shapes_and_its_advice(report: Report, open_page: Any) -> None:
    sheet = open_page(of_kernels(report))
    assert sheet.page.locator("#roof .point").count() == 2
    sheet.page.locator("#roof .point").first.focus()
    words = sheet.page.locator("#tip").inner_text()
    for part in ("gemm", "[[64, 64]]", "5 TFLOP/s", "Bound by arithmetic"):
        assert part in words
    sheet.page.keyboard.press("Escape")
    assert sheet.page.locator("#tip").is_hidden()


def test_points_and_peaks_are_drawn_where_they_belong(report: Report, open_page: Any) -> None:
    sheet = open_page(of_kernels(report))
    sheet.page.locator("#roof").scroll_into_view_if_needed()
    roof = sheet.page.locator("#roof .peak").first.evaluate(MIDDLE)
    matrix, pointwise = (sheet.page.locator("#roof .point").nth(index).evaluate(MIDDLE) for index in (0, 1))
    assert roof[1] < matrix[1] < pointwise[1], "5 TFLOP/s lie under the roof of 10, and 0.04 far below"
    assert pointwise[0] < matrix[0], "0.1 FLOP a byte lies left of 50"


def test_tables_sort_filter_and_copy(report: Report, open_page: Any) -> None:
    process = report.processes[0]
    first = process.case.operators[0]
    names = [f"aten::op{number}" for number in range(30)]
    operators = tuple(replace(first, name=name, duration=1e6 * (1 + number)) for number, name in enumerate(names))
    operators += (replace(first, name='=HYPERLINK("x")', duration=5.0),)
    report = replace(report, processes=(replace(process, case=replace(process.case, operators=operators)),))
    sheet = open_page(report, permissions=["clipboard-read", "clipboard-write"])
    column = sheet.page.locator("#operators tbody tr td:first-child")
    assert sheet.words(column.first) == "aten::op29", "the longest first"
    head = sheet.page.locator("#operators th", has_text="per step")
    head.get_by_role("button").click()
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert sheet.words(column.first) == '=HYPERLINK("x")'
    sheet.page.get_by_label("Filter Operators").fill("op1")
    assert sorted(sheet.all_words(column.filter(visible=True))) == sorted(name for name in names if "op1" in name)
    sheet.page.get_by_label("Filter Operators").fill("hyperlink")
    sheet.page.get_by_role("region", name="Operators, table").locator("..").get_by_text("Copy as CSV").click()
    sheet.page.get_by_text("Copied", exact=True).wait_for()
    heads, row = sheet.page.evaluate("navigator.clipboard.readText()").splitlines()
    assert heads.startswith("operator,calls,duration_ns,share,bound")
    assert row.startswith('"\'=HYPERLINK(""x"")",3,5,'), "no formula for a spreadsheet"


def test_strangers_strings_stay_text(report: Report, open_page: Any) -> None:
    sheet = open_page(with_hostile_strings(report))
    assert "taken" in sheet.page.title(), "the command is the title, as text"
    assert not sheet.page.title().startswith("taken")
    assert sheet.page.locator("img").count() == 0
    assert sheet.page.locator("script").count() == 2
    assert sheet.page.locator("h1").inner_text() == HOSTILE[0]
    sheet.page.locator(".point").first.focus()
    assert HOSTILE[0] in sheet.page.locator("#tip").inner_text()
    assert sheet.page.locator("#tip *").count() == 0


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_the_window(report: Report, open_page: Any, width: int) -> None:
    sheet = open_page(of_kernels(report), width)
    assert sheet.page.evaluate("document.documentElement.scrollWidth") == width
    sheet = open_page(with_hostile_strings(report), width)
    assert sheet.page.evaluate("document.documentElement.scrollWidth") == width


def test_dark_follows_the_system_until_the_reader_chooses(report: Report, open_page: Any) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    light, dark = open_page(report, color_scheme="light"), open_page(report, color_scheme="dark")
    pale, deep = light.page.evaluate(ground), dark.page.evaluate(ground)
    assert pale != deep
    light.page.get_by_role("button", name="Change between light and dark").click()
    assert light.page.evaluate(ground) == deep


CONTRAST = """() => {
  const light = (colour) => {
    const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255)
      .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = light(getComputedStyle(document.body).backgroundColor);
  const texts = [...document.querySelectorAll("p, td, th, dd, dt, h1, h2, h3, summary, nav a")]
    .filter((element) => element.offsetParent && element.textContent.trim());
  return Math.min(...texts.map((element) => {
    const [low, high] = [light(getComputedStyle(element).color), ground].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  }));
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(report: Report, open_page: Any, scheme: str) -> None:
    """WCAG 2.2, level AA: 4.5 to 1."""
    assert open_page(report, color_scheme=scheme).page.evaluate(CONTRAST) >= 4.5


def test_paper_shows_the_answer_and_the_findings(report: Report, open_page: Any) -> None:
    sheet = open_page(report)
    sheet.page.emulate_media(media="print")
    sheet.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert sheet.page.locator("main > section:visible").count() == sheet.page.locator(".first, .on-paper").count()
    assert sheet.page.locator("details[open]").count() == 0
    assert sheet.page.locator("#gain").is_visible()
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", sheet.page.pdf(print_background=True))) <= 2


def test_all_of_it_is_printed_by_its_button(report: Report, open_page: Any) -> None:
    sheet = open_page(report, color_scheme="dark")
    sheet.page.evaluate("window.print = () => {}")
    sheet.page.locator("#print-all").click()
    sheet.page.emulate_media(media="print")
    sheet.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert sheet.page.locator("main > section:visible").count() == sheet.page.locator("main > section").count()
    assert sheet.page.locator("details:not([open])").count() == 0
    assert sheet.page.locator("button.quiet:visible, nav:visible").count() == 0
    assert sheet.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    sheet.page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert sheet.page.locator("details[open]").count() == 0
    assert len(sheet.page.pdf(print_background=True)) > 20_000


def test_without_script_everything_can_be_read(report: Report, open_page: Any) -> None:
    sheet = open_page(of_kernels(report), java_script_enabled=False)
    for part in ("aten::conv2d", report.processes[0].findings[0].advice, "unmodelled"):
        assert sheet.page.get_by_text(part).first.is_visible()
    assert sheet.page.locator("button.quiet:visible").count() == 0
