"""Trials as a forest plot (speed-up with its interval, promise, memory), with the loss curves laid over each other."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from steptime.answer.page.axes import BOX, CurveChart, Shape, Tick, decades, labelled_curve
from steptime.quantities import Estimate, format_bytes, format_change, format_duration, format_samples
from steptime.report.trials import Curve, TrialReport, Tried
from steptime.report.verdict_words import speed_text, trial_headline, tried_word
from steptime.trials.trial import BASELINE, BATCH

MOST_ROWS = 60
MOST_CURVES = 8
"""Curves of variants; the band of the baselines comes next to them."""
_RATIOS = (0.05, 0.1, 0.2, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0)
_ROOM = 8.0
"""Percent between ticks."""
_SIZE = re.compile(f"^{BATCH}([0-9]+)$")
_KEPT = {True: "kept", False: "broken", None: "not known"}
_SAME = {True: "same", False: "different", None: "not known"}
"""For somebody's candidate, which promised nothing: whether it is the same training."""
TITLES = {"try": "Tried fixes", "judge": "Judged changes", "lab": "Lab runs"}
ITEMS = {"try": "fix", "judge": "candidate", "lab": "variant"}


@dataclass(frozen=True, slots=True)
class ForestRow:
    """Row of the forest plot: one variant. point, low, high, predicted: places in the plot, percent from the left, None
    if unknown. outcome: class of its colour, "adopted", "worse" or "open". noise_low, noise_high: range in which the
    unchanged job itself varies, percent from the left."""

    label: str
    code: str
    stage: str
    verdict: str
    sentence: str
    outcome: str
    speed: str
    point: float | None
    low: float
    high: float
    predicted: float | None
    predicted_words: str
    promise: str
    kept: str
    memory: str
    step: str
    words: str
    noise_low: float
    noise_high: float


@dataclass(frozen=True, slots=True)
class Curves:
    """Chart of the variants' losses. band: outline from the lowest to the highest loss of the baselines, "" for a
    single one. lines: losses of the variants. hidden: number of variants without a line."""

    band: str
    base: str
    lines: tuple[Shape, ...]
    ticks: tuple[Tick, ...]
    steps: int
    hidden: int


@dataclass(frozen=True, slots=True)
class ForestPlot:
    """Forest plot of a trial: the speed-up of each variant with its interval. one: place of the ratio 1, percent from
    the left. headline: result of the trial. kind: "try", "judge" or "lab"; title, item: names of the trial and of one
    row. drawn: True if any row has a place on the axis."""

    headline: str
    kind: str
    title: str
    item: str
    drawn: bool
    rows: tuple[ForestRow, ...]
    ticks: tuple[Tick, ...]
    one: float
    curves: Curves | None
    sizes: CurveChart | None
    summary: str
    diff: str
    hidden: int


def forest(trials: TrialReport | None, own_size: int | None = None, recorded: float | None = None) -> ForestPlot | None:
    """Forest plot of a trial, or None. own_size: the job's batch size; recorded: its step in the recording, ns."""
    if trials is None or not trials.variants:
        return None
    rates, step = _rates(trials, own_size), trials.step_ns
    rows = [each for each in trials.variants  # a larger batch's longer step says nothing: it is in the curve
            if not rates or each.speed is None or not _SIZE.match(each.name)]  # fmt: skip
    axis, displayed = _Axis(rows), rows[:MOST_ROWS]
    base = f"Unchanged step: {format_duration(step)}" if step is not None else "The unchanged job was not timed"
    if step is None and any(each.speed is not None for each in trials.variants):
        base = "Compared by the requested metric, not by step time"
    if step is not None and recorded:
        base += f", timed in turns with the variants ({format_duration(recorded)} in the recording)"
    peak = f", peak memory {format_bytes(trials.peak_bytes)}" if trials.peak_bytes else ""
    others = [each for each in rows if not rates or not _SIZE.match(each.name)]
    reported = [trial_headline(trials, others)] if others else []
    return ForestPlot(
        headline=" ".join([*_best_size(rates), *reported]),
        kind=trials.kind,
        title=TITLES[trials.kind],
        item=ITEMS[trials.kind],
        drawn=any(each.speed is not None or each.predicted is not None for each in displayed),
        rows=tuple(_row(variant, trials, axis) for variant in displayed),
        ticks=axis.ticks,
        one=axis.place(1.0),
        curves=_curves(trials.curves),
        sizes=_sizes(rates),
        summary=f"{base}{peak} ({trials.processes} processes, {format_duration(trials.seconds * 1e9)}).",
        diff=trials.diff,
        hidden=len(rows) - len(displayed),
    )


