"""Limits of a machine for work of increasing size: where overhead ends, and bandwidth and arithmetic take over.

The points come from `machine/sweep_script.py`. Arithmetic intensity is FLOPs over the bytes that must at least be moved
(Williams, Waterman, Patterson: Roofline, CACM 52 (2009), 65).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from steptime.advice.evidence import Case
from steptime.analysis.operators import OperatorUse
from steptime.analysis.roofline import KernelUse
from steptime.answer.answer import Answer, Item, Section, with_confidence
from steptime.answer.page.axes import CurveChart, PlacedPoint, Tick, curve_figures, curve_of, decades, middles
from steptime.answer.printable import shorten
from steptime.answer.tables import Table, duration, number, table_of, word
from steptime.callables.bench import SCRIPTS, answer_of
from steptime.machine.machine import BUSY_CPUS, Machine
from steptime.machine.peaks import OtherLoad
from steptime.quantities import Estimate, format_bytes, format_count, format_duration, format_rate, format_share

SCRIPT = SCRIPTS / "sweep_script.py"
MOST_PLACED, LONGEST_SHAPES = 12, 40
"""Most operators of a recording that are placed, and most letters of their shapes."""
HALF = 0.5
"""Fraction of the best rate at which a limit counts as reached."""
TITLES = {
    "repeated": "pointwise work, one operator each time",
    "compiled": "pointwise work, compiled into one",
    "product": "matmuls in float32",
    "copy": "copies",
}


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """Options of a sweep. seconds: time per point. compile: True to also compile pointwise work. values: number of
    elements in the tensor for pointwise work; repeats: numbers of its repetitions; orders: sizes of square matrices;
    sizes: bytes of copies."""

    device: str
    seconds: float = 0.15
    compile: bool = True
    values: int = 2**24
    repeats: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
    orders: tuple[int, ...] = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
    sizes: tuple[int, ...] = tuple(4**power for power in range(5, 15))


class SweepPoint(msgspec.Struct, frozen=True):
    """Measurement of one size of work. kind: a key of TITLES. amount: repetitions, order, or bytes. seconds: duration
    of a call, (best block, median block)."""

    kind: str
    amount: int
    flops: int
    bytes: int
    seconds: tuple[float, float]

    @property
    def intensity(self) -> float:
        """Arithmetic intensity, FLOP/B."""
        return self.flops / self.bytes

    @property
    def rate(self) -> float:
        """Rate, FLOP/s."""
        return self.flops / self.seconds[0]

    @property
    def bandwidth(self) -> float:
        """Lower bound of the bandwidth, B/s."""
        return self.bytes / self.seconds[0]


class _SweepAnswer(msgspec.Struct, frozen=True):
    name: str = ""
    threads: int = 0
    torch: str = ""
    points: tuple[SweepPoint, ...] = ()
    left_out: str = ""


@dataclass(frozen=True, slots=True)
class PlacedOperator:
    """Operator of a recording, by its shapes. duration: ns per step; flops: per step; bytes: least number per step."""

    name: str
    shapes: str
    duration: float
    flops: float
    bytes: float

    @property
    def intensity(self) -> float:
        """Arithmetic intensity, FLOP/B."""
        return self.flops / self.bytes

    @property
    def rate(self) -> float:
        """Rate, FLOP/s."""
        return self.flops / self.duration * 1e9


@dataclass(frozen=True, slots=True)
class Sweep:
    """Results of a sweep on one device. machine: its peaks, None if unknown. left_out: reason if nothing was compiled.
    other_cpus: CPUs that other programs kept busy meanwhile. recording: source of the placed operators."""

    device: str
    name: str
    threads: int
    torch: str
    points: tuple[SweepPoint, ...]
    left_out: str
    other_cpus: float
    machine: Machine | None = None
    recording: str = ""
    operators: tuple[PlacedOperator, ...] = ()

    def of(self, kind: str) -> tuple[SweepPoint, ...]:
        """Points of a kind, by amount."""
        return tuple(each for each in self.points if each.kind == kind)


def sweep(options: SweepOptions, executable: str, machine: Machine | None, notify: Callable[[str], None]) -> Sweep:
    """Measures a sweep in a fresh process of the user's interpreter. Raises NothingMeasuredError."""
    load = OtherLoad()
    notify(f"work of rising size on {machine.name if machine is not None else options.device} (a minute or two)")
    request: dict[str, Any] = {name: getattr(options, name) for name in SweepOptions.__slots__}
    found = answer_of(SCRIPT, request, executable, _SweepAnswer)
    name = found.name or (machine.name if machine is not None else "")
    return Sweep(
        options.device, name, found.threads, found.torch, found.points, found.left_out, load.since()[0], machine
    )


