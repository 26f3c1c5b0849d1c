"""The whole traces on the page: carried along as far as there is room, else by the place where they lie."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from steptime.quantities import format_bytes
from steptime.report.trace_files import TraceFile

MARKUP = 1_000
"""Bytes that a trace takes on the page beside what is in it."""
OPENS = ("<", ":")
"""The one sign of base 85 (RFC 1924) that could begin markup, and one that stands for it, which base 85 has not."""


@dataclass(frozen=True, slots=True)
class ShownTrace:
    """identity: of the element that holds it. name: of the file that it is saved as. content: gzip in base 85, padded,
    "" where it is not on the page; length: bytes of the gzip."""

    identity: str
    path: str
    name: str
    what: str
    size: str
    content: str
    length: int


def shown_traces(files: Sequence[TraceFile], room: int) -> tuple[ShownTrace, ...]:
    """room: bytes that the page has left, given to the first ones."""
    shown = []
    for number, file in enumerate(files):
        content = file.content or b""
        carried = bool(content) and 1.25 * len(content) + MARKUP <= room
        text = base64.b85encode(content, pad=True).decode().replace(*OPENS) if carried else ""
        room -= len(text) + MARKUP if carried else 0
        name = Path(file.path).name
        name = name if name.endswith(".gz") else f"{name}.gz"
        shown.append(
            ShownTrace(f"trace-{number}", file.path, name, file.what, format_bytes(file.size), text, len(content))
        )
    return tuple(shown)
