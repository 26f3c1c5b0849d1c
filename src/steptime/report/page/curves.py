"""Curves with their intervals, and the page of what was timed: the answer, curves, tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from steptime.quantities import Estimate
from steptime.report.page.frame import whole
from steptime.report.page.waterfall import BOX, Decades, Tick, decades, middles
from steptime.report.sweep import SweptBatch, answer, rate_text, table, to_json
from steptime.report.tables import Table

COLOURS = 9
"""Further curves begin again."""


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
    """Curves over a horizontal axis, and points among them; the vertical one is logarithmic. marked: what the points
    are, in the legend."""

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


def page_of(
    title: str,
    data: str,
    answer: tuple[str, str],
    drawn: Sequence[CurveChart | None],
    tables: tuple[Table, ...],
    notes: Iterable[str],
) -> str:
    """The whole page of something that was timed. data: all of it as JSON. answer: its headline, and how sure it is.
    drawn: its pictures, None for one that there is no reason for."""
    headline, badge = answer
    return whole(
        "bench.html",
        title=title,
        data=data,
        headline=headline,
        badge=badge,
        charts=tuple(filter(None, drawn)),
        tables=tables,
        notes=tuple(notes),
    )


def render_page(points: Sequence[SweptBatch]) -> str:
    """The whole page."""
    return page_of("A sweep over batch sizes", to_json(points), answer(points), [chart(points)], (table(points),), ())


def chart(points: Sequence[SweptBatch]) -> CurveChart | None:
    """Throughput over batch size; None for one size."""
    if len(points) < 2:
        return None
    rates = [Estimate(each.throughput, each.batch / each.step.high * 1e9, each.batch / max(each.step.low, 1.0) * 1e9,
                      each.step.samples) for each in points]  # fmt: skip
    up = decades([max(each.value, 1.0) for each in rates])
    places = middles(len(points))
    line = curve_of("samples per second", 0, list(zip(places, rates, strict=True)), up)
    sizes = tuple(Tick(place, str(each.batch)) for place, each in zip(places, points, strict=True))
    return CurveChart((line,), sizes, up.every_tick(rate_text), "Throughput over batch size")
