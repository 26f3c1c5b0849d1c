"""Stored reports of every kind in a real Chromium: no error, no request, the JSON's numbers on the screen, all of it by
mouse and by keys. What they are, and how they were made, is told in tests/report/gold/README.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from device_recordings import report_of
from documents import html_of
from report.report_variants import HOSTILE
from report.sheets import opening

from steptime.answer.json import document as as_json
from steptime.compare.answer import answer_of as answer_of_comparison
from steptime.compare.comparison import Comparison
from steptime.quantities import format_bytes, format_duration
from steptime.report import json
from steptime.report.page import charts, page
from steptime.report.report import Report

GOLD = Path(__file__).resolve().parent / "gold"
KINDS = ("run", "trace", "steps-of-a-device", "ranks", "trials", "memory", "overflow", "hostile")
"""Of reports; a comparison is there, too."""
every_kind = pytest.mark.parametrize("kind", KINDS, scope="module")  # so that tests of one follow one another
LEAST_SHARE = 0.001
"""Of a step: smaller categories are summed up on the page."""


def stored(kind: str) -> Report:
    path = GOLD / f"{kind}.json"
    return json.read(path.read_bytes(), str(path))


@pytest.fixture(scope="module")
def displayed(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """shown(kind): the page of a stored report, opened once for all that is asked of it in a row. Each test leaves its
    folds and its timeline in a state that the others bear."""
    folder = tmp_path_factory.mktemp("shown")
    with ExitStack() as current:

        @lru_cache(maxsize=1)
        def shown(kind: str) -> Any:
            current.close()
            return current.enter_context(opening(browser, folder))(page.render(stored(kind)))

        yield shown


def in_view(sheet: Any) -> list[int]:
    """What the timeline shows: start and end, ns, once it has drawn."""
    sheet.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)))")
    seen = "(canvas) => [Number(canvas.dataset.start), Number(canvas.dataset.end)]"
    found: list[int] = sheet.page.locator("#tracks-canvas").evaluate(seen)
    return found


def rows(sheet: Any, table: str) -> int:
    found: int = sheet.page.locator(f"#{table} tbody tr").count()
    return found


def test_every_stored_report_is_opened() -> None:
    assert {path.stem for path in GOLD.glob("*.json")} == {*KINDS, "comparison"}


@every_kind
def test_the_first_screen_says_what_the_json_says(kind: str, displayed: Any) -> None:
    report = stored(kind)
    process = report.processes[0]
    step = process.case.step.duration.value
    sheet = displayed(kind)
    assert sheet.words(sheet.page.locator("#headline")) == process.verdict.sentence
    assert format_duration(step) in sheet.words(sheet.page.locator("#waterfall .measured"))
    reported = [
        row.split("\n") for row in sheet.all_words(sheet.page.locator("#waterfall .row:not(.measured):not(.axis)"))
    ]
    for use in process.case.categories:
        if use.duration.value >= LEAST_SHARE * step:
            cells = next(cells for cells in reported if cells[0].strip() == use.name)
            assert format_duration(use.duration.value) in " ".join(cells)
    findings = sheet.page.locator("article.finding")
    assert findings.count() == len(process.findings)
    for place, finding in enumerate(process.findings):
        words = findings.nth(place).text_content()
        assert finding.code in words
        assert finding.savings is None or format_duration(finding.savings.value) in words
    assert sheet.words(sheet.page.locator(".next code").first) == report.next_command


@every_kind
def test_tables_have_the_jsons_rows(kind: str, displayed: Any) -> None:
    process = stored(kind).processes[0]
    sheet = displayed(kind)
    tables = {"kernels": process.case.kernels, "operators": process.case.operators, "gaps": process.case.gaps,
              "lines": process.case.lines}  # fmt: skip
    for table, uses in tables.items():
        assert rows(sheet, table) == len(uses), table


@every_kind
def test_folds_open_by_mouse_and_by_keys(kind: str, displayed: Any) -> None:
    sheet = displayed(kind)
    folds = sheet.page.locator("details")
    for number in range(folds.count()):
        summary = folds.nth(number).locator("summary")
        summary.click()
        assert folds.nth(number).locator(".inside").is_visible()
        summary.focus()
        sheet.page.keyboard.press("Enter")
        assert folds.nth(number).locator(".inside").is_hidden()
        sheet.page.keyboard.press("Space")
        assert folds.nth(number).locator(".inside").is_visible()


@every_kind
def test_the_timeline_zooms_by_mouse_and_by_keys(kind: str, displayed: Any) -> None:
    step_view = stored(kind).processes[0].step_view
    sheet = displayed(kind)
    assert (sheet.page.locator("#tracks-canvas").count() == 1) == (step_view is not None and step_view.events > 0)
    if step_view is None or not step_view.events:
        return
    sheet.page.locator("#tracks-canvas").scroll_into_view_if_needed()
    sheet.page.wait_for_selector("#tracks-canvas[data-start]")
    whole = in_view(sheet)
    assert whole[1] - whole[0] >= step_view.end - step_view.start
    box = sheet.page.locator("#tracks-canvas").bounding_box()
    sheet.page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 60)
    sheet.page.keyboard.down("Control")
    sheet.page.mouse.wheel(0, -300)
    sheet.page.keyboard.up("Control")
    sheet.page.wait_for_function(f"Number(document.getElementById('tracks-canvas').dataset.start) > {whole[0]}")
    by_mouse = in_view(sheet)
    assert whole[0] < by_mouse[0] < by_mouse[1] < whole[1]
    sheet.page.locator("#tracks-canvas").focus()
    sheet.page.keyboard.press("Home")
    assert in_view(sheet) == whole
    sheet.page.keyboard.press("+")
    by_keys = in_view(sheet)
    assert by_keys[1] - by_keys[0] == pytest.approx((whole[1] - whole[0]) / 2, rel=0.01)


@every_kind
def test_a_step_tells_its_duration(kind: str, displayed: Any) -> None:
    process = stored(kind).processes[0]
    sheet = displayed(kind)
    sheet.page.locator("#series").focus()
    sheet.page.keyboard.press("End")
    last = len(process.step_ns) - 1
    words = re.match(r"Step (\d+): ([\d.]+) (\w+)", sheet.words(sheet.page.locator("#chosen")))
    assert words is not None
    reported = float(words[2]) * {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}[words[3]]
    assert int(words[1]) == last + 1, "the first step is 1"
    assert reported == pytest.approx(process.step_ns[last], rel=1e-3), "four digits"


@every_kind
@pytest.mark.parametrize("width", [400, 1440])
def test_nothing_is_wider_than_the_window(kind: str, width: int, displayed: Any) -> None:
    sheet = displayed(kind)
    sheet.page.set_viewport_size({"width": width, "height": 900})
    sheet.page.evaluate("document.querySelectorAll('.part').forEach((part) => part.scrollIntoView())")
    seen = sheet.page.evaluate("document.documentElement.scrollWidth")
    sheet.page.set_viewport_size({"width": 1280, "height": 900})
    assert seen == width


@every_kind
def test_a_page_of_it_is_small(kind: str) -> None:
    assert len(page.render(stored(kind)).encode()) <= page.LARGEST


def test_trials_are_reported_with_their_intervals(displayed: Any) -> None:
    report = stored("trials")
    assert report.trials is not None
    sheet = displayed("trials")
    words = sheet.page.locator("#trials .forest").text_content()
    for variant in report.trials.variants:
        if variant.speed is not None:
            assert f"{variant.speed.value:.2f}× ({variant.speed.low:.2f}–{variant.speed.high:.2f})" in words
    assert sheet.page.locator("#trials [class^=curve][points]").count() >= 1


def test_memory_is_reported_by_owner(displayed: Any) -> None:
    found = stored("memory").processes[0].memory_by_owner
    assert found is not None
    sheet = displayed("memory")
    legend = sheet.page.locator("#owners .legend").text_content()
    for name, sizes in zip(found.owners, found.bytes, strict=True):
        assert f"{name} {format_bytes(sizes[found.peak])}" in " ".join(legend.split())
    assert sheet.page.locator("#memory .peak-line").count() == 1


def test_ranks_stand_alongside_one_another(displayed: Any) -> None:
    report = stored("ranks")
    assert report.ranks is not None
    sheet = displayed("ranks")
    assert sheet.page.locator("#ranks .heat").first.locator("tbody tr").count() == len(report.processes)


def test_strangers_strings_are_text(displayed: Any) -> None:
    sheet = displayed("hostile")
    assert sheet.page.locator("h1").inner_text() == HOSTILE[0]
    assert sheet.page.locator("img").count() == 0
    assert not sheet.page.title().startswith("taken")
    assert HOSTILE[1] in sheet.page.locator("#kernels").text_content()


def test_a_comparison_says_what_its_json_says(open_text: Any) -> None:
    text = (GOLD / "comparison.json").read_bytes()
    comparison = msgspec.json.decode(text, type=Comparison)
    assert msgspec.json.decode(as_json(comparison)) == msgspec.json.decode(text)
    sheet = open_text(html_of(comparison, answer_of_comparison))
    assert sheet.page.locator("h1").inner_text() == comparison.sentence
    before, after = comparison.step.before, comparison.step.after
    assert before is not None
    assert after is not None
    assert format_duration(before.value) in sheet.words(sheet.page.locator("#changes .row").first)
    assert format_duration(after.value) in sheet.words(sheet.page.locator("#changes .lower-bound"))
    assert rows(sheet, "differences") == 1 + len(comparison.parts) + (comparison.memory is not None)


LABELS = """() => {
  const found = [];
  for (const axis of document.querySelectorAll(".x-axis, .y-axis, .axis .track")) {
    const boxes = [...axis.querySelectorAll("text")]
      .filter((text) => getComputedStyle(text).visibility !== "hidden")
      .map((text) => [text.textContent, text.getBoundingClientRect()]).filter(([, box]) => box.width);
    boxes.forEach(([name, box], at) => boxes.slice(at + 1).forEach(([other, there]) => {
      if (box.left < there.right && there.left < box.right && box.top < there.bottom - 2 && there.top < box.bottom - 2)
        found.push(`${name} | ${other}`);
    }));
  }
  return found;
}"""


@every_kind
@pytest.mark.parametrize("width", [390, 1000, 1600])
def test_no_label_of_an_axis_lies_on_another(displayed: Any, kind: str, width: int) -> None:
    sheet = displayed(kind)
    sheet.page.set_viewport_size({"width": width, "height": 900})
    sheet.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert sheet.page.evaluate(LABELS) == []
    sheet.page.set_viewport_size({"width": 1280, "height": 900})


def test_the_table_of_ranks_takes_the_room_that_there_is(displayed: Any) -> None:
    sheet = displayed("ranks")
    sheet.page.set_viewport_size({"width": 1600, "height": 900})
    sheet.page.locator("#ranks").scroll_into_view_if_needed()
    room = sheet.page.locator("#ranks .scroll").evaluate("(each) => each.scrollWidth - each.clientWidth")
    over = sheet.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert (room, over) == (0, 0)
    sheet.page.set_viewport_size({"width": 1280, "height": 900})


@pytest.fixture(scope="module")
def of_gpu(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """(the page of a recording of a GPU, its flame graphs)."""
    report = report_of("chargpt")
    with opening(browser, tmp_path_factory.mktemp("gpu")) as opened:
        yield opened(page.render(report)), charts.flames(report.processes[0].flame)


def test_a_name_in_the_flame_graph_is_whole_or_says_that_it_is_not(of_gpu: Any) -> None:
    sheet, flames = of_gpu
    sheet.page.locator("#flame").scroll_into_view_if_needed()
    sheet.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)))")
    texts = sheet.page.locator(".box text").all_text_contents()
    names = {box.name for flame in flames for box in flame.boxes}
    short = [text for text in texts if text and text not in names]
    assert [text for text in short if not re.fullmatch(r"(?s).{4,}…", text)] == []


def test_a_search_in_the_flame_graph_counts_what_is_inside_of_a_hit_once(of_gpu: Any) -> None:
    sheet, flames = of_gpu
    first = flames[0]
    name = max((box for box in first.boxes if box.row), key=lambda box: box.width).name
    sheet.page.locator("#flame-search").fill(name)
    found = sheet.page.locator("#flame-found").inner_text()
    share = float(re.search(r"\(([\d.]+) %", found)[1])  # type: ignore[index]
    assert 0 < share <= 100
    lit = sheet.page.locator(".box:not(.unlit)").count()
    assert 0 < lit < sum(len(flame.boxes) for flame in flames)
    sheet.page.locator("#flame-search").fill("no such function")
    assert sheet.page.locator("#flame-found").inner_text() == "Nothing matches"
    assert sheet.page.locator(".box.unlit").count() == 0, "nothing is dimmed where nothing was found"
    sheet.page.locator("#flame-search").fill("")
