"""Output of text: on a terminal wrapped to its width and coloured; in files and pipes unchanged."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from typing import Any, TextIO

from steptime.answer.printable import plain, printable

USUAL, NARROWEST, WIDEST = 80, 40, 110
"""Columns if the width is unknown, and limits for the layout of bars and titles."""
HANGING = re.compile(r"\s*(?:→ |[A-Z][\w ]{1,12}: +)?")
"""Pattern of the indent of a sentence's further lines."""
PASTED = re.compile(r"\s*(?:Next|Apply it)\b")
"""Pattern of lines with commands: these are never broken, so that they can be copied whole."""

COLOURS = (
    (r"(?P<bar>█+)(?P<rest>░*)", {"bar": "cyan", "rest": "dim"}),
    (r"\A(?P<gain>[^\n]+ (?:possible|measured) \([^\n]+×\)\n)", {"gain": "bold green"}),
    (
        r"(?:\A(?![^\n]+×\)\n)|\A[^\n]+×\)\n(?:  [^\n]+\n)*\n)"
        r"(?P<answer>(?:[^\n]+\n)+?)(?=(?:Confident|Likely|Unclear): |\n|\Z)",
        {"answer": "bold"},
    ),
    (
        r"(?m)^(?:(?P<sure>Confident)|(?P<likely>Likely)|(?P<unclear>Unclear))(?=: )",
        {"sure": "green", "likely": "yellow", "unclear": "red"},
    ),
    (r"(?m)^(?P<code>[A-Z]{2}\d{3} \S+)", {"code": "bold yellow"}),
    (r"(?m)^ +(?P<place>\S+:\d+)(?=: |$)", {"place": "cyan"}),
    (r"(?m)^Next: +(?P<command>.+)$", {"command": "bold green"}),
    (r"(?m) (?:(?P<good>shorter|less|adopt)|(?P<bad>longer|more))$", {"good": "green", "bad": "red"}),
    (r"(?m)^ .* (?P<late>late: .+)$", {"late": "bold red"}),
)
"""Styles of parts of a text: patterns, and the styles of their groups."""
UNIT, NO_BREAK = re.compile(r"(?<=\d) (?=%|(?:[nµm]?s|min|[kMGT]?i?B|[kMGT]FLOP)\b)|(?<=±) "), "\xa0"
"""Pattern of the space between a number and its unit, and the space that prevents a line break there."""


def columns(*, error: bool = False) -> int:
    """Columns for the layout of text: the terminal's width, within limits."""
    return min(max(_width(sys.stderr if error else sys.stdout), NARROWEST), WIDEST)


def _width(stream: TextIO) -> int:
    """Width of the terminal, columns."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or USUAL
    except (OSError, ValueError):
        return USUAL


def show(text: str, *, error: bool = False) -> None:
    """Prints text on standard output or standard error. Setting NO_COLOR disables colours."""
    stream = sys.stderr if error else sys.stdout
    if not stream.isatty():
        notify(text, error=error)
        return
    from rich.console import Console  # rich takes a while

    width = max(_width(stream), NARROWEST)
    lines = (piece for line in printable(text).splitlines() for piece in folded(line, width))
    whole = "".join(f"{line}\n" for line in lines)
    fits = "utf" in (getattr(stream, "encoding", None) or "").lower()
    Console(file=stream, highlight=False).print(styled(whole if fits else plain(whole)), soft_wrap=True, end="")
    stream.flush()


def notify(text: str, *, error: bool = False) -> None:
    """Prints text on standard output or standard error, unwrapped, in characters that the stream can encode."""
    stream = sys.stderr if error else sys.stdout
    fits = "utf" in (getattr(stream, "encoding", None) or "").lower()
    stream.write(printable(text) if fits else plain(printable(text)))
    stream.flush()


def styled(text: str) -> Any:
    """Text with the styles of COLOURS, as a `rich.text.Text`."""
    from rich.text import Text  # rich takes a while

    displayed = Text(text)
    for pattern, styles in COLOURS:
        for match in re.finditer(pattern, text):
            for name, style in styles.items():
                displayed.stylize(style, *match.span(name))
    return displayed


def folded(line: str, width: int) -> list[str]:
    """Pieces of a line, each of at most `width` columns, indented to its label. Words, such as paths, stay whole."""
    if len(line) <= width or PASTED.match(line):
        return [line]
    match = HANGING.match(line)
    hanging = " " * min(match.end() if match else 0, width // 3)
    text = line.lstrip()
    indent = line[: len(line) - len(text)]
    pieces = textwrap.wrap(
        UNIT.sub(NO_BREAK, text),
        width,
        initial_indent=indent,
        subsequent_indent=hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [piece.replace(NO_BREAK, " ") for piece in pieces]
