"""The page of `steptime watch --serve` in a real Chromium, and what it answers to strangers."""

from __future__ import annotations

import gc
import http.client
import json
import os
import socket
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from journals import MS, JournalBuilder
from patience import PATIENCE
from report.sheets import Tabs

from steptime.errors import OutputError
from steptime.live.serve import HOST, MOST_CONNECTIONS, MOST_STREAMS, LivePage
from steptime.live.watching import Watcher

HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """Two ranks, the second of which is late; hosts and commands are what an attacker would have them be."""
    for rank, own in enumerate((2 * MS, 8 * MS)):
        built = JournalBuilder()
        built.process_facts = {"rank": rank, "world_size": 2, "host": HOSTILE}
        for _ in range(60):
            built.next(own).forward(3 * MS).backward(16 * MS - own).step(MS)
        folder = built.write(tmp_path / f"part{rank}")
        (tmp_path / "r").mkdir(exist_ok=True)
        (folder / "process-17").rename(tmp_path / "r" / f"process-{17 + rank}")
    manifest = json.loads((folder / "manifest.json").read_text()) | {"command": ["python", HOSTILE]}
    (tmp_path / "r" / "manifest.json").write_text(json.dumps(manifest))
    return tmp_path / "r"


@pytest.fixture
def served(recording: Path) -> Iterator[tuple[LivePage, Watcher]]:
    watcher, page = Watcher(recording), LivePage(recording, 0)
    page.publish(watcher.look())
    yield page, watcher
    page.close()
    watcher.close()


@pytest.fixture
def sheet(browser: Any) -> Iterator[Any]:
    """An empty page in the browser."""
    tabs = Tabs.of(browser)
    tab = tabs.take(1280, "light")
    yield tab
    tabs.give_back(tab)


def test_the_page_shows_the_job_as_it_goes_and_ends_with_it(
    served: tuple[LivePage, Watcher], recording: Path, sheet: Any
) -> None:
    live, watcher = served
    sentence: list[str] = []
    sheet.on("console", lambda message: sentence.append(message.text))
    sheet.on("pageerror", lambda error: sentence.append(str(error)))
    sheet.on("dialog", lambda dialog: sentence.append(dialog.message))
    sheet.goto(live.url)
    late = sheet.locator("#ranks .row.late")
    late.wait_for()
    assert "rank 1" in late.inner_text()
    assert "the other ranks wait 6 ms/step for it" in late.inner_text()
    assert HOSTILE in sheet.locator(".verdict .rank").inner_text(), "as text"
    assert sheet.locator("img, #view script").count() == 0
    assert "60 steps" in sheet.locator(".verdict .rank").inner_text()
    sheet.locator("#profile").click()
    sheet.locator("#status", has_text="Profile requested").wait_for()
    assert (recording / "profile-request").exists()
    with (recording / "process-17" / "journal.bin").open("ab") as journal:
        built = JournalBuilder().wait(60 * 20 * MS)
        built.next(2 * MS).forward(3 * MS).backward(14 * MS).step(MS)
        journal.write(b"".join(built.records))
    live.publish(watcher.look())
    sheet.locator(".verdict .rank", has_text="61 steps").wait_for()
    manifest = json.loads((recording / "manifest.json").read_text())
    (recording / "manifest.json").write_text(json.dumps(manifest | {"ended_epoch_ns": 2 * 10**18, "exit_status": 0}))
    live.publish(watcher.look())
    sheet.locator(".last", has_text="The job ended with status 0").wait_for()
    sheet.locator("#profile:disabled").wait_for()
    assert sentence == []


