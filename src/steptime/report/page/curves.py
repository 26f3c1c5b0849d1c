"""Curves over a few settings with all their figures below: the page of whatever was timed at several of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from steptime.quantities import Estimate
from steptime.report.page.frame import whole
from steptime.report.page.waterfall import Decades, Tick
from steptime.report.tables import Table

BOX = 1000
"""Side of the square that the curves are drawn in, which is stretched to the plot."""
COLOURS = 9
"""Further curves begin again."""


@dataclass(frozen=True, slots=True)
class BenchCurve:
    """One of them. points: of a polyline in a square of BOX; band: its interval as a polygon."""

    name: str
    tone: int
    points: str
    band: str


@dataclass(frozen=True, slots=True)
class CurveChart:
    """Curves over a horizontal axis; the vertical one is logarithmic."""

    curves: tuple[BenchCurve, ...]
    across: tuple[Tick, ...]
    up: tuple[Tick, ...]
    title: str = "Time of a call over inputs"


def curve_of(name: str, tone: int, drawn: Sequence[tuple[float, Estimate]], axis: Decades) -> BenchCurve:
    """The curve of positive values at places of the horizontal axis, in percent."""

    def point(x: float, value: float) -> str:
        return f"{BOX * x / 100:.1f},{BOX * (1 - axis.place(max(value, 1.0)) / 100):.1f}"

    line = " ".join(point(x, each.value) for x, each in drawn)
    above, below = [point(x, each.high) for x, each in drawn], [point(x, each.low) for x, each in drawn]
    return BenchCurve(name, tone, line, " ".join([*above, *reversed(below)]))


def page_of(
    title: str,
    data: str,
    answer: tuple[str, str],
    drawn: CurveChart | None,
    tables: tuple[Table, ...],
    notes: Iterable[str],
) -> str:
    """The whole page of something that was timed. data: all of it as JSON. answer: its headline, and how sure it is."""
    headline, badge = answer
    return whole(
        "bench.html",
        title=title,
        data=data,
        headline=headline,
        badge=badge,
        chart=drawn,
        tables=tables,
        notes=tuple(notes),
    )
