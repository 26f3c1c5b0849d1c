"""Work of `steptime watch`, whose options are in verbs/watch.py."""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from steptime.answer.printable import one_line
from steptime.answer.screen import folded, notify, styled
from steptime.answer.text import as_text
from steptime.errors import OutputError, UsageError
from steptime.live.answer import answer_of, last_line, line
from steptime.live.export import JsonLines, OpenTelemetry, Prometheus, exporter
from steptime.live.view import LiveView
from steptime.live.watching import Watcher, ask_for_profile, diagnosis_command, find_recording

FAREWELL = 1.0
"""Seconds for open pages to load the last view."""
KEYS = "p: profile now   d: diagnose   q: leave"


def _wait(due: float) -> None:
    time.sleep(max(0.0, due - time.monotonic()))


def _as_lines(watcher: Watcher, every: float) -> LiveView:
    due = 0.0
    while True:
        view = watcher.look()
        if view.state != "running":
            return view
        if time.monotonic() >= due:
            due = time.monotonic() + every
            notify(f"{line(view)}\n")
        _wait(min(due, watcher.due))


def _views(watcher: Watcher) -> Iterator[LiveView]:
    """Views as they come, up to the job's end."""
    while (view := watcher.look()).state == "running":
        yield view
        _wait(watcher.due)
    yield view


def _exported(watcher: Watcher, wanted: JsonLines | Prometheus | OpenTelemetry, every: float) -> None:
    """Exports all views, including the last one, at least `every` seconds apart."""
    due = 0.0
    for view in _views(watcher):
        if view.state != "running" or time.monotonic() >= due:
            due = time.monotonic() + every
            wanted.show(view)


def _served(watcher: Watcher, port: int) -> LiveView:
    from steptime.live.serve import LivePage

    page = LivePage(watcher.source, port)
    try:
        notify(f"{page.url}\n")
        for view in _views(watcher):
            page.publish(view)
        time.sleep(FAREWELL)
        return view
    finally:
        page.close()


def _in_terminal(watcher: Watcher) -> LiveView | None:
    """Last view; None if the user left before the end."""
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    with _keys() as keys, Live(console=console, auto_refresh=False) as live:
        message = ""
        while True:
            view = watcher.look()
            running = view.state == "running"
            foot = (message or KEYS) if running and keys is not None else ""
            live.update(screen(view, foot, console.width), refresh=True)
            if not running:
                return view
            message = ""
            while (left := watcher.due - time.monotonic()) > 0 and not message:
                key = _key(keys, left)
                if key == "q":
                    return None
                if key == "p":
                    message = _profile(watcher.source)
                if key == "d":
                    live.stop()
                    subprocess.run(diagnosis_command(watcher.source), stdin=subprocess.DEVNULL, check=False)
                    live.start()
                    break


def screen(view: LiveView, foot: str, width: int) -> Any:
    """Whole screen of the live view, for rich. foot: names of the keys, or the result of the last one."""
    from rich.console import Group
    from rich.text import Text

    lines = (piece for line in as_text(answer_of(view), width).splitlines() for piece in folded(line, width))
    return Group(styled("\n".join(lines)), Text(f"\n{one_line(foot)}", style="dim"))


def _profile(recording: Path) -> str:
    try:
        ask_for_profile(recording)
    except OutputError as error:
        return error.sentence
    return "Profile requested."


def _key(keys: int | None, timeout: float) -> str:
    """Key pressed within `timeout` seconds; "" for none."""
    if keys is None:
        time.sleep(timeout)
        return ""
    if not select.select([keys], [], [], timeout)[0]:
        return ""
    return os.read(keys, 1).decode("ascii", "replace").lower() or "q"


@contextlib.contextmanager
def _keys() -> Iterator[int | None]:
    """Descriptor of the terminal's input in unbuffered mode without echo; None if the input is no terminal."""
    import termios
    import tty

    if not sys.stdin.isatty():
        yield None
        return
    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)
    try:
        tty.setcbreak(file)
        yield file
    finally:
        termios.tcsetattr(file, termios.TCSADRAIN, before)


def run(target: str | None, every: float, serve: bool, port: int, export: str | None, address: str) -> int:
    """Watches until the job ends or the user leaves. Returns the exit status. Raises SteptimeError."""
    if serve and export is not None:
        raise UsageError("usage", "--serve and --export exclude each other. Start one steptime watch for each.")
    recording = find_recording(target)
    watcher = Watcher(recording)
    view: LiveView | None
    try:
        if export is not None:
            with contextlib.closing(exporter(export, notify, every=every, address=address, port=port)) as wanted:
                _exported(watcher, wanted, every if export == "jsonl" else 0.0)
            return 0
        if serve:
            view = _served(watcher, port)
        elif sys.stdout.isatty():
            view = _in_terminal(watcher)
        else:
            view = _as_lines(watcher, every)
    finally:
        watcher.close()
    if view is not None:
        notify(f"{last_line(view)}\nNext:  steptime diagnose {shlex.quote(str(recording))}\n")
    return 0
