"""The traces behind a report: carried by its page as far as there is room, and saved as they were."""

from __future__ import annotations

import gzip
import json as plain_json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report.timelines import with_timeline
from traces import Events, kernel, launch, operator, step

from steptime.diagnosis import diagnose_paths
from steptime.report import json
from steptime.report.compose import of_copies
from steptime.report.json import without_sources
from steptime.report.page import page
from steptime.report.report import Report
from steptime.report.trace_files import TraceFile

PERFETTO = """<!DOCTYPE html><title>stand-in</title><script>
addEventListener("message", async (event) => {
  if (event.data === "PING") { event.source.postMessage("PONG", "*"); return; }
  const { buffer, title, fileName } = event.data.perfetto;
  const text = await new Response(new Blob([buffer]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  window.taken = { title, fileName, text };
});
</script>"""
"""Answers as ui.perfetto.dev does, which unpacks gzip, too."""


def allocation(at: float, size: int, total: int) -> dict[str, Any]:
    """A memory event as Kineto writes it."""
    args = {"Device Type": 1, "Device Id": 0, "Bytes": size, "Addr": 4096, "Total Allocated": total,
            "Total Reserved": 1 << 20}  # fmt: skip
    return {"ph": "i", "s": "t", "name": "[memory]", "pid": 1, "tid": 10, "ts": int(at), "args": args}


def events() -> Events:
    """Six steps of 100 us, each with a kernel and an allocation that is freed behind it."""
    made: Events = []
    for number in range(6):
        at = 100.0 * number
        made += [
            step(at, at + 99, number),
            operator("aten::mm", at + 10, at + 30),
            launch(number + 1, at + 12, at + 14),
            kernel(number + 1, at + 20, at + 80),
            allocation(at + 11, 4096, 4096),
            allocation(at + 29, -4096, 0),
        ]
    return made


def written(folder: Path, name: str) -> Path:
    """A trace, compressed if its name says so."""
    text = plain_json.dumps({"schemaVersion": 1, "traceEvents": events()}, indent=1).encode()
    path = folder / name
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return path


def of_size(*sizes: int) -> tuple[TraceFile, ...]:
    """Traces of bytes that no compression makes fewer of."""
    made = random.Random(0)
    return tuple(TraceFile(f"runs/x/trace-{at}.json.gz", "2 steps", size, made.randbytes(size))
                 for at, size in enumerate(sizes))  # fmt: skip


def with_traces(report: Report, traces: tuple[TraceFile, ...]) -> Report:
    report = with_timeline(report)
    return replace(report, processes=(replace(report.processes[0], traces=traces),))


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_page_saves_the_trace_as_it_was(tmp_path: Path, open_page: Any, name: str) -> None:
    path = written(tmp_path, name)
    sheet = open_page(diagnose_paths((str(path),), cache=False))
    with sheet.page.expect_download() as download:
        sheet.page.get_by_role("button", name="Save: 24 events").click()
    assert download.value.suggested_filename == "trace.json.gz"
    saved = gzip.decompress(Path(download.value.path()).read_bytes())
    assert plain_json.loads(saved)["traceEvents"] == events()
    assert sheet.words(sheet.page.locator("[data-status]")) == "Saved as trace.json.gz."


def test_traces_of_any_length_come_back_to_the_byte(report: Report, open_page: Any) -> None:
    traces = of_size(4000, 4001, 4002, 4003)
    sheet = open_page(with_traces(report, traces))
    for number, trace in enumerate(traces):
        with sheet.page.expect_download() as download:
            sheet.page.get_by_role("button", name="Save: 2 steps").nth(number).click()
        assert Path(download.value.path()).read_bytes() == trace.content


def test_perfettos_window_is_handed_the_whole_trace(tmp_path: Path, open_page: Any) -> None:
    sheet = open_page(diagnose_paths((str(written(tmp_path, "trace.json.gz")),), cache=False))
    sheet.page.context.route(
        "https://ui.perfetto.dev/**", lambda route: route.fulfill(body=PERFETTO, content_type="text/html")
    )
    button = sheet.page.get_by_role("button", name="Open in Perfetto: 24 events")
    button.focus()
    with sheet.page.context.expect_page() as opened:
        sheet.page.keyboard.press("Enter")
    opened.value.wait_for_function("window.taken")
    taken = opened.value.evaluate("window.taken")
    assert taken["fileName"] == "trace.json.gz"
    assert plain_json.loads(taken["text"])["traceEvents"] == events()


def test_a_trace_without_room_is_named_by_its_place(report: Report, open_page: Any) -> None:
    small, large, other = of_size(100_000, 1_950_000, 50_000)
    text = page.render(with_traces(report, (small, large, other)))
    assert len(text.encode()) <= page.LARGEST
    sheet = open_page(with_traces(report, (small, large, other)))
    reported = sheet.page.locator("#traces li")
    assert reported.locator("button[data-open]").count() == 2, "the first and the last"
    assert large.path in reported.nth(1).text_content()
    assert "It is too large for this page; it is on box." in reported.nth(1).text_content()


def test_json_names_traces_and_holds_none(report: Report) -> None:
    carrying = with_traces(report, of_size(5000))
    read = json.read(json.render(carrying).encode(), "r.json")
    assert read.processes[0].traces == (TraceFile("runs/x/trace-0.json.gz", "2 steps", 5000),)
    assert len(json.render(carrying)) < len(json.render(with_timeline(report))) + 500


def test_without_sources_there_is_no_trace_either(report: Report) -> None:
    displayed = page.render(without_sources(with_traces(report, of_size(5000))))
    assert "trace-0" not in displayed
    assert 'id="traces"' not in displayed


def test_of_copies_the_names_of_the_traces_stay(report: Report) -> None:
    reported = of_copies(with_traces(report, of_size(5000)), "s3://bucket/run")
    assert reported.source == "s3://bucket/run"
    assert reported.processes[0].traces[0].path == "trace-0.json.gz"
    assert reported.processes[0].traces[0].content is not None


def test_a_trace_with_allocations_tells_memory_by_owner(tmp_path: Path, open_page: Any) -> None:
    report = diagnose_paths((str(written(tmp_path, "trace.json.gz")),), cache=False)
    found = report.processes[0].memory_by_owner
    assert found is not None
    assert found.place == "GPU 0"
    assert max(map(sum, zip(*found.bytes, strict=True))) == 1 << 20, "tensors, and what the allocator holds free"
    sheet = open_page(report)
    assert sheet.page.locator("#owners polygon").count() == len(found.owners) == 2
    assert "4 KiB" in sheet.page.locator("#owners .legend").text_content()