class _Axis:
    """Speed-ups on a logarithmic axis: twice as fast is as far from 1 as twice as slow."""

    def __init__(self, variants: Sequence[Tried]) -> None:
        known = [variant.speed for variant in variants if variant.speed is not None]
        ratios = [1.0, *(each for speed in known for each in (speed.low, speed.high))]
        ratios += [variant.predicted.value for variant in variants if variant.predicted is not None]
        ratios = [ratio for ratio in ratios if ratio > 0]
        self._low = math.log(min(*ratios, 0.9) * 0.97)
        self._high = math.log(max(*ratios, 1.1) * 1.03)
        inside = [ratio for ratio in _RATIOS if self._low <= math.log(ratio) <= self._high]
        self.ticks = tuple(self._apart(inside))

    def _apart(self, ratios: Sequence[float]) -> Iterator[Tick]:
        """Ticks with room between them; 1 always has it."""
        taken = [self.place(1.0)]
        for ratio in sorted(ratios, key=lambda ratio: abs(math.log(ratio)), reverse=True):
            place = self.place(ratio)
            if ratio == 1 or all(abs(place - other) >= _ROOM for other in taken):
                taken.append(place)
                yield Tick(place, f"{ratio:g}×")

    def place(self, ratio: float) -> float:
        """Percent from the left."""
        at = 100 * (math.log(max(ratio, 1e-3)) - self._low) / (self._high - self._low)
        return min(max(at, 0.0), 100.0)


def _row(variant: Tried, trials: TrialReport, axis: _Axis) -> ForestRow:
    speed, predicted = variant.speed, variant.predicted
    reported = speed_text(speed, variant.of_run) or "–"
    memory = format_bytes(variant.peak_bytes) if variant.peak_bytes else ""
    if variant.peak_bytes and trials.peak_bytes:
        memory += f" ({format_change(variant.peak_bytes / trials.peak_bytes - 1)})"
    beyond = speed is not None and (speed.low > 1 or speed.high < 1)
    worse = variant.kept is False or (beyond and speed is not None and speed.high < 1) or variant.verdict == "failed"
    return ForestRow(
        label=variant.label,
        code=variant.proposal,
        stage="the patch" if variant.name == "patch" else "together" if variant.stage and trials.kind == "try" else "",
        verdict=tried_word(variant, trials) if trials.kind == "judge" else variant.verdict,
        sentence=f"{variant.sentence.rstrip('. ')}." if variant.sentence else "",
        outcome="adopted" if variant.verdict == "adopt" else "worse" if worse else "open",
        speed=reported,
        point=axis.place(speed.value) if speed is not None else None,
        low=axis.place(speed.low) if speed is not None else 0.0,
        high=axis.place(speed.high) if speed is not None else 0.0,
        predicted=axis.place(predicted.value) if predicted is not None else None,
        predicted_words=f"{predicted.value:.2f}×" if predicted is not None else "",
        promise=variant.promise,
        kept=(_SAME if trials.kind == "judge" else _KEPT)[variant.kept],
        memory=memory,
        step=format_duration(variant.step_ns) if variant.step_ns is not None else "",
        words=f"{variant.label}: {reported}, {variant.verdict}, {variant.rounds} rounds. {variant.sentence}",
        noise_low=axis.place(1 / max(variant.noise or 1.0, 1.0)),
        noise_high=axis.place(max(variant.noise or 1.0, 1.0)),
    )