def operators_of(case: Case) -> tuple[PlacedOperator, ...]:
    """Operators with FLOPs and bytes that take most of the step, longest first; kernels if a device ran them."""
    uses: list[tuple[str, str, KernelUse | OperatorUse]] = [
        (each.operator or each.name, each.shapes, each) for each in case.kernels
    ]
    found = [
        PlacedOperator(name, shapes, each.duration, each.flops, each.bytes)
        for name, shapes, each in uses or [(each.name, "", each) for each in case.operators]
        if each.flops and each.bytes and each.duration > 0
    ]
    return tuple(sorted(found, key=lambda each: -each.duration)[:MOST_PLACED])


def attainable(sweep: Sweep, intensity: float) -> float:
    """Rate that the roofline of the points allows at an arithmetic intensity, FLOP/s."""
    top = max(each.rate for each in sweep.of("product"))
    return min(top, intensity * sweep.of("copy")[-1].bandwidth)


def end_of_overhead(sweep: Sweep) -> SweepPoint | None:
    """Smallest copy that takes twice as long as the smallest copy of all; None if no copy does."""
    copies = sweep.of("copy")
    return next((each for each in copies if each.seconds[0] >= 2 * copies[0].seconds[0]), None)


def largest_cached(sweep: Sweep) -> SweepPoint | None:
    """Largest copy so much faster than the largest of all that it must be cached; None if there is none."""
    copies = sweep.of("copy")
    quick = [each for each in copies if each.bandwidth > (1 + HALF) * copies[-1].bandwidth]
    return quick[-1] if quick else None


def half_of_the_peak(sweep: Sweep) -> SweepPoint:
    """Smallest matmul that reaches half of the best rate."""
    products = sweep.of("product")
    top = max(each.rate for each in products)
    return next(each for each in products if each.rate >= HALF * top)


def knees(sweep: Sweep) -> Iterator[str]:
    """Sentences on the sizes at which this machine turns from overhead to bandwidth to compute."""
    copies, products, fused = sweep.of("copy"), sweep.of("product"), sweep.of("compiled")
    if copies:
        grown, cached = end_of_overhead(sweep), largest_cached(sweep)
        if grown is not None:
            least = format_duration(1e9 * copies[0].seconds[0])
            yield f"Overhead: a copy below {format_bytes(grown.amount)} takes {least} however small it is."
        best, largest = max(copies, key=lambda each: each.bandwidth), copies[-1]
        within = f"{_rate(best.bandwidth, 'B/s')} at most within a cache ({format_bytes(best.amount)})"
        reach = f", which copies up to {format_bytes(cached.amount)} fit in" if cached not in (None, best) else ""
        yield (
            f"Bandwidth: {_rate(largest.bandwidth, 'B/s')} from memory ({format_bytes(largest.amount)})"
            + (f", {within}{reach}." if cached is not None else ".")
        )  # fmt: skip
    if products:
        top, half = max(each.rate for each in products), half_of_the_peak(sweep)
        yield f"Arithmetic: {_rate(top, 'FLOP/s')} in matmuls, half of it from order {half.amount} on."
    if fused and copies:
        limit = max(each.rate for each in fused)
        reached = next(each for each in fused if each.rate >= HALF * limit)
        yield (
            f"Compiled pointwise work is bound by memory up to {reached.intensity:.3g} FLOP/B ({reached.amount} "
            f"operators in one pass); beyond, by arithmetic: {_rate(limit, 'FLOP/s')}."
        )
    if sweep.left_out:
        yield f"Nothing was compiled: {sweep.left_out}."


def headline(sweep: Sweep) -> str:
    """Headline of a sweep: the ridge of the roofline."""
    copies, products = sweep.of("copy"), sweep.of("product")
    top, moved = max(each.rate for each in products), copies[-1].bandwidth
    return (
        f"{sweep.name or sweep.device}: memory gives {_rate(moved, 'B/s')}, matmuls do {_rate(top, 'FLOP/s')}: "
        f"work with less than {top / moved:.3g} FLOP/B is bound by memory."
    )


