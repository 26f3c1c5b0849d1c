"""The third picture: kernels against the machine's ceilings, both axes logarithmic."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from steptime.findings.case import Case, KernelUse, MachineUse, OperatorUse
from steptime.quantities import format_bytes, format_duration, format_share, format_source
from steptime.report.page.scale import Decades, Tick, decades
from steptime.report.printable import shorten
from steptime.report.roofline import format_rate, origin

MOST_POINTS = 150
"""Those with the most time; the others are in the table."""
_LARGEST = 22.0
_SMALLEST = 3.0
"""Radii in pixels."""
STEEP = 45.0
"""Percent of the width: a memory's line that ends before it has no room for its words above it, but behind its end."""
_TITLE = 120
_CLEARLY = 1.05
"""Times the ceiling: a boosted clock alone explains a few percent."""
_ADVICE = {
    "memory": "Bound by memory: move fewer bytes (fuse it with its neighbours, use a narrower number format).",
    "compute": "Bound by arithmetic: a narrower number format, matrix units, or less work.",
    "latency": "Too small to fill the device: larger or fewer of them (batching, fusion, graphs).",
    "unmodelled": "Its work has no model.",
}


@dataclass(frozen=True, slots=True)
class Point:
    """A group of kernels, or an operator. x, y: percent, y from the top; radius: pixels; lines: for the reader."""

    x: float
    y: float
    radius: float
    bound: str
    name: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ceiling:
    """A line of the roof; ends in percent, y from the top. label_x, label_y: where its words begin or end ("start",
    "end": anchor)."""

    x1: float
    y1: float
    x2: float
    y2: float
    words: str
    anchor: str
    label_x: float
    label_y: float


