"""A bench as a page: the answer, time over inputs or over blocks, and a table for each setting of inputs."""

from __future__ import annotations

from steptime.callables.bench import Bench, BenchSetting
from steptime.callables.text import badge, headline, notes, render_markdown, render_text, tables, to_json
from steptime.quantities import Estimate, format_duration
from steptime.report.output import Renderer
from steptime.report.page.curves import COLOURS, CurveChart, curve_of, page_of
from steptime.report.page.waterfall import Decades, Tick, decades


def chart(bench: Bench) -> CurveChart | None:
    """Time over inputs; over the blocks, as they were timed, where there is one setting only. None without times."""
    settings = [setting for setting in bench.settings if setting.contenders]
    times = [each.time for setting in settings for each in setting.contenders if each.time is not None]
    if not times:
        return None
    if len(settings) < 2:
        return over_blocks(settings[0])
    axis = decades([bound for each in times for bound in (max(each.low, 1.0), each.high)])
    places = [100 * (number + 0.5) / len(settings) for number in range(len(settings))]
    curves = []
    for place, contender in enumerate(settings[0].contenders):
        known = [(x, setting.contenders[place].time) for x, setting in zip(places, settings, strict=True)]
        drawn = [(x, each) for x, each in known if each is not None]
        curves.append(curve_of(contender.name, place % COLOURS, drawn, axis))
    labels = tuple(Tick(x, setting.inputs) for x, setting in zip(places, settings, strict=True))
    return CurveChart(tuple(curves), labels, durations(axis))


def over_blocks(setting: BenchSetting) -> CurveChart | None:
    """What a call took in each block: clocks that rise and other programs show as steps that all curves have."""
    drawn = [(number, each) for number, each in enumerate(setting.contenders) if each.blocks]
    axis = decades([max(block, 1.0) for _, each in drawn for block in each.blocks])
    curves = tuple(
        curve_of(
            each.name,
            number % COLOURS,
            [(100 * (place + 0.5) / len(each.blocks), Estimate(block, block, block, 1))
             for place, block in enumerate(each.blocks)],
            axis,
        )
        for number, each in drawn
    )  # fmt: skip
    across = (Tick(0.0, "first block"), Tick(100.0, "last"))
    return CurveChart(curves, across, durations(axis), "Time of a call, block after block")


def durations(axis: Decades) -> tuple[Tick, ...]:
    """Its decades."""
    return tuple(
        Tick(axis.place(10.0**power), format_duration(10.0**power)) for power in range(axis.low, axis.high + 1)
    )


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
