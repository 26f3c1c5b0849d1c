"""A bench as a page: the answer, a table for each setting of inputs, and time over inputs where there are several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from steptime.callables.bench import Bench
from steptime.callables.text import badge, headline, notes, render_markdown, render_text, tables, to_json
from steptime.quantities import Estimate, format_duration
from steptime.report.output import Renderer
from steptime.report.page.frame import whole
from steptime.report.page.waterfall import Decades, Tick, decades
from steptime.report.tables import Table

BOX = 1000
"""Side of the square that the curves are drawn in, which is stretched to the plot."""
COLOURS = 9
"""Further curves begin again."""


@dataclass(frozen=True, slots=True)
class BenchCurve:
    """A callable over the inputs. points: of a polyline in a square of BOX; band: its interval as a polygon."""

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


def chart(bench: Bench) -> CurveChart | None:
    """None where there is one setting only, or a setting has nothing."""
    settings = [setting for setting in bench.settings if setting.contenders]
    times = [each.time for setting in settings for each in setting.contenders if each.time is not None]
    if len(settings) < 2 or not times:
        return None
    axis = decades([bound for each in times for bound in (max(each.low, 1.0), each.high)])
    places = [100 * (number + 0.5) / len(settings) for number in range(len(settings))]
    curves = []
    for place, contender in enumerate(settings[0].contenders):
        known = [(x, setting.contenders[place].time) for x, setting in zip(places, settings, strict=True)]
        drawn = [(x, each) for x, each in known if each is not None]
        curves.append(curve_of(contender.name, place % COLOURS, drawn, axis))
    labels = tuple(Tick(x, setting.inputs) for x, setting in zip(places, settings, strict=True))
    up = tuple(Tick(axis.place(10.0**power), format_duration(10.0**power)) for power in range(axis.low, axis.high + 1))
    return CurveChart(tuple(curves), labels, up)


def curve_of(name: str, tone: int, drawn: Sequence[tuple[float, Estimate]], axis: Decades) -> BenchCurve:
    """The curve of durations at places of the horizontal axis, in percent."""

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


def render(bench: Bench) -> str:
    """The whole page."""
    title, answer = f"Bench of {', '.join(bench.wishes.callables)}", (headline(bench), badge(bench))
    return page_of(title, to_json(bench), answer, chart(bench), tables(bench), notes(bench))


RENDERERS: tuple[Renderer[Bench], ...] = (
    Renderer(".txt", render_text),
    Renderer(".md", render_markdown),
    Renderer(".json", to_json),
    Renderer(".html", render),
)
