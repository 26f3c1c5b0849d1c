"""A bench as a page: the answer, a table for each setting of inputs, and time over inputs where there are several."""

from __future__ import annotations

from steptime.callables.bench import Bench
from steptime.callables.text import badge, headline, notes, render_markdown, render_text, tables, to_json
from steptime.quantities import format_duration
from steptime.report.output import Renderer
from steptime.report.page.curves import COLOURS, CurveChart, curve_of, page_of
from steptime.report.page.waterfall import Tick, decades


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


def render(bench: Bench) -> str:
    """The whole page."""
    title, answer = f"Bench of {', '.join(bench.wishes.callables)}", (headline(bench), badge(bench))
    return page_of(title, to_json(bench), answer, [chart(bench)], tables(bench), notes(bench))


RENDERERS: tuple[Renderer[Bench], ...] = (
    Renderer(".txt", render_text),
    Renderer(".md", render_markdown),
    Renderer(".json", to_json),
    Renderer(".html", render),
)