def badge(sweep: Sweep) -> str:
    """Confidence of the result, with its reason, and a comparison with the peaks that steps are judged by."""
    parts = []
    if sweep.other_cpus > BUSY_CPUS:
        parts.append(f"Unclear: other programs kept {sweep.other_cpus:.1f} CPUs busy meanwhile.")
    else:
        slower = sorted(each.seconds[1] / each.seconds[0] - 1 for each in sweep.points)
        parts.append(
            f"The median block takes {format_share(slower[len(slower) // 2])} longer than the best, which counts."
        )
    known = sweep.machine.matrix_rate() if sweep.machine is not None and sweep.machine.measured else None
    if known:
        ratio = max(each.rate for each in sweep.of("product")) / known
        parts.append(f"That is {format_share(ratio)} of the peak that steps are judged by.")
    return " ".join(parts)


def _rate(value: float, unit: str) -> str:
    return f"{format_rate(value)}{unit}"


def tables(sweep: Sweep) -> tuple[Table, ...]:
    """Tables of the placed operators, and of each kind of work."""
    placed = (_operators(sweep),) if sweep.operators else ()
    return placed + tuple(_table(kind, sweep.of(kind)) for kind in TITLES if sweep.of(kind))


def _operators(sweep: Sweep) -> Table:
    return table_of(
        "operators", f"operators of {sweep.recording}", "", sweep.operators,
        word("operator", "operator", lambda each: each.name, kind="code"),
        word("shapes", "shapes", lambda each: shorten(each.shapes, LONGEST_SHAPES)),
        duration("per step", "step_ns", lambda each: each.duration, barred=True),
        number("FLOP/B", "flop_per_byte", lambda each: each.intensity, lambda value: f"{value:.3g}"),
        number("FLOP/s", "flop_per_second", lambda each: each.rate, lambda value: _rate(value, "FLOP/s")),
        number("of the roofline", "share", lambda each: each.rate / attainable(sweep, each.intensity), format_share),
    )  # fmt: skip


def _table(kind: str, points: tuple[SweepPoint, ...]) -> Table:
    amount = {"product": lambda each: f"{each.amount}x{each.amount}", "copy": lambda each: format_bytes(each.amount)}
    named: Callable[[SweepPoint], str] = amount.get(kind, lambda each: format_count(each.amount, "operator"))
    return table_of(
        kind, TITLES[kind], "", points,
        word("work", "work", named),
        duration("time", "time_ns", lambda each: 1e9 * each.seconds[0]),
        number("FLOP/B", "flop_per_byte", lambda each: each.intensity if each.flops else None,
               lambda value: f"{value:.3g}"),
        number("FLOP/s", "flop_per_second", lambda each: each.rate if each.flops else None,
               lambda value: _rate(value, "FLOP/s"), barred=True),
        number("B/s at least", "bytes_per_second", lambda each: each.bandwidth, lambda value: _rate(value, "B/s"),
               barred=kind == "copy"),
    )  # fmt: skip


def _head(sweep: Sweep) -> str:
    where = f"{format_count(sweep.threads, 'thread')}" if sweep.device == "cpu" else ""
    return " · ".join(filter(None, ("steptime env --sweep", f"torch {sweep.torch}", sweep.device, where)))


def answer_of_sweep(sweep: Sweep) -> Answer:
    """Answer with the sizes at which overhead ends and bandwidth and arithmetic take over."""
    message, sure, found = headline(sweep), badge(sweep), tuple(knees(sweep))
    return Answer(
        f"Peaks of {sweep.name or sweep.device}", message, sure, (_head(sweep),),
        (Section("", tuple(map(Item, found))), *tables(sweep)), figures=curve_figures(chart(sweep), *by_size(sweep)),
        data=with_confidence({"knees": found, "sweep": sweep}, message, sure),
    )  # fmt: skip