@dataclass(frozen=True, slots=True)
class RooflineChart:
    """what: "kernel group" or "operator"; share: of their time that the points have, as words; above: points that are
    faster than the ceiling of their format."""

    points: tuple[Point, ...]
    ceilings: tuple[Ceiling, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    what: str
    share: str
    left_out: int
    source: str
    bounds: tuple[str, ...]
    above: int


def roofline_chart(case: Case) -> RooflineChart | None:
    """The picture; None where no kernel and no operator has a model of its work."""
    uses: tuple[KernelUse | OperatorUse, ...] = case.kernels or case.operators
    placed = sorted((use for use in uses if _has_place(use)), key=lambda use: -use.duration)
    shown = placed[:MOST_POINTS]
    if not shown:
        return None
    machine = case.machine
    rates = _rates(machine, shown)
    bandwidth = machine.copy_bytes if machine is not None else None
    horizontal, vertical = _axes(shown, rates, bandwidth)
    whole = sum(use.duration for use in uses)
    part = sum(use.duration for use in shown)
    return RooflineChart(
        points=tuple(_point(use, shown[0].duration, case, horizontal, vertical) for use in shown),
        ceilings=tuple(_ceilings(rates, bandwidth, horizontal, vertical)),
        x_ticks=horizontal.ticks(),
        y_ticks=vertical.ticks(),
        what="kernel group" if case.kernels else "operator",
        share=format_share(part / whole) if whole else "",
        left_out=len(placed) - len(shown),
        source=f"{origin(machine)}, {machine.name}" if machine is not None else "",
        bounds=tuple(dict.fromkeys(use.bound for use in shown)),
        above=sum(_is_above(use, machine) for use in shown),
    )


def _is_above(use: KernelUse | OperatorUse, machine: MachineUse | None) -> bool:
    """Whether it is clearly faster than a matrix product in its format can be."""
    if machine is None:
        return False
    named = dict(machine.rates).get(use.number_format if isinstance(use, KernelUse) else "float32")
    peak = named or machine.matrix_flops
    return peak is not None and _rate(use) > _CLEARLY * peak


def _has_place(use: KernelUse | OperatorUse) -> bool:
    return bool(use.flops and use.bytes and use.duration > 0 and use.flops > 0 and use.bytes > 0)


def _intensity(use: KernelUse | OperatorUse) -> float:
    """FLOP a byte."""
    return (use.flops or 0.0) / (use.bytes or 1.0)


def _rate(use: KernelUse | OperatorUse) -> float:
    """FLOP/s."""
    return (use.flops or 0.0) / use.duration * 1e9


def _rates(machine: MachineUse | None, uses: list[KernelUse | OperatorUse]) -> list[tuple[str, float]]:
    """The ceilings of the number formats in use, equal ones as one, the highest first."""
    if machine is None:
        return []
    known = dict(machine.rates) or ({"float32": machine.matrix_flops} if machine.matrix_flops else {})
    used = {use.number_format for use in uses if isinstance(use, KernelUse)} & set(known)
    used = used or {"float32"} & set(known) or set(known)
    by_rate: dict[float, list[str]] = {}
    for name, rate in known.items():
        if name in used and rate:
            by_rate.setdefault(rate, []).append(name)
    return [(", ".join(names), rate) for rate, names in sorted(by_rate.items(), reverse=True)]


def _axes(
    uses: list[KernelUse | OperatorUse], rates: list[tuple[str, float]], bandwidth: float | None
) -> tuple[Decades, Decades]:
    ridges = [rate / bandwidth for _, rate in rates] if bandwidth else []
    across = [_intensity(use) for use in uses] + [value for ridge in ridges for value in (ridge, 2 * ridge)]
    up = [_rate(use) for use in uses] + [1.3 * rate for _, rate in rates]
    return decades(across), decades(up)


def _ceilings(
    rates: list[tuple[str, float]], bandwidth: float | None, horizontal: Decades, vertical: Decades
) -> Iterable[Ceiling]:
    left, right = 10.0**horizontal.low, 10.0**horizontal.high
    for name, rate in rates:
        ridge = min(max(rate / bandwidth, left), right) if bandwidth else left
        y = 100 - vertical.place(rate)
        words = f"{name} {format_rate(rate)}FLOP/s"
        yield Ceiling(horizontal.place(ridge), y, 100.0, y, words, "end", 99.5, y)
    if bandwidth:
        top = max((rate for _, rate in rates), default=10.0**vertical.high)
        begin = max(left, 10.0**vertical.low / bandwidth)
        end = min(top / bandwidth, right)
        if begin < end:
            x1, x2 = horizontal.place(begin), horizontal.place(end)
            y1, y2 = 100 - vertical.place(begin * bandwidth), 100 - vertical.place(end * bandwidth)
            words = f"{format_rate(bandwidth)}B/s"
            if x2 < STEEP:
                yield Ceiling(x1, y1, x2, y2, words, "start", x2, y2)
            else:
                yield Ceiling(x1, y1, x2, y2, words, "end", x1 + 0.8 * (x2 - x1), y1 + 0.8 * (y2 - y1))


def _point(use: KernelUse | OperatorUse, longest: float, case: Case, horizontal: Decades, vertical: Decades) -> Point:
    return Point(
        x=horizontal.place(_intensity(use)),
        y=100 - vertical.place(_rate(use)),
        radius=max(_SMALLEST, _LARGEST * math.sqrt(use.duration / longest)),
        bound=use.bound,
        name=shorten(use.name, _TITLE),
        lines=tuple(_words(use, case.step.duration.value)),
    )


def _words(use: KernelUse | OperatorUse, step: float) -> Iterable[str]:
    share = f" ({format_share(use.duration / step)})" if step else ""
    yield f"{format_duration(use.duration)} a step{share}, {use.calls:.4g} calls"
    yield f"{format_rate(_rate(use))}FLOP/s, {_intensity(use):.3g} FLOP a byte, {format_bytes(use.bytes or 0.0)} a step"
    if isinstance(use, KernelUse):
        if use.operator:
            yield f"launched by {shorten(use.operator, _TITLE)}" + (
                f" in {use.number_format}" if use.number_format else ""
            )
        if use.shapes:
            yield f"shapes {shorten(use.shapes, _TITLE)}"
        if use.at_roofline is not None:
            yield f"at the ceilings: {format_duration(use.at_roofline)}"
        if use.dimensions:
            yield f"misses the tiles of the matrix units: {shorten(', '.join(use.dimensions), _TITLE)}"
    if use.source is not None:
        yield format_source(use.source)
    if use.bound in _ADVICE:
        yield _ADVICE[use.bound]
