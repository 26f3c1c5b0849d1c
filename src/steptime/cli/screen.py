"""Text for a person: on a terminal wrapped to its width and coloured; in files and pipes as it is, nothing cut."""

from __future__ import annotations

import os
import re
import sys
import textwrap

from rich.console import Console
from rich.highlighter import RegexHighlighter
from rich.text import Text
from rich.theme import Theme

from steptime.cli.exit_codes import tell
from steptime.report.printable import plain, printable

USUAL, NARROWEST, WIDEST = 80, 40, 110
"""Columns: where none are known, and those that text is laid out for."""
HANGING = re.compile(r"\s*(?:→ |[A-Z][\w ]{1,12}: +)?")
"""What further lines of a sentence stand behind."""
PASTED = re.compile(r"\s*(?:Next|Apply it)\b")
"""Commands: a line of them is never broken, so that it can be copied whole."""


class _Colours(RegexHighlighter):
    base_style = "steptime."
    highlights = [  # noqa: RUF012 - as the class that it is of declares it
        r"(?P<bar>█+)(?P<rest>░*)",
        r"\n\n(?P<answer>(?:[^\n]+\n)+?)(?=(?:Confident|Likely|Unclear): )",
        r"(?m)^(?:(?P<sure>Confident)|(?P<likely>Likely)|(?P<unclear>Unclear))(?=: )",
        r"(?m)^(?P<code>[A-Z]{2}\d{3} \S+)",
        r"(?m)^ +(?P<place>\S+:\d+)(?=: |$)",
        r"(?m)^Next: +(?P<command>.+)$",
        r"(?m) (?:(?P<good>shorter|less|adopt)|(?P<bad>longer|more))$",
    ]


_THEME = {
    "bar": "cyan",
    "rest": "dim",
    "answer": "bold",
    "sure": "green",
    "likely": "yellow",
    "unclear": "red",
    "code": "bold yellow",
    "place": "cyan",
    "command": "bold green",
    "good": "green",
    "bad": "red",
}


def columns(*, error: bool = False) -> int:
    """That text is laid out for: the terminal's own, within reason."""
    stream = sys.stderr if error else sys.stdout
    try:
        given = os.get_terminal_size(stream.fileno()).columns if stream.isatty() else USUAL
    except (OSError, ValueError):
        given = USUAL
    return min(max(given or USUAL, NARROWEST), WIDEST)


def show(text: str, *, error: bool = False) -> None:
    """Text on standard output or standard error. Colours are left out where NO_COLOR is set."""
    stream = sys.stderr if error else sys.stdout
    if not stream.isatty():
        tell(text, error=error)
        return
    width = columns(error=error)
    lines = (piece for line in printable(text).splitlines() for piece in folded(line, width))
    whole = "".join(f"{line}\n" for line in lines)
    fits = "utf" in (getattr(stream, "encoding", None) or "").lower()
    theme = Theme({f"steptime.{name}": style for name, style in _THEME.items()})
    console = Console(file=stream, width=width, theme=theme, highlight=False)
    console.print(_Colours()(Text(whole if fits else plain(whole))), soft_wrap=True, end="")
    stream.flush()


def folded(line: str, width: int) -> list[str]:
    """A line in pieces of at most `width` columns, further ones behind its indent or label. Words are not broken: a
    path stays one that can be opened."""
    if len(line) <= width or PASTED.match(line):
        return [line]
    match = HANGING.match(line)
    hanging = " " * min(match.end() if match else 0, width // 3)
    text = line.lstrip()
    indent = line[: len(line) - len(text)]
    return textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False
    )