def chart(sweep: Sweep) -> CurveChart | None:
    """Chart of FLOP/s over arithmetic intensity, both logarithmic."""
    kinds = [kind for kind in TITLES if kind != "copy" and sweep.of(kind)]
    if not kinds:
        return None
    drawn = [each for kind in kinds for each in sweep.of(kind)]
    seen = [(each.intensity, each.rate) for each in drawn]
    seen += [(each.intensity, each.rate) for each in sweep.operators]
    roof = roofline(sweep, [intensity for intensity, _ in seen])
    seen += roof
    across, up = decades([intensity for intensity, _ in seen]), decades([rate for _, rate in seen])
    curves = tuple(
        curve_of(TITLES[kind], tone, [(across.place(each.intensity), _estimate(each)) for each in sweep.of(kind)], up)
        for tone, kind in enumerate(kinds)
    )
    if roof:
        limit = [(across.place(x), Estimate(rate, rate, rate, 1, "1")) for x, rate in roof]
        curves += (curve_of("the roofline: memory, then arithmetic", len(kinds), limit, up),)
    return CurveChart(
        curves,
        across.every_tick(lambda value: f"{value:g}"),
        up.every_tick(lambda value: _rate(value, "FLOP/s")),
        "FLOP/s over arithmetic intensity (FLOP/B)",
        tuple(
            PlacedPoint(
                across.place(each.intensity),
                100 - up.place(each.rate),
                f"{each.name}: {format_duration(each.duration)} per step, {_rate(each.rate, 'FLOP/s')}",
            )
            for each in sweep.operators
        ),
    )


def roofline(sweep: Sweep, intensities: Sequence[float]) -> list[tuple[float, float]]:
    """(intensity, FLOP/s) at both ends and at the ridge of the roofline; empty without copies or matmuls."""
    if not sweep.of("copy") or not sweep.of("product"):
        return []
    ridge = max(each.rate for each in sweep.of("product")) / sweep.of("copy")[-1].bandwidth
    low, high = min(intensities), max(intensities)
    return [(x, attainable(sweep, x)) for x in (low, *((ridge,) if low < ridge < high else ()), high)]


def by_size(sweep: Sweep) -> Iterator[CurveChart]:
    """Charts of copy B/s over size and of matmul FLOP/s over order, with the limits marked, on logarithmic axes."""
    copies, products = sweep.of("copy"), sweep.of("product")
    if len(copies) > 1:
        small, cached = end_of_overhead(sweep), largest_cached(sweep)
        marked = [(small, "overhead ends here")] if small is not None else []
        marked += [(cached, "the largest that a cache holds")] if cached is not None else []
        yield _over_amount(
            copies, "copies", "B/s of copies over their size", "B/s", lambda each: each.bandwidth, format_bytes, marked
        )
    if len(products) > 1:
        half = half_of_the_peak(sweep)
        yield _over_amount(
            products, "products", "FLOP/s of matmuls over their order", "FLOP/s", lambda each: each.rate, str,
            [(half, "half of the peak from here on")],
        )  # fmt: skip


def _over_amount(
    points: Sequence[SweepPoint],
    name: str,
    title: str,
    unit: str,
    rate: Callable[[SweepPoint], float],
    words: Callable[[int], str],
    marked: Sequence[tuple[SweepPoint, str]],
) -> CurveChart:
    """Chart of rates over amounts that grow by a factor, with a tick for each. marked: points with labels."""
    up = decades([each.seconds[0] / seconds * rate(each) for each in points for seconds in each.seconds])
    places = dict(zip((each.amount for each in points), middles(len(points)), strict=True))
    median = [rate(each) * each.seconds[0] / each.seconds[1] for each in points]
    drawn = [(places[each.amount], Estimate(rate(each), low, rate(each), 2, "1"))
             for each, low in zip(points, median, strict=True)]  # fmt: skip
    return CurveChart(
        (curve_of(name, 0, drawn, up),),
        tuple(Tick(places[each.amount], words(each.amount)) for each in points),
        up.every_tick(lambda value: _rate(value, unit)),
        title,
        tuple(
            PlacedPoint(places[each.amount], 100 - up.place(rate(each)), f"{words(each.amount)}: {what}")
            for each, what in marked
        ),
        "; ".join(f"{what}: {words(each.amount)}" for each, what in marked),
    )


def _estimate(point: SweepPoint) -> Estimate:
    return Estimate(point.rate, point.flops / point.seconds[1], point.rate, 2, "1")
