"""The live view as a page, for a browser on this machine: server-sent events, and no more than the standard library.

Laws: it listens on the loopback alone; it answers only who names this very address and has the token of the URL, which
no page of a stranger's can do, whatever its name resolves to; what strangers wrote (commands, lines, hosts) is escaped,
and the page's own policy lets nothing run but our one script.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import subprocess
import threading
from functools import cache, partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jinja2

from steptime.answer.page.frame import escaping
from steptime.answer.printable import printable
from steptime.errors import OutputError
from steptime.live.answer import answer_of, last_line, title
from steptime.live.view import LiveView, RankView
from steptime.live.watching import ask_for_profile, diagnosis_command

HOST = "127.0.0.1"
MOST_STREAMS, MOST_CONNECTIONS = 16, 64
"""Pages that are open at once, and connections of any kind."""
ALIVE = 15.0
"""Seconds after which a page is written to though nothing is new, so that one that was closed is noticed."""
DIAGNOSIS_LIMIT = 600.0
WIDTH, HEIGHT = 600, 60
"""Size of the curve, in units of its own."""


@cache
def _environment() -> jinja2.Environment:
    return escaping(lambda name: files(__package__).joinpath(name).read_text(encoding="utf-8"))


def fragment(view: LiveView) -> str:
    """Part of the page that changes with each look."""
    answer = answer_of(view)
    return (
        _environment()
        .get_template("fragment.html")
        .render(
            answer=answer,
            title=title(view),
            curve=_points(view.front) if view.front is not None else "",
            width=WIDTH,
            height=HEIGHT,
            last="" if view.state == "running" else last_line(view),
        )
    )


def _points(rank: RankView) -> str:
    """The curve's corners for SVG, from 0 at its foot; "" where there are less than two."""
    most = max(rank.curve, default=0.0)
    known = [(place, value) for place, value in enumerate(rank.curve) if value]
    if len(known) < 2:
        return ""
    scale = WIDTH / (len(rank.curve) - 1)
    return " ".join(f"{place * scale:.1f},{HEIGHT * (1 - value / most) + 1:.1f}" for place, value in known)


class _Server(ThreadingHTTPServer):
    """Anybody on this machine may connect: no request of theirs shows in the terminal, and threads are bounded."""

    daemon_threads = True

    def __init__(self, handler: Any, port: int) -> None:
        self._places = threading.BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__((HOST, port), handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """It went away in the middle."""


class LivePage:
    """Serves the newest view until it is closed. Raises OutputError where the port is taken."""

    def __init__(self, recording: Path, port: int) -> None:
        self.recording, self.token = recording, secrets.token_urlsafe(16)
        self.changed = threading.Condition()
        self.number, self.html, self.over = 0, "", False
        self.streams = threading.BoundedSemaphore(MOST_STREAMS)
        self.diagnosing = threading.Lock()
        try:
            self._server = _Server(partial(_Handler, self), port)
        except OSError as error:
            raise OutputError(
                "port-taken", f"Port {port} of this machine cannot be listened on ({error.strerror}): name another one."
            ) from None
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """With the token: who has it may look."""
        return f"http://{HOST}:{self.port}/?token={self.token}"

    def publish(self, view: LiveView) -> None:
        """Sends a view to all pages that are open."""
        html = fragment(view)
        with self.changed:
            self.html, self.over = html, view.state != "running"
            self.number += 1
            self.changed.notify_all()

    def close(self) -> None:
        """Ends the server; pages that are open keep what they show."""
        with self.changed:
            self.over = True
            self.number += 1
            self.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"
    timeout = 60

    def __init__(self, page: LivePage, *arguments: Any) -> None:
        self._page = page
        super().__init__(*arguments)

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody reads it."""

    def do_GET(self) -> None:
        path = self._allowed()
        if path == "/":
            self._answer(HTTPStatus.OK, *_page(self._page.token))
        elif path == "/events":
            self._stream()
        elif path is not None:
            self._answer(HTTPStatus.NOT_FOUND, "There is nothing here.")

    def do_POST(self) -> None:
        path = self._allowed()
        if path == "/profile":
            try:
                ask_for_profile(self._page.recording)
                self._answer(HTTPStatus.OK, "A profile was asked for.")
            except OutputError as error:
                self._answer(HTTPStatus.CONFLICT, error.sentence)
        elif path == "/diagnosis":
            self._diagnose()
        elif path is not None:
            self._answer(HTTPStatus.NOT_FOUND, "There is nothing here.")

    def _allowed(self) -> str | None:
        """The path that is asked for; None, and a refusal, for whoever does not name this address and the token."""
        host = self.headers.get("Host", "")
        here = host in (f"{HOST}:{self._page.port}", f"localhost:{self._page.port}")
        with contextlib.suppress(ValueError):  # no address at all
            asked = urlsplit(self.path)
            token = parse_qs(asked.query).get("token", [""])[0]
            if here and hmac.compare_digest(token.encode(errors="replace"), self._page.token.encode()):
                return asked.path
        self._answer(HTTPStatus.FORBIDDEN, "Open the address that steptime watch has printed: it has a token.")
        return None

    def _answer(self, status: HTTPStatus, body: str, policy: str = "default-src 'none'", kind: str = "plain") -> None:
        data = body.encode("utf-8", "backslashreplace")
        self.send_response(status)
        self.send_header("Content-Type", f"text/{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self._guard(policy)
        self.wfile.write(data)

    def _guard(self, policy: str) -> None:
        headers = {
            "Content-Security-Policy": policy,
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-store",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _stream(self) -> None:
        page = self._page
        if not page.streams.acquire(blocking=False):
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, "Too many pages are open.")
            return
        try:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/event-stream")
            self._guard("default-src 'none'")
            seen, over = -1, False
            while not over:
                with page.changed:
                    page.changed.wait_for(lambda: page.number != seen, ALIVE)  # noqa: B023
                    new, html, over = page.number != seen, page.html, page.over
                    seen = page.number
                self.wfile.write(f"data: {json.dumps(html)}\n\n".encode() if new and html else b": still here\n\n")
                self.wfile.flush()
            self.wfile.write(b"event: over\ndata: 1\n\n")
        except OSError:
            return  # the page was closed
        finally:
            page.streams.release()

    def _diagnose(self) -> None:
        if not self._page.diagnosing.acquire(blocking=False):
            self._answer(HTTPStatus.CONFLICT, "It is being diagnosed: wait a moment.")
            return
        try:
            words = diagnosis_command(self._page.recording)
            done = subprocess.run(words, capture_output=True, timeout=DIAGNOSIS_LIMIT, check=False)
            self._answer(HTTPStatus.OK, printable((done.stdout or done.stderr).decode("utf-8", "replace")))
        except subprocess.TimeoutExpired:
            self._answer(HTTPStatus.GATEWAY_TIMEOUT, "The diagnosis was not done in time.")
        finally:
            self._page.diagnosing.release()


def _page(token: str) -> tuple[str, str, str]:
    """(the page, its policy, "html")."""
    nonce = secrets.token_urlsafe(16)
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return _environment().get_template("page.html").render(nonce=nonce, token=token), policy, "html"
