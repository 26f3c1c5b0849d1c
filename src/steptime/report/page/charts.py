"""Charts of the page: how long every step took, and the roofline."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from steptime.advice.device_uses import MachineUse
from steptime.advice.evidence import Case
from steptime.advice.kernels import counter_words
from steptime.analysis.operators import OperatorUse
from steptime.analysis.roofline import KernelUse
from steptime.answer.page.axes import BOX, Decades, Shape, Tick, decades, even_ticks
from steptime.answer.printable import shorten
from steptime.quantities import format_bytes, format_count, format_duration, format_intensity, format_rate, format_share
from steptime.report.flame import FlameGraph, FlameLabel, FlameThread, stacks_of
from steptime.report.report import ProcessReport
from steptime.report.sentences import place_text, step_text
from steptime.report.steps import StepSeries

MOST_BARS = 400
"""More would be narrower than a pixel: neighbours then share a bar, which shows their median and their slowest."""
ROOM = 1.25
"""Height of the plot over the highest steady step: what is longer (a compilation) is cut, and marked so."""
MOST_SIGNS = 80
"""Letters under the bars; more would be on one another, and are then lines."""
SIGNS = {
    "outlier": "▲", "slow": "△", "evaluation": "E", "checkpoint": "C", "compilation": "J", "rollout": "R",
    "loader start": "L", "pause": "P",
}  # fmt: skip
"""Letters of what is marked under the bars; J as in just-in-time. A slow step is far longer than the others and in the
mean all the same; an outlier is left out of it."""
NEXT_LETTER = 2.5
"""Percent of the width: a letter that is nearer to the last one is a line, so that none is on another."""
MARGIN = 1.08
"""Height of the plot over the highest step of all, where that is less."""


@dataclass(frozen=True, slots=True)
class Bar:
    """Bar of the chart of steps: one step, or several neighbours that share a bar. x, width: percent of the plot from
    the left; height: duration of the median step, percent of the plot; peak: duration of the slowest step, percent.
    first, last, slowest: step numbers, from 0. kind: "warm-up", "steady" or "excluded". layered: True if the step's
    categories are drawn inside the bar."""

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
    layered: bool = False


@dataclass(frozen=True, slots=True)
class Sign:
    """Mark under the bars for an event (a checkpoint, an outlier). x: place, percent from the left; letter: displayed
    letter, "" if the marks are too dense for letters."""

    x: float
    kind: str
    letter: str
    words: str


@dataclass(frozen=True, slots=True)
class SeriesChart:
    """Bar chart of the step times. mean, low, high: height of the usual step's time and of its interval, percent of the
    chart. kinds: number of steps of each kind, with its text. layers: one path for each category, through all bars that
    contain it. stride: number of consecutive steps that share one row of category times. legend: meaning of each sign's
    letter."""

    bars: tuple[Bar, ...]
    mean: float
    low: float
    high: float
    mean_words: str
    ticks: tuple[Tick, ...]
    numbers: tuple[Tick, ...]
    cut: int
    kinds: tuple[tuple[str, str, int], ...] = ()
    layers: tuple[Shape, ...] = ()
    signs: tuple[Sign, ...] = ()
    legend: tuple[tuple[str, str], ...] = ()
    stride: int = 1


def series(process: ProcessReport) -> SeriesChart | None:
    """Chart of the steps of a process; None if the report has no steps."""
    steps, step = process.step_ns, process.case.step
    if not steps:
        return None
    kinds = step_kinds(process)
    steady = [spent for spent, kind in zip(steps, kinds, strict=True) if kind == "steady"] or list(steps)
    low, high = step.duration.low, step.duration.high
    if step.duration.samples < 2:  # the interval of a single step is a formality
        low = high = step.duration.value
    top = max(*steady, high, 1) * ROOM
    top = min(top, max(*steps, high, 1) * MARGIN)
    size = -(-len(steps) // MOST_BARS)
    count = -(-len(steps) // size)
    pitch = 100 / max(count, 12)  # a few steps of a trace are no wall
    bars = tuple(_bar(steps, kinds, number, size, pitch, top) for number in range(count))
    known = process.series
    bars, layers = _layered(bars, known) if known is not None else (bars, ())
    fine = _fine(kinds, known)
    signs = _signs(bars, known, fine) if known is not None else ()
    present = {sign.kind for sign in signs}
    return SeriesChart(
        bars=bars,
        mean=100 * step.duration.value / top,
        low=100 * low / top,
        high=100 * high / top,
        mean_words=step_text(step),
        ticks=even_ticks(top, 4),
        numbers=_numbers(len(steps)),
        cut=sum(spent > top for spent in steps),
        kinds=tuple(_counts(kinds, fine)),
        layers=layers,
        signs=signs,
        legend=tuple((letter, kind) for kind, letter in SIGNS.items() if kind in present),
        stride=known.stride if known is not None else 1,
    )


def step_kinds(process: ProcessReport) -> list[str]:
    """State of every step: "steady", "warm-up" (the first ones), or "excluded" (under load, profiled, line-timed)."""
    warm_up = process.case.step.warm_up
    kinds = ["steady" if steady else "warm-up" if number < warm_up else "excluded"
             for number, steady in enumerate(process.steady)]  # fmt: skip
    return (kinds + ["excluded"] * len(process.step_ns))[: len(process.step_ns)]


def _bar(steps: tuple[int, ...], kinds: list[str], number: int, size: int, pitch: float, top: float) -> Bar:
    first, end = number * size, min((number + 1) * size, len(steps))
    inside = sorted(range(first, end), key=steps.__getitem__)
    median, slowest = inside[(len(inside) - 1) // 2], inside[-1]
    words = f"step {first + 1}: {format_duration(steps[slowest])}, {kinds[slowest]}"
    if end - first > 1:
        words = f"steps {first + 1} to {end}: median {format_duration(steps[median])}, slowest step {slowest + 1} "
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


def _fine(kinds: list[str], known: StepSeries | None) -> list[str]:
    """The kinds as finely as the report has them; an outlier that the mean does not leave out is a slow step."""
    fine = [known.names[kind] for kind in known.kinds] if known is not None else kinds
    return ["slow" if (name, coarse) == ("outlier", "steady") else name
            for name, coarse in zip(fine, kinds, strict=False)]  # fmt: skip


def _counts(kinds: list[str], fine: list[str]) -> Iterator[tuple[str, str, int]]:
    """(class of the colour, words, count) of each kind. Slow steps are steady ones: the mean is of all of these."""
    fine = ["steady" if name == "slow" else name for name in fine]
    for name in dict.fromkeys(fine):
        places = [coarse for coarse, each in zip(kinds, fine, strict=False) if each == name]
        colour = "steady" if name == "outlier" else max(set(places), key=places.count) if places else "excluded"
        yield colour, "excluded (interrupted, profiled, or an outlier)" if name == "excluded" else name, len(places)


def _layered(bars: tuple[Bar, ...], known: StepSeries) -> tuple[tuple[Bar, ...], tuple[Shape, ...]]:
    """The bars with their categories: those of the rows of their steps, to the height of the bar."""
    if not known.spent:
        return bars, ()
    paths: list[list[str]] = [[] for _ in known.categories]
    drawn = []
    for bar in bars:
        rows = [row for row in known.spent[bar.first // known.stride : bar.last // known.stride + 1] if row]
        sums = [sum(column) for column in zip(*rows, strict=True)]
        whole = sum(sums)
        drawn.append(replace(bar, layered=whole > 0))
        at = 0.0
        for path, spent in zip(paths, sums, strict=False):
            if whole and spent:
                high = bar.height * spent / whole
                path.append(_block(bar.x, bar.width, at, high))
                at += high
    layers = tuple(Shape(name, "".join(path)) for name, path in zip(known.categories, paths, strict=True) if path)
    return tuple(drawn), layers


def _block(x: float, width: float, bottom: float, high: float) -> str:
    """A rectangle as a path; all in percent, bottom from below."""
    scale = BOX / 100
    across, top = f"{x * scale:.1f}", f"{(100 - bottom - high) * scale:.1f}"
    return f"M{across} {top}h{width * scale:.1f}v{high * scale:.1f}h-{width * scale:.1f}z"


def _signs(bars: tuple[Bar, ...], known: StepSeries, fine: list[str]) -> tuple[Sign, ...]:
    """Slow steps, outliers, and what lay between or in steps, under the bars."""
    size = bars[0].last - bars[0].first + 1
    reported = [
        (step, kind, f"step {step + 1}: {kind}") for step, kind in enumerate(fine) if kind in ("outlier", "slow")
    ]
    reported += [(mark.step, mark.kind, f"{mark.kind} of {format_duration(mark.duration)} in step {mark.step + 1}")
             for mark in known.marks]  # fmt: skip
    lettered = len(reported) <= MOST_SIGNS
    found, last = [], -NEXT_LETTER
    for step, kind, words in sorted(reported):
        bar = bars[min(step // size, len(bars) - 1)]
        at = bar.x + bar.width / 2
        crowded = at - last < NEXT_LETTER
        found.append(Sign(at, kind, SIGNS.get(kind, "") if lettered and not crowded else "", words))
        last = last if crowded else at
    return tuple(found)


def _numbers(count: int) -> tuple[Tick, ...]:
    """Numbers of steps below the plot: the first step is 1, as in every sentence."""
    wide = max(count, 12) if count <= MOST_BARS else count
    stride = next(size * factor for size in (1, 10, 100, 1000, 10**4, 10**5, 10**6) for factor in (1, 2, 5)
                  if wide / (size * factor) <= 8)  # fmt: skip
    displayed = range(stride, count + 1, stride) if stride > 1 else range(1, count + 1)
    return tuple(Tick(100 * (number - 0.59) / wide, str(number)) for number in displayed)


MOST_POINTS = 150
"""Those with the most time; the others are in the table."""
_LARGEST = 22.0
_SMALLEST = 3.0
"""Radii in pixels."""
STEEP = 45.0
"""Percent of the width: a memory's line that ends before it has no room for its words above it, but behind its end."""
_TITLE = 120
_CLEARLY = 1.05
"""Times the upper bound: a boosted clock alone explains a few percent."""
NO_PEAK = "no peak known"
"""A placed kernel has a model of its work: where no bound is given, the peaks are missing."""
_ADVICE = {
    "memory": "Bound by memory: move fewer bytes (fuse it with its neighbours, use a narrower dtype).",
    "compute": "Bound by arithmetic: use a narrower dtype or Tensor Cores, or do less work.",
    "latency": "Too small to fill the device: use larger or fewer kernels (batching, fusion, graphs).",
    NO_PEAK: "Its rate is known, but the peak is not.",
}


