"""Conversion of strangers' strings (paths, names, source lines) for a terminal.

One law: no control character of theirs reaches the screen, where it could move the cursor, hide text or reorder it."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path, PurePosixPath

# C0 and C1 controls (but not the line feed, which the renderers write themselves), the marks that reorder text
# (Unicode Standard Annex 9, table 4), separators that terminals break lines at, and halves of surrogate pairs.
_UNPRINTABLE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_PLAIN = str.maketrans(
    {"█": "#", "░": ".", "µ": "u", "±": "+-", "–": "-", "—": "-", "·": "-", "×": "x", "≤": "<=", "≥": ">=", "→": "->"}
    | {"…": "...", "’": "'", "“": '"', "”": '"', "−": "-", "▲": "^", "▼": "v"}
)


def printable(text: str) -> str:
    r"""Text with every unprintable character as an escape ("\x1b"). Line feeds stay."""
    return _UNPRINTABLE.sub(lambda match: match.group().encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    """Text as one printable line, with white space folded."""
    return printable(" ".join(text.split()))


def reachable(file: str) -> str:
    """Path of the job's file as an editor opens it from the current folder, relative if below it; "" if there is none.
    A path of another machine is also searched below that folder by its last parts."""
    parts = PurePosixPath(file.replace("\\", "/")).parts
    with contextlib.suppress(OSError):  # the current folder is gone, or the name is longer than any file's
        here, path = Path.cwd(), Path(file)
        if path.is_relative_to(here):
            return str(path.relative_to(here))
        if path.exists():
            return file
        ends = (PurePosixPath(*parts[first:]) for first in range(1, len(parts)) if ".." not in parts)
        return next((str(end) for end in ends if (here / end).is_file()), "")
    return ""


def shorten(text: str, width: int) -> str:
    """Text cut to `width` columns, with an ellipsis if something is missing."""
    return text if len(text) <= width else text[: max(width - 1, 0)].rstrip() + "…"


def shorten_middle(text: str, width: int) -> str:
    """Text cut to `width` columns in its middle: of a command, the program and the last arguments remain."""
    if len(text) <= width:
        return text
    last = max(width - 1, 0) // 2
    first = max(width - 1 - last, 0)
    return f"{text[:first].rstrip()}…{text[len(text) - last :].lstrip() if last else ''}"


def plain(text: str) -> str:
    """Text in ASCII for a limited terminal: steptime's own signs have equivalents, the rest is escaped."""
    return text.translate(_PLAIN).encode("ascii", "backslashreplace").decode()
