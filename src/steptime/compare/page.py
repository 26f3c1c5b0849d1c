"""The comparison as a page: the waterfall from the first run to the last, what was set otherwise, and all figures."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from steptime.compare.comparison import Check, Comparison
from steptime.compare.tables import difference_tables, runs_table, settings_table
from steptime.compare.text import why
from steptime.report.json import document
from steptime.report.page.frame import whole
from steptime.report.page.waterfall import Moves, moves_of
from steptime.report.printable import one_line

SMALLEST = 0.002
"""Of the longer step: categories that moved by less share a row."""


def render(comparison: Comparison) -> str:
    """The whole page."""
    first, last = one_line(comparison.runs[0].label), one_line(comparison.runs[-1].label)
    several = len(comparison.runs) > 2
    return whole(
        "comparison.html",
        title=f"{first} against {last}",
        data=msgspec.json.format(document(comparison).encode(), indent=-1).decode(),
        comparison=replace(comparison, checks=tuple(_reported(comparison))),
        labels=("the first", "the last") if several else ("before", "now"),
        moves=moves_of_parts(comparison),
        settings=settings_table(comparison),
        runs=runs_table(comparison) if several else None,
        tables=difference_tables(comparison),
    )


def _reported(comparison: Comparison) -> list[Check]:
    """The bounds of the gate beside the comparison's sentence."""
    return [replace(check, sentence=why(check, comparison)) for check in comparison.checks]


def moves_of_parts(comparison: Comparison) -> Moves:
    """Where the blocks of the waterfall lie."""
    step = comparison.step
    before, after = (each.value if each is not None else 0.0 for each in (step.before, step.after))
    least = SMALLEST * max(before, after)
    moved = [(part.name, part.change) for part in comparison.parts if part.change is not None]
    return moves_of([(name, change) for name, change in moved if abs(change.value) >= least], before, after)
