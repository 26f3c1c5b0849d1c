"""A card: an answer as a picture of the size that is shared, 1200 x 630; and how any picture of ours becomes a PNG.

One law: what strangers wrote is text. The template escapes it, and the picture asks for nothing.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from pathlib import Path

from steptime.answer.answer import Answer
from steptime.answer.page.frame import asset, escaping
from steptime.answer.printable import one_line, shorten_middle
from steptime.answer.tables import Table
from steptime.errors import OutputError

WIDTH, HEIGHT, MARGIN = 1200, 630, 64
"""Pixels."""
LARGEST, GLYPH = 96, 0.6
"""Size of the big number in pixels, and the width of a bold digit over its size."""
MOST_PARTS = 5
"""Categories with a name below the bar; the others are one grey rest."""
HEADLINE, TITLE, CAUSE = 46, 62, 72
"""Characters of a line."""
TONES = {
    "compute": "#0072b2", "communication": "#009e73", "copy": "#56b4e9", "input": "#e69f00", "sync": "#cc79a7",
    "compile": "#7a5aa6", "overhead": "#c8b400", "python": "#d55e00",
}  # fmt: skip
GREY = "#8d949c"
FONTS = ("/usr/share/fonts", "/usr/local/share/fonts", "~/.fonts", "~/.local/share/fonts", "/Library/Fonts",
         "/System/Library/Fonts")  # fmt: skip
"""Folders in which systems keep fonts."""


@dataclass(frozen=True, slots=True)
class CardPart:
    """Part of the bar on a card. x, width: pixels; words: label below it, "" for none."""

    x: float
    width: float
    tone: str
    words: str


def as_svg(answer: Answer) -> str:
    gain = answer.gain
    number = one_line(gain.number) if gain is not None else ""
    template = escaping(asset).get_template("card.svg")
    text = template.render(
        width=WIDTH,
        height=HEIGHT,
        margin=MARGIN,
        title=shorten_middle(one_line(answer.title), TITLE),
        gain=gain,
        number=number,
        size=min(LARGEST, int((WIDTH - 2 * MARGIN) / (GLYPH * max(len(number), 1)))),
        cause=_lines(gain.cause if gain is not None else answer.badge, CAUSE, 2),
        headline=_lines(answer.headline, HEADLINE, 5),
        parts=_parts(answer),
    )
    return text.encode("utf-8", "backslashreplace").decode() + "\n"


def as_card(answer: Answer) -> bytes:
    """Card of an answer, a picture to share, as PNG; needs the extra `images`. Raises OutputError without fonts."""
    return as_png(as_svg(answer), 1.0)


def as_png(svg: str, sharpness: float) -> bytes:
    """SVG picture as PNG; needs the extra `images`. sharpness: pixels per unit. Raises OutputError without fonts."""
    import resvg_py

    folders = (Path(folder).expanduser() for folder in FONTS)
    if not any(path.suffix.lower() in (".ttf", ".otf", ".ttc") for folder in folders for path in folder.rglob("*")):
        raise OutputError(
            "images-no-fonts",
            "No font is installed here, so a .png would have no words: install one (on Debian, fonts-dejavu-core), or "
            "name a .svg.",
        )
    return bytes(resvg_py.svg_to_bytes(svg_string=svg, zoom=sharpness))


def _lines(text: str, width: int, most: int) -> list[str]:
    return textwrap.wrap(one_line(text), width, max_lines=most, placeholder=" …")


def _parts(answer: Answer) -> tuple[CardPart, ...]:
    """The first table of categories as a stacked bar, the largest first."""
    table = next((each for each in answer.parts if isinstance(each, Table) and _place(each) is not None), None)
    if table is None:
        return ()
    name, value = _place(table) or 0, next(at for at, column in enumerate(table.columns) if column.number)
    spent = [(row[name].text, float(row[value].value or 0), row[value].text) for row in table.rows]
    spent.sort(key=lambda each: -each[1])
    whole, room, at, parts = sum(each[1] for each in spent), WIDTH - 2 * MARGIN, 0.0, []
    for number, (category, time, words) in enumerate(spent if whole else ()):
        named = number < MOST_PARTS
        tone = TONES.get(category, GREY) if named else GREY
        width = room * time / whole
        parts.append(CardPart(MARGIN + at, width, tone, f"{category} {words}" if named else ""))
        at += width
    return tuple(parts)


def _place(table: Table) -> int | None:
    """Column with the names of categories."""
    return next((at for at, column in enumerate(table.columns) if column.kind == "category"), None)
