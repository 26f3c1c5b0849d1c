"""The second picture: how long every step took."""

from __future__ import annotations

from dataclasses import dataclass

from steptime.quantities import format_duration
from steptime.report.page.scale import Tick, even_ticks
from steptime.report.page.waterfall import interval_text
from steptime.report.report import ProcessReport

MOST_BARS = 400
"""More would be narrower than a pixel: neighbours then share a bar, which shows their median and their slowest."""
ROOM = 1.25
"""Height of the plot over the highest steady step: what is longer (a compilation) is cut, and marked so."""
MARGIN = 1.08
"""Height of the plot over the highest step of all, where that is less."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One step, or several in a row. x, width: percent from the left; height: of the median step, percent; peak: of the
    slowest. first, last, slowest: steps by their numbers, from 0. kind: "warm-up", "steady" or "aside"."""

    x: float
    width: float
    height: float
    peak: float
    kind: str
    first: int
    last: int
    slowest: int
    cut: bool
    words: str


@dataclass(frozen=True, slots=True)
class Series:
    """mean, low, high: of the usual step, percent from the bottom."""

    bars: tuple[Bar, ...]
    mean: float
    low: float
    high: float
    mean_words: str
    ticks: tuple[Tick, ...]
    numbers: tuple[Tick, ...]
    warm_up: int
    aside: int
    steady: int
    cut: int


def series(process: ProcessReport) -> Series | None:
    """The steps of a process; None where the report has none."""
    steps, step = process.step_ns, process.case.step
    if not steps:
        return None
    kinds = step_kinds(process)
    steady = [spent for spent, kind in zip(steps, kinds, strict=True) if kind == "steady"] or list(steps)
    low, high = step.duration.low, step.duration.high
    if step.duration.samples < 2:  # the interval of a single step is a formality
        low = high = step.duration.value
    top = max(*steady, high, 1) * ROOM
    top = min(top, max(max(steps), high) * MARGIN)
    bars = _bars(steps, kinds, top)
    return Series(
        bars=bars,
        mean=100 * step.duration.value / top,
        low=100 * low / top,
        high=100 * high / top,
        mean_words=f"{format_duration(step.duration.value)} ({interval_text(step.duration)})",
        ticks=even_ticks(top, 4),
        numbers=_numbers(len(steps)),
        warm_up=kinds.count("warm-up"),
        aside=kinds.count("aside"),
        steady=kinds.count("steady"),
        cut=sum(spent > top for spent in steps),
    )


def step_kinds(process: ProcessReport) -> list[str]:
    """Of every step: "steady", "warm-up" (the first ones), or "aside": disturbed, profiled or watched line by line."""
    warm_up = process.case.step.warm_up
    kinds = ["steady" if steady else "warm-up" if number < warm_up else "aside"
             for number, steady in enumerate(process.steady)]  # fmt: skip
    return (kinds + ["aside"] * len(process.step_ns))[: len(process.step_ns)]


def _bars(steps: tuple[int, ...], kinds: list[str], top: float) -> tuple[Bar, ...]:
    size = -(-len(steps) // MOST_BARS)
    count = -(-len(steps) // size)
    pitch = 100 / max(count, 12)  # a few steps of a trace are no wall
    return tuple(_bar(steps, kinds, number, size, pitch, top) for number in range(count))


def _bar(steps: tuple[int, ...], kinds: list[str], number: int, size: int, pitch: float, top: float) -> Bar:
    first, end = number * size, min((number + 1) * size, len(steps))
    inside = sorted(range(first, end), key=steps.__getitem__)
    median, slowest = inside[(len(inside) - 1) // 2], inside[-1]
    words = f"step {first}: {format_duration(steps[slowest])}, {kinds[slowest]}"
    if end - first > 1:
        words = f"steps {first} to {end - 1}: median {format_duration(steps[median])}, slowest step {slowest} "
        words += f"{format_duration(steps[slowest])}"
    return Bar(
        x=number * pitch,
        width=pitch * (0.82 if pitch > 0.5 else 1.0),
        height=min(100 * steps[median] / top, 100.0),
        peak=min(100 * steps[slowest] / top, 100.0),
        kind=kinds[median],
        first=first,
        last=end - 1,
        slowest=slowest,
        cut=steps[slowest] > top,
        words=words,
    )


def _numbers(count: int) -> tuple[Tick, ...]:
    """Numbers of steps below the plot."""
    wide = max(count, 12) if count <= MOST_BARS else count
    stride = next(size * factor for size in (1, 10, 100, 1000, 10**4, 10**5, 10**6) for factor in (1, 2, 5)
                  if wide / (size * factor) <= 8)  # fmt: skip
    return tuple(Tick(100 * (number + 0.41) / wide, str(number)) for number in range(0, count, stride))
