"""Traces of one job at several batch sizes: throughput against batch size, as a small table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from steptime.quantities import format_duration, format_share


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One batch size. step: ns."""

    batch: int
    step: float
    device: str

    @property
    def throughput(self) -> float:
        """Samples per second."""
        return self.batch / self.step * 1e9


def render(points: Sequence[SweepPoint]) -> str:
    """A line for each batch size. points: at least one."""
    best = max(point.throughput for point in points)
    heads = f"{'batch':>8}{'step':>12}{'samples/s':>12}{'of the best':>13}"
    lines = [f"A sweep over batch sizes · {points[0].device}", "", heads]
    for point in points:
        share = format_share(point.throughput / best)
        lines.append(f"{point.batch:>8}{format_duration(point.step):>12}{point.throughput:>12.4g}{share:>13}")
    return "\n".join([*lines, "", "Next:  steptime diagnose one of them, or steptime compare two.", ""])
