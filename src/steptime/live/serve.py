"""The live view as a page for a browser on this machine, by server-sent events and the standard library only.

Laws: it listens on the loopback only. It answers only requests that name this very address and have the token of the
URL, which no foreign page can do, whatever its name resolves to. Foreign text (commands, lines, hosts) is escaped, and
the page's policy allows no script but our own.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import threading
from functools import cache, partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jinja2
from markupsafe import Markup

from steptime.answer.page.axes import Tick
from steptime.answer.page.frame import STYLES, asset, escaping
from steptime.errors import OutputError
from steptime.live.answer import answer_of, last_line, machine_lines, rank_notes, title
from steptime.live.charts import pieces_of, rank_rows, step_course, strips_of
from steptime.live.view import POINTS, LiveView
from steptime.live.watching import STEPS_TO_DIAGNOSE, ask_for_profile
from steptime.quantities import format_duration

HOST = "127.0.0.1"
MOST_STREAMS, MOST_CONNECTIONS = 16, 64
"""Most pages that are open at once, and most connections of any kind."""
ALIVE = 15.0
"""Seconds after which data is sent to a page although nothing is new, to detect closed pages."""


@cache
def _environment() -> jinja2.Environment:
    return escaping(lambda name: files(__package__).joinpath(name).read_text(encoding="utf-8"))


def fragment(view: LiveView) -> str:
    """HTML of the part of the page that changes with each update."""
    answer, rank = answer_of(view), view.front
    ranks, ticks = rank_rows(view.ranks, view.waiting)
    trained = rank is not None and rank.steps > 0
    return (
        _environment()
        .get_template("fragment.html")
        .render(
            answer=answer,
            title=title(view),
            last="" if view.state == "running" else last_line(view),
            diagnosed=view.diagnosed,
            findings=view.diagnosed.findings if view.diagnosed is not None else (),
            waiting=f"The first diagnosis comes after {STEPS_TO_DIAGNOSE} steps, then about one a minute.",
            command=answer.more,
            pieces=pieces_of(rank) if rank is not None and trained else (),
            quarters=_QUARTERS,
            wall=format_duration(rank.wall) if rank is not None else "",
            whole=format_duration(rank.wall) if rank is not None and trained else "",
            course=step_course(rank) if rank is not None else None,
            interval=format_duration(rank.wall / POINTS) if rank is not None else "",
            notes=rank_notes(view),
            ranks=ranks,
            ticks=ticks,
            strips=strips_of(view.samples),
            minute=_MINUTE,
            machine=machine_lines(view.machine) if view.machine is not None else (),
        )
    )


_QUARTERS = tuple(Tick(25.0 * number, words) for number, words in enumerate(("0", "", "50 %", "", "100 %")))
_MINUTE = (Tick(0.0, "−60 s"), Tick(50.0, "−30 s"), Tick(100.0, "now"))


class _Server(ThreadingHTTPServer):
    """Server for untrusted local clients: their requests do not show in the terminal, and threads are bounded."""

    daemon_threads = True
    request_queue_size = MOST_CONNECTIONS  # a client beyond the usual five would wait seconds to be let in

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
        """Ignores a client that disconnected."""


class LivePage:
    """Web server for the newest live view. Raises OutputError if the port is taken."""

    def __init__(self, recording: Path, port: int) -> None:
        self.recording, self.token = recording, secrets.token_urlsafe(16)
        self.changed = threading.Condition()
        self.number, self.html, self.over = 0, "", False
        self.streams = threading.BoundedSemaphore(MOST_STREAMS)
        try:
            self._server = _Server(partial(_Handler, self), port)
        except OSError as error:
            raise OutputError(
                "port-taken",
                f"Port {port} of this machine cannot be opened ({error.strerror}). Give another one with --port.",
            ) from None
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Address of the page with its token, which grants access."""
        return f"http://{HOST}:{self.port}/?token={self.token}"

    def publish(self, view: LiveView) -> None:
        """Sends a view to all open pages."""
        html = fragment(view)
        with self.changed:
            self.html, self.over = html, view.state != "running"
            self.number += 1
            self.changed.notify_all()

    def close(self) -> None:
        """Ends the server; open pages keep their content."""
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
        """Discards the log, which would write into the terminal."""

    def do_GET(self) -> None:
        path = self._allowed()
        if path == "/":
            self._answer(HTTPStatus.OK, *_page())
        elif path == "/events":
            self._stream()
        elif path is not None:
            self._answer(HTTPStatus.NOT_FOUND, "There is nothing here.")

    def do_POST(self) -> None:
        path = self._allowed()
        if path == "/profile":
            try:
                ask_for_profile(self._page.recording)
                self._answer(HTTPStatus.OK, "Profile requested.")
            except OutputError as error:
                self._answer(HTTPStatus.CONFLICT, error.sentence)
        elif path is not None:
            self._answer(HTTPStatus.NOT_FOUND, "There is nothing here.")

    def _allowed(self) -> str | None:
        """Requested path; None, after a refusal, if the request does not name this address and the token."""
        host = self.headers.get("Host", "")
        here = host in (f"{HOST}:{self._page.port}", f"localhost:{self._page.port}")
        with contextlib.suppress(ValueError):  # no address at all
            asked = urlsplit(self.path)
            token = parse_qs(asked.query).get("token", [""])[0]
            if here and hmac.compare_digest(token.encode(errors="replace"), self._page.token.encode()):
                return asked.path
        self._answer(HTTPStatus.FORBIDDEN, "Open the full address that steptime watch printed; it contains a token.")
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


def _page() -> tuple[str, str, str]:
    """(the page, its policy, "html")."""
    nonce = secrets.token_urlsafe(16)
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    style = Markup("\n".join(map(asset, STYLES)))
    return _environment().get_template("page.html").render(nonce=nonce, style=style), policy, "html"
