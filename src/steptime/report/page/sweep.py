"""The page of traces at several batch sizes."""

from __future__ import annotations

from collections.abc import Sequence

from steptime.quantities import Estimate
from steptime.report.page.curves import CurveChart, curve_of, page_of
from steptime.report.page.waterfall import Tick, decades, middles
from steptime.report.sweep import SweptBatch, answer, rate_text, table, to_json


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