def test_the_findings_come_by_themselves_with_their_places(
    served: tuple[LivePage, Watcher], sheet: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    page, watcher = served
    sheet.set_viewport_size({"width": 390, "height": 800})
    sheet.goto(page.url)
    sheet.locator("#findings", has_text="The first diagnosis comes after").wait_for()
    until = time.monotonic() + PATIENCE
    while (view := watcher.look()).diagnosed is None:
        assert time.monotonic() < until
        time.sleep(0.2)
    page.publish(view)
    sheet.locator("h1", has_text=view.diagnosed.headline[:40]).wait_for()
    assert view.diagnosed.findings
    assert view.diagnosed.findings[0].title in sheet.locator("#findings .finding").first.inner_text()
    assert sheet.evaluate("document.documentElement.scrollWidth") == 390, "nothing is cut on a phone"
    assert not list(tmp_path.glob("steptime-diagnosis-*/report.json")), "its folder ended with it"


def test_parts_add_up_to_their_whole_and_axes_have_units(served: tuple[LivePage, Watcher], sheet: Any) -> None:
    sheet.goto(served[0].url)
    rows = sheet.locator("#parts .row:not(.axis)")
    rows.first.wait_for()
    boxes = [each.locator(".track rect").bounding_box() for each in rows.all()]
    assert sum(box["width"] for box in boxes[:-1]) == pytest.approx(boxes[-1]["width"], abs=1)
    assert "/step" not in sheet.locator("#parts").inner_text(), "no other step than the one above"
    for each in sheet.locator("#ranks .row:not(.axis)").all():
        track = each.locator(".track").bounding_box()
        pieces = [piece.bounding_box()["width"] for piece in each.locator(".track rect").all()]
        assert sum(pieces) == pytest.approx(track["width"], abs=1), "both ranks have steps of 20 ms"
    assert "10 ms" in sheet.locator(".plot .y-axis").text_content()
    assert "now" in sheet.locator(".plot .x-axis").text_content()


@pytest.mark.parametrize("seconds", [120, pytest.param(3600, marks=pytest.mark.slow)])
def test_a_page_that_is_left_open_takes_no_more_memory(seconds: int, tmp_path: Path, sheet: Any) -> None:
    """One look per second of the job, as fast as browser and server can."""
    built = JournalBuilder()
    built.process_facts = {"rank": 0, "world_size": 1, "host": "here"}
    folder = built.next(MS).forward(MS).backward(MS).step(MS).write(tmp_path / "r")
    with closing(Watcher(folder)) as watcher, closing(LivePage(folder, 0)) as page:
        sheet.goto(page.url)
        sheet.evaluate(
            "window.seen = 0; new MutationObserver(() => { seen += 1; }).observe(view, { childList: true });"
        )
        measured = []
        for second in range(1, seconds + 1):
            built.records.clear()
            for _ in range(5):
                built.next(40 * MS).forward(50 * MS).backward(100 * MS).step(10 * MS)
            device = {"uuid": "GPU-1", "index": 0, "utilization": 50.0 + second % 40}
            sample = {
                "monotonic_ns": built.now,
                "cpus": 2,
                "job_cpu": 1.0,
                "other_cpu": 0.5,
                "resident_bytes": 1,
                "devices": [device],
            }
            with (
                (folder / "process-17" / "journal.bin").open("ab") as journal,
                (folder / "telemetry.jsonl").open("a") as lines,
            ):
                journal.write(b"".join(built.records))
                lines.write(json.dumps(sample) + "\n")
            view = replace(watcher.look(), state="running", diagnosed=None)
            page.publish(view)
            sheet.evaluate(
                "n => new Promise(done => { const ask = () => seen < n ? setTimeout(ask, 2) : done(); ask(); })", second
            )
            if second in (seconds // 2, seconds):
                measured.append(memory_of(sheet))
        assert len(view.samples) <= 61
        assert f"{5 * seconds + 1:,} steps" in sheet.locator(".verdict .rank").inner_text()
    (nodes, heap, objects), after = measured
    assert after[0] <= nodes + 600, "the one that is shown, and those before it until they are collected"
    assert after[1] <= heap * 1.25 + (1 << 20)
    assert after[2] <= objects * 1.02 + 1000


def memory_of(sheet: Any) -> tuple[float, float, int]:
    """(nodes and bytes of the page after a collection, objects of this process)."""
    session = sheet.context.new_cdp_session(sheet)
    session.send("HeapProfiler.collectGarbage")
    session.send("Performance.enable")
    found = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
    session.detach()
    gc.collect()
    return found["Nodes"], found["JSHeapUsedSize"], len(gc.get_objects())


def answered(page: LivePage, path: str, host: str | None = None, method: str = "GET") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=PATIENCE)
    connection.request(method, path, headers={"Host": host or f"127.0.0.1:{page.port}"})
    status = connection.getresponse().status
    connection.close()
    return status


def test_only_who_names_this_address_and_has_the_token_is_answered(
    served: tuple[LivePage, Watcher], recording: Path
) -> None:
    page, _ = served
    token = f"token={page.token}"
    assert answered(page, f"/?{token}") == 200
    assert answered(page, f"/?{token}", f"localhost:{page.port}") == 200
    for path in ("/", "/events", "/?token=", "/?token=x", f"/?token={page.token}x", "/?token=%ff"):
        assert answered(page, path) == 403, path
    for host in ("evil.example", f"evil.example:{page.port}", "127.0.0.1", "127.0.0.1:1", ""):
        assert answered(page, f"/?{token}", host or "x") == 403, "a name that was made to resolve to this machine"
    assert answered(page, "/profile", method="POST") == 403
    assert answered(page, f"/profile?{token}") == 404, "asking is no reading"
    assert not (recording / "profile-request").exists()
    assert answered(page, f"/../../etc/passwd?{token}") == 404


def test_it_listens_on_the_loopback_alone_and_a_taken_port_is_refused(served: tuple[LivePage, Watcher]) -> None:
    page, watcher = served
    sockets = Path("/proc/net/tcp").read_text().splitlines()
    mine = [line.split()[1] for line in sockets if line.split()[1].endswith(f":{page.port:04X}")]
    assert set(mine) == {f"0100007F:{page.port:04X}"}
    with pytest.raises(OutputError, match=f"Port {page.port} "):
        LivePage(watcher.source, page.port)


def test_pages_that_are_open_are_bounded(served: tuple[LivePage, Watcher]) -> None:
    page, _ = served
    path, opened = f"/events?token={page.token}", []
    for _ in range(MOST_STREAMS):
        connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=PATIENCE)
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.status == 200
        assert answer.readline().startswith(b"data: ")
        opened.append((connection, answer))
    assert answered(page, path) == 503
    for connection, answer in opened:
        answer.close()
        connection.close()


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_recording_of_somebody_else_cannot_be_asked_for_a_profile(recording: Path) -> None:
    recording.chmod(0o555)
    page = LivePage(recording, 0)
    try:
        assert answered(page, f"/profile?token={page.token}", method="POST") == 409
    finally:
        page.close()
        recording.chmod(0o755)


