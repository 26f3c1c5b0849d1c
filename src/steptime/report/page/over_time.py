"""Pictures of a run over time: its memory by owner, and what the launcher saw of the machine next to the job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from steptime.analysis.memory_samples import OverTime
from steptime.answer.page.axes import BOX, Shape, Tick
from steptime.quantities import format_bytes, format_duration
from steptime.report.report import MachineOverTime

TONES = 9
"""Colours; further owners start again."""


@dataclass(frozen=True, slots=True)
class MemoryChart:
    """Chart of memory over time by owner. areas: one per owner, with its bytes at the peak. peak, height: place of the
    peak, percent from the left and from the bottom. note: sentence below the title."""

    identity: str
    title: str
    note: str
    place: str
    areas: tuple[Shape, ...]
    peak: float
    height: float
    peak_words: str
    ticks: tuple[Tick, ...]
    start: str
    end: str


def memory_chart(
    found: OverTime | None, identity: str = "memory", title: str = "Memory over time", note: str = ""
) -> MemoryChart | None:
    """Chart of memory over time; None without points."""
    if found is None or len(found.times) < 2 or not any(map(any, found.bytes)):
        return None
    sums = [sum(column) for column in zip(*found.bytes, strict=True)]
    top = max(sums) * 1.06
    first, last = found.times[0], found.times[-1]
    across = [BOX * (time - first) / ((last - first) or 1) for time in found.times]
    below = [0.0] * len(sums)
    areas = []
    for number, (name, row) in enumerate(zip(found.owners, found.bytes, strict=True)):
        above = [low + value for low, value in zip(below, row, strict=True)]
        areas.append(Shape(name, _outline(across, below, above, top), format_bytes(row[found.peak]), number % TONES))
        below = above
    at = across[found.peak] / BOX * 100
    return MemoryChart(
        identity=identity,
        title=title,
        note=note,
        place=found.place,
        areas=tuple(areas),
        peak=at,
        height=100 * sums[found.peak] / top,
        peak_words=f"{format_bytes(sums[found.peak])} at {_time(found, found.peak)}",
        ticks=_ticks(top),
        start=_time(found, 0),
        end=_time(found, len(found.times) - 1),
    )


def _outline(across: Sequence[float], below: Sequence[float], above: Sequence[float], top: float) -> str:
    """There along the upper edge, back along the lower one."""
    there = [f"{x:.1f},{BOX * (1 - y / top):.1f}" for x, y in zip(across, above, strict=True)]
    back = [f"{x:.1f},{BOX * (1 - y / top):.1f}" for x, y in zip(across, below, strict=True)]
    return " ".join([*there, *reversed(back)])


def _time(found: OverTime, at: int) -> str:
    time = found.times[at]
    return format_duration(time) if found.clock == "ns" else f"{found.clock} {time}"


def _ticks(top: float) -> tuple[Tick, ...]:
    """Round binary sizes, about four."""
    size = 1.0
    while top / size > 5:
        size *= 2
    sizes = [at * size for at in range(int(top / size) + 1)]
    return tuple(Tick(100 * each / top, format_bytes(each) if each else "0") for each in sizes)


@dataclass(frozen=True, slots=True)
class MachineChart:
    """Chart of the machine over time. curves: one per series, with its mean. start, end: first and last time, in
    words."""

    curves: tuple[Shape, ...]
    start: str
    end: str


def machine_chart(found: MachineOverTime | None) -> MachineChart | None:
    """Chart of the machine over time; None if there is nothing to see."""
    if found is None or not found.series:
        return None
    first, last = found.times[0], found.times[-1]
    across = [BOX * (time - first) / ((last - first) or 1) for time in found.times]
    curves = (
        Shape(
            name,
            " ".join(f"{x:.1f},{BOX - BOX * y / 100:.1f}" for x, y in zip(across, values, strict=True)),
            f"{fmean(values):.0f} %",
        )
        for name, values in found.series
    )
    return MachineChart(tuple(curves), format_duration(first), format_duration(last))