def _rates(trials: TrialReport, own_size: int | None) -> list[tuple[int, Estimate]]:
    """(batch size, items a second) of those that were timed, the job's own among them; fewer than two are none."""
    if trials.step_ns is None:
        return []
    speeds = {own_size: Estimate(1.0, 1.0, 1.0, 1, "1")} if own_size else {}
    speeds |= {int(size): each.speed for each in trials.variants if each.speed is not None
               for size in _SIZE.findall(each.name)}  # fmt: skip
    found = []
    for size, speed in sorted(speeds.items()):
        rate = size / trials.step_ns * 1e9
        found.append((size, replace(speed, value=speed.value * rate, low=speed.low * rate, high=speed.high * rate)))
    return found if len(found) > 1 else []


def _sizes(rates: Sequence[tuple[int, Estimate]]) -> CurveChart | None:
    if not rates:
        return None
    axis = decades([bound for _, each in rates for bound in (max(each.low, 1e-3), each.high)])
    sizes = [(f"{size:,}", each) for size, each in rates]
    return labelled_curve("items/s", "Items/s by batch size", sizes, axis, "{:,g}".format)


def _best_size(rates: Sequence[tuple[int, Estimate]]) -> list[str]:
    if not rates:
        return []
    size, rate = max(rates, key=lambda each: each[1].value)
    return [f"Highest at batch size {size:,}: {format_samples(rate.value)}."]


def _curves(curves: Sequence[Curve]) -> Curves | None:
    base = [curve for curve in curves if curve.name == BASELINE]
    variants = [curve for curve in curves if curve.name != BASELINE]
    values = [loss for curve in curves for loss in curve.losses if loss is not None and math.isfinite(loss)]
    steps = max((len(curve.losses) * curve.stride for curve in curves), default=0)
    if not values or steps < 2:
        return None
    plane = _Plane(min(values), max(values), steps)
    low = min(values)
    return Curves(
        band=_band(base, plane) if len(base) > 1 else "",
        base=plane.points(base[0]) if base else "",
        lines=tuple(Shape(curve.name, plane.points(curve)) for curve in variants[:MOST_CURVES]),
        ticks=tuple(Tick(plane.up(value), f"{value:.3g}") for value in (low, (low + max(values)) / 2, max(values))),
        steps=steps,
        hidden=max(len(variants) - MOST_CURVES, 0),
    )


@dataclass(frozen=True, slots=True)
class _Plane:
    low: float
    high: float
    steps: int

    def up(self, loss: float) -> float:
        """Percent from the bottom; all losses are between 4 and 96."""
        return 4 + 92 * (loss - self.low) / ((self.high - self.low) or 1.0)

    def point(self, step: float, loss: float) -> str:
        return f"{BOX * step / (self.steps - 1):.1f},{BOX * (1 - self.up(loss) / 100):.1f}"

    def points(self, curve: Curve) -> str:
        """Points with a finite loss."""
        return " ".join(
            self.point(min(at * curve.stride, self.steps - 1), loss)
            for at, loss in enumerate(curve.losses)
            if loss is not None and math.isfinite(loss)
        )


def _band(base: Sequence[Curve], plane: _Plane) -> str:
    """There along the lowest, back along the highest."""
    columns = list(zip(*(curve.losses for curve in base), strict=False))
    ends = [(at * base[0].stride, [loss for loss in column if loss is not None and math.isfinite(loss)])
            for at, column in enumerate(columns)]  # fmt: skip
    known = [(step, min(losses), max(losses)) for step, losses in ends if losses]
    there = [plane.point(step, low) for step, low, _ in known]
    back = [plane.point(step, high) for step, _, high in reversed(known)]
    return " ".join([*there, *back])
