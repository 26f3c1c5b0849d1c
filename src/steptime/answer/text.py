"""Answers as text: headline first, only the ends of long lists cut, next command last.

Lines are unwrapped; a terminal wraps them (`screen`)."""

from __future__ import annotations

from collections.abc import Iterator

from steptime.answer.answer import Answer, Item, Section
from steptime.answer.printable import one_line, printable
from steptime.answer.tables import Table

COLUMNS = 80
BAR, LEAST_BAR = 30, 6
"""Limits for a bar's columns: with less room, there is none."""
INDENT = "  "


def as_text(answer: Answer, columns: int = COLUMNS) -> str:
    """Answer as text, with a final line feed. columns: width for the layout of bars and right edges."""
    first, *more = [one_line(each) for each in answer.gain.lines] if answer.gain is not None else [""]
    blocks = [[first, *(f"{INDENT}{line}" for line in more)]] if first else []
    blocks += [[one_line(each) for each in (answer.headline, answer.badge) if each], [*map(one_line, answer.head)]]
    blocks += [list(_part(part, answer.more, columns)) for part in answer.parts]
    blocks.append([*map(one_line, answer.notes)])
    last = [f"Next:  {one_line(answer.next_command)}"] if answer.next_command else []
    if last and answer.notes:
        blocks[-1] += last
    else:
        blocks.append(last)
    return "\n".join("".join(f"{printable(line)}\n" for line in block) for block in blocks if block)


def _part(part: Table | Section, more: str, columns: int) -> Iterator[str]:
    if isinstance(part, Table):
        yield from in_columns(part, more, columns) if part.rows else ()
        return
    displayed = part.items if part.first is None else part.items[: part.first]
    if part.title and displayed:
        yield one_line(part.title)
    for item in displayed:
        yield from _item(item, columns)
    yield from and_more(len(part.items) - len(displayed), more)


def _item(item: Item, columns: int) -> Iterator[str]:
    title, right = one_line(item.title), one_line(item.right)
    yield f"{title:<{max(columns - len(right) - 1, 0)}} {right}" if right else title
    advice = f"→ {item.advice}" if item.advice else ""
    yield from (
        f"{INDENT}{line[: len(line) - len(line.lstrip())]}{one_line(line)}"
        for line in (item.summary, item.place, advice, *item.lines)
        if line
    )


def and_more(count: int, command: str, indent: str = "") -> Iterator[str]:
    """Last line of a list from which `count` entries are left out."""
    if count > 0:
        yield f"{indent}and {count:,} more{f': {one_line(command)}' if command else ''}"


def in_columns(table: Table, more: str = "", columns: int = COLUMNS) -> Iterator[str]:
    """Lines of a table under its title, with bars after the rows, and long texts below them."""
    first = len(table.rows) if table.first is None else table.first
    rows = table.rows[:first]
    places = [place for place, column in enumerate(table.columns) if not column.room]
    below = [place for place, column in enumerate(table.columns) if column.room == "below"]
    bars = next((place for place, column in enumerate(table.columns) if column.barred), None)
    grid = [[table.columns[place].title for place in places]]
    grid += [[one_line(row[place].short or row[place].text) for place in places] for row in rows]
    widths = [max(len(row[place]) for row in grid) for place in range(len(places))]
    numbers = [table.columns[place].number for place in places]
    room = min(BAR, columns - sum(widths) - 2 * len(widths) - 2)
    if table.title:
        yield one_line(table.title)
    if table.note:
        yield f"{INDENT}{one_line(table.note)}"
    for number, texts in enumerate(grid):
        cells = zip(texts, widths, numbers, strict=True)
        line = "  ".join(text.rjust(width) if right else text.ljust(width) for text, width, right in cells)
        bar = rows[number - 1][bars].bar if number and bars is not None else None
        drawn = _bar(bar, room, track=bars is not None and table.columns[bars].whole) if bar is not None else ""
        if number or any(texts):
            yield f"{INDENT}{line}{INDENT}{drawn}".rstrip()
        for place in below if number else ():
            if text := rows[number - 1][place].text:
                yield f"{INDENT}{INDENT}{one_line(text)}"
    yield from and_more(len(table.rows) + table.hidden - len(rows), more, INDENT)


def _bar(percent: float, room: int, *, track: bool) -> str:
    """Bar of `percent` of `room` columns; with a track if the percentage refers to a meaningful whole."""
    filled = round(room * percent / 100)
    if room < LEAST_BAR or not (percent or track):
        return ""
    return "█" * filled + "░" * (room - filled) if track else "█" * max(filled, 1)
