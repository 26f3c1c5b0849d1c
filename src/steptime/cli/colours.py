"""The colours of text on a terminal. Imported where one is: rich takes a while."""

from __future__ import annotations

from typing import TextIO

from rich.console import Console
from rich.highlighter import RegexHighlighter
from rich.text import Text
from rich.theme import Theme


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


def write(text: str, stream: TextIO) -> None:
    """Lines for a terminal, as they are; without colours where NO_COLOR is set."""
    theme = Theme({f"steptime.{name}": style for name, style in _THEME.items()})
    Console(file=stream, theme=theme, highlight=False).print(_Colours()(Text(text)), soft_wrap=True, end="")
    stream.flush()
