"""Traces of one job at several batch sizes: throughput against batch size, as a small table and a page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from steptime.quantities import Estimate, format_duration, format_samples, format_share
from steptime.report.markdown import titled_table
from steptime.report.output import Renderer
from steptime.report.tables import Table, duration, integer, number, share, table_of

NEARLY_BEST = 0.95
"""Of the best throughput: from there on a larger batch brings little."""


@dataclass(frozen=True, slots=True)
class SweptBatch:
    """One batch size. step: ns, over the trace's steps."""

    batch: int
    step: Estimate
    device: str

    @property
    def throughput(self) -> float:
        """Samples per second."""
        return self.batch / self.step.value * 1e9


def render(points: Sequence[SweptBatch]) -> str:
    """A line for each batch size. points: at least one."""
    best = max(point.throughput for point in points)
    heads = f"{'batch':>8}{'step':>12}{'samples/s':>12}{'of the best':>13}"
    lines = [f"A sweep over batch sizes · {points[0].device}", "", heads]
    for point in points:
        part = format_share(point.throughput / best)
        lines.append(
            f"{point.batch:>8}{format_duration(point.step.value):>12}{rate_text(point.throughput):>12}{part:>13}"
        )
    return "\n".join([*lines, "", "Next:  steptime diagnose one of them, or steptime compare two.", ""])


def table(points: Sequence[SweptBatch]) -> Table:
    """A row for each batch size."""
    best = max(point.throughput for point in points)
    return table_of(
        "sweep", "Batch sizes", "", points,
        integer("batch", "batch", lambda each: each.batch),
        duration("step", "step_ns", lambda each: each.step.value, barred=True),
        duration("at least", "step_low_ns", lambda each: each.step.low),
        duration("at most", "step_high_ns", lambda each: each.step.high),
        number("samples/s", "samples_per_s", lambda each: each.throughput, rate_text, barred=True),
        share("of the best", "of_best", lambda each: each.throughput / best),
    )  # fmt: skip


def answer(points: Sequence[SweptBatch]) -> tuple[str, str]:
    """The smallest batch size that is nearly the best, and what it was found on."""
    best = max(point.throughput for point in points)
    enough = next(point for point in points if point.throughput >= NEARLY_BEST * best)
    part = format_share(enough.throughput / best)
    place = (
        f"the most of {len(points)} sizes"
        if enough.throughput == best
        else f"{part} of the most of {len(points)} sizes"
    )
    message = f"Batches of {enough.batch} reach {format_samples(enough.throughput)}, {place}."
    return message, f"{points[0].device}; one trace of each size"


def rate_text(value: float) -> str:
    """Samples per second, without the unit."""
    return format_samples(value).removesuffix(" samples/s")


def to_json(points: Sequence[SweptBatch]) -> str:
    """All figures."""
    rows = [
        {
            "batch": each.batch,
            "step_ns": each.step.value,
            "step_low_ns": each.step.low,
            "step_high_ns": each.step.high,
            "samples_per_s": each.throughput,
            "device": each.device,
        }
        for each in points
    ]
    return json.dumps({"schema": "steptime-batch-sweep", "schema_version": 1, "sizes": rows}, indent=2) + "\n"


def render_markdown(points: Sequence[SweptBatch]) -> str:
    """The answer and the table."""
    return "\n".join([f"# {answer(points)[0]}", "", answer(points)[1], "", *titled_table(table(points))])


def _page(points: Sequence[SweptBatch]) -> str:
    from steptime.report.page.curves import render_page  # jinja2 is for pages alone

    return render_page(points)


RENDERERS: tuple[Renderer[Sequence[SweptBatch]], ...] = (
    Renderer(".txt", render),
    Renderer(".md", render_markdown),
    Renderer(".json", to_json),
    Renderer(".html", _page),
)
