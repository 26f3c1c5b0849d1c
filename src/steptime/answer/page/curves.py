"""Curves with their intervals, as pictures of an answer's page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from steptime.answer.answer import Figure
from steptime.answer.page.axes import BOX, Decades, Tick
from steptime.quantities import Estimate

COLOURS = 9
"""Further curves start again."""


@dataclass(frozen=True, slots=True)
class ValueCurve:
    """Values with their intervals. points: of a polyline in a square of BOX; band: its interval as a polygon."""

    name: str
    tone: int
    points: str
    band: str


@dataclass(frozen=True, slots=True)
class PlacedPoint:
    """A single value. x, y: percent from the left and from the top."""

    x: float
    y: float
    words: str


@dataclass(frozen=True, slots=True)
class CurveChart:
    """Curves and points over a horizontal axis; the vertical one is logarithmic. marked: the points in the legend."""

    curves: tuple[ValueCurve, ...]
    across: tuple[Tick, ...]
    up: tuple[Tick, ...]
    title: str = "Time of a call over inputs"
    points: tuple[PlacedPoint, ...] = ()
    marked: str = "operators that were placed"


def curve_of(name: str, tone: int, drawn: Sequence[tuple[float, Estimate]], axis: Decades) -> ValueCurve:
    """The curve of values, 1 at least, at places of the horizontal axis, in percent."""

    def point(x: float, value: float) -> str:
        return f"{BOX * x / 100:.1f},{BOX * (1 - axis.place(max(value, 1.0)) / 100):.1f}"

    line = " ".join(point(x, each.value) for x, each in drawn)
    above, below = [point(x, each.high) for x, each in drawn], [point(x, each.low) for x, each in drawn]
    return ValueCurve(name, tone, line, " ".join([*above, *reversed(below)]))


def curve_figures(*charts: CurveChart | None) -> tuple[Figure, ...]:
    """Charts as figures of an answer, without those that there is no reason for."""
    return tuple(
        Figure(f"curves-{number}", chart.title, "curves.html", chart)
        for number, chart in enumerate(filter(None, charts), 1)
    )
