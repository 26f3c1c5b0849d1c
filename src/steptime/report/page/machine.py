"""The picture of the machine over time: what the launcher saw beside the job, in percent."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from steptime.quantities import format_duration
from steptime.report.report import MachineOverTime

BOX = 1000
"""Side of the square that the curves are drawn in, which is stretched to the plot."""


@dataclass(frozen=True, slots=True)
class MachineCurve:
    """points: of a polyline. words: its mean."""

    name: str
    points: str
    words: str


@dataclass(frozen=True, slots=True)
class MachineChart:
    """begin, end: of the plot, in words."""

    curves: tuple[MachineCurve, ...]
    begin: str
    end: str


def machine_chart(found: MachineOverTime | None) -> MachineChart | None:
    """The picture; None where there is nothing to see."""
    if found is None or not found.series:
        return None
    first, last = found.times[0], found.times[-1]
    across = [BOX * (time - first) / ((last - first) or 1) for time in found.times]
    curves = (
        MachineCurve(
            name,
            " ".join(f"{x:.1f},{BOX - BOX * y / 100:.1f}" for x, y in zip(across, values, strict=True)),
            f"{fmean(values):.0f} %",
        )
        for name, values in found.series
    )
    return MachineChart(tuple(curves), format_duration(first), format_duration(last))
