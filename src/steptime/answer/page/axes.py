"""Axes of pictures, in percent of the plot, so that these are as wide as the reader's window; curves with intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from steptime.answer.answer import Figure
from steptime.quantities import PREFIXES, Estimate, format_duration

BOX = 1000
"""Side of the square that series, areas and curves are drawn in, which is stretched to the plot."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Mark on an axis. place: percent of the axis from its start."""

    place: float
    words: str


@dataclass(frozen=True, slots=True)
class Shape:
    """Line or area of a chart, in a square of BOX. points: SVG points of a polyline, or an SVG path. words: text for
    the legend. tone: number of its colour, or of its strength."""

    name: str
    points: str
    words: str = ""
    tone: int = 0


@dataclass(frozen=True, slots=True)
class Decades:
    """Logarithmic axis over whole decades, from 10**low to 10**high."""

    low: int
    high: int

    def place(self, value: float) -> float:
        """Place of a value, percent from the start of the axis; below 0 or above 100 outside of it."""
        return 100 * (math.log10(value) - self.low) / (self.high - self.low)

    def ticks(self) -> tuple[Tick, ...]:
        """Ticks at whole decades; at every second one if there are many."""
        stride = 1 + (self.high - self.low) // 8
        powers = range(self.low, self.high + 1, stride)
        return tuple(Tick(self.place(10.0**power), _power(power)) for power in powers)

    def every_tick(self, words: Callable[[float], str]) -> tuple[Tick, ...]:
        """Ticks at all whole decades. words: function that makes a value's text."""
        values = (10.0**power for power in range(self.low, self.high + 1))
        return tuple(Tick(self.place(value), words(value)) for value in values)


def decades(values: list[float]) -> Decades:
    """Logarithmic axis that contains all the values, which must be positive."""
    low = math.floor(math.log10(min(values)) - 1e-9)
    high = math.ceil(math.log10(max(values)) + 1e-9)
    return Decades(low, max(high, low + 1))


def decades_of(estimates: Iterable[Estimate]) -> Decades:
    """Logarithmic axis that contains the intervals of all estimates, from 1 on."""
    return decades([bound for each in estimates for bound in (max(each.low, 1.0), each.high)])


def middles(count: int) -> list[float]:
    """Middles of `count` equal parts of an axis, percent."""
    return [100 * (number + 0.5) / count for number in range(count)]


def even_ticks(highest: float, about: int = 5) -> tuple[Tick, ...]:
    """Ticks at round durations from 0 to `highest` ns, about `about` of them."""
    if highest <= 0:
        return ()
    rough = highest / about
    size = 10.0 ** math.floor(math.log10(rough))
    stride = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= rough * 0.999)
    count = int(highest / stride + 1e-9)
    return tuple(
        Tick(100 * number * stride / highest, format_duration(number * stride) if number else "0")
        for number in range(count + 1)
    )


def _power(power: int) -> str:
    """ "0.01", "10", "1 k", "100 G": for the tick of a power of ten; a unit may follow."""
    value = 10.0**power
    if value < 1e3:
        return f"{value:.12f}".rstrip("0").rstrip(".") + " " if power >= -4 else f"1e{power} "
    size, prefix = next(((size, prefix) for size, prefix in PREFIXES if value >= size), (1.0, ""))
    return f"{value / size:.0f} {prefix}"


COLOURS = 9
"""Further curves start again."""


@dataclass(frozen=True, slots=True)
class ValueCurve:
    """Curve of values with their intervals. points: polyline in a square of BOX; band: polygon of the intervals."""

    name: str
    tone: int
    points: str
    band: str


@dataclass(frozen=True, slots=True)
class PlacedPoint:
    """Single value in a chart. x, y: percent from the left and from the top."""

    x: float
    y: float
    words: str


@dataclass(frozen=True, slots=True)
class CurveChart:
    """Chart of curves and points over a horizontal axis; the vertical one is logarithmic. marked: points in the
    legend."""

    curves: tuple[ValueCurve, ...]
    across: tuple[Tick, ...]
    up: tuple[Tick, ...]
    title: str = "Time of a call over inputs"
    points: tuple[PlacedPoint, ...] = ()
    marked: str = "operators that were placed"


def curve_of(name: str, tone: int, drawn: Sequence[tuple[float, Estimate]], axis: Decades) -> ValueCurve:
    """Curve of values; those below 1 are drawn at 1. drawn: (percent across, value) pairs; axis: the vertical axis."""

    def point(x: float, value: float) -> str:
        return f"{BOX * x / 100:.1f},{BOX * (1 - axis.place(max(value, 1.0)) / 100):.1f}"

    line = " ".join(point(x, each.value) for x, each in drawn)
    above, below = [point(x, each.high) for x, each in drawn], [point(x, each.low) for x, each in drawn]
    return ValueCurve(name, tone, line, " ".join([*above, *reversed(below)]))


def labelled_curve(
    name: str, title: str, points: Sequence[tuple[str, Estimate]], up: Decades, words: Callable[[float], str]
) -> CurveChart:
    """Chart of one curve over labels at equal distances."""
    places = middles(len(points))
    curve = curve_of(name, 0, [(x, each) for x, (_, each) in zip(places, points, strict=True)], up)
    across = tuple(Tick(x, label) for x, (label, _) in zip(places, points, strict=True))
    return CurveChart((curve,), across, up.every_tick(words), title)


def curve_figures(*charts: CurveChart | None) -> tuple[Figure, ...]:
    """Figures of an answer from charts; a chart that is None is left out."""
    return tuple(
        Figure(f"curves-{number}", chart.title, "curves.html", chart)
        for number, chart in enumerate(filter(None, charts), 1)
    )
