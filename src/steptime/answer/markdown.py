"""Answers as Markdown; strangers' strings are never markup."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from steptime.answer.answer import Answer, Item, Section
from steptime.answer.printable import one_line, printable
from steptime.answer.tables import Cell, Column, Table

MOST_ROWS = 16
"""Most rows of a table; the JSON has the rest."""


def as_markdown(answer: Answer) -> str:
    """Answer as a whole Markdown document, for an issue, a pull request or a wiki."""
    lines = [f"# steptime: {prose(answer.title)}", ""] if answer.title else []
    if answer.gain is not None:
        first, *more = map(prose, answer.gain.lines)
        lines += [f"## {first}", "", *(f"- {line}" for line in more), ""]
    lines += [f"**{prose(answer.headline)}** {prose(answer.badge)}".rstrip(), ""]
    lines += [f"- {prose(line)}" for line in answer.head]
    lines += [""] if answer.head else []
    for part in (*answer.parts, *answer.details()):
        lines += titled_table(part) if isinstance(part, Table) else _section(part)
    lines += [*(f"- {prose(each)}" for each in answer.notes), *([""] if answer.notes else [])]
    lines += ["## Next", "", fence(one_line(answer.next_command)), ""] if answer.next_command else []
    return printable("\n".join(lines))


def _section(section: Section) -> Iterator[str]:
    if section.title:
        yield from (f"## {prose(section.title)}", "")
    for item in section.items:
        yield from _item(item)
    if section.items and not _tall(section.items[-1]):
        yield ""


def _tall(item: Item) -> bool:
    return bool(item.summary or item.place or item.advice or item.lines or item.details or item.code)


def _item(item: Item) -> Iterator[str]:
    right = f" · {prose(item.right)}" if item.right else ""
    if not _tall(item):
        yield f"- {prose(item.title)}{right}"
        return
    yield from (f"### {prose(item.title)}{right}", "")
    for text in filter(None, (prose(item.summary), code(item.place) if item.place else "", prose(item.advice))):
        yield from (text, "")
    if item.lines or item.details:
        yield from (*(f"- {prose(line)}" for line in (*item.lines, *item.details) if line), "")
    if item.code:
        yield from (fence(item.code, ""), "")


def titled_table(table: Table) -> Iterator[str]:
    """Lines of a table under its title, of MOST_ROWS rows at most and no wide columns; none for an empty table."""
    if not table.rows:
        return
    displayed = [place for place, column in enumerate(table.columns) if column.room != "page"]
    rows, count = _displayed_rows(table), len(table.rows) + table.hidden
    number = f" ({len(rows)} of {count})" if len(rows) < count else ""
    if table.title:
        yield from (f"## {prose(table.title)}{number}", "")
    if table.note:
        yield from (prose(table.note), "")
    yield _row(table.columns[place].title for place in displayed)
    yield _row("---:" if table.columns[place].number else "---" for place in displayed)
    for row in rows:
        yield _row(_cell(table.columns[place], row[place]) for place in displayed)
    yield ""


def _displayed_rows(table: Table) -> list[tuple[Cell, ...]]:
    """First MOST_ROWS rows; of a tree, only as many whole levels as fit."""
    rows = list(table.rows)
    if len(rows) > MOST_ROWS and table.depths:
        depths = sorted(table.depths)
        deepest = depths[MOST_ROWS] - 1
        rows = [row for row, depth in zip(rows, table.depths, strict=True) if depth <= max(deepest, depths[0])]
    return rows[:MOST_ROWS]


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(column: Column[Any], cell: Cell) -> str:
    text = cell.short or cell.text
    return code(text) if column.kind == "source" and text else prose(text)


def prose(text: str) -> str:
    """String of a stranger as plain Markdown text without markup. Underscores inside words are not escaped."""
    return re.sub(r"([\\`*\[\]<>|#]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))", r"\\\1", one_line(text))


def code(text: str) -> str:
    """String of a stranger as a code span, also inside a table."""
    line = one_line(text).replace("|", "\\|")
    ticks = "`" * (max(map(len, re.findall("`+", line)), default=0) + 1)
    space = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{ticks}{space}{line}{space}{ticks}"


def fence(text: str, language: str = "sh") -> str:
    ticks = "`" * max(3, max(map(len, re.findall("`+", text)), default=0) + 1)
    return f"{ticks}{language}\n{text}\n{ticks}"