@dataclass(frozen=True, slots=True)
class RooflinePoint:
    """Point of the roofline chart: a group of kernels, or an operator. x, y: percent from the left and from the top; a
    point above the roof is drawn at it (above: clearly above). radius: pixels; lines: text for the reader."""

    x: float
    y: float
    radius: float
    bound: str
    name: str
    lines: tuple[str, ...]
    above: bool = False


@dataclass(frozen=True, slots=True)
class UpperBound:
    """Line of the roof in the roofline chart. x1, y1, x2, y2: ends, percent from the left and from the top. label_x,
    label_y: place where the label starts or ends, depending on `anchor`."""

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
    """Roofline chart of a job. what: unit of a point, "kernel group" or "operator"; share: fraction of the kernels' (or
    operators') time that the points cover, in words; left_out: number of groups without a point; source: sentence on
    the origin of the peaks, or why there are none; above: number of points above their roof."""

    points: tuple[RooflinePoint, ...]
    peaks: tuple[UpperBound, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    what: str
    share: str
    left_out: int
    source: str
    bounds: tuple[str, ...]
    above: int


def roofline_chart(case: Case) -> RooflineChart | None:
    """Roofline chart of a case; None if no kernel and no operator has a model of its work."""
    uses: tuple[KernelUse | OperatorUse, ...] = case.kernels or case.operators
    placed = sorted(
        (use for use in uses if use.duration > 0 and (use.flops or 0) > 0 and (use.bytes or 0) > 0),
        key=lambda use: -use.duration,
    )
    displayed = placed[:MOST_POINTS]
    if not displayed:
        return None
    machine = case.machine
    rates = _rates(machine, displayed)
    bandwidth = machine.copy_bytes if machine is not None else None
    horizontal, vertical = _axes(displayed, rates, bandwidth, machine)
    whole = sum(use.duration for use in uses)
    part = sum(use.duration for use in displayed)
    return RooflineChart(
        points=tuple(_point(use, displayed[0].duration, case, horizontal, vertical) for use in displayed),
        peaks=tuple(_peaks(rates, bandwidth, horizontal, vertical)),
        x_ticks=horizontal.ticks(),
        y_ticks=vertical.ticks(),
        what="kernel group" if case.kernels else "operator",
        share=format_share(part / whole) if whole else "",
        left_out=len(placed) - len(displayed),
        source=_source(case, rates, bandwidth),
        bounds=tuple(dict.fromkeys(map(_bound, displayed))),
        above=sum(_is_above(use, machine) for use in displayed),
    )


def _source(case: Case, rates: list[tuple[str, float]], bandwidth: float | None) -> str:
    if (rates or bandwidth) and case.machine is not None:
        met = [f"{format_intensity(rate / bandwidth)} ({name})" for name, rate in rates] if bandwidth else []
        balance = f" They meet at the machine's balance: {', '.join(met)}." if met else ""
        return f"The lines are the peaks of {case.machine.name}.{balance}"
    missing = "No peaks of this device are known: how far each point is from its limit cannot be reported."
    if case.step.mode == "trace" or case.step.device != "cpu":
        return missing
    return f"{missing} steptime run measures them, unless it runs with --no-peaks."


def _bound(use: KernelUse | OperatorUse) -> str:
    return NO_PEAK if use.bound == "unmodelled" else use.bound


def _is_above(use: KernelUse | OperatorUse, machine: MachineUse | None) -> bool:
    """True if the point is clearly faster than its roof allows."""
    return _rate(use) > _CLEARLY * _roof(use, machine)


def _roof(use: KernelUse | OperatorUse, machine: MachineUse | None) -> float:
    """FLOP/s that the roof allows at its intensity; infinite where no peak is known."""
    if machine is None:
        return math.inf
    named = dict(machine.rates).get(use.dtype if isinstance(use, KernelUse) else "float32")
    peak = named or machine.matrix_flops or math.inf
    return min(peak, _intensity(use) * machine.copy_bytes if machine.copy_bytes else math.inf)


def _intensity(use: KernelUse | OperatorUse) -> float:
    """FLOP a byte."""
    return (use.flops or 0.0) / (use.bytes or 1.0)


def _rate(use: KernelUse | OperatorUse) -> float:
    """FLOP/s."""
    return (use.flops or 0.0) / use.duration * 1e9


def _rates(machine: MachineUse | None, uses: list[KernelUse | OperatorUse]) -> list[tuple[str, float]]:
    """The peaks of the dtypes in use, equal ones as one, the highest first."""
    if machine is None:
        return []
    known = dict(machine.rates) or ({"float32": machine.matrix_flops} if machine.matrix_flops else {})
    used = {use.dtype for use in uses if isinstance(use, KernelUse)} & set(known)
    used = used or {"float32"} & set(known) or set(known)
    by_rate: dict[float, list[str]] = {}
    for name, rate in known.items():
        if name in used and rate > 0:
            by_rate.setdefault(rate, []).append(name)
    return [(", ".join(names), rate) for rate, names in sorted(by_rate.items(), reverse=True)]


def _axes(
    uses: list[KernelUse | OperatorUse],
    rates: list[tuple[str, float]],
    bandwidth: float | None,
    machine: MachineUse | None,
) -> tuple[Decades, Decades]:
    ridges = [rate / bandwidth for _, rate in rates] if bandwidth else []
    across = [_intensity(use) for use in uses] + [value for ridge in ridges for value in (ridge, 2 * ridge)]
    up = [min(_rate(use), _roof(use, machine)) for use in uses] + [1.3 * rate for _, rate in rates]
    return decades(across), decades(up)


def _peaks(
    rates: list[tuple[str, float]], bandwidth: float | None, horizontal: Decades, vertical: Decades
) -> Iterable[UpperBound]:
    left, right = 10.0**horizontal.low, 10.0**horizontal.high
    for name, rate in rates:
        ridge = min(max(rate / bandwidth, left), right) if bandwidth else left
        y = 100 - vertical.place(rate)
        words = f"{name} {format_rate(rate)}FLOP/s"
        yield UpperBound(horizontal.place(ridge), y, 100.0, y, words, "end", 99.5, y)
    if bandwidth:
        top = max((rate for _, rate in rates), default=10.0**vertical.high)
        start = max(left, 10.0**vertical.low / bandwidth)
        end = min(top / bandwidth, right)
        if start < end:
            x1, x2 = horizontal.place(start), horizontal.place(end)
            y1, y2 = 100 - vertical.place(start * bandwidth), 100 - vertical.place(end * bandwidth)
            words = f"{format_rate(bandwidth)}B/s"
            if x2 < STEEP:
                yield UpperBound(x1, y1, x2, y2, words, "start", x2, y2)
            else:
                yield UpperBound(x1, y1, x2, y2, words, "end", x1 + 0.8 * (x2 - x1), y1 + 0.8 * (y2 - y1))


def _point(
    use: KernelUse | OperatorUse, longest: float, case: Case, horizontal: Decades, vertical: Decades
) -> RooflinePoint:
    return RooflinePoint(
        x=horizontal.place(_intensity(use)),
        y=100 - vertical.place(min(_rate(use), _roof(use, case.machine))),
        radius=max(_SMALLEST, _LARGEST * math.sqrt(use.duration / longest)),
        bound=_bound(use),
        name=shorten(use.name, _TITLE),
        lines=tuple(_words(use, case.step.duration.value)),
        above=_is_above(use, case.machine),
    )


def _words(use: KernelUse | OperatorUse, step: float) -> Iterable[str]:
    share = f" ({format_share(use.duration / step)})" if step else ""
    yield f"{format_duration(use.duration)} per step{share}, {format_count(use.calls, 'call')}"
    moved = format_bytes(use.bytes or 0.0)
    yield f"{format_rate(_rate(use))}FLOP/s, {_intensity(use):.3g} FLOP/byte, {moved} per step"
    if isinstance(use, KernelUse):
        if use.operator:
            yield f"launched by {shorten(use.operator, _TITLE)}" + (f" in {use.dtype}" if use.dtype else "")
        if use.shapes:
            yield f"shapes {shorten(use.shapes, _TITLE)}"
        if use.at_roofline is not None:
            yield f"at the peaks: {format_duration(use.at_roofline)}"
        if use.counters is not None:
            yield f"by Nsight Compute: {counter_words(use.counters)}"
        if use.dimensions:
            yield f"misses the tiles of the Tensor Cores: {shorten(', '.join(use.dimensions), _TITLE)}"
    if use.source is not None:
        yield place_text(use.source)
    if _bound(use) in _ADVICE:
        yield _ADVICE[_bound(use)]


NARROWEST = 0.1
"""Percent: what is narrower is not drawn."""
MOST_BOXES = 700
"""Boxes of a thread: the widest ones."""


@dataclass(frozen=True, slots=True)
class Box:
    """Box of the flame graph: a call. start, width: percent of the thread; row: number from the top; words: tooltip."""

    name: str
    kind: str
    start: float
    width: float
    row: int
    words: str


@dataclass(frozen=True, slots=True)
class Flame:
    """Flame graph of a thread or a stream. rows: number of rows of boxes; total: duration of its widest box, ns."""

    name: str
    boxes: tuple[Box, ...]
    rows: int
    total: int


def flames(graph: FlameGraph | None) -> tuple[Flame, ...]:
    """Flame graphs of the threads, then of the streams; those that took no time are left out."""
    return tuple(_laid(thread, graph.labels) for thread in graph.threads) if graph is not None else ()


KINDS = (
    ("python", "python", "your function"),
    ("range", "range", "module or range"),
    ("operator", "operator", "operator"),
    ("call", "call", "runtime call"),
    ("compute", "tone-compute", "kernel"),
    ("communication", "tone-communication", "collective"),
    ("copy", "tone-copy", "copy"),
)
"""Kind, class of its colour, and words."""


def kinds_of(graph: FlameGraph | None) -> tuple[tuple[str, str, str], ...]:
    """Entries of KINDS, as a legend, that occur in the flame graph."""
    present = {label.kind for label in graph.labels} if graph is not None else set()
    return tuple(each for each in KINDS if each[0] in present)


def _laid(thread: FlameThread, labels: tuple[FlameLabel, ...]) -> Flame:
    parent, label, own = stacks_of(thread)
    total = own.copy()
    for stack in range(len(own) - 1, 0, -1):
        total[parent[stack]] += total[stack]
    whole = max(total[0], 1)
    narrowest = max(NARROWEST / 100 * whole, sorted(total, reverse=True)[:MOST_BOXES][-1])
    start, row, taken, boxes = [0], [0], [0] * len(own), []
    for stack in range(1, len(own)):
        around = parent[stack]
        start.append(start[around] + taken[around])
        row.append(row[around] + 1)
        taken[around] += total[stack]
    for stack, (number, spent) in enumerate(zip(label, total, strict=True)):
        if spent < narrowest:
            continue
        reported = labels[number]
        place = f"{reported.source.file}:{reported.source.line}" if reported.source is not None else ""
        itself = f", {format_duration(own[stack])} itself" if 0 < own[stack] < spent else ""
        words = f"{reported.name}\n{format_duration(spent)}, {format_share(spent / whole)}{itself}\n{place}".strip()
        name = f"{reported.name} ({place.rpartition('/')[2]})" if place else reported.name
        boxes.append(Box(name, reported.kind, 100 * start[stack] / whole, 100 * spent / whole, row[stack], words))
    return Flame(thread.name, tuple(boxes), max(box.row for box in boxes) + 1, int(whole))
