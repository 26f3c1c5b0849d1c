"""The page of `steptime watch --serve` in a real Chromium, and what it answers to strangers."""

from __future__ import annotations

import http.client
import json
import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from journals import MS, JournalBuilder

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


def test_the_page_shows_the_job_as_it_goes_and_ends_with_it(
    served: tuple[LivePage, Watcher], recording: Path, browser: Any
) -> None:
    live, watcher = served
    sheet = browser.new_context().new_page()
    sentence: list[str] = []
    sheet.on("console", lambda message: sentence.append(message.text))
    sheet.on("pageerror", lambda error: sentence.append(str(error)))
    sheet.on("dialog", lambda dialog: sentence.append(dialog.message))
    sheet.goto(live.url)
    late = sheet.locator("#ranks tr.late")
    late.wait_for()
    assert "rank 1" in late.inner_text()
    assert "the other ranks wait 6 ms/step for it" in late.inner_text()
    assert HOSTILE in sheet.locator("h1").inner_text(), "as text"
    assert sheet.locator("img, #view script").count() == 0
    assert "60 steps" in sheet.locator("h1").inner_text()
    sheet.locator("#profile").click()
    sheet.locator("#said", has_text="Profile requested").wait_for()
    assert (recording / "profile-request").exists()
    with (recording / "process-17" / "journal.bin").open("ab") as journal:
        built = JournalBuilder().wait(60 * 20 * MS)
        built.next(2 * MS).forward(3 * MS).backward(14 * MS).step(MS)
        journal.write(b"".join(built.records))
    live.publish(watcher.look())
    sheet.locator("h1", has_text="61 steps").wait_for()
    manifest = json.loads((recording / "manifest.json").read_text())
    (recording / "manifest.json").write_text(json.dumps(manifest | {"ended_epoch_ns": 2 * 10**18, "exit_status": 0}))
    live.publish(watcher.look())
    sheet.locator(".last", has_text="The job ended with status 0").wait_for()
    sheet.locator("#profile:disabled").wait_for()
    assert sentence == []
    sheet.context.close()


def test_the_diagnosis_comes_as_text(served: tuple[LivePage, Watcher], browser: Any) -> None:
    sheet = browser.new_context().new_page()
    sheet.goto(served[0].url)
    sheet.locator("#diagnose").click()
    sheet.locator("#diagnosis", has_text="Step ").wait_for(timeout=60_000)
    assert sheet.locator("#diagnosis *").count() == 0
    sheet.context.close()


def answered(page: LivePage, path: str, host: str | None = None, method: str = "GET") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=20)
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
        connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=20)
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
        with socket.create_connection((HOST, page.port), timeout=60) as connection:
            connection.sendall(request.encode(errors="surrogateescape"))
            if request.endswith("\r\n\r\n"):
                assert b"200 OK" not in connection.recv(4096)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # it is cut off
    held = [socket.create_connection((HOST, page.port), timeout=60) for _ in range(MOST_CONNECTIONS + 8)]
    try:
        assert held[-1].recv(1) == b"", "no thread is taken for one more"
    finally:
        for each in held:
            each.close()
    until = time.monotonic() + 60
    while True:  # those that have gone give their places back
        with socket.create_connection((HOST, page.port), timeout=60) as connection:
            connection.sendall(f"GET /?token={page.token} HTTP/1.0\r\n{host}".encode())
            if b"200 OK" in connection.recv(4096):
                break
        assert time.monotonic() < until
    assert capfd.readouterr() == ("", "")