def test_no_request_of_a_strangers_is_reported_in_the_terminal(
    served: tuple[LivePage, Watcher], capfd: pytest.CaptureFixture[str]
) -> None:
    """Anybody on the machine may connect; what is no request, or ends in the middle, is refused without a word."""
    page, watcher = served
    page.publish(watcher.look())
    host = f"Host: 127.0.0.1:{page.port}\r\n\r\n"
    strange = (
        f"GET //[?token={page.token} HTTP/1.0\r\n{host}", f"GET http://[::1 HTTP/1.0\r\n{host}",
        f"GET /?token={page.token} HTTP/1.0\r\nHost: evil.example\r\n\r\n", f"GET /?token=\udcff HTTP/1.0\r\n{host}",
        "\udcff\udcfe\r\n\r\n", "GET / HTT", "",
    )  # fmt: skip
    for request in strange:
        with socket.create_connection((HOST, page.port), timeout=PATIENCE) as connection:
            connection.sendall(request.encode(errors="surrogateescape"))
            if request.endswith("\r\n\r\n"):
                assert b"200 OK" not in connection.recv(4096)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # it is cut off
    held = [socket.create_connection((HOST, page.port), timeout=PATIENCE) for _ in range(MOST_CONNECTIONS + 8)]
    try:
        assert held[-1].recv(1) == b"", "no thread is taken for one more"
    finally:
        for each in held:
            each.close()
    until = time.monotonic() + PATIENCE
    while True:  # those that have gone give their places back
        with socket.create_connection((HOST, page.port), timeout=PATIENCE) as connection:
            connection.sendall(f"GET /?token={page.token} HTTP/1.0\r\n{host}".encode())
            if b"200 OK" in connection.recv(4096):
                break
        assert time.monotonic() < until
    assert capfd.readouterr() == ("", "")
