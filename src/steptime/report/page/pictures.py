"""The main pictures as one image: waterfall of a step, every step, roofline. SVG; PNG with the extra `images`.

One law: as on the page, what strangers wrote is text. The template escapes it, and the image asks for nothing.
"""

from __future__ import annotations

import textwrap

import jinja2

from steptime.answer.page.card import GREY, TONES, as_png
from steptime.answer.page.frame import asset, escaping
from steptime.answer.printable import one_line, shorten_middle
from steptime.report.gain import gain_of
from steptime.report.page.charts import roofline_chart, series
from steptime.report.page.waterfall import waterfall
from steptime.report.report import Report

WIDTH, MARGIN = 1200, 40
ROW, SERIES_HEIGHT, ROOFLINE_HEIGHT = 28, 200, 420
"""Pixels."""
GAIN_HEIGHT = 130
"""Pixels of the big number and the two lines below it."""
_SENTENCE = 88
"""Characters of a line of the verdict."""
SHARPNESS = 2.0
"""Pixels of a PNG for each one of the drawing: for screens of high density, and for print."""
KINDS = {"steady": "#7b8fa6", "warm-up": "#d9d5cc"}
BOUNDS = {"memory": "#e69f00", "compute": "#0072b2", "latency": "#d55e00"}
MARKS = {
    "memory": "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0 -10 0z",
    "compute": "M0-6L6 0L0 6L-6 0Z",
    "latency": "M0-6L5.5 4.5L-5.5 4.5Z",
}
SQUARE = "M-4.5-4.5h9v9h-9z"
"""Shapes, besides colours: not everybody can tell those apart."""


def render_png(report: Report) -> bytes:
    """Main pictures of a report as PNG; needs the extra `images`. Raises OutputError if no font is installed."""
    return as_png(render_svg(report), SHARPNESS)


def render_svg(report: Report) -> str:
    """Main pictures of a report as SVG, one below the other."""
    process = report.processes[0]
    case = process.case
    fall, every, roof = waterfall(case), series(process), roofline_chart(case)
    sentence = tuple(textwrap.wrap(one_line(process.verdict.sentence), _SENTENCE, max_lines=3, placeholder=" …"))
    gain = gain_of(report)
    sentence_top = 66 + (GAIN_HEIGHT if gain is not None else 0)
    waterfall_top = sentence_top + 28 * len(sentence) + 30
    series_top = waterfall_top + (ROW * (len(fall.falls) + 2) + 80 if fall is not None else 0)
    roofline_top = series_top + (SERIES_HEIGHT + 80 if every is not None else 0)
    height = roofline_top + (ROOFLINE_HEIGHT + 80 if roof is not None else 0) - 12
    title = shorten_middle(one_line(report.environment.command or report.source), 110)
    facts = " · ".join(filter(None, (report.environment.device, f"steptime {report.environment.steptime}")))
    drawn = _template().render(
        title=f"{title} · {facts}", gain=gain, sentence=sentence, waterfall=fall, series=every, roofline=roof,
        sentence_top=sentence_top, waterfall_top=waterfall_top, series_top=series_top, roofline_top=roofline_top,
        height=height, width=WIDTH, margin=MARGIN, row_height=ROW, series_height=SERIES_HEIGHT,
        roofline_height=ROOFLINE_HEIGHT,
    )  # fmt: skip
    return drawn.encode("utf-8", "backslashreplace").decode() + "\n"


def _template() -> jinja2.Template:
    environment = escaping(asset)
    environment.filters["percent"] = lambda value: f"{value:.2f}%"
    environment.filters["tone"] = lambda name: TONES.get(name, GREY)
    environment.filters["kind"] = lambda name: KINDS.get(name, GREY)
    environment.filters["bound"] = lambda name: BOUNDS.get(name, GREY)
    environment.filters["mark"] = lambda name: MARKS.get(name, SQUARE)
    return environment.get_template("pictures.svg")
