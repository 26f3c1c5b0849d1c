"""Pictures of the live page: the minute by part, the step's course, ranks, machine. Places are in percent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from steptime.answer.page.axes import BOX, Tick, even_ticks
from steptime.live.view import RankView
from steptime.quantities import format_bytes, format_duration, format_share
from steptime.recording.recording import TelemetrySample

MINUTE = 60_000_000_000
"""Time that the machine's strips show, ns."""
GAP = MINUTE // 4
"""Samples farther apart than this (ns) are not joined: nothing is known of the time between them."""


@dataclass(frozen=True, slots=True)
class BarPiece:
    """Piece of a bar. start, width: percent of the row."""

    name: str
    tone: str
    start: float
    width: float
    time: str = ""
    share: str = ""


@dataclass(frozen=True, slots=True)
class StepCourse:
    """Chart of the mean step over the last minute. points: a polyline per interval with steps, in a square of BOX."""

    points: tuple[str, ...]
    up: tuple[Tick, ...]
    across: tuple[Tick, ...]


@dataclass(frozen=True, slots=True)
class RankBar:
    """Bar of one rank: its last minute by part, per step. note: what it does now, or who waits for it."""

    name: str
    pieces: tuple[BarPiece, ...]
    time: str
    rate: str
    memory: str
    note: str
    late: bool


@dataclass(frozen=True, slots=True)
class PercentStrip:
    """Strip of a percentage over the last minute. points: a polygon per interval with samples. now: newest value."""

    name: str
    points: tuple[str, ...]
    now: str


def pieces_of(rank: RankView, scale: float = 1.0) -> tuple[BarPiece, ...]:
    """Parts of the last minute, one after another; together as long as the whole. scale: fraction of the row."""
    found, start = [], 0.0
    parts = [(f"phase{number % 6}", part) for number, part in enumerate(rank.phases)]
    for tone, part in (*parts, *(("tone-sync", part) for part in rank.between)):
        width = 100 * part.share * scale
        found.append(BarPiece(part.name, tone, start, width, format_duration(part.total), format_share(part.share)))
        start += width
    return tuple(each for each in found if each.width)


def step_course(rank: RankView) -> StepCourse | None:
    """Staircase of the step time from 0; None if no step ended."""
    most = 1.1 * max(rank.curve, default=0.0)
    if not most:
        return None
    width, runs = BOX / len(rank.curve), list[list[str]]()
    for place, value in enumerate(rank.curve):
        if not value:
            continue
        if not place or not rank.curve[place - 1]:
            runs.append([])
        up = BOX * (1 - value / most)
        runs[-1] += [f"{place * width:.1f},{up:.1f}", f"{(place + 1) * width:.1f},{up:.1f}"]
    across = tuple(Tick(at, f"−{format_duration(rank.wall * (1 - at / 100))}") for at in (0.0, 50.0))
    return StepCourse(tuple(map(" ".join, runs)), even_ticks(most, 6), (*across, Tick(100.0, "now")))


def rank_rows(ranks: Sequence[RankView], waiting: float) -> tuple[tuple[RankBar, ...], tuple[Tick, ...]]:
    """Bars of several ranks: (rows, stragglers first; time axis). waiting: time lost to the straggler, ns per step."""
    times = [rank.wall / rank.steps for rank in ranks if rank.steps]
    if len(ranks) < 2 or not times:
        return (), ()
    longest = max(times)

    def row(rank: RankView) -> RankBar:
        mean = rank.wall / rank.steps if rank.steps else 0.0
        return RankBar(
            f"{rank.name} · {rank.host}" if len({each.host for each in ranks}) > 1 else rank.name,
            pieces_of(rank, mean / longest),
            f"{format_duration(mean)}/step" if mean else "",
            f"{rank.rate:,.0f} samples/s" if rank.rate is not None else "",
            format_bytes(rank.bytes) if rank.bytes is not None else "",
            rank.note(waiting),
            rank.late,
        )

    return tuple(map(row, sorted(ranks, key=lambda rank: not rank.late))), even_ticks(longest)


def strips_of(samples: Sequence[TelemetrySample]) -> tuple[PercentStrip, ...]:
    """Strip per device, then those of the CPUs; () without samples."""
    if not samples:
        return ()
    names = {device.name: device.index for sample in samples for device in sample.devices}
    found = [_strip(f"GPU {index} busy" if index is not None else name, samples, partial(_busy, name))
             for name, index in names.items()]  # fmt: skip
    if cpus := samples[-1].cpus:
        found.append(_strip(f"{cpus} CPUs, this job", samples, lambda sample: 100 * sample.job_cpu / cpus))
        found.append(_strip(f"{cpus} CPUs, others", samples, lambda sample: 100 * sample.other_cpu / cpus))
    return tuple(each for each in found if each.points)


def _busy(name: str, sample: TelemetrySample) -> float | None:
    return next((each.utilization for each in sample.devices if each.name == name), None)


def _strip(
    name: str, samples: Iterable[TelemetrySample], percent: Callable[[TelemetrySample], float | None]
) -> PercentStrip:
    known = [(each.monotonic_ns, min(value, 100.0)) for each in samples if (value := percent(each)) is not None]
    last, runs = known[-1][0] if known else 0, list[list[tuple[float, float]]]()
    for place, (time, value) in enumerate(known):
        if not place or time - known[place - 1][0] > GAP:
            runs.append([])
        runs[-1].append((BOX * (1 - (last - time) / MINUTE), value))
    points = tuple(
        " ".join((f"{each[0][0]:.1f},{BOX}", *(f"{x:.1f},{BOX * (1 - y / 100):.1f}" for x, y in each),
                  f"{each[-1][0]:.1f},{BOX}")) for each in runs
    )  # fmt: skip
    return PercentStrip(name, points, f"{known[-1][1]:.0f} %" if known else "")
