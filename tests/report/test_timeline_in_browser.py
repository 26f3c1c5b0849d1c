"""The timeline, single steps and trials in a real Chromium: what is drawn is the report's, by mouse and by keys."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report.report_variants import HOSTILE
from report.timelines import MS, strip, with_timeline, with_trials

from steptime.diagnosis import diagnose_paths
from steptime.report.json import without_sources
from steptime.report.report import Report
from steptime.report.step_view import Detail, assemble


def timeline(sheet: Any) -> Any:
    """The canvas, once it is drawn."""
    canvas = sheet.page.locator("#tracks-canvas")
    canvas.scroll_into_view_if_needed()
    sheet.page.wait_for_selector("#tracks-canvas[data-start]")
    return canvas


def in_view(sheet: Any) -> tuple[int, int]:
    """What the timeline shows: start and end, ns."""
    sheet.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)))")
    data = sheet.page.locator("#tracks-canvas").evaluate("(canvas) => [canvas.dataset.start, canvas.dataset.end]")
    return int(data[0]), int(data[1])


def colour(sheet: Any, x: float, y: float) -> tuple[int, ...]:
    """Of the canvas at a place, as shares of its width and in pixels from its top."""
    script = """(canvas, [x, y]) => {
      const pixel = Object.assign(document.createElement("canvas"), { width: 1, height: 1 });
      const pen = pixel.getContext("2d", { willReadFrequently: true });
      pen.drawImage(canvas, -Math.round(x * canvas.width), -Math.round(y * devicePixelRatio));
      return Array.from(pen.getImageData(0, 0, 1, 1).data);
    }"""
    return tuple(sheet.page.locator("#tracks-canvas").evaluate(script, [x, y])[:3])


def test_the_category_is_drawn_in_its_colours(report: Report, open_page: Any) -> None:
    sheet = open_page(with_timeline(report), color_scheme="light")
    timeline(sheet)
    category = 22 + 21 + 20  # the axis, the track's name, into its row
    assert colour(sheet, 0.30, category) == (230, 159, 0), "input"
    assert colour(sheet, 0.60, category) == (0, 114, 178), "compute"
    assert in_view(sheet) == (0, 100 * MS)


def test_what_the_pointer_is_on_tells_itself(report: Report, open_page: Any) -> None:
    sheet = open_page(with_timeline(report))
    canvas = timeline(sheet)
    box = canvas.bounding_box()
    stream = 22 + 21 + 25 + 21 + 8
    sheet.page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + stream)
    words = sheet.page.locator("#tip").inner_text()
    for part in ("gemm", "takes 40 ms", "operator aten::mm", "shapes [[64, 64]]", "train.py:90", "loss.backward()"):
        assert part in words
    sheet.page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 22 + 21 + 10)
    assert "behind it: enumerate(DataLoader)" in sheet.page.locator("#tip").inner_text()


def test_zoom_and_pan_by_keys(report: Report, open_page: Any) -> None:
    sheet = open_page(with_timeline(report))
    timeline(sheet).focus()
    sheet.page.keyboard.press("+")
    assert in_view(sheet) == (25 * MS, 75 * MS)
    sheet.page.keyboard.press("d")
    assert in_view(sheet) == (35 * MS, 85 * MS)
    sheet.page.keyboard.press("-")
    sheet.page.keyboard.press("Home")
    assert in_view(sheet) == (0, 100 * MS)


def test_zoom_and_pan_by_mouse(report: Report, open_page: Any) -> None:
    sheet = open_page(with_timeline(report))
    box = timeline(sheet).bounding_box()
    sheet.page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 60)
    sheet.page.keyboard.down("Control")
    sheet.page.mouse.wheel(0, -400)
    sheet.page.keyboard.up("Control")
    sheet.page.wait_for_function("Number(document.getElementById('tracks-canvas').dataset.start) > 0")
    start, end = in_view(sheet)
    assert end - start < 60 * MS
    assert abs((start + end) / 2 - 50 * MS) < MS, "what is under the pointer stays there"
    sheet.page.mouse.down()
    sheet.page.mouse.move(box["x"] + 0.25 * box["width"], box["y"] + 60, steps=4)
    sheet.page.mouse.up()
    moved = in_view(sheet)
    assert moved[0] - start == pytest.approx(0.25 * (end - start), rel=0.02)
    assert moved[1] - moved[0] == pytest.approx(end - start, abs=2)
    sheet.page.get_by_role("button", name="Whole step").click()
    assert in_view(sheet) == (0, 100 * MS)


def test_two_fingers_zoom_and_one_moves(report: Report, open_page: Any) -> None:
    sheet = open_page(with_timeline(report), width=390, has_touch=True)
    box = timeline(sheet).bounding_box()
    touch = sheet.page.context.new_cdp_session(sheet.page)

    def fingers(kind: str, *across: float) -> None:
        points = [{"x": box["x"] + at * box["width"], "y": box["y"] + 60, "id": id} for id, at in enumerate(across)]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    fingers("touchStart", 0.4)
    fingers("touchStart", 0.4, 0.6)
    for apart in (0.15, 0.2, 0.3, 0.4):
        fingers("touchMove", 0.5 - apart, 0.5 + apart)
    fingers("touchEnd", 0.1)
    fingers("touchEnd")
    start, end = in_view(sheet)
    assert end - start == pytest.approx(25 * MS, rel=0.05), "four times as far apart"
    assert (start + end) / 2 == pytest.approx(50 * MS, abs=MS), "what was between the fingers stays there"
    assert sheet.page.locator("#tracks-event").inner_text() == "", "to pinch is not to choose"
    fingers("touchStart", 0.7)
    for at in (0.6, 0.5, 0.45):
        fingers("touchMove", at)
    fingers("touchEnd")
    moved, _ = in_view(sheet)
    assert moved - start == pytest.approx(0.25 * (end - start), rel=0.1)
    assert sheet.page.evaluate("visualViewport.scale") == 1, "the page stays as large as it was"


def test_the_wheel_alone_scrolls_the_page(report: Report, open_page: Any) -> None:
    sheet = open_page(with_timeline(report))
    box = timeline(sheet).bounding_box()
    sheet.page.mouse.move(box["x"] + 200, box["y"] + 60)
    sheet.page.mouse.wheel(0, 50)
    assert in_view(sheet) == (0, 100 * MS)


def test_arrow_keys_go_from_event_to_event(report: Report, open_page: Any) -> None:
    sheet = open_page(with_timeline(report))
    timeline(sheet).focus()
    reported = sheet.page.locator("#tracks-event")
    sheet.page.keyboard.press("ArrowRight")
    assert reported.inner_text().startswith("input")
    sheet.page.keyboard.press("ArrowRight")
    assert reported.inner_text().startswith("compute")
    sheet.page.keyboard.press("ArrowDown")
    assert reported.inner_text().startswith("gemm")
    assert "once in this step, 40 ms in all" in reported.inner_text()
    sheet.page.keyboard.press("Enter")
    start, end = in_view(sheet)
    assert 30 * MS < start < 40 * MS
    assert 80 * MS < end < 90 * MS
    sheet.page.keyboard.press("Escape")
    assert reported.inner_text() == ""


def test_a_search_finds_names_operators_and_lines(report: Report, open_page: Any) -> None:
    sheet = open_page(with_timeline(report), color_scheme="light")
    timeline(sheet)
    field = sheet.page.get_by_label("Search the timeline")
    field.fill("aten::mm")
    assert sheet.page.locator("#tracks-found").inner_text() == "3 found, 64 ms", "kernel, operator and launch"
    in_view(sheet)
    assert colour(sheet, 0.60, 22 + 21 + 20) != (0, 114, 178), "what was not sought is pale"
    field.press("Enter")
    assert sheet.page.locator("#tracks-event").inner_text().startswith("aten::mm")
    field.fill("loss.backward")
    assert sheet.page.locator("#tracks-found").inner_text().startswith("2 found")
    field.fill("no such name")
    assert sheet.page.locator("#tracks-found").inner_text() == "Nothing matches"
    in_view(sheet)
    assert colour(sheet, 0.60, 22 + 21 + 20) == (0, 114, 178), "where nothing is found, nothing is pale"
    field.fill("")
    assert sheet.page.locator("#tracks-found").inner_text() == ""


def test_a_search_stays_in_the_step_where_it_finds_something_there(report: Report, open_page: Any) -> None:
    near = strip("stream 7", "stream", [(-30, -20, "gemm", "compute", Detail()), (40, 80, "gemm", "compute", Detail())])
    top = strip("Where the time goes", "category", [(0, 100, "compute", "compute", Detail())])
    view = assemble([top, near], (-40 * MS, 100 * MS), (0, 100 * MS), 5, "of 6 steady steps")
    process = replace(report.processes[0], step_view=view)
    sheet = open_page(replace(report, processes=(process,)))
    timeline(sheet)
    field = sheet.page.get_by_label("Search the timeline")
    field.fill("gemm")
    assert sheet.page.locator("#tracks-found").inner_text() == "2 found, 50 ms"
    for _ in range(2):
        field.press("Enter")
        assert "starts\n40.00000 ms into the step" in sheet.page.locator("#tracks-event").inner_text()


def test_the_step_is_saved_as_a_trace_that_can_be_read(report: Report, open_page: Any, tmp_path: Path) -> None:
    sheet = open_page(with_timeline(report))
    timeline(sheet)
    with sheet.page.expect_download() as download:
        sheet.page.get_by_role("button", name="Save this step").click()
    events = json.loads(Path(download.value.path()).read_text(encoding="utf-8"))["traceEvents"]
    gemm = next(event for event in events if event.get("name") == "gemm")
    assert (gemm["ph"], gemm["ts"], gemm["dur"]) == ("X", 40_000, 40_000)
    assert gemm["args"]["Input Dims"] == "[[64, 64]]"
    assert {event["args"]["name"] for event in events if event["name"] == "thread_name"} == {
        "Where the time goes", "stream 7", "Training thread 10",
    }  # fmt: skip


PERFETTO = """<!DOCTYPE html><title>stand-in</title><script>
addEventListener("message", (event) => {
  if (event.data === "PING") { event.source.postMessage("PONG", "*"); return; }
  const { buffer, title, fileName } = event.data.perfetto;
  window.taken = { title, fileName, text: new TextDecoder().decode(buffer) };
});
</script>"""
"""Answers as ui.perfetto.dev does."""


def test_perfettos_window_is_handed_the_step(report: Report, open_page: Any) -> None:
    sheet = open_page(with_timeline(report))
    sheet.page.context.route(
        "https://ui.perfetto.dev/**", lambda route: route.fulfill(body=PERFETTO, content_type="text/html")
    )
    timeline(sheet)
    with sheet.page.context.expect_page() as opened:
        sheet.page.get_by_role("button", name="This step in Perfetto").click()
    opened.value.wait_for_function("window.taken")
    taken = opened.value.evaluate("window.taken")
    assert taken["title"] == "One step of python train.py"
    assert any(event.get("name") == "gemm" for event in json.loads(taken["text"])["traceEvents"])
    assert "Opened in Perfetto" in sheet.page.locator("#tracks-status").inner_text()


def test_hostile_names_are_drawn_and_reported_as_text(report: Report, open_page: Any) -> None:
    sheet = open_page(with_timeline(report, HOSTILE))
    canvas = timeline(sheet)
    box = canvas.bounding_box()
    canvas.focus()
    for _ in range(6):
        sheet.page.keyboard.press("ArrowDown")
    sheet.page.keyboard.press("ArrowDown")
    reported = sheet.page.locator("#tracks-event")
    for _ in range(len(HOSTILE)):
        sheet.page.keyboard.press("ArrowLeft")
    assert HOSTILE[0] in reported.inner_text()
    seen = []
    for _ in HOSTILE:
        seen.append(reported.locator("b").inner_text())
        sheet.page.keyboard.press("ArrowRight")
    assert [name for name in seen if "<script>" in name] == [HOSTILE[1]]
    assert any("\\u202e" in name for name in seen), "marks that turn text round are written out"
    assert max(map(len, seen)) == 300
    sheet.page.mouse.move(box["x"] + 20, box["y"] + box["height"] - 15)
    assert sheet.page.locator("img").count() == 0
    assert sheet.page.locator("script").count() == 2
    assert not sheet.page.title().startswith("taken")


def test_no_source_leaves_lines_out_of_the_timeline(report: Report, open_page: Any) -> None:
    sheet = open_page(without_sources(with_timeline(report)))
    timeline(sheet)
    whole = sheet.page.content()
    assert "loss.backward()" not in whole
    assert "/home/ada" not in whole
    sheet.page.get_by_label("Search the timeline").fill("gemm")
    assert sheet.page.locator("#tracks-found").inner_text() == "1 found, 40 ms"


def test_a_step_tells_its_categories_and_what_lay_in_it(report: Report, open_page: Any) -> None:
    sheet = open_page(with_timeline(report))
    sheet.page.locator("#series").focus()
    sheet.page.keyboard.press("Home")
    for _ in range(7):
        sheet.page.keyboard.press("ArrowRight")
    assert sheet.page.locator("#chosen").inner_text().startswith("Step 8: 180 ms, slow")
    rows = sheet.page.locator("#chosen-categories tbody tr")
    assert sheet.all_words(rows)[1].split("\t")[2:] == ["135 ms", "+67 ms"]
    sheet.page.keyboard.press("ArrowRight")
    sheet.page.keyboard.press("ArrowRight")
    assert sheet.page.locator("#chosen-notes").inner_text().startswith("evaluation of 2 s within it")
    assert sheet.page.locator("#chosen-categories").is_hidden()
    assert sheet.page.locator(".signs text").all_text_contents() == ["△", "E"]


def test_the_step_of_the_timeline_leads_to_it(report: Report, open_page: Any) -> None:
    sheet = open_page(with_timeline(report))
    sheet.page.locator("#series").focus()
    sheet.page.keyboard.press("Home")
    assert sheet.page.locator("#closer").is_hidden()
    for _ in range(5):
        sheet.page.keyboard.press("ArrowRight")
    sheet.page.get_by_role("link", name="See this step as a timeline").click()
    assert sheet.page.locator("#tracks-canvas").evaluate("(canvas) => canvas.getBoundingClientRect().top < innerHeight")


def test_trials_stand_where_their_speed_is(report: Report, open_page: Any) -> None:
    sheet = open_page(with_trials(report))
    rows = sheet.page.locator("#trials .forest .row:not(.head):not(.axis)")
    assert rows.count() == 3
    words = sheet.all_words(rows)
    middle = "(element) => { const box = element.getBoundingClientRect(); return box.x + box.width / 2; }"
    points = [sheet.page.locator("#trials .estimate rect").nth(at).evaluate(middle) for at in (0, 1)]
    one = sheet.page.locator("#trials .one").first.evaluate(middle)
    assert one < points[1] < points[0], "1 < 1.3 < 2"
    assert "2.00× (1.80–2.20)" in words[0]
    assert "✓ kept" in words[0]
    assert "✗ broken" in words[1]
    assert "+10 %" in words[0]
    assert sheet.page.locator("#trials .curve0[points]").count() == 1


@pytest.mark.parametrize("width", [360, 400, 800, 1280])
def test_nothing_is_wider_than_the_window(report: Report, open_page: Any, width: int) -> None:
    sheet = open_page(with_trials(with_timeline(report, HOSTILE)), width)
    timeline(sheet)
    sheet.page.evaluate("document.querySelectorAll('.part').forEach((part) => part.scrollIntoView())")
    assert sheet.page.evaluate("document.documentElement.scrollWidth") == width


def test_paper_shows_the_timeline_in_light(report: Report, open_page: Any) -> None:
    sheet = open_page(with_timeline(report), color_scheme="dark")
    timeline(sheet)
    sheet.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert colour(sheet, 0.30, 22 + 21 + 20) == (230, 159, 0)
    assert len(sheet.page.pdf(print_background=True)) > 20_000
    sheet.page.evaluate("dispatchEvent(new Event('afterprint'))")
    in_view(sheet)
    assert colour(sheet, 0.30, 22 + 21 + 20) == (240, 177, 60)


def test_a_real_step_opens_with_what_its_trace_holds(shared_data: Path, open_page: Any) -> None:
    path = shared_data / "kineto" / "resnet50_workers0.pt.trace.json.gz"
    report = diagnose_paths((str(path),), cache=False)
    sheet = open_page(report)
    timeline(sheet)
    assert report.processes[0].step_view is not None
    assert f"{report.processes[0].step_view.events:,} events" in sheet.words(
        sheet.page.locator("#timeline .note").first
    )
    sheet.page.get_by_label("Search the timeline").fill("scudnn")
    found = sheet.page.locator("#tracks-found").inner_text()
    assert int(found.split()[0]) > 10
