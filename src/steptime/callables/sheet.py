"""What was timed as text, Markdown, JSON and a page: the answer first, then tables and notes, whatever it is of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from steptime.report.json import document
from steptime.report.markdown import prose, titled_table
from steptime.report.output import Renderer
from steptime.report.page.curves import CurveChart, page_of
from steptime.report.printable import one_line, printable
from steptime.report.tables import Table

SURE = 0.1
"""Half of an interval over its value: a wider one is worth a word."""
Timed = TypeVar("Timed")


@dataclass(frozen=True, slots=True)
class Sheet:
    """title: of the page. head: what was timed, and with what. headline: the answer; badge: how sure it is. notes: what
    the tables do not say; notes_first: they stand before the tables in a terminal. charts: None for one that there is
    no reason for. data: what programs get beside the headline."""

    title: str
    head: str
    headline: str
    badge: str
    tables: tuple[Table, ...]
    notes: tuple[str, ...]
    charts: tuple[CurveChart | None, ...]
    data: Mapping[str, Any]
    notes_first: bool = False


def as_text(sheet: Sheet) -> str:
    """The whole text, with a line feed at its end."""
    tables = [line for table in sheet.tables for line in ("", *in_columns(table))]
    notes = ["", *map(one_line, sheet.notes)] if sheet.notes else []
    rest = (*notes, *tables) if sheet.notes_first else (*tables, *notes)
    top = (one_line(sheet.head), "", one_line(sheet.headline), one_line(sheet.badge))
    return "".join(f"{printable(line)}\n" for line in (*top, *rest))


def as_markdown(sheet: Sheet) -> str:
    """For an issue or a pull request."""
    lines = [f"**{prose(sheet.headline)}** {prose(sheet.badge)}", "", prose(sheet.head), ""]
    for table in sheet.tables:
        lines += titled_table(table)
    return printable("\n".join([*lines, *(f"- {prose(each)}" for each in sheet.notes)])) + "\n"


def as_json(sheet: Sheet) -> str:
    """All of it, with its headline."""
    return document({"headline": sheet.headline, "confidence": sheet.badge, **sheet.data})


def as_page(sheet: Sheet) -> str:
    """The whole page."""
    answer = sheet.headline, sheet.badge
    return page_of(sheet.title, as_json(sheet), answer, sheet.charts, sheet.tables, sheet.notes)


def renderers_of(sheet_of: Callable[[Timed], Sheet]) -> tuple[Renderer[Timed], ...]:
    """The formats of something that was timed, by the sheet of it."""
    return (
        Renderer(".txt", lambda timed: as_text(sheet_of(timed))),
        Renderer(".md", lambda timed: as_markdown(sheet_of(timed))),
        Renderer(".json", lambda timed: as_json(sheet_of(timed))),
        Renderer(".html", lambda timed: as_page(sheet_of(timed))),
    )


def in_columns(table: Table) -> list[str]:
    """A table in columns, under its title."""
    grid = [[column.title for column in table.columns], *([cell.text for cell in row] for row in table.rows)]
    widths = [max(len(row[place]) for row in grid) for place in range(len(table.columns))]
    numbers = [column.number for column in table.columns]
    rows = (
        "  ".join(
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(row, widths, numbers, strict=True)
        )
        for row in grid
    )
    return [table.title, *(f"  {row}".rstrip() for row in rows)]
