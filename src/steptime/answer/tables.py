"""Tables, each defined once as columns over rows of one kind, for every renderer and for CSV."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

from steptime.quantities import Estimate, SourceLine, format_bytes, format_duration, format_share

Row = TypeVar("Row")
Value = TypeVar("Value")

MOST_ROWS = 400
"""Most rows that are shown; beyond that, filtering the JSON is faster than scrolling."""
LONGEST = 300
"""Most characters of a name: C++ templates can have kilobytes."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Cell of a table. text: text for a reader. value: raw value for sorting and CSV, "" if unknown. short: text for
    narrow places, "" for the same. bar: percent of the column's largest value, None for no bar. parts: values of the
    columns that data frames have in its place."""

    text: str
    value: float | str
    short: str = ""
    bar: float | None = None
    parts: tuple[float | str | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """Column of a table. raw: its name in CSV, with the unit. number: True if right-aligned and sorted by value. kind:
    "code" (names), "source" (the user's code), "category", "bound" or "". barred: True for a bar per value, relative to
    the column's largest, or absolute with `whole` (values are fractions of one whole). room: where it is shown, "" for
    everywhere; "below": in a terminal on a line of its own; "document": not in a terminal; "page": on a page and in CSV
    only. split: columns that data frames have in its place: an interval's bounds, a line's file and number."""

    title: str
    raw: str
    cell: Callable[[Row], Cell]
    number: bool = True
    kind: str = ""
    barred: bool = False
    room: str = ""
    whole: bool = False
    split: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Table:
    """Table of an answer. identity: unique on a page. note: sentence under the title. hidden: number of rows left out;
    rest: the rows left out, as far as they are known. depths: level of each row in a tree, whose first column has a
    name as its text and the whole path as its value. first: number of rows that a terminal shows, None for all."""

    identity: str
    title: str
    note: str
    columns: tuple[Column[Any], ...]
    rows: tuple[tuple[Cell, ...], ...]
    hidden: int = 0
    depths: tuple[int, ...] = ()
    rest: tuple[tuple[Cell, ...], ...] = ()
    first: int | None = None


def table_of(
    identity: str,
    title: str,
    note: str,
    rows: Iterable[Row],
    *columns: Column[Row],
    most: int = MOST_ROWS,
    first: int | None = None,
) -> Table:
    """Table that shows its first `most` rows; columns without any text are left out."""
    every = list(rows)
    made = [(column, [column.cell(row) for row in every]) for column in columns]
    kept = [(column, _barred(cells, column.whole) if column.barred else cells) for column, cells in made
            if any(cell.text for cell in cells)]  # fmt: skip
    cells = tuple(zip(*(cells for _, cells in kept), strict=True))
    titles, hidden = tuple(column for column, _ in kept), max(len(every) - most, 0)
    return Table(identity, title, note, titles, cells[:most], hidden, rest=cells[most:], first=first)


def values_of(table: Table) -> dict[str, list[float | str | None]]:
    """All rows by column, under the names of CSV: raw numbers, None if unknown. An interval becomes two columns of
    numbers; a source line becomes a file and a line number."""
    rows, found = (*table.rows, *table.rest), dict[str, list[float | str | None]]()
    for place, column in enumerate(table.columns):
        if not column.split:
            values = (row[place].value for row in rows)
            found[column.raw or column.title] = [None if column.number and each == "" else each for each in values]
        for part, name in enumerate(column.split):
            found[name] = [row[place].parts[part] if row[place].parts else None for row in rows]
    return found


def _barred(cells: list[Cell], whole: bool) -> list[Cell]:
    values = [cell.value if isinstance(cell.value, float | int) else 0.0 for cell in cells]
    largest = 1.0 if whole else max(values, default=0.0)
    if largest <= 0:
        return cells
    return [replace(cell, bar=100 * max(value, 0.0) / largest) for cell, value in zip(cells, values, strict=True)]


def word(
    title: str,
    raw: str,
    get: Callable[[Row], str],
    kind: str = "",
    *,
    short: Callable[[str], str] | None = None,
    room: str = "",
) -> Column[Row]:
    """Column of words. short: function that shortens the text for narrow places."""

    def cell(row: Row) -> Cell:
        text = " ".join(get(row).split())
        displayed = text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
        return Cell(displayed, text[:LONGEST], short(text)[:LONGEST] if short is not None else "")

    return Column(title, raw, cell, number=False, kind=kind, room=room)


def number(
    title: str,
    raw: str,
    get: Callable[[Row], float | None],
    words: Callable[[float], str],
    *,
    barred: bool = False,
    room: str = "",
) -> Column[Row]:
    """Column of numbers, empty if unknown. words: text of a number."""
    cell = _cell_of(get, lambda value: Cell(words(value), value))
    return Column(title, raw, cell, barred=barred, room=room)


def _cell_of(get: Callable[[Row], Value | None], made: Callable[[Value], Cell]) -> Callable[[Row], Cell]:
    """Function that makes the cell of a row, empty if its value is unknown."""
    return lambda row: Cell("", "") if (value := get(row)) is None else made(value)


duration = partial(number, words=format_duration)
"""Column of durations in ns."""
size = partial(number, words=format_bytes)
"""Column of bytes."""
count = partial(number, words="{:.4g}".format)
"""Column of counts, which may be means."""


def integer(title: str, raw: str, get: Callable[[Row], int]) -> Column[Row]:
    """Column of integers."""
    return number(title, raw, get, "{:.0f}".format)


def interval(
    title: str,
    get: Callable[[Row], Estimate | None],
    words: Callable[[Estimate], str],
    *,
    names: tuple[str, str] = ("low_ns", "high_ns"),
    room: str = "",
) -> Column[Row]:
    """Column of intervals. names: names of the two bounds in data frames."""
    cell = _cell_of(get, lambda value: Cell(words(value), words(value), parts=(value.low, value.high)))
    return Column(title, "interval", cell, number=False, room=room, split=names)


def source_line(title: str, get: Callable[[Row], SourceLine | None], words: Callable[[SourceLine], str]) -> Column[Row]:
    """Column of source lines. words: function that makes the text of a line."""
    cell = _cell_of(get, lambda source: Cell(words(source), words(source), parts=source.place))
    return Column(title, "line", cell, number=False, split=("file", "line"))


def share(title: str, raw: str, get: Callable[[Row], float | None], *, barred: bool = False) -> Column[Row]:
    """Column of fractions, shown as percent."""
    return replace(number(title, raw, get, format_share, barred=barred), whole=barred)
