"""An answer as a page: one file that opens offline anywhere. It only displays: every figure on it is the answer's."""

from __future__ import annotations

import msgspec

from steptime.answer.answer import Answer, Section
from steptime.answer.json import as_json
from steptime.answer.page.frame import piece, whole
from steptime.answer.printable import one_line
from steptime.answer.tables import Table


def as_page(answer: Answer) -> str:
    every = (*answer.parts, *answer.details())
    return whole(
        "answer.html",
        title=one_line(answer.title),
        data=msgspec.json.format(as_json(answer).encode(), indent=-1).decode(),
        answer=answer,
        sections=tuple(part for part in every if isinstance(part, Section) and part.items),
        tables=tuple(part for part in every if isinstance(part, Table) and part.rows),
    )


ROWS = 12
"""Rows of a table or a list in a notebook."""


def as_piece(answer: Answer) -> str:
    """The answer in a notebook: HTML without script, style sheet and request, as it is on other people's page."""
    displayed = tuple(part for part in answer.parts if (part.items if isinstance(part, Section) else part.rows))
    return piece("notebook.html", answer=answer, parts=displayed, rows=ROWS)
