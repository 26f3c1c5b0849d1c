"""Live view on a terminal. Imported only for a terminal, because rich is slow to import."""

from __future__ import annotations

from rich.console import Group
from rich.text import Text

from steptime.answer.printable import one_line
from steptime.answer.screen import folded, styled
from steptime.answer.text import as_text
from steptime.live.answer import answer_of
from steptime.live.view import LiveView


def screen(view: LiveView, foot: str, width: int) -> Group:
    """Whole screen. foot: the keys, or the result of the last one."""
    lines = (piece for line in as_text(answer_of(view), width).splitlines() for piece in folded(line, width))
    return Group(styled("\n".join(lines)), Text(f"\n{one_line(foot)}", style="dim"))
