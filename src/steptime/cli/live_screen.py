"""The live view on a terminal. Imported where one is: rich takes a while."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from steptime.live import text
from steptime.live.view import LiveView
from steptime.report.printable import one_line

BAR, LEAST_BAR, GAP = 30, 5, 2
NARROW = 80
"""Columns from which on the ranks' table has all of its own."""


def screen(view: LiveView, foot: str, width: int) -> Group:
    """All of it. foot: what keys there are, or what was just done."""
    rank, lines = view.front, [Text(text.title(view), style="bold"), Text("")]
    if step := text.step_line(view):
        lines.append(Text(step, style="bold"))
    if rank is not None and (curve := text.curve_line(rank)):
        lines.append(Text(curve, style="cyan"))
    body: list[RenderableType] = list(lines)
    if rank is not None and rank.steps:
        body.append(_parts(view, width))
    body += [Text(note, style="dim") for note in text.notes(view)]
    if view.ranks[1:]:
        body += [Text(""), _ranks(view, width)]
    reported = [text.left_out(view), *view.finding[:1]]
    body += [Text(f"\n{one_line(each)}") for each in reported if each]
    body += [Text(f"  {one_line(each)}") for each in view.finding[1:]]
    body += [Text(f"\n{one_line(each)}", style="dim") for each in (view.notice, foot) if each]
    return Group(*body)


def _parts(view: LiveView, width: int) -> Table:
    table = Table.grid(padding=(0, GAP))
    for column in range(4):
        table.add_column(justify="right" if column > 1 else "left", no_wrap=True)
    rows = text.parts(view.front) if view.front is not None else []
    widest = [max((len(str(row[place])) for row in rows), default=0) for place in (0, 1, 2)]
    # A bar that the terminal cuts would show another share.
    length = max(LEAST_BAR, min(BAR, width - 2 - sum(widest) - 3 * GAP))
    for name, time, share, part in rows:
        full = round(length * part)
        bar = Text.assemble(("█" * full, "cyan"), ("░" * (length - full), "dim"))
        table.add_row(Text(f"  {name}"), bar, Text(time), Text(share))
    return table


def _ranks(view: LiveView, width: int) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    hidden = {1, 6, 7} if width < NARROW else set() if len({rank.host for rank in view.ranks}) > 1 else {1}
    displayed = [place for place in range(len(text.RANK_HEADER)) if place not in hidden]
    for place in displayed:
        table.add_column(text.RANK_HEADER[place], justify="right" if 2 <= place <= 7 else "left")
    for row in text.rank_rows(view):
        style = "bold red" if row[-1].startswith("late") else ""
        table.add_row(*(Text(row[place]) for place in displayed), style=style)
    return table
