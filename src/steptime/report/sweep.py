"""Answer on traces of one job at several batch sizes: throughput over batch size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from steptime.answer.answer import Answer
from steptime.answer.page.axes import CurveChart, curve_figures, decades, labelled_curve
from steptime.answer.tables import Table, duration, integer, number, share, table_of
from steptime.quantities import Estimate, format_samples, format_share

NEARLY_BEST = 0.95
"""Fraction of the best throughput from which on a larger batch gains little."""


@dataclass(frozen=True, slots=True)
class SweptBatch:
    """Result for one batch size. step: ns, over the trace's steps."""

    batch: int
    step: Estimate
    device: str

    @property
    def throughput(self) -> float:
        """Samples per second."""
        return self.batch / self.step.value * 1e9

    @property
    def rate(self) -> Estimate:
        """Throughput with its interval."""
        low, high = self.batch / self.step.high * 1e9, self.batch / max(self.step.low, 1.0) * 1e9
        return Estimate(self.throughput, low, high, self.step.samples)


def answer_of(points: Sequence[SweptBatch]) -> Answer:
    """Smallest batch size with nearly the best throughput. points: at least one."""
    best = max(point.throughput for point in points)
    enough = next(point for point in points if point.throughput >= NEARLY_BEST * best)
    part = "" if enough.throughput == best else f"{format_share(enough.throughput / best)} of "
    return Answer(
        title="A sweep over batch sizes",
        headline=f"Batches of {enough.batch} reach {format_samples(enough.throughput)}, "
        f"{part}the most of {len(points)} sizes.",
        head=(f"{points[0].device}; one trace of each size",),
        parts=(_table(points),),
        notes=("Next: diagnose one of them with steptime diagnose, or compare two with steptime compare.",),
        figures=curve_figures(throughput_chart([(each.batch, each.rate) for each in points])),
        data={"schema": "steptime-batch-sweep", "schema_version": 1, "sizes": [_row(each) for each in points]},
    )


def _table(points: Sequence[SweptBatch]) -> Table:
    best = max(point.throughput for point in points)
    return table_of(
        "sweep", "Batch sizes", "", points,
        integer("batch", "batch", lambda each: each.batch),
        duration("step", "step_ns", lambda each: each.step.value),
        duration("at least", "step_low_ns", lambda each: each.step.low, room="document"),
        duration("at most", "step_high_ns", lambda each: each.step.high, room="document"),
        number("samples/s", "samples_per_s", lambda each: each.throughput, rate_text, barred=True),
        share("of the best", "of_best", lambda each: each.throughput / best),
    )  # fmt: skip


def rate_text(value: float) -> str:
    """Samples per second, without the unit."""
    return format_samples(value).removesuffix(" samples/s")


def _row(point: SweptBatch) -> dict[str, object]:
    return {
        "batch": point.batch,
        "step_ns": point.step.value,
        "step_low_ns": point.step.low,
        "step_high_ns": point.step.high,
        "samples_per_s": point.throughput,
        "device": point.device,
    }


def throughput_chart(points: Sequence[tuple[int, Estimate]]) -> CurveChart | None:
    """Chart of samples per second over batch size; None for one size."""
    if len(points) < 2:
        return None
    up = decades([max(rate.value, 1.0) for _, rate in points])
    sizes = [(str(size), rate) for size, rate in points]
    return labelled_curve("samples per second", "Throughput over batch size", sizes, up, rate_text)
